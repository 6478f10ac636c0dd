"""Read a topic by one member of a share group, which accepts what it has read with the next read.

The clock starts when it has its first records and stops when it has read as many as there are.
"""

from __future__ import annotations

from benchmarks.measure import Measurement, Workload
from benchmarks.share_groups import new_group, sharer


async def measure(subject: str, workload: Workload) -> Measurement:
    """Measure CPU and wall time a record."""
    group = await new_group(workload)
    async with sharer(subject, "drain", workload, expected=workload.records) as member:
        member.start(group)
        begin_ns, cpu_before_ns, before = await member.hear("first")
        end_ns, cpu_ns, count = await member.hear("done")
        await member.stop()
    records = count - before
    figures = {
        "cpu_ns": (cpu_ns - cpu_before_ns) / records,
        "wall_ns": (end_ns - begin_ns) / records,
    }
    return Measurement(member.version, figures, records)
