"""The broker's status page: `page.py` serves it, `views.py` says what is on it."""

from __future__ import annotations

from aiokafka_lite.cli.status.page import StatusPage

__all__ = ["StatusPage"]
