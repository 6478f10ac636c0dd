"""Replace the members of a group one after another, while records come at a steady pace.

Each member is a process of its own, started beforehand: neither Python's start nor an import is
part of a rebalance. This process writes the records meanwhile, by librdkafka.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from asyncio.subprocess import Process
from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import IO, Final

from confluent_kafka import KafkaError, Message, Producer

from aiokafka_lite._compat import Self
from benchmarks.contestants.members import STAMP
from benchmarks.loading import QUIET, count_records, written_topic
from benchmarks.measure import Measurement, RunError, Workload
from benchmarks.replacements import Report, Window, judge
from benchmarks.topics import Topic

MEMBER_COUNT: Final = 4
PARTITION_COUNT: Final = 24
RATE: Final = 2000
_TICK_S: Final = 0.004
_FLUSH_S: Final = 30.0
_LINGER_MS: Final = 2
# Nothing comes any more if nothing came for so long.
_QUIET_S: Final = 1.0
_REPORT_BYTES: Final = 1 << 28


async def measure(subject: str, workload: Workload) -> Measurement:
    """Measure what comes twice or never, and how long partitions are silent.

    `workload.passes` members are replaced: a new one starts, gets its first record and has
    `workload.settle_s` to settle; then the oldest one stops, and the others have the same time.
    """
    with written_topic(workload.bootstrap_servers, Topic(partition_count=PARTITION_COUNT)) as topic:
        group = f"bench-{uuid.uuid4().hex}"
        async with AsyncExitStack() as stack:
            members = []
            for _ in range(MEMBER_COUNT + workload.passes):
                log = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 -- the stack closes it
                arguments = (subject, workload.bootstrap_servers, topic.name, group)
                member = Member(await begin(arguments, log), log, workload.wait_s)
                stack.push_async_callback(member.kill)
                members.append(member)
            for member in members:
                await member.hear("ready")
            with Writer(workload.bootstrap_servers, topic) as writer:
                window = await _replace(members, workload)
            count = count_records(workload.bootstrap_servers, topic)
            if count != writer.count:
                raise RunError(f"wrote {writer.count} records, and the topic has {count}")
            await _wait_for_all(members, count, workload.wait_s)
            for member in members[workload.passes :]:
                await member.stop()
            reports = [Report.from_json(member.report) for member in members]
    figures = judge(reports, range(MEMBER_COUNT, len(members)), count, window)
    for error in {error for report in reports for error in report.errors}:
        print(f"{subject}: {error}", file=sys.stderr)
    return Measurement(reports[0].version, figures, count)


async def _replace(members: Sequence[Member], workload: Workload) -> Window:
    """Start the first members, replace them, and return from when to when that was done."""
    group, joiners = members[:MEMBER_COUNT], members[MEMBER_COUNT:]
    for member in group:
        member.tell("start")
    for member in group:
        await member.hear("first")
    await asyncio.sleep(workload.settle_s)
    begin_ns = time.monotonic_ns()
    for leaver, joiner in zip(members, joiners, strict=False):
        joiner.tell("start")
        await joiner.hear("first")
        await asyncio.sleep(workload.settle_s)
        await leaver.stop()
        await asyncio.sleep(workload.settle_s)
    return Window(begin_ns, time.monotonic_ns())


async def _wait_for_all(members: Sequence[Member], count: int, patience_s: float) -> None:
    """Wait until so many records have come, and nothing comes any more; what does not is lost."""
    deadline = time.monotonic() + patience_s
    seen = -1
    while time.monotonic() < deadline:
        now = sum([await member.count() for member in members])
        if now == seen and now >= count:
            return
        seen = now
        await asyncio.sleep(_QUIET_S)


async def begin(arguments: Sequence[str], log: IO[bytes]) -> Process:
    """Start the process of a member, which does nothing yet."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.contestants.members", *arguments,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, limit=_REPORT_BYTES,
    )  # fmt: skip


class Member:
    """A process of `benchmarks.contestants.members`."""

    def __init__(self, process: Process, log: IO[bytes], patience_s: float) -> None:
        self._process: Final = process
        self._log: Final = log
        self._patience_s: Final = patience_s
        self._last_count = 0
        self.report = ""

    def tell(self, word: str) -> None:
        """Give it a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())

    async def hear(self, word: str = "") -> str:
        """Return its next line, which has to be this one, if one is given.

        Raises:
            RunError: It says something else, or nothing.
        """
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), self._patience_s)
        except asyncio.TimeoutError:
            raise RunError(f"a member said nothing for {self._patience_s:g} s{self._end}") from None
        text = line.decode().strip()
        if not text or text != (word or text):
            raise RunError(f"a member said {text!r}{self._end}")
        return text

    @property
    def _end(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""

    async def count(self) -> int:
        """Return how many records it was handed."""
        if not self.report:
            self.tell("count")
            self._last_count = int(await self.hear())
        return self._last_count

    async def stop(self) -> None:
        """Have it leave, and take its report."""
        self.tell("stop")
        self._last_count = int(await self.hear())
        self.report = await self.hear()
        await self._process.wait()

    async def kill(self) -> None:
        """End it now; idempotent."""
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


class Writer:
    """Writes records at a steady pace to all partitions in turn, in a thread; use it in a `with`.

    Attributes:
        count: How many it has written.
    """

    def __init__(self, bootstrap_servers: str, topic: Topic) -> None:
        self.count = 0
        self._topic: Final = topic
        self._failures: Final[list[str]] = []
        self._is_ended: Final = threading.Event()
        self._producer: Final = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                **QUIET,
                "enable.idempotence": True,
                "linger.ms": _LINGER_MS,
            }
        )
        self._thread: Final = threading.Thread(target=self._write, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_ended.set()
        self._thread.join()
        left = self._producer.flush(_FLUSH_S)
        if kind is None and (left or self._failures):
            raise RunError(f"{left} records were not written: {self._failures[:1]}")

    def _write(self) -> None:
        began = time.monotonic()
        while not self._is_ended.wait(_TICK_S):
            due = int((time.monotonic() - began) * RATE)
            while self.count < due:
                number, partition = divmod(self.count, self._topic.partition_count)
                value = STAMP.pack(number, time.monotonic_ns())
                self._producer.produce(
                    self._topic.name, value, partition=partition, on_delivery=self._delivered
                )
                self.count += 1
            self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failures.append(str(error))
