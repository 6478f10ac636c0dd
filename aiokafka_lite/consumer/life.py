"""A consumer's engine: its state, its stages (client/life.py), and their effect on reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

from aiokafka_lite._chance import Chance
from aiokafka_lite._compat import override
from aiokafka_lite._tasks import Event, TaskScope
from aiokafka_lite.client.life import OVER, WITH_PARTS, Life, Owner, Parts, Stage
from aiokafka_lite.consumer.assignment.assignment import SubscriptionState
from aiokafka_lite.consumer.assignment.finished import Finished
from aiokafka_lite.consumer.assignment.observers import Observers
from aiokafka_lite.consumer.assignment.reads import Reads
from aiokafka_lite.consumer.assignment.works import Works
from aiokafka_lite.consumer.buffer.budget import ByteBudget
from aiokafka_lite.consumer.buffer.buffer import Buffer
from aiokafka_lite.consumer.buffer.decode import Delivery
from aiokafka_lite.consumer.config import DEFAULT_MAX_UNCOMMITTED, ConsumerConfig
from aiokafka_lite.consumer.core import Core
from aiokafka_lite.consumer.delivery.gets import Gets
from aiokafka_lite.consumer.delivery.ready import ReadyRecords
from aiokafka_lite.consumer.events import Events
from aiokafka_lite.consumer.gate import Gate
from aiokafka_lite.errors import (
    CommitFailedError,
    ConsumerStoppedError,
    FencedInstanceIdError,
    IllegalOperation,
    KafkaError,
)

if TYPE_CHECKING:
    from aiokafka_lite.consumer.assignment.work import DeliveredRecords
    from aiokafka_lite.consumer.commits.commits import Commits
    from aiokafka_lite.consumer.commits.transactional import (
        DeliveryToCommit,
        OffsetsInTransaction,
    )
    from aiokafka_lite.consumer.membership.protocol import Offsets
    from aiokafka_lite.consumer.monitoring.loop_probe import LoopProbe
    from aiokafka_lite.consumer.parts import Running


class WithScopes(Parts, Protocol):
    @property
    def scopes(self) -> Collection[TaskScope]: ...


ConsumerParts = TypeVar("ConsumerParts", bound=WithScopes)


class ConsumerLife(Life[ConsumerParts]):
    """The stages of a consumer, whose tasks and connections publish events."""

    stopped_error = ConsumerStoppedError

    def __init__(self, make_parts: Callable[[], ConsumerParts], events: Events) -> None:
        super().__init__(asyncio.get_running_loop(), make_parts)
        self.events = events
        # The exception that left the application's `async with`, in words.
        self.left_by = ""

    def on_reachability(
        self, node_id: int, address: str, error: KafkaError | None, down_s: float
    ) -> None:
        from aiokafka_lite.events import BrokerDown, BrokerUp

        self.events.publish(
            BrokerUp(node_id, address, down_s)
            if error is None
            else BrokerDown(node_id, address, error)
        )

    def on_failure(self, error: BaseException) -> None:
        from aiokafka_lite.events import TaskFailed

        scopes = () if self.parts is None else self.parts.scopes
        name = next((scope.name for scope in scopes if scope.failure is error), "unknown")
        self.events.publish(TaskFailed(name, error))
        self.die(error)

    def on_restart(self, name: str, error: KafkaError) -> None:
        from aiokafka_lite.events import TaskRestarted

        self.events.publish(TaskRestarted(name, error))


class Engine(ConsumerLife["Running"]):
    """A consumer without its public methods.

    Only the consumer keeps `delivery` alive, the callables for each record, which `config` lacks.
    """

    kind = "consumer"

    def __init__(
        self,
        config: ConsumerConfig,
        events: Events,
        delivery: Delivery,
        make_probe: Callable[[Core], LoopProbe],
        rng: Chance,
    ) -> None:
        super().__init__(self._make_parts, events)
        self._state_changed = Event()
        observers = Observers()
        reads = Reads(observers)
        state = SubscriptionState(observers, reads)
        works = Works(state, reads, observers)
        finished = Finished(state, reads, works, observers)
        gate = Gate(reads.note_raised)
        buffer = Buffer(
            state,
            reads,
            gate,
            observers,
            on_error=self._state_changed.set,
            on_blocked=self._budget_released,
            on_sought=self._sought_changed,
            budget=ByteBudget(config.max_buffered_bytes, self._budget_released),
            delivery=delivery,
            most_held_bytes=config.max_buffered_bytes,
        )
        self.core = Core(
            config, state, reads, works, finished, gate, events, observers, buffer, rng
        )
        self.ready, self.gets = self._make_gets()
        self.owner = Owner(self.kind, self._loop, self._end_gets_of_child)
        observers.assignment_changed.add(self._state_changed.set)
        observers.partition_changed.add(lambda _: self._state_changed.set())
        gate.on_change(self._state_changed.set)
        self.probe = make_probe(self.core)
        gate.refuse(self.not_started)

    def _make_gets(self) -> tuple[ReadyRecords, Gets]:
        core = self.core
        if core.config.ack_mode != "explicit":
            ready = ReadyRecords(core)
            return ready, Gets(core, ready)
        # Imported where it is used: most consumers have no use for it.
        from aiokafka_lite.consumer.processing.acks import Acks

        acks = Acks(core, DEFAULT_MAX_UNCOMMITTED, self.deliver)
        return acks.ready, acks

    # --- Deliveries -----------------------------------------------------------------------
    def in_transactions(self) -> OffsetsInTransaction:
        # Imported where it is used: most consumers have no use for it.
        from aiokafka_lite.consumer.commits.transactional import OffsetsInTransaction

        return OffsetsInTransaction(self.core, self.commits_of(self.running))

    def deliver(self, delivery: DeliveredRecords) -> DeliveryToCommit:
        from aiokafka_lite.consumer.commits.transactional import DeliveryToCommit

        return DeliveryToCommit(self.in_transactions(), delivery)

    # --- Hooks ----------------------------------------------------------------------------
    def _end_gets_of_child(self) -> None:
        self.ready.cursor.close()
        self.core.gate.refuse(self.owner.refusal)

    def _budget_released(self) -> None:
        if self.current is not None:
            self.current.sources.budget_released()

    def _sought_changed(self) -> None:
        if self.current is not None:
            self.current.sources.choose_anew()

    @override
    def on_failure(self, error: BaseException) -> None:
        super().on_failure(error)
        if self.stage in (Stage.DEAD, Stage.FINISHING):
            self.core.gate.die(error)

    # --- Parts ----------------------------------------------------------------------------
    def _make_parts(self) -> Running:
        # Imported by the first start, because this is a quarter of the package.
        from aiokafka_lite.consumer.parts import Running

        return Running(self)

    @override
    def _entered(self, stage: Stage) -> None:
        if stage is Stage.STARTING:
            self.core.gate.admit()
        elif stage in OVER:
            self.core.gate.refuse(self.stopped)
        elif stage not in WITH_PARTS:
            self.core.gate.refuse(self.not_started)
        state = self.core.state
        if stage is Stage.NEW and state.is_subscribed:  # the next start is another member's
            state.change(state.assignment, ())
        if stage in (Stage.STOPPED, Stage.ABANDONED):
            self.core.events.close()

    @contextmanager
    def until_stopped(self) -> Iterator[Running]:
        """Yield the parts for a call that the stop interrupts with ConsumerStoppedError."""
        try:
            yield self.running
        except KafkaError as error:
            if not self.is_over:
                raise
            raise ConsumerStoppedError("the consumer was stopped during the call") from error

    def require_group(self) -> None:
        if self.core.config.group_id is None:
            raise IllegalOperation(
                "this consumer cannot commit offsets, because it has no group: create the "
                "consumer with a group_id"
            )

    def commits_of(self, parts: Running) -> Commits:
        self.require_group()
        assert parts.commits is not None  # noqa: S101 -- it has a group
        return parts.commits

    async def commit(self, offsets: object) -> None:
        parts = self.parts if self.stage is Stage.STOPPING else self.current
        if parts is None:
            if not self.is_over:
                raise self.refusal()
            raise CommitFailedError(
                "the consumer is stopped and can no longer commit: commit before stop(), or "
                "while stop() runs. The partitions' next owners start at the committed offsets"
            )
        assert parts.commits is not None  # noqa: S101 -- it has a group
        try:
            await parts.commits.commit(offsets)
        except KafkaError as error:
            if not self.is_over or isinstance(error, FencedInstanceIdError):
                raise
            raise CommitFailedError(
                f"the consumer was stopped before the commit succeeded ({error}), so it is unknown "
                "whether the offsets are committed: commit before stop(), or give stop() a longer "
                "timeout"
            ) from error

    # --- Stop -----------------------------------------------------------------------------
    async def stop_as(
        self, timeout_s: float, *, is_clean: bool, leaves: bool | None = None
    ) -> Offsets:
        """As `stop`. Return the offsets that could not be committed, as far as known.

        `is_clean`: commit all returned records, otherwise without those of the latest read.
        """
        if self.is_stopping:
            is_awaited = self.parts is None or not self.parts.membership.is_called_by_listener()
            processing = self.core.reads.processing
            if is_awaited and processing is not None and self.stage is Stage.FINISHING:
                processing.note_stopper(self._loop.time() + timeout_s)
        else:
            is_awaited = True
            if self.current is not None:
                self.current.stop_as(is_clean=is_clean, leaves=leaves)
        if is_awaited:
            await self.stop(timeout_s)
        return {} if self.parts is None else self.parts.uncommitted

    # --- Waiting for a state --------------------------------------------------------------
    async def wait_until(self, is_reached: Callable[[], bool], deadline: float) -> bool:
        while not is_reached():
            self.core.gate.check()
            self._state_changed.clear()
            if not await self._state_changed.wait(deadline):
                return False
        return True
