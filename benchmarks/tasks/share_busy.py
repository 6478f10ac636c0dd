"""Keep the handlers of one member of a share group busy, more records than they can take waiting.

What it gets by its connections is counted by the kernel, and when the cluster knows of a finished
record is asked of the cluster: both are the same for every client.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from benchmarks.measure import Measurement, StarvedError, Workload, percentile
from benchmarks.share_groups import finished_records, new_group, release_delays_ns, sharer
from benchmarks.topics import KEY_BYTES
from tests.support.child_sockets import received_bytes

CONCURRENCY: Final = 64
VALUE_BYTES: Final = 100
_LOOK_EVERY_S: Final = 0.01


async def measure(subject: str, workload: Workload) -> Measurement:
    """Measure how busy handlers are, what is fetched for it, and how late records are released."""
    group = await new_group(workload)
    async with (
        sharer(subject, "handle", workload, CONCURRENCY) as member,
        finished_records(workload, group, _LOOK_EVERY_S) as finished,
    ):
        member.start(group)
        await member.hear("first")
        await asyncio.sleep(workload.settle_s)
        begin_ns, before = time.monotonic_ns(), received_bytes(member.pid)
        await asyncio.sleep(workload.seconds)
        end_ns, received = time.monotonic_ns(), received_bytes(member.pid) - before
        await member.stop()
    busy_ns = sum(
        max(0, min(row.ended or end_ns, end_ns) - max(row.began, begin_ns)) for row in member.rows
    )
    count = sum(begin_ns <= row.began < end_ns for row in member.rows)
    delays_ns = release_delays_ns(finished, member.rows, begin_ns, end_ns)
    if not delays_ns:
        raise StarvedError(f"of {count} records the cluster knew no end")
    # A handler ends late on a loaded machine: what counts is the work that it is there for.
    busy_ns = min(busy_ns, int(count * workload.pause_s * 1e9))
    figures = {
        "idle_percent": 100 * (1 - busy_ns / (CONCURRENCY * (end_ns - begin_ns))),
        "times_bytes": received / (count * (KEY_BYTES + VALUE_BYTES)),
        "ack_p50_ms": percentile(delays_ns, 50) / 1e6,
        "ack_p99_ms": percentile(delays_ns, 99) / 1e6,
    }
    return Measurement(member.version, figures, count)
