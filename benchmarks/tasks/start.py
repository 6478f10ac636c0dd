"""Start consumers: how long each takes to its first record, and what one of very many weighs."""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
import uuid
from typing import Final

from benchmarks.contestants.starts import Stop, start_of, version_of
from benchmarks.measure import Measurement, Workload, cpu_seconds
from benchmarks.tasks.memory import resident_bytes

SETTLE_S: Final = 1.0
WARM_UP: Final = 2
_KIB: Final = 1024


async def measure(subject: str, workload: Workload) -> Measurement:
    """Measure `workload.passes` starts, one after another; each ends with its first record.

    The very first begins with the client's import, and is a figure of its own. With
    `workload.is_crowd` the consumers stay until the last has started: then memory is what the
    process grew by, divided by their number.
    """
    start = start_of(subject)

    async def timed_start() -> tuple[Stop, float, float]:
        group = f"bench-{uuid.uuid4().hex}" if workload.is_group else None
        began_s, cpu_before_s = time.perf_counter(), cpu_seconds()
        stop = await start(workload, group)
        return stop, time.perf_counter() - began_s, cpu_seconds() - cpu_before_s

    cold_s = 0.0
    for _ in range(WARM_UP):
        stop, first_s, _ = await timed_start()
        cold_s = cold_s or first_s
        await stop()
    resident = await _settled_bytes()
    stops: list[Stop] = []
    firsts_s: list[float] = []
    cpus_s: list[float] = []
    for _ in range(workload.passes):
        stop, first_s, cpu_s = await timed_start()
        firsts_s.append(first_s)
        cpus_s.append(cpu_s)
        if workload.is_crowd:
            stops.append(stop)
        else:
            await stop()
    figures = {
        "first_ms": 1e3 * statistics.median(firsts_s),
        "start_cpu_ms": 1e3 * statistics.fmean(cpus_s),
        "cold_ms": 1e3 * cold_s,
    }
    if workload.is_crowd:
        grown = await _settled_bytes() - resident
        figures["kib_each"] = grown / _KIB / workload.passes
        await asyncio.gather(*(stop() for stop in stops))
    return Measurement(version_of(subject), figures, workload.passes)


async def _settled_bytes() -> int:
    """Return the resident size when what was only needed to start is gone."""
    await asyncio.sleep(SETTLE_S)
    gc.collect()
    return resident_bytes()
