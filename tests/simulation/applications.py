"""The applications of a run next to the group: a reader without one, and producers."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from aiokafka_lite._tasks import Event
from aiokafka_lite._virtual import START_MS
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import (
    InvalidProducerEpoch,
    KafkaError,
    ProducerFenced,
)
from aiokafka_lite.producing import AIOKafkaProducer
from aiokafka_lite.simulation.history import History, Kind
from aiokafka_lite.structs import TopicPartition
from tests.simulation.cluster import KEYS, GroupCluster
from tests.simulation.handling import number_of
from tests.simulation.plan import Plan

if TYPE_CHECKING:
    from aiokafka_lite.simulation.engine import Loop

REQUEST_MS: Final = 5_000
# How often a reader seeks, pauses or resumes.
READER_PAUSE_S: Final = 1.5


def note_error(history: History, who: str, error: Exception, before: str = "") -> None:
    """Note what an application got."""
    kind = b"KafkaError" if isinstance(error, KafkaError) else b""
    history.note(Kind.RAISED, who, value=kind, note=f"{before}{type(error).__name__}: {error}")


class Reader:
    """Reads all partitions without a group, on a host of its own: it seeks, pauses and resumes."""

    def __init__(
        self, loop: Loop, cluster: GroupCluster, plan: Plan, history: History, name: str
    ) -> None:
        self.name = name
        self._loop, self._cluster, self._plan, self._history = loop, cluster, plan, history
        self._rng = random.Random(f"{plan.seed}:{name}")
        self._must_end = False
        self.consumer: AIOKafkaConsumer[Any, Any] | None = None
        self.task = loop.start(name, self._live())

    async def end(self) -> None:
        self._must_end = True
        await asyncio.wait([self.task])

    async def _live(self) -> None:
        while not self._must_end:
            self.consumer = AIOKafkaConsumer(
                bootstrap_servers=self._cluster.bootstrap_servers,
                client_id=self.name,
                auto_offset_reset="earliest",
                isolation_level="read_committed",
                request_timeout_ms=REQUEST_MS,
                metadata_max_age_ms=self._plan.metadata_ms,
            )
            self._history.note(Kind.JOINED, self.name, note="reader")
            try:
                async with self.consumer:
                    await self._read(self.consumer)
            except Exception as error:  # noqa: BLE001 — the rules judge it
                note_error(self._history, self.name, error)
                await asyncio.sleep(1.0)

    async def _read(self, consumer: AIOKafkaConsumer[Any, Any]) -> None:
        consumer.assign(self._cluster.input_partitions())
        self._history.note_partitions(Kind.ASSIGNED, self.name, consumer.assignment())
        acts_at = self._loop.now
        while not self._must_end:
            for tp, records in (await consumer.getmany(timeout_ms=300)).items():
                for record in records:
                    value = record.value or b""
                    self._history.note(Kind.RETURNED, self.name, tp, record.offset, value)
            if self._loop.now > self._plan.calm_at_s:
                self._resume(consumer)
            elif self._loop.now > acts_at:
                acts_at = self._loop.now + READER_PAUSE_S * self._rng.uniform(0.2, 1.8)
                await self._act(consumer)

    def _resume(self, consumer: AIOKafkaConsumer[Any, Any]) -> None:
        for tp in sorted(consumer.paused()):
            consumer.resume(tp)
            self._history.note(Kind.RESUMED, self.name, tp)

    async def _act(self, consumer: AIOKafkaConsumer[Any, Any]) -> None:
        """Seek, pause or resume."""
        tp = self._rng.choice(sorted(consumer.assignment()))
        position = consumer.positions().get(tp)
        act = self._rng.choice(("offset", "beginning", "time", "end", "pause", "resume"))
        if act == "offset" and position is not None:
            goal = max(0, position.offset - self._rng.randrange(20))
            self._history.note(Kind.SOUGHT, self.name, tp, goal)
            consumer.seek(tp, goal)
        elif act == "beginning":
            self._history.note(Kind.SOUGHT, self.name, tp)
            await consumer.seek_to_beginning(tp)
        elif act == "end":
            self._history.note(Kind.SOUGHT, self.name, tp)
            await consumer.seek_to_end(tp)
        elif act == "time":
            at_ms = START_MS + round((self._loop.now - 3.0) * 1000)
            with suppress(KafkaError):
                found = (await consumer.offsets_for_times({tp: at_ms}))[tp]
                if found is not None:
                    self._history.note(Kind.SOUGHT, self.name, tp, found.offset)
                    consumer.seek(tp, found.offset)
        elif act == "pause":
            self._history.note(Kind.PAUSED, self.name, tp)
            consumer.pause(tp)
        elif act == "resume":
            self._resume(consumer)

    def behind(self, ends: Mapping[TopicPartition, int]) -> str:
        """Return what it has not read, "" if nothing."""
        if self.consumer is None:
            return "has no consumer"
        positions = self.consumer.positions()
        for tp in self.consumer.assignment():
            position = positions.get(tp)
            if position is None or position.offset < ends.get(tp, 0):
                return f"{tp.topic}/{tp.partition} stands at {position}, the end is {ends.get(tp)}"
        return ""


class Producer:
    """Writes numbered records until it is told to end, on a host of its own.

    Args:
        name: Its host. The part before a dot names its records, and is its transactional id.
        first: Another producer, whose transactional id and numbers this one has: a twin.
    """

    def __init__(
        self,
        loop: Loop,
        cluster: GroupCluster,
        plan: Plan,
        history: History,
        name: str,
        kind: str,
        first: Producer | None = None,
    ) -> None:
        self.name, self.kind = name, kind
        self.id = name.partition(".")[0]
        self._cluster, self._plan, self._history = cluster, plan, history
        self.numbers: Iterator[int] = itertools.count() if first is None else first.numbers
        self._must_end = Event()
        self._loop = loop
        self.task = loop.start(name, self._live())

    async def end(self) -> None:
        self._must_end.set()
        await asyncio.wait([self.task])

    async def _live(self) -> None:
        while not self._must_end.is_set():
            try:
                async with self._producer() as producer:
                    while not self._must_end.is_set():
                        await self._write(producer)
                        await self._pause()
            except KafkaError as error:
                note_error(self._history, self.name, error)
                if isinstance(error, (ProducerFenced, InvalidProducerEpoch)):
                    return  # another one has its transactional id
                await self._pause()

    async def _pause(self) -> None:
        await self._must_end.wait(self._loop.now + self._plan.pause_s)

    @asynccontextmanager
    async def _producer(self) -> AsyncIterator[AIOKafkaProducer[Any, Any]]:
        settings: dict[str, Any] = {
            "bootstrap_servers": self._cluster.bootstrap_servers,
            "client_id": self.name,
            "request_timeout_ms": REQUEST_MS,
            "metadata_max_age_ms": 5_000,
            "acks": "all",
        }
        if self.kind == "transactional":
            settings |= {"transactional_id": self.id, "transaction_timeout_ms": 10_000}
        else:
            settings |= {"enable_idempotence": self.kind == "idempotent"}
            settings |= {"delivery_timeout_ms": 20_000}
        async with AIOKafkaProducer(**settings) as producer:
            yield producer

    def _new_value(self) -> tuple[str, bytes, bytes]:
        number = next(self.numbers)
        value = f"{self.id}-{number}".encode()
        self._history.note(Kind.SENT, self.name, value=value)
        return self._cluster.topic_for(number), value, b"%d" % (number % KEYS)

    async def _write(self, producer: AIOKafkaProducer[Any, Any]) -> None:
        if self.kind == "transactional":
            await self._write_transaction(producer)
            return
        topic, value, key = self._new_value()
        sent = await producer.send(topic, value, key=key)
        sent.add_done_callback(lambda done: self._answered(value, done))

    def _answered(self, value: bytes, done: asyncio.Future[Any]) -> None:
        if done.cancelled() or (error := done.exception()) is not None:
            why = "cancelled" if done.cancelled() else type(error).__name__
            self._history.note(Kind.REFUSED, self.name, value=value, note=why)
            return
        place = done.result()
        tp = TopicPartition(place.topic, place.partition)
        self._history.note(Kind.ACKED, self.name, tp, place.offset, value)

    async def _write_transaction(self, producer: AIOKafkaProducer[Any, Any]) -> None:
        records = [self._new_value() for _ in range(3)]
        values = [value for _, value, _ in records]
        is_meant_to_abort = (number_of(values[-1]) + 1) % 5 == 0
        try:
            await producer.begin_transaction()
            self._history.note(Kind.BEGUN, self.name)
            for topic, value, key in records:
                await producer.send(topic, value, key=key)
            if is_meant_to_abort:
                await producer.abort_transaction()
            else:
                await producer.commit_transaction()
        except KafkaError as error:
            note = f"unknown, {type(error).__name__}"
            self._history.note(Kind.ENDED, self.name, value=b" ".join(values), note=note)
            raise
        outcome = "aborted" if is_meant_to_abort else "committed"
        self._history.note(Kind.ENDED, self.name, value=b" ".join(values), note=outcome)
        kind = Kind.REFUSED if is_meant_to_abort else Kind.ACKED
        for value in values:
            self._history.note(kind, self.name, value=value, note=outcome)
