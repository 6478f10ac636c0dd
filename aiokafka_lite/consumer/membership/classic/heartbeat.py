"""Tells the coordinator that the member lives, and hears from it what has changed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Final, NamedTuple

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client.backoff import Backoff
from aiokafka_lite.consumer.assignment.reads import Reads
from aiokafka_lite.consumer.assignment.subscription import SubscriptionState
from aiokafka_lite.consumer.assignment.topics import is_subscribed
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.events.stream import LogLimit
from aiokafka_lite.consumer.gate import Gate, Hold
from aiokafka_lite.consumer.membership.classic.member import (
    Interruption,
    Member,
    MemberState,
    interruption_by,
)
from aiokafka_lite.consumer.membership.coordinator import Coordinator
from aiokafka_lite.consumer.membership.lease import Lease
from aiokafka_lite.consumer.membership.protocol import Identity
from aiokafka_lite.consumer.membership.recovery import Recovery, recovery_for
from aiokafka_lite.consumer.membership.stand_in import OpenCluster, Outcome, Send, StandIn
from aiokafka_lite.errors import KafkaError, for_code
from aiokafka_lite.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse

log = logging.getLogger(__name__)

# How late an answer's timer may be, as a part of the session, without the loop having been blocked.
BLOCKED_SHARE: Final = 0.1
# Of the thread that stands in for the loop: so often in a session at least.
STAND_IN_BEATS: Final = 4


class HeartbeatVoice(NamedTuple):
    """Says that a member lives, from a thread; see Voice."""

    group_id: str
    group_instance_id: str | None

    def beat(self, send: Send, sent_as: Identity) -> tuple[Identity, HeartbeatResponse]:
        """Send a heartbeat; the member stays who it is."""
        response = send(heartbeat_request(self.group_id, self.group_instance_id, sent_as))
        if response.error_code:
            raise for_code(response.error_code)(f"heartbeat of group {self.group_id}")
        return sent_as, response


def heartbeat_request(
    group_id: str, group_instance_id: str | None, sent_as: Identity
) -> HeartbeatRequest:
    """Make the request that says that a member lives."""
    return HeartbeatRequest(
        group_id=group_id,
        generation_id=sent_as.generation,
        member_id=sent_as.member_id,
        group_instance_id=group_instance_id,
    )


class Heartbeat:
    """Keeps the timer of one member across generations: joining and syncing are beats as well.

    The task "heartbeat" runs `beat` while there is a membership: `start` for a stable member,
    `kept_alive` around whatever else has to be done. It changes nothing of the member but
    returns why the membership has to be looked after.

    Each answer renews the lease (lease.py). It is looked at by each get, and by a timer. While the
    loop is blocked a thread may stand in (stand_in.py).
    """

    def __init__(
        self,
        config: ConsumerConfig,
        member: Member,
        coordinator: Coordinator,
        state: SubscriptionState,
        reads: Reads,
        gate: Gate,
        backoff: Backoff,
        *,
        scope: TaskScope,
        on_error: Callable[[KafkaError], None],
        open_cluster: OpenCluster | None,
    ) -> None:
        self._config = config
        self._member = member
        self._coordinator = coordinator
        self._state = state
        self._reads = reads
        self._gate = gate
        self._backoff = backoff
        self._scope = scope
        self._on_error = on_error
        # Also asked when the application changes its subscription while the loop stands still.
        self._loop = asyncio.get_running_loop()
        self.stand_in = StandIn(
            member.group_id, open_cluster, scope=scope, hear=self.hear_of_stand_in
        )
        self.lease = Lease(
            config.session_timeout_s,
            gate,
            hands_out=lambda: self._hands_out,
            elsewhere=self.stand_in.ear(lambda: member.identity),
        )
        # Loop times. The coordinator heard of this member last, and will hear next.
        self._last_contact = 0.0
        self._next_beat = 0.0
        self._log_limit = LogLimit()
        self.beat_count = 0
        self.failure_count = 0
        # How long the event loop was blocked since then, if that was long.
        self._blocked_s = 0.0

    @property
    def why_silent(self) -> str:
        """Why the coordinator did not hear of the member in time, as far as that is known."""
        if not self._blocked_s:
            return ""
        if self.stand_in.is_there:
            return (
                f"the event loop was blocked for {self._blocked_s:.1f} s, and the coordinator "
                "received no heartbeats from the heartbeat thread either (this thread stops if "
                "the application requests no records for max_poll_interval_ms)"
            )
        return (
            f"the event loop was blocked for {self._blocked_s:.1f} s and could not send "
            "heartbeats, and the group removes a member after "
            f"session_timeout_ms={self._config.session_timeout_ms} without a heartbeat"
        )

    def note_contact(self, asked_at: float) -> None:
        """Note that the coordinator has answered a request that begins a session anew.

        All that is known is that it heard of the member after this loop time, when the request was
        sent: the answer may have waited here for a loop that was blocked.
        """
        self._last_contact = max(self._last_contact, asked_at)
        self.lease.renew(self._last_contact)
        if self._loop.time() < self._last_contact + self._config.session_timeout_s:
            self._blocked_s = 0.0
        self._next_beat = self._last_contact + self._config.heartbeat_interval_s
        self._backoff.reset()

    def note_counted_in(self) -> None:
        """Hand out again: a join was answered, whatever a heartbeat was told meanwhile."""
        self._gate.release(Hold.LOST)

    @property
    def _hands_out(self) -> bool:
        """Whether reads return records of partitions that the group has assigned."""
        return self._member.hands_out and is_subscribed(self._state)

    # --- The thread that stands in --------------------------------------------------------
    def _note_next(self, next_s: float) -> None:
        """Tell it when the loop will be heard next."""
        member, config = self._member, self._config
        if not member.is_member:
            return
        self.stand_in.note_next(
            HeartbeatVoice(member.group_id, member.group_instance_id),
            member.identity,
            self._coordinator.node,
            next_s=next_s,
            interval_s=min(config.heartbeat_interval_s, config.session_timeout_s / STAND_IN_BEATS),
            left_s=self._poll_time_left_s() if self._is_stable else config.max_poll_interval_s,
        )

    @property
    def _is_stable(self) -> bool:
        return self._member.state is MemberState.STABLE

    def hear_of_stand_in(self, outcome: Outcome, sent_at: float) -> None:
        """Take what became of a heartbeat that the thread has sent."""
        member, error = self._member, outcome.error
        interruption = None if error is None else interruption_by(error)
        if error is None:
            self.beat_count += 1
        else:
            self.failure_count += 1
        if interruption is not None and interruption.is_loss:
            if outcome.sent_as == member.identity:
                self.stand_in.rest()
                if self._hands_out:
                    self._gate.hold(Hold.LOST)
            member.interrupt(outcome.sent_as, interruption)
        elif error is None or interruption is not None:
            self.note_contact(sent_at)
            if interruption is not None and self._is_stable:  # it is busy with one otherwise
                member.interrupt(outcome.sent_as, interruption)

    def start(self) -> asyncio.Task[Interruption]:
        """Send heartbeats for a stable member, until the task returned is cancelled or done."""
        task = self._begin(is_rebalancing=False)
        task.add_done_callback(lambda _: self._member.notify())
        return task

    def _begin(self, *, is_rebalancing: bool) -> asyncio.Task[Interruption]:
        return self._scope.supervise(
            lambda: self.beat(is_rebalancing=is_rebalancing), name="heartbeat"
        )

    @contextlib.asynccontextmanager
    async def kept_alive(self) -> AsyncIterator[None]:
        """Send heartbeats while something else is done; a loss of the membership is posted."""
        member = self._member
        if not member.is_member or self._scope.failure is not None:
            yield
            return
        identity = member.identity

        def post(task: asyncio.Task[Interruption]) -> None:
            if not task.cancelled() and task.exception() is None:
                member.interrupt(identity, task.result())

        task = self._begin(is_rebalancing=True)
        task.add_done_callback(post)
        try:
            yield
        finally:
            await self.stop(task)

    async def stop(self, task: asyncio.Task[Interruption]) -> None:
        """End what `start` began, and wait for that; also of a task that had no turn yet."""
        await self._scope.stop(task)

    async def beat(self, *, is_rebalancing: bool) -> Interruption:
        """Send heartbeats until something interrupts the membership.

        Args:
            is_rebalancing: A rebalance has been noticed, and the member is busy preparing for
                it: only the loss of the membership is news.
        """
        identity = self._member.identity
        while True:
            if not is_rebalancing and self._poll_time_left_s() <= 0:
                return Interruption.POLL_INTERVAL_EXCEEDED
            if not await self._sleep_until_due(is_rebalancing):
                continue
            sent_at = self._loop.time()
            try:
                await self._send(identity)
            except KafkaError as error:
                self.failure_count += 1
                interruption = self._judge(error)
                if interruption is None:
                    self._next_beat = self._loop.time() + self._backoff.next_delay_s()
                elif interruption is Interruption.GROUP_REBALANCES and is_rebalancing:
                    self.note_contact(sent_at)
                else:
                    if interruption.is_loss and self._hands_out:
                        # Until the group task has dropped it all, or a join has been answered.
                        self._gate.hold(Hold.LOST)
                    return interruption
            else:
                self.beat_count += 1
                self.note_contact(sent_at)

    @property
    def last_contact_at(self) -> float | None:
        """Loop time at which the coordinator last answered this member; None: not yet."""
        return self._last_contact or None

    def _poll_time_left_s(self) -> float:
        now = self._loop.time()
        return self._config.max_poll_interval_s - self._reads.idle_s(now)

    async def _sleep_until_due(self, is_rebalancing: bool) -> bool:
        """Sleep to the next beat or to the end of the poll interval; return whether to beat."""
        loop = self._loop
        wake_at = self._next_beat
        if not is_rebalancing:
            wake_at = min(wake_at, loop.time() + self._poll_time_left_s())
        wake_at = max(wake_at, loop.time())
        self._note_next(wake_at - loop.time())
        await asyncio.sleep(wake_at - loop.time())
        late_s = loop.time() - wake_at
        if late_s > self._config.session_timeout_s / 2:
            self._blocked_s = late_s
        return loop.time() >= self._next_beat

    async def _send(self, identity: Identity) -> None:
        """Send one beat, and wait for its answer."""
        member = self._member
        request = heartbeat_request(member.group_id, member.group_instance_id, identity)
        # Half the session: a silent coordinator has to be left while there is time to find out
        # that it has moved.
        answer_s = min(self._config.request_timeout_s, self._config.session_timeout_s / 2)
        loop = self._loop
        sent_at = loop.time()
        self._note_next(self._config.heartbeat_interval_s)
        try:
            await self._coordinator.request(
                request,
                error_code=lambda response: response.error_code,
                deadline=sent_at + answer_s,
                answer_s=answer_s,
            )
        finally:
            took_s = loop.time() - sent_at
            if took_s - answer_s > self._config.session_timeout_s * BLOCKED_SHARE:
                self._blocked_s = took_s  # the deadline's timer did not fire: nothing ran

    def _judge(self, error: KafkaError) -> Interruption | None:
        """Return what the error interrupts; None when the next beat may well succeed."""
        if (interruption := interruption_by(error)) is not None:
            return interruption
        if recovery_for(error) is Recovery.SURFACE:
            self._on_error(error)
        now = self._loop.time()
        if (ending := self._log_limit.let_in("failed", now)) is not None:
            log.warning(
                "group %s: a heartbeat failed, %.1f s after the coordinator last answered: %s%s",
                self._member.group_id,
                now - self._last_contact,
                error,
                ending,
            )
        return None
