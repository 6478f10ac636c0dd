"""The applications of a run: members of the group, and producers. They write what they see down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from aiokafka_lite import _compat
from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.assignors import RangePartitionAssignor
from aiokafka_lite.consumer.assignors.cooperative_sticky import (
    CooperativeStickyPartitionAssignor,
)
from aiokafka_lite.errors import BatchRevokedError, ConsumerStoppedError, KafkaError
from aiokafka_lite.processing import DeadLetters, Retry
from aiokafka_lite.producing import AIOKafkaProducer
from aiokafka_lite.simulation.history import History, Kind
from aiokafka_lite.simulation.world import Process
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.simulation.cluster import DEAD, GROUP, INPUT, OUTPUT, SESSION_MS, GroupCluster
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
KEYS: Final = 7
# Each so many records, one takes so many times as long.
SLOW_EACH: Final = 40
SLOW_TIMES: Final = 20


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
        consumer.subscribe([INPUT], listener=_Listener(self._history, self.name))
        try:
            async with consumer:
                await getattr(self, "_" + plan.way.replace(" ", "_"))(consumer)
        except asyncio.CancelledError:
            if not self._is_stopping:
                raise
        except ConsumerStoppedError:
            if not self._is_stopping:
                raise
        except Exception as error:  # noqa: BLE001 — the rules judge it
            note_error(self._history, self.name, error)
            self.has_failed = True

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
            "metadata_max_age_ms": 5_000,
            "rebalance_timeout_ms": 8_000,
        }
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
            if self._is_stopping:
                return

    async def _getmany(self, consumer: AIOKafkaConsumer[Any, Any]) -> None:
        while not self._is_stopping:
            for records in (await consumer.getmany(timeout_ms=500)).values():
                for record in records:
                    await self._handle(record)

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


class Producer:
    """Writes numbered records until it is told to end, on a host of its own."""

    def __init__(
        self,
        loop: Loop,
        cluster: GroupCluster,
        plan: Plan,
        history: History,
        name: str,
        kind: str,
    ) -> None:
        self.name, self._kind = name, kind
        self._cluster, self._plan, self._history = cluster, plan, history
        self._next = 0
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
        if self._kind == "transactional":
            settings |= {"transactional_id": self.name, "transaction_timeout_ms": 10_000}
        else:
            settings |= {"enable_idempotence": self._kind == "idempotent"}
            settings |= {"delivery_timeout_ms": 20_000}
        async with AIOKafkaProducer(**settings) as producer:
            yield producer

    def _new_value(self) -> tuple[bytes, bytes]:
        number, self._next = self._next, self._next + 1
        value = f"{self.name}-{number}".encode()
        self._history.note(Kind.SENT, self.name, value=value)
        return value, b"%d" % (number % KEYS)

    async def _write(self, producer: AIOKafkaProducer[Any, Any]) -> None:
        if self._kind == "transactional":
            await self._write_transaction(producer)
            return
        value, key = self._new_value()
        sent = await producer.send(INPUT, value, key=key)
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
        values = [self._new_value() for _ in range(3)]
        is_meant_to_abort = self._next % 5 == 0
        try:
            await producer.begin_transaction()
            self._history.note(Kind.BEGUN, self.name)
            for value, key in values:
                await producer.send(INPUT, value, key=key)
            if is_meant_to_abort:
                await producer.abort_transaction()
            else:
                await producer.commit_transaction()
        except KafkaError as error:
            self._history.note(Kind.ENDED, self.name, note=f"unknown, {type(error).__name__}")
            raise
        outcome = "aborted" if is_meant_to_abort else "committed"
        self._history.note(Kind.ENDED, self.name, note=outcome)
        kind = Kind.REFUSED if is_meant_to_abort else Kind.ACKED
        for value, _ in values:
            self._history.note(kind, self.name, value=value, note=outcome)
