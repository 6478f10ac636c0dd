"""Handle records for longer than a share group locks them."""

from __future__ import annotations

from typing import Final

from benchmarks.measure import Measurement, Workload
from benchmarks.share_groups import finished_records, new_group, repeats, sharer

LOCKS_A_HANDLER: Final = 3
"""How many times as long as the lock a handler takes."""
_LOOK_EVERY_S: Final = 0.1


async def measure(subject: str, workload: Workload) -> Measurement:
    """Count the records that handlers got again, all records being handled at the same time.

    It ends when the cluster knows that all are finished, or when they could have been so twice.
    """
    group = await new_group(workload, lock_s=workload.pause_s / LOCKS_A_HANDLER)
    async with (
        sharer(subject, "handle", workload, workload.records) as member,
        finished_records(workload, group, _LOOK_EVERY_S) as finished,
    ):
        member.start(group)
        await member.hear("first")
        await finished.reach(workload.records, 2 * workload.pause_s + workload.settle_s)
        await member.stop()
    figures = {
        "repeated": len(repeats(member.rows)),
        "unfinished": workload.records - finished.count,
    }
    return Measurement(member.version, figures, len(member.rows))
