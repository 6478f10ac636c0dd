"""The stages of a consumer, its start, its stop, and the error that ended it.

::

    NEW ──> STARTING ──> RUNNING ──> STOPPING ──> STOPPED
     ^          │  └──> DEAD <─┘        ^         (FINISHING precedes STOPPING)
     └─ UNDOING <─┘                     └── from every stage before

    NEW        created, or a start has failed and left nothing behind
    STARTING   `start` connects, looks topics up and joins the group
    RUNNING    `start` has returned
    DEAD       a background task has failed; every read raises its error until the stop
    FINISHING  `stop` waits for unfinished records. Reads return none, everything else continues
    UNDOING    a start failed or was cancelled: its parts are being stopped
    STOPPING   `stop` commits, leaves the group and disconnects
    ABANDONED  the consumer was garbage-collected without `stop`

From STARTING to DEAD there are parts that talk to brokers (parts.py). The engine has no reference
to its consumer, so that a forgotten consumer can be collected and warn.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from aiokafka_lite._compat import timeout, timeout_at
from aiokafka_lite._tasks import Event
from aiokafka_lite._transaction import transaction_around
from aiokafka_lite.client.backoff import LONGEST_BACKOFF_S, Backoff
from aiokafka_lite.consumer.assignment.cursor import Range
from aiokafka_lite.consumer.assignment.finished import Finished
from aiokafka_lite.consumer.assignment.observers import Observers
from aiokafka_lite.consumer.assignment.reads import Reads
from aiokafka_lite.consumer.assignment.subscription import (
    SubscriptionMode,
    SubscriptionState,
    is_subscribed,
)
from aiokafka_lite.consumer.assignment.works import Works
from aiokafka_lite.consumer.buffer.budget import ByteBudget
from aiokafka_lite.consumer.buffer.buffer import Buffer
from aiokafka_lite.consumer.buffer.decode import AnyDelivery
from aiokafka_lite.consumer.caller import Owner
from aiokafka_lite.consumer.config import DEFAULT_MAX_UNCOMMITTED, ConsumerConfig
from aiokafka_lite.consumer.delivery.gets import Gets, new_cursor
from aiokafka_lite.consumer.delivery.ready import ReadyRecords
from aiokafka_lite.consumer.events import Events
from aiokafka_lite.consumer.gate import Gate
from aiokafka_lite.errors import (
    CommitFailedError,
    ConsumerStoppedError,
    FencedInstanceIdError,
    IllegalOperation,
    IllegalStateError,
    KafkaError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.structs import TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.client.cluster import Cluster
    from aiokafka_lite.consumer.assignment.work import DeliveredRecords
    from aiokafka_lite.consumer.commits.transactional import (
        DeliveryToCommit,
        OffsetsInTransaction,
    )
    from aiokafka_lite.consumer.membership.protocol import Offsets
    from aiokafka_lite.consumer.monitoring.loop_probe import LoopProbe
    from aiokafka_lite.consumer.parts import Running

log = logging.getLogger(__name__)

FIRST_TOPIC_RETRY_S: Final = 0.1
# The application's part of the time to stop. The rest is for commits and the group.
WORK_SHARE: Final = 0.8


class Stage(enum.Enum):
    NEW = "not started"
    STARTING = "starting"
    RUNNING = "running"
    DEAD = "dead"
    FINISHING = "finishing"
    UNDOING = "start failed"
    STOPPING = "stopping"
    STOPPED = "stopped"
    ABANDONED = "abandoned"


MOVES: Final[Mapping[Stage, frozenset[Stage]]] = MappingProxyType(
    {
        Stage.NEW: frozenset({Stage.STARTING, Stage.STOPPING, Stage.ABANDONED}),
        Stage.STARTING: frozenset(
            {Stage.RUNNING, Stage.DEAD, Stage.UNDOING, Stage.STOPPING, Stage.ABANDONED}
        ),
        Stage.RUNNING: frozenset({Stage.DEAD, Stage.FINISHING, Stage.STOPPING, Stage.ABANDONED}),
        Stage.FINISHING: frozenset({Stage.STOPPING, Stage.ABANDONED}),
        # A start whose task failed may still fail, and handlers may continue for a while.
        Stage.DEAD: frozenset({Stage.UNDOING, Stage.FINISHING, Stage.STOPPING, Stage.ABANDONED}),
        Stage.UNDOING: frozenset({Stage.NEW, Stage.STOPPING, Stage.ABANDONED}),
        Stage.STOPPING: frozenset({Stage.STOPPED}),
        Stage.STOPPED: frozenset(),
        # Its last holder, an exception handler, may stop it all the same.
        Stage.ABANDONED: frozenset({Stage.STOPPING}),
    }
)
# Stages in which there are parts that may be used.
WITH_PARTS: Final = frozenset({Stage.STARTING, Stage.RUNNING, Stage.FINISHING, Stage.DEAD})
# Final stages.
OVER: Final = frozenset({Stage.STOPPING, Stage.STOPPED, Stage.ABANDONED})


def _not_started() -> IllegalStateError:
    return IllegalStateError("the consumer is not started: await consumer.start() first")


def _stopped() -> ConsumerStoppedError:
    return ConsumerStoppedError("the consumer is stopped")


def _in_words(undone: Iterable[Mapping[TopicPartition, Range]]) -> dict[str, str]:
    return {
        f"{tp.topic}/{tp.partition}": f"{first} to {end - 1}"
        for ranges in undone
        for tp, (first, end) in sorted(ranges.items())
    }


class Life:
    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._stage = Stage.NEW
        # `start` was called. If the stage is NEW again, that start has left nothing behind.
        self.was_tried = False
        # Loop time and error of the latest start, if it failed.
        self.failed_start: tuple[float, Exception] | None = None
        # The exception that left the application's `async with`, in words.
        self.left_by = ""
        gate.refuse(_not_started)

    @property
    def stage(self) -> Stage:
        return self._stage

    @property
    def is_over(self) -> bool:
        return self._stage in OVER

    def enter(self, stage: Stage) -> None:
        if stage not in MOVES[self._stage]:
            raise AssertionError(
                f"a consumer cannot change its stage from {self._stage.name} to {stage.name}"
            )
        self._stage = stage
        if stage is Stage.STARTING:
            self._gate.admit()
        elif stage in OVER:
            self._gate.refuse(_stopped)
        elif stage not in WITH_PARTS:
            self._gate.refuse(_not_started)

    def refuse_gets(self) -> None:
        self._gate.refuse(_stopped)

    @property
    def has_failed_to_start(self) -> bool:
        return self.was_tried and self._stage is Stage.NEW

    def raise_if_over(self) -> None:
        if self._stage in OVER:
            raise _stopped()

    def refusal(self) -> Exception:
        return _stopped() if self._stage in OVER else _not_started()


class Engine:
    """A consumer without its public methods: its state, its start and its stop.

    Only the consumer keeps `delivery` alive, the callables for each record, which `config` lacks.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        state: SubscriptionState,
        reads: Reads,
        gate: Gate,
        events: Events,
        observers: Observers,
        delivery: AnyDelivery,
        probe: LoopProbe,
        rng: random.Random,
    ) -> None:
        self.config = config
        self.state = state
        self.reads = reads
        self.works = Works(state, reads, observers)
        self.finished = Finished(state, reads, self.works, observers)
        self.gate = gate
        self.events = events
        self.observers = observers
        self.life = Life(self.gate)
        self.budget = ByteBudget(config.max_buffered_bytes, self._budget_released)
        self.buffer = Buffer(
            state,
            reads,
            gate,
            observers,
            on_error=lambda: self._state_changed.set(),
            on_blocked=self._budget_released,
            on_sought=self._sought_changed,
            budget=self.budget,
            delivery=delivery,
            most_held_bytes=config.max_buffered_bytes,
        )
        self.ready, self.gets = self._make_gets(rng)
        self.owner = Owner(self._end_gets_of_child)
        self._rng = rng
        self._loop = asyncio.get_running_loop()
        self._state_changed = Event()
        observers.on_assignment_change(self._assignment_changed)
        observers.on_partition_change(lambda _: self._state_changed.set())
        observers.on_subscription_change(self._watch_topics)
        self.gate.on_change(self._state_changed.set)
        self.probe = probe
        # The latest parts, even after the stop, because metrics read their counts.
        self.parts: Running | None = None
        # The same in the stages that have parts, set by `_enter`.
        self.current: Running | None = None
        # Set unless parts are being stopped, and once the stop is over.
        self._parts_ended, self._stopped = Event(), Event()
        self._parts_ended.set()
        # Offsets that the stop could not commit, as far as known.
        self.uncommitted: Offsets = {}

    def _make_gets(self, rng: random.Random) -> tuple[ReadyRecords, Gets]:
        state, reads, buffer = self.state, self.reads, self.buffer
        gate, observers = self.gate, self.observers
        if self.config.ack_mode != "explicit":
            ready = ReadyRecords(new_cursor(), reads, buffer, gate, observers)
            return ready, Gets(state, reads, buffer, ready, gate.check_poll)
        # Imported where it is used: most consumers have no use for it.
        from aiokafka_lite.consumer.processing.acks import AckedGets, Acks

        most = DEFAULT_MAX_UNCOMMITTED
        acks = Acks(state, reads, self.works, buffer, gate, observers, most, rng, self.deliver)
        return acks.ready, AckedGets(state, reads, buffer, gate.check_poll, acks)

    # --- Deliveries -----------------------------------------------------------------------
    def in_transactions(self) -> OffsetsInTransaction:
        # Imported where they are used: most consumers have no use for them.
        from aiokafka_lite.consumer.commits.commits import Commits
        from aiokafka_lite.consumer.commits.transactional import OffsetsInTransaction

        commits = self.running.commits
        if not isinstance(commits, Commits):
            raise IllegalOperation(
                "this consumer cannot commit offsets, because it has no group: create the "
                "consumer with a group_id"
            )
        return OffsetsInTransaction(self.state, self.finished, self.observers, commits)

    def deliver(self, delivery: DeliveredRecords) -> DeliveryToCommit:
        from aiokafka_lite.consumer.commits.transactional import DeliveryToCommit

        return DeliveryToCommit(self.in_transactions(), delivery)

    # --- Hooks ----------------------------------------------------------------------------
    def _end_gets_of_child(self) -> None:
        self.ready.cursor.close()
        self.gate.refuse(self.owner.refusal)

    def _budget_released(self) -> None:
        if self.current is not None:
            self.current.sources.budget_released()

    def _sought_changed(self) -> None:
        if self.current is not None:
            self.current.sources.choose_anew()

    def _assignment_changed(self) -> None:
        self._state_changed.set()
        self._watch_topics()

    def _watch_topics(self) -> None:
        if self.current is not None:
            self.current.watch_topics()

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
        if self.life.stage in (Stage.STARTING, Stage.RUNNING):
            self._enter(Stage.DEAD)
        if self.life.stage in (Stage.DEAD, Stage.FINISHING):
            self.gate.die(error)

    def on_restart(self, name: str, error: KafkaError) -> None:
        from aiokafka_lite.events import TaskRestarted

        self.events.publish(TaskRestarted(name, error))

    # --- Parts ----------------------------------------------------------------------------
    @property
    def running(self) -> Running:
        if self.current is None:
            raise self.life.refusal()
        return self.current

    @contextmanager
    def until_stopped(self) -> Iterator[Running]:
        """Yield the parts for a call that the stop interrupts with ConsumerStoppedError."""
        try:
            yield self.running
        except KafkaError as error:
            if not self.life.is_over:
                raise
            raise ConsumerStoppedError("the consumer was stopped during the call") from error

    async def commit(self, offsets: object) -> None:
        parts = self.parts if self.life.stage is Stage.STOPPING else self.current
        if parts is None:
            if not self.life.is_over:
                raise self.life.refusal()
            raise CommitFailedError(
                "the consumer is stopped and can no longer commit: commit before stop(), or "
                "while stop() runs. The partitions' next owners start at the committed offsets"
            )
        try:
            await parts.commits.commit(offsets)
        except KafkaError as error:
            if not self.life.is_over or isinstance(error, FencedInstanceIdError):
                raise
            raise CommitFailedError(
                f"the consumer was stopped before the commit succeeded ({error}), so it is unknown "
                "whether the offsets are committed: commit before stop(), or give stop() a longer "
                "timeout"
            ) from error

    def _enter(self, stage: Stage) -> None:
        self.life.enter(stage)
        self.current = self.parts if stage in WITH_PARTS else None

    # --- Start ----------------------------------------------------------------------------
    async def start(self) -> None:
        while self.life.stage in (Stage.UNDOING, Stage.STOPPING):
            await self._parts_ended.wait()
        if self.life.stage is not Stage.NEW:
            raise AssertionError("a consumer can be started only once: create another consumer")
        self.life.was_tried = True
        self.config.check_isolation_level()
        # Imported by the first start, because this is a quarter of the package.
        from aiokafka_lite.consumer.parts import Running

        running = self.parts = Running(self, self._rng)
        self._enter(Stage.STARTING)
        self.probe.start()
        try:
            self._watch_topics()  # before the first answer, which then has them
            await running.connect()
            if self.state.mode is SubscriptionMode.TOPICS:
                await self._wait_for_topics(running.cluster)
            await running.start()
            _ = self.running  # unless it was stopped as it became ready
            self._note_started()
        except BaseException as error:
            if isinstance(error, Exception):
                self.life.failed_start = self._loop.time(), error
            await self._undo()
            if self.life.is_over and isinstance(error, Exception):
                raise ConsumerStoppedError(
                    "the consumer was stopped before start() returned"
                ) from error
            raise

    def _note_started(self) -> None:
        self.life.failed_start = None
        if self.life.stage is Stage.STARTING:  # and not DEAD
            self._enter(Stage.RUNNING)

    async def _undo(self) -> None:
        if self.life.stage not in WITH_PARTS:
            return
        self._enter(Stage.UNDOING)
        try:
            await self._end_parts(self._loop.time(), {})
        finally:
            if is_subscribed(self.state):  # the next start is another member's
                self.state.change(self.state.assignment, ())
            if self.life.stage is Stage.UNDOING:
                self._enter(Stage.NEW)

    async def _wait_for_topics(self, cluster: Cluster) -> None:
        deadline = self._loop.time() + self.config.request_timeout_s
        backoff = Backoff(FIRST_TOPIC_RETRY_S, LONGEST_BACKOFF_S, self._rng)
        missing = sorted(self.state.subscription or ())
        view = cluster.view
        try:
            async with timeout_at(deadline):
                while True:
                    for topic in missing:
                        topic_view = view.topics.get(topic)
                        error = None if topic_view is None else topic_view.error
                        if error is not None and not error.retriable:
                            raise error(f"the brokers refuse to return metadata of topic {topic!r}")
                    missing = [t for t in missing if not view.partitions_for_topic(t)]
                    if not missing:
                        return
                    await asyncio.sleep(backoff.next_delay_s())
                    view = await cluster.refresh()
        except asyncio.TimeoutError:
            names = ", ".join(repr(topic) for topic in missing)
            unknown = cluster.unknown_topics.text(missing)
            raise UnknownTopicOrPartitionError(
                f"topic {names} was not found within {self.config.request_timeout_ms} "
                f"ms{f' ({unknown})' if unknown else ''}: create it, or check its name and the "
                "cluster's auto.create.topics.enable"
            ) from None

    # --- Stop -----------------------------------------------------------------------------
    async def stop(
        self, timeout_s: float, *, is_clean: bool, leaves: bool | None = None
    ) -> Offsets:
        """Stop everything in order, within the timeout. Later calls wait for the first.

        Args:
            is_clean: Commit all returned records, otherwise without those of the latest read.
            leaves: See Membership.leave.

        Returns:
            Offsets that could not be committed.
        """
        if self.life.stage in (Stage.FINISHING, Stage.STOPPING, Stage.STOPPED):
            return await self._await_stop(timeout_s)
        deadline, has_parts = self._loop.time() + timeout_s, self.current is not None
        offsets: Offsets = {}
        try:
            works, finished = self.works, self.finished
            if has_parts and (works.begun or works.undecided(self.state.assignment)):
                self._enter(Stage.FINISHING)
                work_s = timeout_s * WORK_SHARE if is_clean else 0.0
                await self._finish_works(self._loop.time() + work_s)
            if self.config.enable_auto_commit and self.config.group_id is not None:
                offsets = finished.finished_offsets() if is_clean else finished.processed_offsets()
        except BaseException:
            deadline = self._loop.time()
            raise
        finally:
            await self._stop(deadline, offsets, leaves, has_parts=has_parts)
        return self.uncommitted

    async def _finish_works(self, until: float) -> None:
        processing = self.reads.processing
        if processing is None or not processing.is_always_asking:
            self.life.refuse_gets()
            if self.config.group_id is not None:
                await self._until_finished(until)
        if processing is not None:
            await processing.end(until)

    async def _until_finished(self, until: float) -> None:
        """Wait for works and transactions as a rebalance does, but not for the caller's own."""
        works, assigned = self.works, self.state.assignment
        now, caller = self._loop.time(), asyncio.current_task()
        around, hold_s = transaction_around(), self.config.rebalance_hold_s
        limits = {
            work: min(until, now + (hold_s if work.hold_s is None else work.hold_s))
            for work in works.begun
            if not work.is_of(caller)
        }
        of_transactions = min(until, now + hold_s)

        def undone() -> list[tuple[Mapping[TopicPartition, Range], float]]:
            found = [
                (work.undone(assigned), limit) for work, limit in limits.items() if work.is_open
            ]
            undecided = works.undecided(assigned, besides=around)
            return [each for each in (*found, (undecided, of_transactions)) if each[0]]

        left = undone()
        if not left or until <= now:
            return
        log.info(
            "stopping: the application has up to %.1f s to finish %s",
            max(limit for _, limit in left) - now,
            _in_words(ranges for ranges, _ in left),
        )
        for work, limit in limits.items():
            work.is_wanted_by(limit)
        acted = Event()
        self.observers.add_listener(acted.set)  # forgotten with the parts
        while waiting := [limit for _, limit in undone() if limit > self._loop.time()]:
            acted.clear()
            try:
                async with timeout_at(min(waiting)):
                    await acted.wait()
            except asyncio.TimeoutError:
                pass
        if left := undone():
            log.warning(
                "stopping: the application did not finish all records in time. The partitions' "
                "next owners will read these offsets again: %s",
                _in_words(ranges for ranges, _ in left),
            )

    async def _stop(
        self, deadline: float, offsets: Offsets, leaves: bool | None, *, has_parts: bool
    ) -> None:
        self._enter(Stage.STOPPING)
        try:
            if has_parts:
                await self._end_parts(deadline, offsets, leaves)
            else:
                await self._until_undone(deadline)
        finally:
            self._enter(Stage.STOPPED)
            self.events.close()
            self._stopped.set()

    async def _end_parts(
        self, deadline: float, offsets: Offsets, leaves: bool | None = None
    ) -> None:
        self.probe.stop()
        parts = self.parts
        if parts is None:
            raise AssertionError("the consumer was not started, so it has no tasks to stop")
        self._parts_ended.clear()
        self.uncommitted = parts.commits.left_to_commit(offsets)
        try:
            self.uncommitted = await parts.stop(deadline, offsets, leaves)
        except BaseException:
            self.uncommitted = parts.commits.left_to_commit(offsets)
            raise
        finally:
            parts.observers.close()
            self.buffer.clear()
            self._parts_ended.set()

    async def _until_undone(self, deadline: float) -> None:
        try:
            async with timeout_at(deadline):
                await self._parts_ended.wait()
        except asyncio.TimeoutError:
            log.warning("stop() returns before the cancelled start() has closed its connections")

    async def _await_stop(self, timeout_s: float) -> Offsets:
        """Wait for the stop in progress, except in a listener that it waits for."""
        if not self._is_called_by_listener():
            try:
                async with timeout(timeout_s):
                    await self._stopped.wait()
            except asyncio.TimeoutError:
                pass
        return self.uncommitted

    def _is_called_by_listener(self) -> bool:
        return self.parts is not None and self.parts.membership.is_called_by_listener()

    def abandon(self) -> None:
        """Shut down a consumer that was garbage-collected; any thread may call it.

        Nothing is committed: how far the application got is unknown.
        """
        try:
            # Not at once: whatever runs, on whichever thread, may be this consumer's own code.
            self._loop.call_soon_threadsafe(self._give_up)
        except RuntimeError:  # the loop is closed
            if self.current is not None:
                self.current.drop()

    def _give_up(self) -> None:
        if self.life.is_over:
            return
        parts = self.current
        self._enter(Stage.ABANDONED)
        self.probe.stop()
        if parts is not None:
            parts.give_up()
            parts.observers.close()
            self.buffer.clear()
        self.events.close()

    # --- Waiting for a state --------------------------------------------------------------
    async def wait_until(self, is_reached: Callable[[], bool], deadline: float) -> bool:
        while not is_reached():
            self.gate.check()
            self._state_changed.clear()
            try:
                async with timeout_at(deadline):
                    await self._state_changed.wait()
            except asyncio.TimeoutError:
                return False
        return True
