"""The asyncio consumer for Apache Kafka, with an embedded broker for tests."""

from __future__ import annotations

__version__ = "0.1.0"
