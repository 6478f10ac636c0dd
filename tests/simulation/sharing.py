"""Members of a share group, whose way of reading is "sharing": `--way sharing`."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from aiokafka_lite import AIOKafkaShareConsumer
from aiokafka_lite.broker.configs import ResourceType
from aiokafka_lite.broker.topics import PartitionKey
from aiokafka_lite.errors import ConsumerStoppedError, LeaseLostError
from aiokafka_lite.events import LeaseLost
from aiokafka_lite.processing import Retry
from aiokafka_lite.simulation.history import History, Kind
from aiokafka_lite.simulation.world import Process
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.simulation.applications import REQUEST_MS, note_error
from tests.simulation.cluster import GROUP, INPUT, SECOND, GroupCluster, GroupFacts
from tests.simulation.course import Course
from tests.simulation.handling import number_of
from tests.simulation.plan import Plan
from tests.simulation.share_rules import is_rejected, style_of
from tests.support import inside

if TYPE_CHECKING:
    from aiokafka_lite.simulation.engine import Loop

Record: TypeAlias = ConsumerRecord[bytes | None, bytes | None]

LOCK_MS: Final = 15_000
DELIVERY_LIMIT: Final = 10
SETTINGS: Final = {
    "share.auto.offset.reset": "earliest",
    "share.isolation.level": "read_committed",
    "share.record.lock.duration.ms": str(LOCK_MS),
    "share.delivery.count.limit": str(DELIVERY_LIMIT),
}
STOP_S: Final = 10.0
CONCURRENCY: Final = 10
MOST: Final = 20
READ_S: Final = 0.5
# Each so many records, a handler takes longer than a lock, or fails for ever, or is tried again.
LONG_EACH: Final = 61
LONG_S: Final = 1.5 * LOCK_MS / 1000
AGAIN_EACH: Final = 13
NACKED_EACH: Final = 11
# How long a member that has left may still hold locks.
LEFT_S: Final = 0.5


class ShareMember(Process):
    """A member of the share group.

    Attributes:
        member_id: Of its consumer, once that has started.
        left_at_s: When it has left.
    """

    def __init__(
        self,
        loop: Loop,
        cluster: ShareCluster,
        plan: Plan,
        history: History,
        name: str,
        slot: int,
    ) -> None:
        self.cluster, self.plan, self.history = cluster, plan, history
        self.consumer: AIOKafkaShareConsumer[Any, Any] | None = None
        self.rng = random.Random(f"{plan.seed}:{name}:sharing")
        self.member_id = ""
        self.left_at_s: float | None = None
        self._tried: set[bytes] = set()
        super().__init__(loop, history, name, slot)

    @property
    def style(self) -> str:
        return style_of(self.plan)

    async def _end(self) -> None:
        if self.consumer is not None:
            await self._loop.start(self.name, self.consumer.stop(STOP_S))
            self.left_at_s = self._loop.now
        self.task.cancel()

    async def _live(self) -> None:
        self.history.note(Kind.JOINED, self.name, note=self.style)
        self.consumer = consumer = AIOKafkaShareConsumer(
            *((INPUT, SECOND) if self.plan.second else (INPUT,)),
            bootstrap_servers=self.cluster.bootstrap_servers,
            client_id=self.name,
            group_id=GROUP,
            ack_mode="explicit" if self.style == "explicit" else "implicit",
            request_timeout_ms=REQUEST_MS,
            metadata_max_age_ms=self.plan.metadata_ms,
        )
        listening: asyncio.Task[None] | None = None
        try:
            async with consumer:
                self.member_id = inside.share_member_id(consumer)
                listening = asyncio.ensure_future(self._listen(consumer))
                await getattr(self, f"_{self.style}")(consumer)
        except (asyncio.CancelledError, ConsumerStoppedError):
            if not self._is_stopping:
                raise
        except Exception as error:  # noqa: BLE001 — the rules judge it
            note_error(self.history, self.name, error)
            self.has_failed = True
        finally:
            if listening is not None:
                listening.cancel()

    async def _listen(self, consumer: AIOKafkaShareConsumer[Any, Any]) -> None:
        async for event in consumer.events():
            if isinstance(event, LeaseLost):
                for offset in range(*event.offsets):
                    self.history.note(Kind.LOST, self.name, event.tp, offset, note=event.reason)

    def _note(self, kind: Kind, record: Record, note: str = "") -> None:
        tp = TopicPartition(record.topic, record.partition)
        self.history.note(kind, self.name, tp, record.offset, record.value or b"", note)

    # --- Ways -----------------------------------------------------------------------------
    async def _run(self, consumer: AIOKafkaShareConsumer[Any, Any]) -> None:
        await consumer.run(
            self._handle,
            concurrency=CONCURRENCY,
            retry=Retry(attempts=2, first_delay_ms=50, max_delay_ms=200),
            dead_letter="reject",
            breaker=None,
        )

    async def _handle(self, record: Record) -> None:
        value = record.value or b""
        self._note(Kind.RETURNED, record, str(record.delivery_count))
        number = number_of(value)
        try:
            await asyncio.sleep(LONG_S if number % LONG_EACH == 0 else self.plan.handling_s)
        except asyncio.CancelledError as error:
            is_lost = isinstance(error.__cause__, LeaseLostError)
            self._note(Kind.CANCELLED, record, "lost" if is_lost else "stop")
            raise
        # A long one is not tried again, because the course waits for it to settle.
        is_again = number % AGAIN_EACH == 5 and number % LONG_EACH and value not in self._tried
        if is_rejected(self.plan, value) or is_again:
            self._tried.add(value)
            self._note(Kind.CANCELLED, record, "failed")
            raise ValueError(number)
        self._note(Kind.HANDLED, record)

    @staticmethod
    async def _read(consumer: AIOKafkaShareConsumer[Any, Any]) -> list[Record]:
        found = await consumer.getmany(max_records=MOST, timeout_ms=READ_S * 1000)
        return [record for records in found.values() for record in records]

    async def _implicit(self, consumer: AIOKafkaShareConsumer[Any, Any]) -> None:
        while not self._is_stopping:
            for record in await self._read(consumer):
                self._note(Kind.RETURNED, record, str(record.delivery_count))
                await asyncio.sleep(self.plan.handling_s)
                self._note(Kind.HANDLED, record)

    async def _explicit(self, consumer: AIOKafkaShareConsumer[Any, Any]) -> None:
        while not self._is_stopping:
            for record in await self._read(consumer):
                self._note(Kind.RETURNED, record, str(record.delivery_count))
                await asyncio.sleep(self.plan.handling_s)
                number = number_of(record.value or b"")
                if number % NACKED_EACH == 0 and record.delivery_count == 1:
                    self._note(Kind.CANCELLED, record, "nack")
                    record.nack(self.rng.choice((0, 300)))
                else:
                    self._note(Kind.HANDLED, record)
                    record.ack()


class ShareCluster(GroupCluster):
    """The cluster of a share group. Its finished records are its commits."""

    async def start(self) -> None:
        await super().start()
        self.broker.catalog.configure(ResourceType.GROUP, GROUP, SETTINGS, validate_only=False)

    def progress(self) -> GroupFacts:
        facts = super().progress()
        for tp in self.input_partitions():
            topic = self.broker.topic(tp.topic)
            assert topic is not None
            offsets = self._shares.described(GROUP, PartitionKey(topic.topic_id, tp.partition))
            if offsets.lag >= 0:
                end = self.broker.partition(*tp).high_watermark
                facts.committed[tp] = end - offsets.lag
        return facts

    @property
    def _shares(self) -> Any:
        return self.broker.share_partitions

    def lock_owners(self) -> set[str]:
        """Return the ids of the members that hold locks."""
        return inside.share_lock_owners(self._shares)


class ShareCourse(Course):
    """The course of a share group."""

    cluster: ShareCluster

    @staticmethod
    def _new_cluster(loop: Loop, plan: Plan) -> GroupCluster:
        return ShareCluster(loop, plan)

    def start(self, slot: int) -> None:
        name = self._new_name("m", slot)
        member = ShareMember(self.loop, self.cluster, self.plan, self.history, name, slot)
        self.members.append(member)  # type: ignore[arg-type]

    def _look_at(self, member: Any) -> None:
        if member.consumer is not None:
            member.consumer.metrics()

    def look(self) -> None:
        super().look()
        owners = self.cluster.lock_owners()
        for member in self.members:
            assert isinstance(member, ShareMember)
            left_at = member.left_at_s
            if left_at is None or self.loop.now - left_at < LEFT_S:
                continue
            if member.member_id in owners:
                self._violated("lock left", f"{member.name} has left, and holds locks")
                member.left_at_s = None
