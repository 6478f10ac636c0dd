"""A consumer to look at, and requests as they are written."""

from __future__ import annotations

import pytest

pytest.importorskip("aiohttp", reason="the extra web has it")
pytest.importorskip("prometheus_client", reason="the extra web has it")
