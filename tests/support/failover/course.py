"""A course: a writer, its readers, and a cluster that fails under them."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tests.support.cluster import unique
from tests.support.failover.audit import Log, read_log
from tests.support.failover.cluster import OFFSETS_TOPIC, FailingCluster, groups_together
from tests.support.failover.journal import Journal
from tests.support.failover.verdict import NS, Effect, Findings, Window, effect_on_writer, judge_all
from tests.support.real_kafka import RealKafka

ROOT: Final = Path(__file__).parents[3]
OFFSETS_PARTITIONS: Final = 8  # as real_kafka.py has it
RECOVER_S: Final = 90.0
STOP_S: Final = 30.0
LOOK_S: Final = 0.25


class CourseError(Exception):
    """The course itself failed: a process ended, or nothing flowed any more."""


class Companion:
    """A process that writes a journal; it ends with its standard input."""

    def __init__(self, name: str, home: Path, module: str, *arguments: str) -> None:
        self.name: Final = name
        path = home / f"{name}.journal"
        path.unlink(missing_ok=True)  # what an earlier course left
        self.journal: Final = Journal(path)
        self.log_path: Final = home / f"{name}.log"
        with self.log_path.open("wb") as log:
            self._process: Final = subprocess.Popen(
                [sys.executable, "-m", f"tests.support.failover.{module}", *arguments,
                 str(path)],
                stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT,
            )  # fmt: skip

    def check(self) -> None:
        """Raise CourseError if the process has ended."""
        if self._process.poll() is not None:
            tail = self.log_path.read_text(errors="replace")[-2000:]
            raise CourseError(f"{self.name} ended with {self._process.returncode}:\n{tail}")

    async def end(self) -> int:
        """Have it finish; returns its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            return await asyncio.to_thread(self._process.wait, STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return -1

    def kill(self) -> None:
        """End it now; idempotent."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came out of a course.

    Attributes:
        windows: The faults, in their order.
        writer: What each did to the writer, by name.
        findings: What each reader got, by name.
    """

    windows: Sequence[Window]
    writer: Mapping[str, Effect]
    findings: Mapping[str, Findings]

    def __str__(self) -> str:
        """Return a table: what each fault did to whom."""
        lines = []
        for window in self.windows:
            lines.append(f"{window.name} ({(window.end_ns - window.begin_ns) / NS:.1f} s)")
            effects = {"writer": self.writer[window.name]}
            effects |= {name: each.effects[window.name] for name, each in self.findings.items()}
            lines += [
                f"  {name:10} silent {effect.silence_s:5.2f} s, a partition "
                f"{effect.partition_silence_s:5.2f} s, late {effect.late_s:5.2f} s, "
                f"age p99 {effect.age_p99_s:5.2f} s"
                for name, effect in effects.items()
            ]
        lines += [
            f"{name}: {each.records} records, {each.lost} lost, {each.repeated} repeated, "
            f"{each.disordered} out of order, {each.unknown} unknown, {each.rebalances} "
            f"rebalances, {len(each.failures)} errors"
            for name, each in self.findings.items()
        ]
        return "\n".join(lines)


@dataclass
class Course:
    """A course under way; `running` makes one."""

    cluster: FailingCluster
    topic: str
    groups: Mapping[str, str]
    partitions: int
    writer: Companion
    readers: Sequence[Companion]
    home: Path
    required: Sequence[str]
    windows: list[Window] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def fault(self, name: str) -> AsyncIterator[None]:
        """Look for the effects of what is done inside; ends when records flow everywhere again."""
        begin_ns = time.monotonic_ns()
        yield
        await self.flows()
        self.windows.append(Window(name, begin_ns, time.monotonic_ns()))

    async def flows(self) -> None:
        """Wait until each reader got a record of each partition that was sent after this call.

        Whoever is not required may fail to: then its silence is as long as that of the wait.

        Raises:
            CourseError: One that is required did not, or a process has ended.
        """
        since_ns = time.monotonic_ns()
        deadline = time.monotonic() + RECOVER_S
        waiting = list(self.readers)
        while waiting := [each for each in waiting if not self._got_since(each, since_ns)]:
            self.writer.check()
            for reader in self.readers:
                reader.check()
            if time.monotonic() > deadline:
                missed = {each.name for each in waiting}.intersection(self.required)
                if missed:
                    raise CourseError(f"{sorted(missed)} did not get on in {RECOVER_S:g} s")
                return
            await asyncio.sleep(LOOK_S)

    def _got_since(self, reader: Companion, since_ns: int) -> bool:
        reader.journal.read_on()
        fresh = set()
        for record in reversed(reader.journal.received):
            if record.at_ns < since_ns:
                break
            if record.sent_ns >= since_ns:
                fresh.add(record.partition)
        return len(fresh) == self.partitions

    async def kill(self, name: str, node_id: int, *, down_s: float) -> None:
        """Kill a broker, start it again after a while, and wait until it has caught up."""
        async with self.fault(name):
            began = time.monotonic()
            await self.cluster.stop(node_id)
            await self.flows()
            await asyncio.sleep(max(0.0, began + down_s - time.monotonic()))
            await self.cluster.start(node_id)
            await self.heal()

    async def heal(self) -> None:
        """Wait until all replicas are in sync."""
        await self.cluster.whole(self.topic, OFFSETS_TOPIC)

    async def coordinator(self) -> int:
        """Return the broker that coordinates all groups."""
        return await self.cluster.coordinator(next(iter(self.groups.values())))

    async def finish(self) -> Outcome:
        """Stop writing, wait until the readers have everything, and judge."""
        if await self.writer.end() != 0:
            raise CourseError("the writer: " + self.writer.log_path.read_text()[-2000:])
        self.writer.journal.read_on()
        log = await asyncio.to_thread(
            read_log, self.cluster.bootstrap_servers, self.topic, self.partitions
        )
        deadline = time.monotonic() + STOP_S  # what has not come by then is lost
        while time.monotonic() < deadline:
            if all(self._has(reader, log) for reader in self.readers):
                break
            await asyncio.sleep(LOOK_S)
        for reader in self.readers:
            reader.journal.read_on()
            told = list(reader.journal.rebalances)  # giving all back at the end is none
            await reader.end()
            reader.journal.read_on()
            reader.journal.rebalances[:] = told
        return Outcome(
            self.windows,
            {each.name: effect_on_writer(self.writer.journal, each) for each in self.windows},
            judge_all(
                self.writer.journal,
                {each.name: each.journal for each in self.readers},
                self.windows,
                log,
            ),
        )

    @staticmethod
    def _has(reader: Companion, log: Log) -> bool:
        reader.journal.read_on()
        if len(reader.journal.received) < len(log):
            return False
        return log.keys() <= {(each.partition, each.offset) for each in reader.journal.received}


@contextlib.asynccontextmanager
async def running(
    kafka: RealKafka,
    readers: Sequence[str],
    *,
    required: Sequence[str] | None = None,
    rate: float = 1000,
    partitions: int = 6,
    home: Path | None = None,
) -> AsyncIterator[Course]:
    """Have records written and read until the `async with` is left.

    Args:
        kafka: Three brokers that are up.
        readers: Names out of `reader.READERS`.
        required: The readers that have to recover from every fault; all by default.
        rate: Records a second, over all partitions in turn.
        partitions: Of the topic.
        home: Where journals and logs are kept; a temporary folder by default.
    """
    cluster = FailingCluster(kafka)
    topic = unique("failover")
    groups = groups_together(readers, OFFSETS_PARTITIONS)
    with contextlib.ExitStack() as stack:
        if home is None:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="failover-")))
        await cluster.create(topic, partitions)
        for group in groups.values():
            await cluster.coordinator(group)
        address = cluster.bootstrap_servers
        writer = Companion("writer", home, "writer", address, topic, str(partitions), str(rate))
        stack.callback(writer.kill)
        companions = []
        for name in readers:
            reader = Companion(name, home, "reader", name, address, topic, groups[name])
            stack.callback(reader.kill)
            companions.append(reader)
        course = Course(
            cluster, topic, MappingProxyType(groups), partitions, writer, companions, home,
            readers if required is None else required,
        )  # fmt: skip
        await course.flows()
        await course.heal()
        yield course
