"""Read as fast as can be, with a task beside it that wants to run every millisecond.

How late it runs is wall time, and counts what else the machine does. On asyncio's own loop the CPU
time of each round of the loop is measured too. The ticker starts when another consumer of the kind
has warmed the process up; the longest round is looked for from the beginning, as starting holds the
loop as well.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from benchmarks.contestants.reader import open_reader
from benchmarks.measure import Measurement, Workload, percentile
from benchmarks.slice_loop import SliceLoop
from benchmarks.tasks.bulk import WARM_UP_RECORDS

TICK_S: Final = 0.001


async def measure(subject: str, workload: Workload) -> Measurement:
    """Measure how late the ticker is, and the longest round of the loop."""
    loop = asyncio.get_running_loop()
    late_s: list[float] = []
    async with open_reader(subject, workload) as reader:
        if isinstance(loop, SliceLoop):
            loop.longest_slice_ns = 0
        await reader.assign()
        await reader.drain(min(workload.records, WARM_UP_RECORDS))
    async with open_reader(subject, workload) as reader:
        ticking = loop.create_task(_tick(late_s))
        await reader.assign()
        drained = await reader.drain(workload.records)
        ticking.cancel()
    late_ms = [each * 1e3 for each in sorted(late_s)]
    figures = {
        "late_p50_ms": percentile(late_ms, 50),
        "late_p99_ms": percentile(late_ms, 99),
        "late_max_ms": late_ms[-1],
    }
    if isinstance(loop, SliceLoop):
        figures["slice_ms"] = loop.longest_slice_ns / 1e6
    return Measurement(reader.version, figures, drained.records, drained.touched_bytes)


async def _tick(late_s: list[float]) -> None:
    """Note how late each tick is, also of those that were missed while the loop was held."""
    due = time.perf_counter() + TICK_S
    while True:
        await asyncio.sleep(due - time.perf_counter())
        now = time.perf_counter()
        while due <= now:
            late_s.append(now - due)
            due += TICK_S
