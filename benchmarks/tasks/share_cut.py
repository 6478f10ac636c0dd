"""Cut the connections of a share group's member while its handlers run."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from benchmarks.contestants.sharing import ACCEPTED, LOST
from benchmarks.measure import Measurement, RunError, StarvedError, Workload
from benchmarks.share_groups import new_group, repeats, sharer, unreported
from tests.support.child_sockets import cut_connections

CONCURRENCY: Final = 500
CUT_AFTER: Final = 0.6
"""Of a handler's time, from the first record on: all handlers run."""


async def measure(subject: str, workload: Workload) -> Measurement:
    """Measure from the cut to the next record whose lock lasts, and what was told of the others.

    The broker releases what the member had locked, so all of that comes again.
    """
    group = await new_group(workload)
    async with sharer(subject, "handle", workload, CONCURRENCY) as member:
        member.start(group)
        await member.hear("first")
        await asyncio.sleep(workload.pause_s * CUT_AFTER)
        cut_ns = time.monotonic_ns()
        if not cut_connections(member.pid):
            raise RunError("the member has no connections")
        await asyncio.sleep(3 * workload.pause_s)
        await member.stop()
    running = sum(row.began < cut_ns < row.ended for row in member.rows)
    if running < CONCURRENCY * CUT_AFTER:
        raise RunError(f"at the cut {running} handlers ran")
    found = repeats(member.rows)
    doomed = {id(row) for row, _ in found}
    back_ns = [
        row.began - cut_ns
        for row in member.rows
        if row.began > cut_ns and row.fate != LOST and id(row) not in doomed
    ]
    if not back_ns:
        raise StarvedError("no record came after the cut")
    figures = {
        "back_ms": min(back_ns) / 1e6,
        "claimed": sum(row.fate == ACCEPTED for row, _ in found),
        "unreported": unreported(found),
        "repeated": len(found),
    }
    return Measurement(member.version, figures, len(member.rows))
