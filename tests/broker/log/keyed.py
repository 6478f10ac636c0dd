"""Batches of keys and values, for compaction."""

from __future__ import annotations

from aiokafka_lite import records
from tests.broker.logs import T0

DAY_MS = 86_400_000


Row = tuple[bytes, bytes | None]


def keyed(
    *rows: Row, timestamp: int = T0, codec: str = "none", producer: int = -1, seq: int = -1
) -> bytes:
    """Build a batch of (key, value) pairs."""
    return records.build_batch(
        [
            (timestamp + number, key, value, (("h", b"1"),))
            for number, (key, value) in enumerate(rows)
        ],
        codec=codec,
        producer_id=producer,
        producer_epoch=-1 if producer < 0 else 0,
        base_sequence=seq,
    )
