"""The heartbeats of a member, and the lease that they renew, for both group protocols.

A member holds its partitions until a session has passed without a response. Then the coordinator
assigns them to other members, without a message to this one. So the lease checks the clock.

While the loop is blocked, a thread may send heartbeats (heartbeat_thread.py). The lease asks for
its latest response, so that a read right after the block uses it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from typing import Final, Generic, TypeVar

from aiokafka_lite._compat import Never, override
from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client.backoff import Backoff
from aiokafka_lite.consumer.assignment.assignment import SubscriptionState
from aiokafka_lite.consumer.events import LogLimit
from aiokafka_lite.consumer.gate import Gate, Hold
from aiokafka_lite.consumer.membership.coordinator import Coordinator
from aiokafka_lite.consumer.membership.heartbeat_thread import (
    HeartbeatThread,
    OpenCluster,
    Outcome,
    SendHeartbeat,
    Snapshot,
)
from aiokafka_lite.consumer.membership.protocol import Surroundings
from aiokafka_lite.consumer.membership.stateful import GroupMember
from aiokafka_lite.errors import KafkaError

log = logging.getLogger(__name__)

# The lease is shorter than the session, because clocks differ by a millisecond or more.
LEASE_SHARE: Final = 0.99
# How long the loop waits for a heartbeat of the thread before it ends that one.
TURN_S: Final = 0.5


MemberT = TypeVar("MemberT", bound=GroupMember)


class Lease:
    """Withholds records while the coordinator may have reassigned the partitions.

    Without subscribed topics there is no lease.
    """

    def __init__(
        self,
        session_s: float,
        gate: Gate,
        state: SubscriptionState,
        member: GroupMember,
        thread: HeartbeatThread,
    ) -> None:
        self._session_s = session_s
        self._state = state
        self._gate = gate
        self._member = member
        self._thread = thread
        self._loop = asyncio.get_running_loop()
        self._ends_at = math.inf
        self._alarm: asyncio.TimerHandle | None = None

    @property
    def delivers(self) -> bool:
        return self._member.delivers and self._state.is_subscribed

    def renew(self, asked_at: float) -> None:
        self._ends_at = asked_at + self._session_s * LEASE_SHARE
        # The thread may have received a refusal at any time.
        self._gate.look_by(self.look, -math.inf if self._thread.is_there else self._ends_at)
        self.look()

    def look(self) -> None:
        """Withhold records if the lease is over, or else release them, and set the alarm."""
        delivers = self.delivers
        is_over = delivers and self._ends_at < math.inf and self._is_over()
        if delivers and not is_over and self._alarm is None and self._ends_at < math.inf:
            # It runs before the tasks that have waited for a blocked loop.
            self._alarm = self._loop.call_at(self._ends_at, self._ended)
        holds = self._gate.holds
        if is_over != (bool(holds) and Hold.CUT_OFF in holds):
            if is_over:
                self._gate.hold(Hold.CUT_OFF)
            else:
                self._gate.release(Hold.CUT_OFF)

    def _is_over(self) -> bool:
        asked_at, is_lost = self._thread.heard(self._member.identity)
        self._ends_at = max(self._ends_at, asked_at + self._session_s * LEASE_SHARE)
        return is_lost or self._loop.time() >= self._ends_at

    def _ended(self) -> None:
        self._alarm = None
        self.look()

    def end(self) -> None:
        self._ends_at = math.inf
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self.look()
        self._gate.look_no_more_by(self.look)


class MemberHeartbeat(ABC, Generic[MemberT]):
    """Sends one member's heartbeats in the task "heartbeat", and applies the responses."""

    def __init__(
        self,
        member: MemberT,
        coordinator: Coordinator,
        scope: TaskScope,
        backoff: Backoff,
        *,
        session_s: float,
        answer_s: float,
        open_cluster: OpenCluster | None,
    ) -> None:
        self._member = member
        self._coordinator, self._scope, self._backoff = coordinator, scope, backoff
        self._session_s = session_s
        # The timeout of a heartbeat.
        self._answer_s = answer_s
        self._loop = asyncio.get_running_loop()
        self._log_limit = LogLimit()
        self.thread = HeartbeatThread(member.group_id, open_cluster, self.take_outcome, scope=scope)
        # Loop time of the latest answered request; 0.0: there was none.
        self._last_contact = 0.0
        self.beat_count = 0
        self.failure_count = 0
        # The length of a long block of the event loop since then.
        self._blocked_s = 0.0
        self._beating: asyncio.Task[Never] | None = None

    # --- The task -------------------------------------------------------------------------
    def start(self) -> None:
        self._beating = self._scope.supervise(self.run, name="heartbeat")
        self.thread.start()

    def abandon(self) -> None:
        if self._beating is not None:
            self._scope.cancel(self._beating)
        self.thread.abandon()

    async def end(self) -> None:
        if self._beating is not None:
            await self._scope.stop(self._beating)
        await self.thread.end()

    async def run(self) -> Never:
        while True:
            due_at = self._due_at()
            if due_at is not None and due_at <= self._loop.time():
                await self._beat()
                continue
            if due_at is None:
                self.thread.rest()
            else:
                self._note_next(due_at - self._loop.time())
            if not await self._member.wait_for_change(due_at):
                late_s = self._loop.time() - (due_at or 0.0)
                if late_s > self._session_s / 2:
                    self._blocked_s = late_s

    @abstractmethod
    def _due_at(self) -> float | None:
        """Return the time of the next heartbeat, or of another look. None: after a change."""

    @abstractmethod
    async def _beat(self) -> None: ...

    # --- The heartbeat thread -------------------------------------------------------------

    @abstractmethod
    def take_outcome(self, outcome: Outcome) -> None:
        """Apply the outcome of the thread's heartbeat. Its time is loop time."""

    @abstractmethod
    def _of_thread(self) -> tuple[SendHeartbeat, float, float]:
        """Return the thread's heartbeat, its interval, and the rest of max_poll_interval_ms."""

    def _note_next(self, next_s: float) -> bool:
        if not self.thread.is_there:
            return True
        if not self._member.is_member:
            self.thread.rest()  # the thread does not join
            return True
        send_heartbeat, interval_s, left_s = self._of_thread()
        now = self.thread.clock()
        return self.thread.claim(
            Snapshot(
                send_heartbeat,
                self._member.identity,
                self._coordinator.node,
                due_at=now + next_s,
                interval_s=interval_s,
                over_at=now + left_s,
            )
        )

    async def _wait_for_turn(self, next_s: float) -> None:
        """Wait for the outcome of a heartbeat of the thread, and end it after `TURN_S`."""
        until = self._loop.time() + TURN_S
        while not self._note_next(next_s):
            if not await self._member.wait_for_change(until):
                self.thread.hang_up()
                until = self._loop.time() + TURN_S

    @property
    def last_contact_at(self) -> float | None:
        return self._last_contact or None

    def _renew(self, asked_at: float) -> None:
        self._last_contact = max(self._last_contact, asked_at)

    @property
    def why_silent(self) -> str:
        if not self._blocked_s:
            return ""
        blocked = f"the event loop was blocked for {self._blocked_s:.1f} s"
        if self.thread.is_there:
            return (
                f"{blocked}, and the coordinator received no heartbeats from the heartbeat thread "
                "either (this thread stops if the application requests no records for "
                "max_poll_interval_ms)"
            )
        return (
            f"{blocked} and could not send heartbeats, and {self._why_removed}: run blocking code "
            "in a thread (asyncio.to_thread)"
        )

    @property
    @abstractmethod
    def _why_removed(self) -> str: ...

    def _log_failure(self, error: KafkaError) -> None:
        now = self._loop.time()
        if (ending := self._log_limit.let_in("failed", now)) is not None:
            contact = self.last_contact_at
            log.warning(
                "group %s: a heartbeat failed, %s: %s%s",
                self._member.group_id,
                "before any was answered"
                if contact is None
                else f"{now - contact:.1f} s after the coordinator last answered",
                error,
                ending,
            )


class LeasedHeartbeat(MemberHeartbeat[MemberT]):
    """The heartbeats of a member that owns partitions, and so has a lease."""

    def __init__(self, around: Surroundings, member: MemberT, session_s: float) -> None:
        core = around.core
        self._config, self._gate = core.config, core.gate
        super().__init__(
            member,
            around.coordinator,
            around.scope,
            core.new_backoff(),
            session_s=session_s,
            # Half a session is left to find another coordinator.
            answer_s=min(core.config.request_timeout_s, core.config.session_timeout_s / 2),
            open_cluster=around.open_cluster,
        )
        self.lease = Lease(session_s, core.gate, core.state, member, self.thread)

    @override
    def start(self) -> None:
        super().start()
        assert self._beating is not None  # noqa: S101 -- it was started
        # The lease's timer must not outlive the tasks, even if all are cancelled at once.
        self._beating.add_done_callback(lambda _: self.lease.end())

    @override
    def _renew(self, asked_at: float) -> None:
        super()._renew(asked_at)
        self.lease.renew(self._last_contact)
