"""Read records with an application that is slower than Kafka, and look at the memory."""

from __future__ import annotations

import asyncio
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.contestants.reader import open_reader
from benchmarks.measure import Measurement, StarvedError, Workload

STEP_S: Final = 0.1
_MIB: Final = 1024 * 1024


async def measure(subject: str, workload: Workload) -> Measurement:
    """Measure the largest resident size, and by how much it grows once buffers are full.

    Growth is from the mean of the second quarter to that of the last.
    """
    resident_mib: list[float] = []
    records = 0

    def take(values: Sequence[bytes | None]) -> bool:
        nonlocal records
        records += len(values)
        return True

    async with open_reader(subject, workload) as reader:
        await reader.assign()
        reading = asyncio.ensure_future(reader.read(take, workload.pause_s))
        try:
            for _ in range(int(workload.seconds / STEP_S)):
                await asyncio.wait([reading], timeout=STEP_S)
                if reading.done():
                    await reading
                resident_mib.append(resident_bytes() / _MIB)
        finally:
            reading.cancel()
            await asyncio.wait([reading])
    if not records:
        raise StarvedError("no record came")
    quarter = len(resident_mib) // 4
    before = statistics.fmean(resident_mib[quarter : 2 * quarter])
    after = statistics.fmean(resident_mib[-quarter:])
    figures = {"rss_mib": max(resident_mib), "growth_percent": 100 * (after / before - 1)}
    series = {"rss_mib": [round(each, 1) for each in resident_mib]}
    return Measurement(reader.version, figures, records, series=series)


def resident_bytes() -> int:
    """Return how much memory this process has at present (Linux)."""
    _, resident_pages, *_ = Path("/proc/self/statm").read_text().split()
    return int(resident_pages) * os.sysconf("SC_PAGE_SIZE")
