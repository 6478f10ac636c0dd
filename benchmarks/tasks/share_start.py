"""Take the first record of a share group that is new, and then by one more member of it."""

from __future__ import annotations

import asyncio
import statistics
from contextlib import AsyncExitStack
from typing import Final

from benchmarks.measure import Measurement, Workload
from benchmarks.share_groups import Sharer, new_group, sharer

MEMBERS: Final = 2


async def measure(subject: str, workload: Workload) -> Measurement:
    """Measure from the making of a consumer to its first record, in `workload.passes` new groups.

    The first member keeps its records while the second one joins. What it keeps is less than what
    may be locked of the partition. The second one joins when the group has settled: brokers assign
    a group's partitions at most once a second.
    """
    firsts_ms: list[tuple[float, float]] = []
    version = ""
    for _ in range(workload.passes):
        group = await new_group(workload, joined=False)
        async with AsyncExitStack() as stack:
            members = [
                await stack.enter_async_context(sharer(subject, "take", workload))
                for _ in range(MEMBERS)
            ]
            first, second = members
            new_ms = await _first_ms(first, group)
            await asyncio.sleep(workload.settle_s)
            firsts_ms.append((new_ms, await _first_ms(second, group)))
            for member in members:
                await member.stop()
            version = members[0].version
    figures = {
        name: statistics.median(found)
        for name, found in zip(("new_ms", "joined_ms"), zip(*firsts_ms, strict=True), strict=True)
    }
    return Measurement(version, figures, workload.passes)


async def _first_ms(member: Sharer, group: str) -> float:
    member.start(group)
    made_ns, _, _ = await member.hear("making")
    first_ns, _, _ = await member.hear("first")
    return (first_ns - made_ns) / 1e6
