"""Batches that producers send."""

from __future__ import annotations

import time

from aiokafka_lite import records

NOW = int(time.time() * 1000)


def batch(
    count: int = 1,
    *,
    timestamp: int = NOW,
    codec: str = "none",
    base_offset: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_control: bool = False,
) -> bytes:
    return records.build_batch(
        [(timestamp, b"key", b"value %d" % number, ()) for number in range(count)],
        codec=codec,
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        is_control=is_control,
    )
