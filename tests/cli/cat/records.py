"""Records to be shown."""

from __future__ import annotations

from aiokafka_lite.cli.reading import Record
from aiokafka_lite.structs import ConsumerRecord

AT_MS = 1_752_746_400_123


def record(
    value: bytes | None, key: bytes | None = None, headers: list[tuple[str, bytes]] | None = None
) -> Record:
    return ConsumerRecord("t", 1, 7, AT_MS, 0, key, value, None, -1, -1, headers or [])
