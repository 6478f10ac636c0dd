"""The applications of a run: members of the group, and producers. They write what they see down."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from aiokafka_lite import _compat
from aiokafka_lite._virtual import START_MS
from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.assignors import RangePartitionAssignor
from aiokafka_lite.consumer.assignors.cooperative_sticky import (
    CooperativeStickyPartitionAssignor,
)
from aiokafka_lite.errors import (
    BatchRevokedError,
    ConsumerStoppedError,
    FencedInstanceIdError,
    InvalidProducerEpoch,
    KafkaError,
    ProducerFenced,
)
from aiokafka_lite.processing import DeadLetters, Retry
from aiokafka_lite.producing import AIOKafkaProducer
from aiokafka_lite.simulation.history import History, Kind
from aiokafka_lite.simulation.world import Process
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.simulation.cluster import (
    DEAD,
    GROUP,
    INPUT,
    KEYS,
    OUTPUT,
    PATTERN,
    SECOND,
    SESSION_MS,
    GroupCluster,
)
from tests.simulation.plan import Plan
from tests.simulation.rules import fails, number_of

if TYPE_CHECKING:
    from aiokafka_lite.simulation.engine import Loop

ASSIGNORS: Final = {
    "range": RangePartitionAssignor,
    "cooperative": CooperativeStickyPartitionAssignor,
}
REQUEST_MS: Final = 5_000
STOP_S: Final = 10.0
# Ways that `stop` ends.
RUNS: Final = ("run", "dead letters", "copy")
# Each so many records, one takes so many times as long.
SLOW_EACH: Final = 40
SLOW_TIMES: Final = 20
# Each so many records, a member does what its habit is.
HABIT_EACH: Final = 8
# How many records a seek, or an older commit, goes back.
BACK: Final = 5
# How often a reader seeks, pauses or resumes.
READER_PAUSE_S: Final = 1.5


def note_error(history: History, who: str, error: Exception, before: str = "") -> None:
    """Note what an application got."""
    kind = b"KafkaError" if isinstance(error, KafkaError) else b""
    history.note(Kind.RAISED, who, value=kind, note=f"{before}{type(error).__name__}: {error}")


class UnusableRecordError(Exception):
    """The handler cannot use the record."""


class _Listener(ConsumerRebalanceListener):
    def __init__(self, history: History, name: str) -> None:
        self._history, self._name = history, name

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self._history.note_partitions(Kind.ASSIGNED, self._name, assigned)

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self._history.note_partitions(Kind.REVOKED, self._name, revoked)

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        self._history.note_partitions(Kind.LOST, self._name, lost)


class Member(Process):
    """A member of the group, in a process of its own. Those of a slot have one instance id."""

    def __init__(
        self,
        loop: Loop,
        cluster: GroupCluster,
        plan: Plan,
        history: History,
        name: str,
        slot: int,
    ) -> None:
        self._cluster, self._plan = cluster, plan
        self.consumer: AIOKafkaConsumer[Any, Any] | None = None
        self._is_handling = False
        self._rng = random.Random(f"{plan.seed}:{name}:habit")
        self._count = 0
        self._committing: set[asyncio.Task[None]] = set()
        super().__init__(loop, history, name, slot)

    # Its life

    async def _end(self) -> None:
        if self._plan.way in RUNS and self.consumer is not None:
            await self._loop.start(self.name, self.consumer.stop(STOP_S))
        if not self._is_handling:
            self.task.cancel()

    async def _live(self) -> None:
        plan = self._plan
        self._history.note(Kind.JOINED, self.name, note=f"{plan.protocol}, {plan.way}")
        self.consumer = consumer = AIOKafkaConsumer(**self._settings())
        self._subscribe(consumer)
        try:
            async with consumer, self._pausing(consumer):
                await getattr(self, "_" + plan.way.replace(" ", "_"))(consumer)
        except asyncio.CancelledError:
            if not self._is_stopping:
                raise
        except ConsumerStoppedError:
            if not self._is_stopping:
                raise
        except Exception as error:  # noqa: BLE001 — the rules judge it
            note_error(self._history, self.name, error)
            # Another one has its instance id.
            self.has_failed = not isinstance(error, FencedInstanceIdError)

    def _subscribe(self, consumer: AIOKafkaConsumer[Any, Any]) -> None:
        listener = _Listener(self._history, self.name)
        if self._plan.second == "pattern":
            consumer.subscribe(pattern=PATTERN, listener=listener)
        else:
            topics = [INPUT, SECOND] if self._plan.second else [INPUT]
            consumer.subscribe(topics, listener=listener)

    def _settings(self) -> dict[str, Any]:
        plan = self._plan
        settings: dict[str, Any] = {
            "bootstrap_servers": self._cluster.bootstrap_servers,
            "client_id": self.name,
            "group_id": GROUP,
            "auto_offset_reset": "earliest",
            "isolation_level": "read_committed",
            "auto_commit_interval_ms": plan.auto_commit_ms,
            "request_timeout_ms": REQUEST_MS,
            "session_timeout_ms": SESSION_MS,
            "metadata_max_age_ms": plan.metadata_ms,
            "allow_auto_create_topics": False,
            "rebalance_timeout_ms": 8_000,
        }
        if plan.buffer_bytes is not None:
            settings["max_buffered_bytes"] = plan.buffer_bytes
        if plan.heartbeat_ms is not None:
            settings["heartbeat_interval_ms"] = plan.heartbeat_ms
        if plan.static:
            settings["group_instance_id"] = f"i{self.slot}"
        if plan.protocol == "consumer":
            settings["group_protocol"] = "consumer"
        else:
            settings["group_protocol"] = "classic"
            settings["partition_assignment_strategy"] = [ASSIGNORS[plan.protocol]]
        return settings

    # Its ways of reading

    async def _process(self, value: bytes) -> None:
        handling_s = self._plan.handling_s
        if handling_s:
            is_slow = number_of(value) % SLOW_EACH == 0
            try:
                await asyncio.sleep(handling_s * (SLOW_TIMES if is_slow else 1))
            except asyncio.CancelledError:
                self._history.note(Kind.CANCELLED, self.name, value=value)
                raise

    async def _handle(self, record: ConsumerRecord[Any, Any]) -> None:
        tp = TopicPartition(record.topic, record.partition)
        value = record.value or b""
        self._history.note(Kind.RETURNED, self.name, tp, record.offset, value)
        self._is_handling = True
        try:
            await self._process(value)
        finally:
            self._is_handling = False
        self._history.note(Kind.HANDLED, self.name, tp, record.offset, value)

    async def _async_for(self, consumer: AIOKafkaConsumer[Any, Any]) -> None:
        async for record in consumer:
            await self._handle(record)
            await self._follow_habit(consumer, record)
            if self._is_stopping:
                return

    async def _getmany(self, consumer: AIOKafkaConsumer[Any, Any]) -> None:
        while not self._is_stopping:
            latest = None
            for records in (await consumer.getmany(timeout_ms=500)).values():
                for record in records:
                    await self._handle(record)
                    latest = record
            if latest is not None:
                await self._follow_habit(consumer, latest)

    async def _batch(self, consumer: AIOKafkaConsumer[Any, Any]) -> None:
        while not self._is_stopping:
            try:
                async with consumer.batch(max_records=20, timeout_ms=500) as batch:
                    for record in batch:
                        await self._handle(record)
                    await batch.commit()
            except BatchRevokedError as error:
                note_error(self._history, self.name, error, "batch: ")

    async def _run(self, consumer: AIOKafkaConsumer[Any, Any]) -> None:
        await consumer.run(self._finish, concurrency=10, retry=Retry())

    async def _finish(self, record: ConsumerRecord[Any, Any]) -> None:
        tp = TopicPartition(record.topic, record.partition)
        value = record.value or b""
        self._history.note(Kind.RETURNED, self.name, tp, record.offset, value)
        await self._process(value)
        if self._plan.way == "dead letters" and fails(value):
            raise UnusableRecordError(value)
        self._history.note(Kind.HANDLED, self.name, tp, record.offset, value)

    async def _dead_letters(self, consumer: AIOKafkaConsumer[Any, Any]) -> None:
        async with AsyncExitStack() as stack:
            producer = None
            if self._plan.seed % 2:  # its letters fail soon, and are written again
                given = AIOKafkaProducer[Any, Any](
                    bootstrap_servers=self._cluster.bootstrap_servers,
                    client_id=f"{self.name}-letters",
                    request_timeout_ms=REQUEST_MS,
                    delivery_timeout_ms=REQUEST_MS,
                )
                producer = await stack.enter_async_context(given)
            await consumer.run(
                self._finish,
                concurrency=10,
                retry=Retry(attempts=2, first_delay_ms=50, max_delay_ms=200),
                dead_letter=DeadLetters(DEAD, producer=producer),
                breaker=None,
            )

    async def _copy(self, consumer: AIOKafkaConsumer[Any, Any]) -> None:
        async def copy(record: ConsumerRecord[Any, Any], outputs: Any) -> None:
            tp = TopicPartition(record.topic, record.partition)
            value = record.value or b""
            self._history.note(Kind.RETURNED, self.name, tp, record.offset, value)
            await self._process(value)
            outputs.send(OUTPUT, value, key=record.key)
            self._history.note(Kind.HANDLED, self.name, tp, record.offset, value)

        producer = AIOKafkaProducer(
            bootstrap_servers=self._cluster.bootstrap_servers,
            client_id=f"{self.name}-copy",
            transactional_id=f"copy-{self.slot}",
            transaction_timeout_ms=10_000,
            request_timeout_ms=REQUEST_MS,
            metadata_max_age_ms=5_000,
        )
        async with producer:
            await consumer.run(copy, concurrency=10, retry=Retry(), transactions=producer)

    # Its habits

    @asynccontextmanager
    async def _pausing(self, consumer: AIOKafkaConsumer[Any, Any]) -> AsyncIterator[None]:
        if self._plan.habit != "pauses":
            yield
            return
        task = asyncio.ensure_future(self._pause_and_resume(consumer))
        try:
            yield
        finally:
            task.cancel()

    async def _pause_and_resume(self, consumer: AIOKafkaConsumer[Any, Any]) -> None:
        while self._loop.now < self._plan.calm_at_s:
            await asyncio.sleep(self._rng.uniform(0.5, 3.0))
            paused = [tp for tp in sorted(consumer.assignment()) if self._rng.random() < 0.5]
            with suppress(ConsumerStoppedError):
                consumer.pause(*paused)
                await asyncio.sleep(self._rng.uniform(0.2, 3.0))
                consumer.resume(*sorted(consumer.paused()))

    async def _follow_habit(
        self, consumer: AIOKafkaConsumer[Any, Any], record: ConsumerRecord[Any, Any]
    ) -> None:
        """Do what the plan wants, each so many calls. Only the reading task does it."""
        self._count += 1
        if self._is_stopping or self._loop.now > self._plan.calm_at_s:
            return
        tp = TopicPartition(record.topic, record.partition)
        if self._plan.habit == "names commits":
            if self._count % HABIT_EACH == 0:
                self._begin_commit(consumer, tp, max(0, record.offset + 1 - BACK))
            self._begin_commit(consumer, tp, record.offset + 1)
        elif self._count % HABIT_EACH:
            return
        elif self._plan.habit == "seeks":
            await self._seek(consumer, tp, record.offset)
        elif self._plan.habit == "subscribes again":
            # Topics that there are not: a member without partitions.
            listener = _Listener(self._history, self.name)
            if self._plan.second == "pattern":
                consumer.subscribe(pattern="^none$", listener=listener)
            else:
                consumer.subscribe(["none"], listener=listener)
            self._is_handling = True  # a stop waits for the end of the sleep
            await asyncio.sleep(self._rng.uniform(0.1, 3.0))
            self._is_handling = False
            self._subscribe(consumer)

    def _begin_commit(
        self, consumer: AIOKafkaConsumer[Any, Any], tp: TopicPartition, offset: int
    ) -> None:
        async def commit() -> None:
            self._history.note(Kind.NAMED, self.name, tp, offset)
            with suppress(KafkaError):  # the group may have moved the partition
                await consumer.commit({tp: offset})

        if tp in consumer.assignment():
            task = asyncio.ensure_future(commit())
            self._committing.add(task)
            task.add_done_callback(self._committing.discard)

    async def _seek(
        self, consumer: AIOKafkaConsumer[Any, Any], tp: TopicPartition, offset: int
    ) -> None:
        if tp not in consumer.assignment():
            return
        if self._rng.random() < 0.5:
            goal = max(0, offset + 1 - self._rng.randrange(BACK))
            self._history.note(Kind.SOUGHT, self.name, tp, goal)
            consumer.seek(tp, goal)
            return
        with suppress(KafkaError):
            for each, committed in (await consumer.seek_to_committed(tp)).items():
                if committed is not None:
                    self._history.note(Kind.SOUGHT, self.name, each)


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
        self._must_end = asyncio.Event()
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
        try:
            async with _compat.timeout(self._plan.pause_s):
                await self._must_end.wait()
        except asyncio.TimeoutError:
            pass

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
