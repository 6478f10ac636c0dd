"""Handle all records of one partition with handlers that wait, as a database call does."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from benchmarks.contestants.handlers import CONCURRENCY, open_handling
from benchmarks.loading import QUIET
from benchmarks.measure import Measurement, Meter, RunError, StarvedError, Workload, cpu_seconds

# How often it is looked what is committed.
LOOK_EVERY_S: Final = 0.5
BASELINE_SHARE: Final = 0.2


class Ledger:
    """What handlers did: which records are finished, and whether keys came in order."""

    def __init__(self, records: int, wait_s: float) -> None:
        self._wait_s = wait_s
        self._left = records
        self._latest: dict[bytes, int] = {}
        self._at_work: set[bytes] = set()
        self._finished = bytearray(records)
        self.disordered = 0
        self.handled = 0
        self.is_done = asyncio.Event()

    async def handle(self, key: bytes, offset: int) -> None:
        """Wait, and finish a record."""
        if offset < self._latest.get(key, -1) or key in self._at_work:
            self.disordered += 1
        self._latest[key] = offset
        self._at_work.add(key)
        await asyncio.sleep(self._wait_s)
        self._at_work.discard(key)
        self.handled += 1
        if not self._finished[offset]:
            self._finished[offset] = 1
            self._left -= 1
            if not self._left:
                self.is_done.set()

    def unfinished_before(self, offset: int) -> int:
        """Return how many records before an offset are not finished: a kill now would lose them."""
        return self._finished.count(0, 0, offset)


async def measure(subject: str, workload: Workload) -> Measurement:
    """Measure wall time a record, and CPU time beside what the same handlers cost by themselves.

    Raises:
        RunError: A record was handled twice, though nothing went wrong.
        StarvedError: Not all were handled in time.
    """
    baseline_us = await _baseline_us(workload)
    records, group = workload.records, f"bench-{uuid.uuid4()}"
    ledger = Ledger(records, workload.pause_s)
    early: list[int] = []
    async with open_handling(subject, workload, group, ledger.handle) as version:
        meter = Meter()
        while not ledger.handled:
            await asyncio.sleep(0)
            meter = Meter()
        looking = asyncio.ensure_future(_look(workload, group, ledger, early))
        limit_s = workload.wait_s + 20 * records * workload.pause_s / CONCURRENCY
        try:
            await asyncio.wait_for(ledger.is_done.wait(), limit_s)
        except asyncio.TimeoutError:
            raise StarvedError(
                f"{ledger.handled} records were handled in {limit_s:.0f} s"
            ) from None
        finally:
            looking.cancel()
        wall_s, cpu_s = meter.read()
        await asyncio.wait([looking])
    if ledger.handled != records:
        raise RunError(f"{ledger.handled} records were handled, expected {records}")
    figures = {
        "wall_us": wall_s * 1e6 / records,
        "scheduling_us": cpu_s * 1e6 / records - baseline_us,
        "early": max(early, default=0),
        "disordered": ledger.disordered,
    }
    return Measurement(version, figures, records)


async def _baseline_us(workload: Workload) -> float:
    """Return what a handler costs that is called by a task in a loop, in microseconds of CPU."""
    calls = int(workload.records * BASELINE_SHARE)
    ledger = Ledger(calls, workload.pause_s)
    offsets = iter(range(calls))

    async def work() -> None:
        for offset in offsets:
            await ledger.handle(b"%d" % offset, offset)

    began_s = cpu_seconds()
    await asyncio.gather(*(work() for _ in range(CONCURRENCY)))
    return (cpu_seconds() - began_s) * 1e6 / calls


async def _look(workload: Workload, group: str, ledger: Ledger, early: list[int]) -> None:
    """Look time and again whether something is committed that is not finished.

    It is asked in a thread, by a client of its own; what was finished meanwhile does not count
    against a contestant.
    """
    reader = Consumer({"bootstrap.servers": workload.bootstrap_servers, "group.id": group, **QUIET})
    tps = [TopicPartition(topic, number) for topic, number in workload.partitions()]

    def ask() -> int:
        try:
            return max(0, *(tp.offset for tp in reader.committed(tps, timeout=5)), 0)
        except KafkaException:
            return 0

    try:
        while True:
            asked_at = time.monotonic()
            early.append(ledger.unfinished_before(await asyncio.to_thread(ask)))
            await asyncio.sleep(max(0.0, LOOK_EVERY_S - (time.monotonic() - asked_at)))
    finally:
        reader.close()
