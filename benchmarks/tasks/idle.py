"""Wait for records that do not come, with many partitions assigned."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from benchmarks.contestants.reader import open_reader
from benchmarks.measure import Measurement, Meter, RunError, Workload


async def measure(subject: str, workload: Workload) -> Measurement:
    """Measure how much of a core is used, once positions are known and fetches are under way."""
    async with open_reader(subject, workload) as reader:
        await reader.assign()
        came: list[int] = []

        def take(values: Sequence[bytes | None]) -> bool:
            came.append(len(values))
            return True

        reading = asyncio.ensure_future(reader.read(take))
        try:
            await asyncio.wait([reading], timeout=workload.settle_s)
            meter = Meter()
            await asyncio.wait([reading], timeout=workload.seconds)
            wall_s, cpu_s = meter.read()
            if reading.done():
                await reading
            if came:
                raise RunError(f"{sum(came)} records came: somebody writes to the topics")
        finally:
            reading.cancel()
            await asyncio.wait([reading])
    return Measurement(reader.version, {"cpu_percent": 100 * cpu_s / wall_s})
