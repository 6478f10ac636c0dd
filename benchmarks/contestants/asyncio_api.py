"""The loops of the asyncio consumers: the very same code reads from aiokafka_lite and aiokafka.

No record of these topics lacks a key or a value, and looking for None would cost time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from benchmarks.measure import WAIT_S, Measurement, Meter, StarvedError, Workload

WAIT_MS = int(WAIT_S * 1000)


class Record(Protocol):
    """What the loops touch of a record."""

    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...


Partition = TypeVar("Partition")
RecordT = TypeVar("RecordT", bound=Record)


async def read_batches(
    get: Callable[[], Awaitable[Mapping[Partition, Sequence[RecordT]]]],
    assign: Callable[[], None],
    workload: Workload,
    version: str,
) -> Measurement:
    """Read with a method that gives many records at a time."""
    records = touched_bytes = 0
    meter = Meter()
    assign()
    while records < workload.records:
        batches = await get()
        if not batches:
            raise StarvedError(f"nothing after {records} records")
        for batch in batches.values():
            records += len(batch)
            for record in batch:
                touched_bytes += len(record.key) + len(record.value)  # type: ignore[arg-type]
    return meter.stop(records, touched_bytes, version)


async def read_one_by_one(
    consumer: AsyncIterable[RecordT],
    assign: Callable[[], None],
    workload: Workload,
    version: str,
) -> Measurement:
    """Read with `async for`."""

    async def iterate() -> tuple[int, int]:
        records = touched_bytes = 0
        async for record in consumer:
            touched_bytes += len(record.key) + len(record.value)  # type: ignore[arg-type]
            records += 1
            if records == workload.records:
                break
        return records, touched_bytes

    meter = Meter()
    assign()
    records, touched_bytes = await asyncio.wait_for(iterate(), timeout=4 * WAIT_S)
    return meter.stop(records, touched_bytes, version)
