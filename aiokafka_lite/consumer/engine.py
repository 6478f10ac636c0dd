"""One consumer's life: what it has from its making on, its start, its stop, what it died of.

The engine does not know the consumer that drives it, so that a consumer that was forgotten can
be collected and say so. What needs brokers is made by the start (parts.py).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from aiokafka_lite._compat import timeout_at
from aiokafka_lite._event import Event
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.assignment.subscription import SubscriptionMode, SubscriptionState
from aiokafka_lite.consumer.buffer.budget import ByteBudget
from aiokafka_lite.consumer.buffer.buffer import Buffer
from aiokafka_lite.consumer.buffer.delivering import AnyDelivery
from aiokafka_lite.consumer.caller import Owner
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.delivery.gets import Gets
from aiokafka_lite.consumer.delivery.ready import ReadyRecords
from aiokafka_lite.errors import (
    ConsumerStoppedError,
    IllegalStateError,
    KafkaError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.client.cluster import Cluster
    from aiokafka_lite.consumer.monitoring.loop_probe import LoopProbe
    from aiokafka_lite.consumer.parts import Running

log = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
FIRST_TOPIC_RETRY_S: Final = 0.1


class Engine:
    """Everything that one start of a consumer needs.

    Args:
        config: The settings, without what is called for each record.
        state: What the consumer subscribes and assigns.
        delivery: What is called for each record; held by the consumer.
        probe: Measures how late the event loop is, from start to stop.
        rng: For delays.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        state: SubscriptionState,
        delivery: AnyDelivery,
        probe: LoopProbe,
        rng: random.Random,
    ) -> None:
        self.config = config
        self.state = state
        self.budget = ByteBudget(config.max_buffered_bytes, self._budget_released)
        self.buffer = Buffer(
            self.state,
            raise_if_unusable=self.raise_if_unusable,
            on_taken=self._taken,
            on_room=Cursor.chunks_changed,
            on_error=lambda: self._state_changed.set(),
            on_blocked=self._budget_released,
            on_sought=self._sought_changed,
            budget=self.budget,
            delivery=delivery,
            most_held_bytes=config.max_buffered_bytes,
        )
        self.ready = ReadyRecords(self.state, on_closed=self.buffer.finish_if_exhausted)
        self.gets = Gets(self.state, self.buffer, self.ready, self._raise_listener_error)
        self.owner = Owner(self.ready.cursor.close)
        self.is_stopped = False
        self._rng = rng
        self._loop = asyncio.get_running_loop()
        # Whether there may be something for `raise_if_unusable`; each get asks, so one look is it.
        self._may_be_unusable = True
        # What membership and the resolver met and could not settle: each is raised by one get.
        self._errors: deque[KafkaError] = deque()
        # What the rebalance listener raised: one `poll` raises it, the other gets do not.
        self._listener_error: Exception | None = None
        self._state_changed = Event()
        self.state.observers.on_assignment_change(self._assignment_changed)
        self.state.observers.on_partition_change(lambda _: self._state_changed.set())
        self.state.observers.on_subscription_change(self._watch_topics)
        self.state.observers.mark()
        self.probe = probe
        self._running: Running | None = None
        # While the parts are being stopped.
        self._ending: Running | None = None
        self._has_ended = Event()
        # What was to be committed at the stop, and is not, as far as known.
        self.uncommitted: Offsets = {}
        # The latest parts, also when they are stopped: what they counted can still be read.
        self.latest: Running | None = None
        # Whether `start` has come to its end.
        self.is_started = False
        # Loop time and error of the latest start, if it failed.
        self.failed_start: tuple[float, Exception] | None = None
        # What the application's `async with` was left by, in words; "": by nothing that is wrong.
        self.left_by = ""

    # --- Hooks ----------------------------------------------------------------------------
    def _budget_released(self) -> None:
        if self._running is not None:
            self._running.sources.budget_released()

    def _sought_changed(self) -> None:
        if self._running is not None:
            self._running.sources.choose_anew()

    def _taken(self, node_id: int) -> None:
        if self._running is not None:
            self._running.sources.taken(node_id)

    def _assignment_changed(self) -> None:
        self._state_changed.set()
        self._watch_topics()

    def _watch_topics(self) -> None:
        if self._running is not None:
            self._running.watch_topics()

    def on_error(self, error: KafkaError) -> None:
        """Let one get raise `error`: the waiting one, or the next.

        What is met again before a get has raised it is one error: so there are few of them, and
        none that was over long ago, however long the application stays away.
        """
        if any(type(e) is type(error) and e.tp == error.tp for e in self._errors):
            return
        self._errors.append(error)
        self._interrupt_gets()

    def _interrupt_gets(self) -> None:
        """Make every get, those that wait too, look whether the consumer can still be used."""
        self._may_be_unusable = True
        self.ready.close()
        self.buffer.wake()
        self._state_changed.set()

    def on_reachability(
        self, node_id: int, address: str, error: KafkaError | None, down_s: float
    ) -> None:
        """Tell that a broker cannot be reached any more, or can again."""
        from aiokafka_lite.consumer.events.kinds import BrokerDown, BrokerUp

        self.state.events.publish(
            BrokerUp(node_id, address, down_s)
            if error is None
            else BrokerDown(node_id, address, error)
        )

    def on_listener_error(self, error: Exception) -> None:
        """Let one `poll` raise what the listener raised; of several before it, the first."""
        if self._listener_error is None:
            self._listener_error = error
            self.buffer.wake()

    def _raise_listener_error(self) -> None:
        if self._listener_error is not None:
            error, self._listener_error = self._listener_error, None
            raise error

    def on_failure(self, error: BaseException) -> None:
        """Note that a task died; from now on every get raises what it died of."""
        from aiokafka_lite.consumer.events.kinds import TaskFailed

        running = self._running or self._ending
        scopes = () if running is None else running.scopes
        name = next((scope.name for scope in scopes if scope.failure is error), "unknown")
        self.state.events.publish(TaskFailed(name, error))
        self._interrupt_gets()

    def on_restart(self, name: str, error: KafkaError) -> None:
        """Tell that a task failed by what may pass, and is tried again."""
        from aiokafka_lite.consumer.events.kinds import TaskRestarted

        self.state.events.publish(TaskRestarted(name, error))

    def raise_if_unusable(self) -> None:
        """Raise what keeps the gets from going on.

        Raises:
            ConsumerStoppedError: The consumer is stopped.
            IllegalStateError: It was not started.
            BaseException: What a background task died of, until the consumer is stopped.
            KafkaError: What membership met, once.
        """
        if not self._may_be_unusable:
            return
        for scope in self.running.scopes:
            scope.raise_if_failed()
        if self._errors:
            error = self._errors.popleft()
            self.state.note_raised(error)
            raise error.with_traceback(None)
        self._may_be_unusable = False

    @property
    def waiting_error(self) -> KafkaError | None:
        """What membership or the resolver met, and the next get raises."""
        return self._errors[0] if self._errors else None

    # --- Parts ----------------------------------------------------------------------------
    @property
    def running(self) -> Running:
        """The parts that exist between start and stop.

        Raises:
            ConsumerStoppedError: The consumer is stopped.
            IllegalStateError: It was not started.
        """
        if self._running is None:
            self.raise_if_stopped()
            raise IllegalStateError("the consumer is not started: await consumer.start() first")
        return self._running

    def raise_if_stopped(self) -> None:
        """Refuse what cannot be done any more.

        Raises:
            ConsumerStoppedError: The consumer is stopped.
        """
        if self.is_stopped:
            raise ConsumerStoppedError("the consumer is stopped")

    @contextmanager
    def until_stopped(self) -> Iterator[Running]:
        """Use the parts for a call that waits for brokers; the stop ends its wait.

        Raises:
            ConsumerStoppedError: The consumer is stopped, or was so meanwhile.
            IllegalStateError: It was not started.
        """
        try:
            yield self.running
        except KafkaError as error:
            if not self.is_stopped:
                raise
            raise ConsumerStoppedError("the consumer was stopped meanwhile") from error

    @property
    def current(self) -> Running | None:
        """The parts that exist between start and stop, or None."""
        return self._running

    @property
    def is_running(self) -> bool:
        return self._running is not None

    # --- Start ----------------------------------------------------------------------------
    async def start(self) -> None:
        """Connect, look the topics up, join the group; all is undone if that fails.

        Raises:
            KafkaConnectionError: No bootstrap server answered; names each and why.
            UnknownTopicOrPartitionError: A topic did not appear within the request timeout.
            TopicAuthorizationFailedError, InvalidTopicError: A topic cannot be read at all.
            KafkaError: The group refused the member.
        """
        await self._until_startable()
        self.config.check_isolation_level()
        # Imported by the first start: with what it imports it is a quarter of all there is.
        from aiokafka_lite.consumer.parts import Running

        running = self._running = self.latest = Running(self, self._rng)
        self.probe.start()
        try:
            self._watch_topics()  # before the first answer, which then has them
            await running.cluster.start()
            if self.state.mode is SubscriptionMode.TOPICS:
                await self._wait_for_topics(running.cluster)
            await running.start()
            _ = self.running  # unless it was stopped as it became ready
            self.is_started = True
            self.failed_start = None
        except BaseException as error:
            if isinstance(error, Exception):
                self.failed_start = self._loop.time(), error
            await self._tear_down(self._loop.time(), {})
            if self.is_stopped and isinstance(error, Exception):
                raise ConsumerStoppedError("the consumer was stopped while it started") from error
            raise

    async def _until_startable(self) -> None:
        while self._ending is not None:  # an attempt that was cancelled is being undone
            await self._has_ended.wait()
        if self._running is not None or self.is_stopped:
            raise AssertionError("a consumer is started once: make another one")

    async def _wait_for_topics(self, cluster: Cluster) -> None:
        """Wait until metadata has every subscribed topic (brokers may be creating them).

        Raises:
            UnknownTopicOrPartitionError: One is not there when the request timeout is over.
            KafkaError: One cannot be read at all: it may not be, or its name is not allowed.
        """
        deadline = self._loop.time() + self.config.request_timeout_s
        delay_s = FIRST_TOPIC_RETRY_S
        missing = sorted(self.state.subscription or ())
        view = cluster.view
        try:
            async with timeout_at(deadline):
                while True:
                    for topic in missing:
                        topic_view = view.topics.get(topic)
                        error = None if topic_view is None else topic_view.error
                        if error is not None and not error.retriable:
                            raise error(f"topic {topic!r} cannot be read")
                    missing = [t for t in missing if not view.partitions_for_topic(t)]
                    if not missing:
                        return
                    await asyncio.sleep(delay_s)
                    delay_s = min(delay_s * 2, 1.0)
                    view = await cluster.refresh()
        except asyncio.TimeoutError:
            names = ", ".join(repr(topic) for topic in missing)
            raise UnknownTopicOrPartitionError(
                f"topic {names} is not there after {self.config.request_timeout_ms} ms: "
                "create it, or check its name and the cluster's auto.create.topics.enable"
            ) from None

    # --- Stop -----------------------------------------------------------------------------
    async def stop(self, deadline: float, offsets: Offsets) -> None:
        """Stop everything in order, within the deadline; always returns.

        `uncommitted` says then which of `offsets` could not be committed.
        """
        self.is_stopped = True
        self._interrupt_gets()
        try:
            await self._tear_down(deadline, offsets)
        finally:
            self.state.events.close()

    async def _tear_down(self, deadline: float, offsets: Offsets) -> None:
        self.probe.stop()
        running, self._running = self._running, None
        self._may_be_unusable = True
        if running is None:
            await self._until_ended(deadline)
            return
        self._ending = running
        self._has_ended.clear()
        self.uncommitted = running.commits.left_to_commit(offsets)
        try:
            self.uncommitted = await running.stop(deadline, offsets)
        except BaseException:
            self.uncommitted = running.commits.left_to_commit(offsets)
            raise
        finally:
            self.state.observers.forget_new()
            self.buffer.clear()
            self._ending = None
            self._has_ended.set()

    def abandon(self) -> None:
        """Give everything up, as nobody holds the consumer any more; may be called by any thread.

        Nothing is committed: nobody knows how far the application got with what it was handed.
        """
        try:
            # Not at once: whatever runs, on whichever thread, may be this consumer's own code.
            self._loop.call_soon_threadsafe(self._give_up)
        except RuntimeError:  # the loop is closed: nothing of it runs any more
            if self._running is not None:
                self._running.bury()

    def _give_up(self) -> None:
        self.is_stopped = True
        self._interrupt_gets()
        self.probe.stop()
        running, self._running = self._running, None
        if running is not None:
            running.give_up()
            self.state.observers.forget_new()
            self.buffer.clear()
        self.state.events.close()

    async def _until_ended(self, deadline: float) -> None:
        """Wait for the end of a start that was cancelled, within the time of the stop."""
        try:
            async with timeout_at(deadline):
                while self._ending is not None:
                    await self._has_ended.wait()
        except asyncio.TimeoutError:
            log.warning("stopping: a start that was cancelled is not undone in time")

    def is_called_by_listener(self) -> bool:
        """Whether a rebalance listener is asking, for whose end the stop waits."""
        return self._ending is not None and self._ending.membership.is_called_by_listener()

    # --- Waiting for a state --------------------------------------------------------------
    async def wait_until(self, is_reached: Callable[[], bool], deadline: float) -> bool:
        """Wait until the subscription state satisfies a condition; False at the deadline.

        Raises:
            KafkaError: A background task or the group has failed.
        """
        while not is_reached():
            self.raise_if_unusable()
            self._state_changed.clear()
            try:
                async with timeout_at(deadline):
                    await self._state_changed.wait()
            except asyncio.TimeoutError:
                return False
        return True
