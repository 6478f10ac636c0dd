"""Where folders are kept that this package makes for Spark."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path


def cached_folder(environment: Mapping[str, str], kind: str, content: str) -> Path:
    """Return the folder of this content, which need not exist yet: other content, another folder.

    It is in the user's cache; XDG_CACHE_HOME says where that is.
    """
    base = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "~"), ".cache")
    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    return Path(base).expanduser() / "aiokafka-lite" / f"{kind}-{digest}"
