"""Handle records of a share group that come now and then: when does the cluster know their end?"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from benchmarks.measure import Measurement, StarvedError, Workload, percentile
from benchmarks.share_groups import finished_records, new_group, release_delays_ns, sharer

CONCURRENCY: Final = 64
_LOOK_EVERY_S: Final = 0.003


async def measure(subject: str, workload: Workload) -> Measurement:
    """Measure from a handler's end to when the cluster knows of it."""
    group = await new_group(workload)
    async with (
        sharer(subject, "handle", workload, CONCURRENCY) as member,
        finished_records(workload, group, _LOOK_EVERY_S) as finished,
    ):
        member.start(group)
        await member.hear("first")
        await asyncio.sleep(workload.settle_s)
        begin_ns = time.monotonic_ns()
        await asyncio.sleep(workload.seconds)
        end_ns = time.monotonic_ns()
        await asyncio.sleep(workload.settle_s)
        await member.stop()
    delays_ns = release_delays_ns(finished, member.rows, begin_ns, end_ns)
    if not delays_ns:
        raise StarvedError("the cluster knew of no record's end")
    figures = {
        "ack_p50_ms": percentile(delays_ns, 50) / 1e6,
        "ack_p99_ms": percentile(delays_ns, 99) / 1e6,
    }
    return Measurement(member.version, figures, len(delays_ns))
