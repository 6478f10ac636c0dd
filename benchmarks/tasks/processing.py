"""Handle all records of one partition with handlers that wait, as a database call does."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import time
import uuid
from collections import deque
from collections.abc import Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from benchmarks.contestants.handlers import CONCURRENCY, Handled, open_handling
from benchmarks.loading import QUIET
from benchmarks.measure import Measurement, Meter, RunError, StarvedError, Workload, cpu_seconds

# How often it is looked what is committed.
LOOK_EVERY_S: Final = 0.02
# CPU time is read so often. Whatever else the machine does makes a second dearer, never cheaper.
CPU_EVERY_S: Final = 1.0
CHEAPER_PART: Final = 0.5
# A record may take so long, on average.
SLOWEST_S: Final = 0.002
# Of the records, handled without a client, before the others and once more behind them.
BASELINE_SHARE: Final = 0.25
KEYS: Final = 1_000


class Record:
    """A record that no client has read."""

    __slots__ = ("key", "offset")
    key: bytes
    offset: int


class Ledger:
    """What handlers did: which records are finished, and whether keys came in order."""

    def __init__(self, records: int, wait_s: float) -> None:
        self._wait_s = wait_s
        self._left = records
        self._latest: dict[bytes, int] = {}
        self._at_work: set[bytes] = set()
        self._finished_at = [math.inf] * records
        self.disordered = 0
        self.handled = 0
        self.is_done = asyncio.Event()

    async def handle(self, record: Handled) -> None:
        """Wait, and finish a record."""
        key, offset = record.key, record.offset
        if offset < self._latest.get(key, -1) or key in self._at_work:
            self.disordered += 1
        self._latest[key] = offset
        self._at_work.add(key)
        await asyncio.sleep(self._wait_s)
        self._at_work.discard(key)
        self.handled += 1
        if self._finished_at[offset] == math.inf:
            self._finished_at[offset] = time.monotonic()
            self._left -= 1
            if not self._left:
                self.is_done.set()

    def unfinished_at(self, at: float, offset: int) -> int:
        """Return how many records before an offset were not finished at a monotonic time."""
        return sum(finished_at > at for finished_at in self._finished_at[:offset])


async def measure(subject: str, workload: Workload) -> Measurement:
    """Measure wall time a record, and CPU time beside what the same handlers cost by themselves.

    Raises:
        RunError: A record was handled twice, though nothing went wrong.
        StarvedError: Not all were handled in time.
    """
    baseline_us = await _baseline_us(workload)
    records, group = workload.records, f"bench-{uuid.uuid4()}"
    ledger = Ledger(records, workload.pause_s)
    watcher = Watcher(workload, group)
    async with open_handling(subject, workload, group, ledger.handle) as version:
        meter, cpu = Meter(), CpuMeter(ledger)
        while not ledger.handled:
            await asyncio.sleep(0)
            meter, cpu = Meter(), CpuMeter(ledger)
        reading = asyncio.ensure_future(cpu.read())
        limit_s = workload.wait_s + records * SLOWEST_S
        try:
            await asyncio.wait_for(ledger.is_done.wait(), limit_s)
        except asyncio.TimeoutError:
            raise StarvedError(
                f"{ledger.handled} records were handled in {limit_s:.0f} s"
            ) from None
        finally:
            committed = watcher.end()
            reading.cancel()
        cpu.end()
        wall_s, _ = meter.read()
    baseline_us += await _baseline_us(workload)
    if ledger.handled != records:
        raise RunError(f"{ledger.handled} records were handled, expected {records}")
    cpu_us, alone_us = _typical(cpu.found_us), _typical(baseline_us)
    figures = {
        "wall_us": wall_s * 1e6 / records,
        "scheduling_us": cpu_us - alone_us,
        "times_alone": cpu_us / alone_us,
        "early": max((ledger.unfinished_at(*each) for each in committed), default=0),
        "disordered": ledger.disordered,
    }
    return Measurement(version, figures, records)


def _typical(found_us: Sequence[float]) -> float:
    """Return the mean of the cheaper half."""
    cheaper = sorted(found_us)[: max(1, round(len(found_us) * CHEAPER_PART))]
    return sum(cheaper) / len(cheaper)


async def _baseline_us(workload: Workload) -> list[float]:
    """Return what a handler costs with asyncio alone, in microseconds of CPU, by second.

    Each task has a lane: the records of its keys, in order. The tasks begin one after the other, as
    handlers of records do that have come one by one.
    """
    calls = int(workload.records * BASELINE_SHARE)
    ledger = Ledger(calls, workload.pause_s)
    lanes = [deque(range(first, calls, CONCURRENCY)) for first in range(CONCURRENCY)]

    async def work(number: int) -> None:
        await asyncio.sleep(number * workload.pause_s / CONCURRENCY)
        lane, record = lanes[number], Record()
        while lane:
            record.offset = lane.popleft()
            record.key = b"%d" % (record.offset % KEYS)
            await ledger.handle(record)

    working = asyncio.gather(*(work(number) for number in range(CONCURRENCY)))
    await asyncio.sleep(2 * workload.pause_s)  # until all of them have begun
    cpu = CpuMeter(ledger)
    reading = asyncio.ensure_future(cpu.read())
    await working
    reading.cancel()
    cpu.end()
    return cpu.found_us


class CpuMeter:
    """Measures what a record costs, second by second, from when it is made.

    Attributes:
        found_us: What it was in each second, in microseconds of CPU.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._latest = cpu_seconds(), ledger.handled
        self.found_us: list[float] = []

    async def read(self) -> None:
        """Read it until this is cancelled."""
        while True:
            await asyncio.sleep(CPU_EVERY_S)
            self._note()

    def _note(self) -> None:
        (before_s, before), self._latest = self._latest, (cpu_seconds(), self._ledger.handled)
        cpu_s, handled = self._latest
        if handled > before:
            self.found_us.append((cpu_s - before_s) * 1e6 / (handled - before))

    def end(self) -> None:
        """Take what there is if all were handled within the first second."""
        if not self.found_us:
            self._note()


# --- What is committed ---------------------------------------------------------------------------
class Watcher:
    """Another process that looks what a group has committed, and when it was first seen."""

    def __init__(self, workload: Workload, group: str) -> None:
        ((topic, partition),) = workload.partitions()
        arguments = [workload.bootstrap_servers, group, topic, str(partition)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.tasks.processing", *arguments],
            stdout=subprocess.PIPE,
            text=True,
        )

    def end(self) -> list[tuple[float, int]]:
        """Return each offset that was committed, with the monotonic time when it was seen."""
        self._process.terminate()
        output, _ = self._process.communicate()
        lines = [line.split() for line in output.splitlines()]
        return [(float(words[0]), int(words[1])) for words in lines if len(words) == 2]


def watch(bootstrap_servers: str, group: str, topic: str, partition: str) -> None:
    """Print when another offset is committed, until the process is ended."""
    reader = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": group, **QUIET})
    wanted, latest = [TopicPartition(topic, int(partition))], 0
    while True:
        try:
            (found,) = reader.committed(wanted, timeout=5)
        except KafkaException:
            continue
        if found.offset > latest:
            latest = found.offset
            print(time.monotonic(), latest, flush=True)
        time.sleep(LOOK_EVERY_S)


if __name__ == "__main__":
    watch(*sys.argv[1:])
