"""Plays a fault to a client, and says in a few words what became of its records."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.faults import Rule
from aiokafka_lite.structs import TopicPartition
from tests.support.programs import started

ROOT: Final = Path(__file__).parents[2]
LIMIT_S: Final = 30.0
SETTLE_S: Final = 1.0  # for records that come twice, or errors behind the last record
BAD_SETTLE_S: Final = 6.0
UNSPECIFIC: Final = ("_TRANSPORT", "_ALL_BROKERS_DOWN")  # confluent-kafka goes on trying
MODULES: Final = {
    "aiokafka_lite": "aiokafka_lite",
    "aiokafka": "aiokafka",
    "confluent-kafka": "confluent_kafka",
    "kafka-python": "kafka",
}
MANY_REQUESTS: Final = 50
MANY_MB: Final = 200


@dataclass
class Stage:
    """One client in front of one broker.

    Attributes:
        expected: The values to be read, by topic and partition. A fault may change them.
        bad: An offset in t/0 that cannot be read. Then only records ahead of it are expected.
        task: What the reader is told.
        verdict: Set by a fault which judges by itself, until the limit at the latest.
        otherwise: The verdict if it has set none.
        limit_s: How long the client has.
        rules: The broker's rules of the fault, of which one at least has to apply.
        ready: Unset by a fault that has to prepare something before the client starts.
    """

    broker: Broker
    client: str
    expected: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    bad: int | None = None
    task: dict[str, Any] = field(default_factory=dict)
    verdict: str = ""
    otherwise: str = ""
    limit_s: float = LIMIT_S
    rules: list[Rule] = field(default_factory=list)
    got: dict[str, list[tuple[int, str]]] = field(default_factory=lambda: defaultdict(list))
    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    words: list[dict[str, Any]] = field(default_factory=list)
    peaks_mb: list[int] = field(default_factory=list)
    process: asyncio.subprocess.Process | None = None
    began: float = field(default_factory=time.monotonic)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def write(self, count: int, *, topic: str = "t", partitions: int = 2) -> None:
        """Write records, a batch each, which are expected to be read."""
        for partition in range(partitions):
            place = self.expected[f"{topic}/{partition}"]
            for _ in range(count):
                value = f"{topic}{partition}:{len(place)}"
                self.broker.produce(topic, value, partition=partition)
                place.append(value)

    @property
    def seen(self) -> int:
        return sum(map(len, self.got.values()))

    @property
    def grown_mb(self) -> int:
        return max(self.peaks_mb, default=0) - min(self.peaks_mb, default=0)

    @property
    def told(self) -> list[str]:
        """The errors that reads or callbacks have reported."""
        return [*self.errors, *(note for note in self.notes if note not in UNSPECIFIC)]

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._news.clear()
            await self._news.wait()

    async def until_seen(self, count: int) -> None:
        await self.until(lambda: self.seen >= count)

    async def until_word(self, word: str) -> dict[str, Any]:
        await self.until(lambda: any(each["word"] == word for each in self.words))
        return next(each for each in self.words if each["word"] == word)

    async def command(self, word: str, **command: object) -> None:
        """Have the reader do something, and wait until it has."""
        assert self.process is not None
        assert self.process.stdin is not None
        told = sum(each["word"] == word for each in self.words)
        self.process.stdin.write(json.dumps({"word": word, **command}).encode() + b"\n")
        await self.until(lambda: sum(each["word"] == word for each in self.words) > told)

    def is_done(self) -> bool:
        if self.verdict:
            return True
        return not any(self.missing(place) for place in self.expected)

    def missing(self, place: str) -> list[str]:
        seen = {value for _, value in self.got[place]}
        return [value for value in self.expected[place] if value not in seen]

    async def listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            event = json.loads(line)
            self.peaks_mb.append(event["peak_mb"])
            if "record" in event:
                place, offset, value = event["record"]
                self.got[place].append((offset, value))
            elif "error" in event:
                self.errors.append(event["error"])
            elif "note" in event:
                self.notes.append(event["note"])
            else:
                self.words.append({"word": "child" if "child" in event else "", **event})
            self._news.set()

    def outcome(self, code: int | None) -> str:
        """Say in a few words what has become of the records."""
        if self.rules and not any(rule.hits for rule in self.rules):
            return "not reached"
        if verdict := self.verdict or self.otherwise:
            return verdict
        words = [f"crashes ({code})"] if code not in (None, 0) else []
        words += [f"error {self.errors[0]}"] if self.errors else []
        words += self.of_the_bad_one() if self.bad is not None else self.of_all()
        return ", ".join([*(words or ["delivers"]), *self.costs()])

    def of_all(self) -> Iterator[str]:
        lost = tail = repeats = garbage = 0
        for place in {*self.expected, *self.got}:
            values, order = [value for _, value in self.got[place]], self.expected[place]
            last = max((order.index(value) for value in values if value in order), default=-1)
            garbage += sum(value not in order for value in values)
            repeats += sum(times - 1 for times in Counter(values).values())
            lost += sum(order.index(value) < last for value in self.missing(place))
            tail += sum(order.index(value) > last for value in self.missing(place))
        if garbage:
            yield "garbage"
        if lost:
            yield f"lost {lost}"
        if repeats:
            yield f"repeats {repeats}"
        if tail and self.errors:
            yield f"{tail} unread"
        elif tail:
            yield f"error {self.told[0]}" if self.told else "hangs"
        elif self.errors:
            yield "then delivers"

    def of_the_bad_one(self) -> Iterator[str]:
        offsets = [offset for offset, _ in self.got["t/0"]]
        if self.bad in offsets:
            yield "accepts it"
        elif any(offset > (self.bad or 0) for offset in offsets):
            yield "then continues" if self.errors else "lost 1"
        elif not self.errors:
            yield "hangs"
        if self.missing("t/0"):
            yield "earlier records missing"
        if self.missing("t/1"):
            yield "others stop"

    def costs(self) -> list[str]:
        """Name the memory and the requests, if they are many."""
        found = []
        if self.grown_mb > MANY_MB:
            found.append(f"{self.grown_mb} MB")
        rate = self.broker.requests.total / (time.monotonic() - self.began)
        if rate > MANY_REQUESTS and time.monotonic() - self.began > 5:
            found.append(f"{rate:.0f} requests/s")
        return found


Play: TypeAlias = Callable[[Stage], Awaitable[None] | object]


def reader(task: Mapping[str, Any]) -> AbstractAsyncContextManager[asyncio.subprocess.Process]:
    """A process that reads. It is ended with the context."""
    return started(
        sys.executable, "-m", "tests.faults.reader", json.dumps(task),
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=None if os.environ.get("FAULTS_SHOW") else asyncio.subprocess.DEVNULL,
    )  # fmt: skip


async def play(fault: Play, client: str, broker_settings: Mapping[str, Any]) -> str:
    """Play a fault to a client and return the outcome. The fault runs beside the client."""
    async with Broker(num_partitions=2, **broker_settings) as broker:
        broker.create_topic("t", 2)
        stage = Stage(broker, client)
        stage.task = {
            "client": MODULES[client],
            "servers": broker.bootstrap_servers,
            "group": None,
            "topics": {"t": 2},
            "settings": {},
        }
        stage.ready.set()
        done = fault(stage)
        acting = asyncio.ensure_future(done) if asyncio.iscoroutine(done) else None
        await asyncio.sleep(0)  # to where it waits for the client
        await stage.ready.wait()
        async with reader(stage.task) as stage.process:
            listening = asyncio.ensure_future(stage.listen(stage.process))
            try:
                await asyncio.wait_for(_end(stage, acting, listening), stage.limit_s)
            except asyncio.TimeoutError:
                pass
            finally:
                code = stage.process.returncode
                await _cancelled(listening, acting)
            return stage.outcome(code)


async def _cancelled(*tasks: asyncio.Future[Any] | None) -> None:
    some = [task for task in tasks if task is not None]
    for task in some:
        task.cancel()
    await asyncio.gather(*some, return_exceptions=True)


async def _end(
    stage: Stage, acting: asyncio.Future[Any] | None, listening: asyncio.Future[None]
) -> None:
    """Wait until all is read that is expected, or the client has ended."""
    assert stage.process is not None
    ended = asyncio.ensure_future(stage.process.wait())
    try:
        while not ended.done():
            if acting is not None and not acting.done():
                await asyncio.wait({acting, ended}, return_when=asyncio.FIRST_COMPLETED)
                continue
            if acting is not None:
                acting.result()  # a bug of the fault
            reading = asyncio.ensure_future(stage.until(stage.is_done))
            await asyncio.wait({reading, ended}, return_when=asyncio.FIRST_COMPLETED)
            await _cancelled(reading)
            await asyncio.sleep(SETTLE_S if stage.bad is None else BAD_SETTLE_S)
            return
        await asyncio.wait({listening}, timeout=1)
    finally:
        ended.cancel()


T0: Final = TopicPartition("t", 0)
