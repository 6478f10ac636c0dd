"""A member of the group: an application in a process of its own, which writes down what it sees."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from aiokafka_lite import _compat
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.assignors import RangePartitionAssignor
from aiokafka_lite.consumer.assignors.cooperative_sticky import (
    CooperativeStickyPartitionAssignor,
)
from aiokafka_lite.errors import ConsumerStoppedError, FencedInstanceIdError, KafkaError
from aiokafka_lite.producing.producer import TransactionBlock
from aiokafka_lite.simulation.history import History, Kind
from aiokafka_lite.simulation.world import Process
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition
from tests.simulation import habits, ways
from tests.simulation.applications import note_error
from tests.simulation.cluster import GROUP, INPUT, PATTERN, RACKS, SECOND, SESSION_MS, GroupCluster
from tests.simulation.handling import number_of
from tests.simulation.listener import BoomError, Listener
from tests.simulation.plan import ACKS, LETTERS, RUNS, Plan
from tests.simulation.ways import REQUEST_MS, Consumer, Record, place

if TYPE_CHECKING:
    from aiokafka_lite.simulation.engine import Loop

_T = TypeVar("_T")

ASSIGNORS: Final = {
    "range": RangePartitionAssignor,
    "cooperative": CooperativeStickyPartitionAssignor,
}
STOP_S: Final = 10.0
# Each so many records, one takes so many times as long.
SLOW_EACH: Final = 40
SLOW_TIMES: Final = 20
# How much longer than it was told a call may take, if the loop was not blocked.
GRACE_S: Final = 1.0
# After so long without a read, members that stay away are removed.
MAX_POLL_MS: Final = 6_000
# Named commits are retried for longer than a session, so in the next generation, too.
LONG_MS: Final = 15_000
# The share of handlers that fail, and of those that commit their record.
FAILING: Final = 0.02
NAMING: Final = 0.1
TIMEOUTS_S: Final = (0.0, 0.001, 0.02, 0.3)


class Member(Process):
    """A member of the group. Those of a slot have one instance id.

    Attributes:
        handled_to: Behind the latest record that was handled, of each partition that it has.
    """

    def __init__(
        self,
        loop: Loop,
        cluster: GroupCluster,
        plan: Plan,
        history: History,
        name: str,
        slot: int,
    ) -> None:
        self.cluster, self.plan, self.history = cluster, plan, history
        self.consumer: Consumer | None = None
        self.rng = random.Random(f"{plan.seed}:{name}:habit")
        self.handled_to: dict[TopicPartition, int] = {}
        # The offsets that the present assignment has returned, and that are not handled.
        self._returned: dict[TopicPartition, set[int]] = {}
        self.read_count = 0
        self.is_subscribed_to_less = False
        self.transaction: TransactionBlock[Any, Any] | None = None
        self.tasks: set[asyncio.Task[None]] = set()
        self._handling_count = 0
        self._error: Exception | None = None
        super().__init__(loop, history, name, slot)

    @property
    def must_end(self) -> bool:
        return self._is_stopping

    @property
    def is_wild(self) -> bool:
        """Whether it follows its habit now."""
        return not self._is_stopping and self._loop.now < self.plan.calm_at_s

    def now(self) -> float:
        return self._loop.now

    # Its life

    async def _end(self) -> None:
        if self.plan.way in RUNS and self.consumer is not None:
            await self._loop.start(self.name, self._stop(self.consumer))
        if not self._handling_count:
            self.task.cancel()

    async def _live(self) -> None:
        plan = self.plan
        self.history.note(Kind.JOINED, self.name, note=f"{plan.protocol}, {plan.way}")
        self.consumer = consumer = AIOKafkaConsumer(**self._settings())
        self.subscribe()
        try:
            async with consumer, habits.following(self, consumer):
                try:
                    await ways.read(self, consumer)
                except asyncio.CancelledError:
                    if not self._is_stopping:
                        raise
                except Exception as error:
                    self._fail(error)  # others get its partitions before the consumer is closed
                    raise
                if plan.seed % 3:  # others leave the block of `async with`
                    await self._stop_reading(consumer)
        except asyncio.CancelledError:
            if not self._is_stopping:
                raise
        except ConsumerStoppedError:
            if not self._is_stopping:
                raise
        except Exception as error:  # noqa: BLE001 — the rules judge it
            self._fail(error)
        finally:
            for task in tuple(self.tasks):
                task.cancel()

    def _fail(self, error: Exception) -> None:
        """Note the error that ends the member, once."""
        if error is self._error or isinstance(error, ConsumerStoppedError):
            return
        self._error = error
        self.note_error(error)
        # Another one has its instance id.
        self.has_failed = not isinstance(error, FencedInstanceIdError)

    async def _stop(self, consumer: Consumer) -> dict[TopicPartition, OffsetAndMetadata]:
        began_s = self.now()
        left = await consumer.stop(STOP_S)
        self.check_time("stop", began_s, STOP_S)
        return left

    async def _stop_reading(self, consumer: Consumer) -> None:
        """Stop as a clean end of `async with` does, and hold the result against the log."""
        owed = {} if self.plan.way in (*RUNS, *ACKS) or self.plan.tasks > 1 else self.handled_to
        owed = dict(owed)
        left = await self._stop(consumer)
        for tp in sorted(owed.keys() - left.keys()):
            self.history.note(Kind.CONFIRMED, self.name, tp, owed[tp], note="by the stop")

    def subscribe(self, topics: Sequence[str] = ()) -> None:
        """Subscribe to these topics, by default to all of the plan."""
        assert self.consumer is not None
        listener = Listener(self)
        if topics:
            self.consumer.subscribe(topics, listener=listener)
        elif self.plan.second == "pattern":
            self.consumer.subscribe(pattern=PATTERN, listener=listener)
        else:
            topics = [INPUT, SECOND] if self.plan.second else [INPUT]
            self.consumer.subscribe(topics, listener=listener)

    def _settings(self) -> dict[str, Any]:
        plan = self.plan
        settings: dict[str, Any] = {
            "bootstrap_servers": self.cluster.bootstrap_servers,
            "client_id": self.name,
            "group_id": GROUP,
            "auto_offset_reset": "earliest",
            "isolation_level": "read_committed",
            "auto_commit_interval_ms": plan.auto_commit_ms,
            "request_timeout_ms": LONG_MS if plan.habit == "names commits" else REQUEST_MS,
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
        if plan.has_racks:
            settings["client_rack"] = RACKS[self.slot % len(RACKS)]
        if plan.way in ACKS:
            settings["ack_mode"] = "explicit"
        if plan.way == "copy batches":
            settings["enable_auto_commit"] = False
        if plan.habit == "stays away":
            settings["max_poll_interval_ms"] = MAX_POLL_MS
        if plan.protocol == "consumer":
            settings["group_protocol"] = "consumer"
        else:
            settings["group_protocol"] = "classic"
            settings["partition_assignment_strategy"] = [ASSIGNORS[plan.protocol]]
        return settings

    # What its way of reading tells it

    def note_error(self, error: Exception, before: str = "") -> None:
        note_error(self.history, self.name, error, before)

    def note_returned(self, records: Sequence[Record]) -> None:
        for each in records:
            value = each.value or b""
            self.history.note(Kind.RETURNED, self.name, place(each), each.offset, value)
            self._returned.setdefault(place(each), set()).add(each.offset)

    def note_handled(self, record: Record) -> None:
        tp, value = place(record), record.value or b""
        self.history.note(Kind.HANDLED, self.name, tp, record.offset, value)
        returned = self._returned.get(tp, set())
        # A record of an earlier assignment may be returned again, and finishes nothing.
        is_of_this = record.offset in returned
        returned.discard(record.offset)
        if is_of_this and self.consumer is not None and tp in self.consumer.assignment():
            self.handled_to[tp] = record.offset + 1

    def forget(self, tp: TopicPartition) -> None:
        """Owe no commit of a partition, whose assignment begins or ends."""
        self.handled_to.pop(tp, None)
        self._returned.pop(tp, None)

    async def process(self, record: Record) -> None:
        """Take as long as this record takes."""
        handling_s = self.plan.handling_s
        if handling_s:
            is_slow = number_of(record.value or b"") % SLOW_EACH == 0
            try:
                await asyncio.sleep(handling_s * (SLOW_TIMES if is_slow else 1))
            except asyncio.CancelledError:
                self._note_cancelled(record)
                raise

    def _note_cancelled(self, record: Record) -> None:
        value = record.value or b""
        self.history.note(Kind.CANCELLED, self.name, place(record), record.offset, value)

    def fail_at_times(self, records: Sequence[Record]) -> None:
        """Raise the error of a handler that is tried again, for a few of its calls."""
        if self.is_wild and self.plan.way not in LETTERS and self.rng.random() < FAILING:
            for record in records:
                self._note_cancelled(record)
            raise ConnectionError("tried again")

    async def commit_own(self, record: Record) -> None:
        """Commit the offset after a handler's own record, as with other clients."""
        if self.plan.habit == "names commits" and self.is_wild and self.rng.random() < NAMING:
            assert self.consumer is not None
            with suppress(KafkaError):
                await self.consumer.commit({place(record): record.offset + 1})

    @contextmanager
    def handling(self) -> Iterator[None]:
        """Have a stop wait for the end of the block. The time of the stop begins then."""
        self._handling_count += 1
        try:
            yield
        finally:
            self._handling_count -= 1
            if self._is_stopping and not self._handling_count:
                self.history.note(Kind.STOPPING, self.name, note="handles no more")

    async def handle(self, records: Sequence[Record]) -> None:
        """Handle all that a read has returned, and do what the habit is."""
        if not records:
            return
        with self.handling():
            self.note_returned(records)
            for record in records:
                await self.process(record)
                self.note_handled(record)
        await habits.follow(self, records[-1])

    async def read(self, reading: Awaitable[_T], within_s: float | None = None) -> _T | None:
        """Await a read, which some members cancel. Return None if it was cancelled."""
        began_s = self.now()
        try:
            if self.plan.habit == "times out" and self.is_wild:
                async with _compat.timeout(self.rng.choice(TIMEOUTS_S)):
                    return await reading
            return await reading
        except (asyncio.TimeoutError, BoomError):
            return None
        finally:
            if within_s is not None:
                self.check_time("a read", began_s, within_s)

    def check_time(self, what: str, began_s: float, within_s: float) -> None:
        took_s = self.now() - began_s
        if took_s > within_s + GRACE_S and not any(
            fault.name == "loop blocked" for fault in self.plan.faults
        ):
            self.history.note(Kind.RAISED, self.name, note=f"{what} took {took_s:.1f} s")
