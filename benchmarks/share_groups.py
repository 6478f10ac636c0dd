"""Members of share groups in processes of their own, and what of their deliveries is judged."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from aiokafka_lite.errors import KafkaError
from benchmarks.contestants.sharing import LOST, Row
from benchmarks.measure import RunError, Workload
from benchmarks.tasks.rebalance import Member
from tests.support.real_kafka import java_command, kafka_libs
from tests.support.share_groups import (
    FinishedRecords,
    configure_share_group,
    initialize_share_group,
    log_ends,
)
from tests.support.wire import RawClient

JAVA_SOURCE: Final = Path(__file__).parent / "contestants" / "java" / "Sharing.java"
_REPORT_BYTES: Final = 1 << 28


async def new_group(workload: Workload, *, lock_s: float | None = None, joined: bool = True) -> str:
    """Return a group for the workload's topic.

    Unless told otherwise, a member has joined it and left: a group's first second passes until its
    partitions have been initialised, which is measured by itself.

    Raises:
        RunError: The cluster refused its settings, or gave it no partitions.
    """
    group = f"bench-share-{uuid.uuid4().hex[:12]}"
    settings: dict[str, str] = {"auto.offset.reset": workload.start}
    if lock_s is not None:
        settings["record.lock.duration.ms"] = str(round(lock_s * 1000))
    try:
        await configure_share_group(workload.bootstrap_servers, group, settings)
        if joined:
            await initialize_share_group(workload.bootstrap_servers, group, workload.topics)
    except (KafkaError, OSError, TimeoutError) as error:
        raise RunError(str(error)) from error
    return group


class Sharer:
    """The process of a member: see `benchmarks.contestants.sharing`.

    Attributes:
        pid: Its process's id.
        version: Its client's.
        rows: Its deliveries, once it has ended.
    """

    def __init__(self, member: Member, pid: int, version: str) -> None:
        self._member: Final = member
        self.pid: Final = pid
        self.version: Final = version
        self.rows: list[Row] = []

    def start(self, group: str) -> None:
        """Have it join a group."""
        self._member.tell(group)

    async def hear(self, word: str) -> tuple[int, int, int]:
        """Return the time, the CPU time (both in nanoseconds) and the count of its next line.

        Raises:
            RunError: It is another line.
        """
        found, *figures = (await self._member.hear()).split()
        if found != word:
            raise RunError(f"a member said {found!r} instead of {word!r}")
        time_ns, cpu_ns, count = map(int, figures)
        return time_ns, cpu_ns, count

    async def stop(self) -> None:
        """Have it leave, and take its rows."""
        self._member.tell("stop")
        while (line := await self._member.hear()) != "end":
            words = line.split()
            if words[0] == "row":
                self.rows.append(Row(*map(int, words[1:])))


@asynccontextmanager
async def sharer(
    subject: str, way: str, workload: Workload, concurrency: int = 1, expected: int = 0
) -> AsyncIterator[Sharer]:
    """Have the process of a member, which has not joined yet, until the block ends."""
    (topic,) = workload.topics
    pause_ms = round(workload.pause_s * 1000)
    orders = (workload.bootstrap_servers, topic, *map(str, (concurrency, pause_ms, expected)))
    if subject == "java":
        command = [java_command(), "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
                   "-cp", f"{kafka_libs()}/*", str(JAVA_SOURCE), way]  # fmt: skip
    else:
        command = [sys.executable, "-m", "benchmarks.contestants.sharing", subject, way]
    async with AsyncExitStack() as stack:
        log = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 -- the stack closes it
        process = await asyncio.create_subprocess_exec(
            *command, *orders,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, limit=_REPORT_BYTES,
        )  # fmt: skip
        member = Member(process, log, workload.wait_s)
        stack.push_async_callback(member.kill)
        _, version = (await member.hear()).split()
        yield Sharer(member, process.pid, version)


@asynccontextmanager
async def finished_records(
    workload: Workload, group: str, every_s: float
) -> AsyncIterator[FinishedRecords]:
    """Have a group's finished records watched until the block ends.

    Raises:
        RunError: They could not be watched.
    """
    (topic,) = workload.topics
    async with RawClient(workload.bootstrap_servers) as client:

        async def end() -> int:
            return await log_ends(client, topic, workload.partition_count)

        finished = FinishedRecords(workload.bootstrap_servers, group, every_s, end)
        watching = asyncio.ensure_future(finished.watch())
        try:
            yield finished
        finally:
            watching.cancel()
            await asyncio.wait([watching])
        if not watching.cancelled() and (error := watching.exception()) is not None:
            raise RunError(f"the group's lag cannot be watched: {error!r}") from error


# --- What is judged ------------------------------------------------------------------------------
def release_delays_ns(
    finished: FinishedRecords, rows: Sequence[Row], begin_ns: int, end_ns: int
) -> list[int]:
    """Return, sorted, how long after handlers' ends the cluster knew it, for ends within a time.

    Records are not told apart: the n-th end is known when the cluster has n finished records. It
    counts those before the group's first ones, too.
    """
    firsts: dict[int, int] = {}
    for row in rows:
        firsts[row.partition] = min(row.offset, firsts.get(row.partition, row.offset))
    moves = iter(finished.seen)
    known_ns, count = next(moves, (0, sys.maxsize))
    delays = []
    for number, ended_ns in enumerate(sorted(row.ended for row in rows), 1 + sum(firsts.values())):
        while count < number:
            known_ns, count = next(moves, (0, sys.maxsize))
        if not known_ns:
            break
        if begin_ns <= ended_ns <= end_ns:
            delays.append(known_ns - ended_ns)
    return sorted(delays)


def repeats(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Return each delivery after which the same record came once more, and that next delivery."""
    latest: dict[tuple[int, int], Row] = {}
    found = []
    for row in sorted(rows, key=lambda row: (row.began or sys.maxsize, row.delivery_count)):
        place = row.partition, row.offset
        if place in latest:
            found.append((latest[place], row))
        latest[place] = row
    return found


def unreported(found: Sequence[tuple[Row, Row]]) -> int:
    """Return of how many repeated records the client did not report that the lock was lost."""
    return sum(row.fate != LOST for row, _ in found)
