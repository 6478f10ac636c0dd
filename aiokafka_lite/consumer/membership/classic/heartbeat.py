"""The heartbeats of a classic member."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Final

from aiokafka_lite.consumer.gate import Hold
from aiokafka_lite.consumer.membership.classic.member import (
    Interruption,
    Member,
    MemberState,
    interruption_by,
)
from aiokafka_lite.consumer.membership.group_task import GroupTask, Surroundings
from aiokafka_lite.consumer.membership.heartbeat import MemberHeartbeat
from aiokafka_lite.consumer.membership.heartbeat_thread import Outcome, Send, SendHeartbeat
from aiokafka_lite.consumer.membership.protocol import Identity
from aiokafka_lite.consumer.membership.recovery import Recovery, recovery_for
from aiokafka_lite.errors import KafkaError, for_code
from aiokafka_lite.protocol.messages.classic_group import HeartbeatRequest, HeartbeatResponse

# The share of a session by which a timer may be late before the loop counts as blocked.
BLOCKED_SHARE: Final = 0.1
# Heartbeats of the heartbeat thread in a session, at least.
THREAD_BEATS: Final = 4


def heartbeat_request(
    group_id: str, group_instance_id: str | None, sent_as: Identity
) -> HeartbeatRequest:
    return HeartbeatRequest(
        group_id=group_id,
        generation_id=sent_as.generation,
        member_id=sent_as.member_id,
        group_instance_id=group_instance_id,
    )


def send_heartbeat(
    group_id: str, group_instance_id: str | None, send: Send, sent_as: Identity
) -> tuple[Identity, HeartbeatResponse]:
    """Send a heartbeat from the heartbeat thread. See SendHeartbeat."""
    response = send(heartbeat_request(group_id, group_instance_id, sent_as))
    if response.error_code:
        raise for_code(response.error_code)(f"heartbeat of group {group_id}")
    return sent_as, response


class Heartbeat(MemberHeartbeat[Member]):
    """Sends one member's heartbeats, with one timer for all generations.

    JoinGroup and SyncGroup count as heartbeats. The task "heartbeat" runs `beat`: by `start` in
    STABLE, by `kept_alive` in other states. It returns an interruption, and does not change the
    member.
    """

    def __init__(self, around: Surroundings, member: Member, task: GroupTask) -> None:
        super().__init__(around, member, around.config.session_timeout_s)
        self._task = task
        # Loop time.
        self._next_beat = 0.0

    @property
    def _why_removed(self) -> str:
        return (
            "the group removes a member after "
            f"session_timeout_ms={self._config.session_timeout_ms} without a heartbeat"
        )

    def note_contact(self, asked_at: float) -> None:
        self._renew(asked_at)
        if self._loop.time() < self._last_contact + self._session_s:
            self._blocked_s = 0.0
        self._next_beat = self._last_contact + self._config.heartbeat_interval_s
        self._backoff.reset()

    def note_counted_in(self) -> None:
        """Release reads after a join, whatever a heartbeat in between was answered."""
        self._gate.release(Hold.LOST)

    # --- The heartbeat thread -------------------------------------------------------------
    def _of_thread(self) -> tuple[SendHeartbeat, float, float]:
        member, config = self._member, self._config
        return (
            partial(send_heartbeat, member.group_id, member.group_instance_id),
            min(config.heartbeat_interval_s, self._session_s / THREAD_BEATS),
            self._poll_time_left_s() if self._is_stable else config.max_poll_interval_s,
        )

    @property
    def _is_stable(self) -> bool:
        return self._member.state is MemberState.STABLE

    def take_outcome(self, outcome: Outcome) -> None:
        member, error = self._member, outcome.error
        interruption = None if error is None else interruption_by(error)
        if error is None:
            self.beat_count += 1
        else:
            self.failure_count += 1
        if interruption is not None and interruption.is_loss:
            if outcome.sent_as == member.identity:
                self.thread.rest()
                if self.lease.delivers:
                    self._gate.hold(Hold.LOST)
            member.interrupt(outcome.sent_as, interruption)
        elif error is None or interruption is not None:
            self.note_contact(outcome.sent_at)
            if interruption is not None and self._is_stable:  # it is busy with one otherwise
                member.interrupt(outcome.sent_as, interruption)

    def start(self) -> asyncio.Task[Interruption]:
        """Send heartbeats for a stable member, until the task is cancelled or done."""
        task = self._begin(is_rebalancing=False)
        task.add_done_callback(lambda _: self._member.notify())
        return task

    def _begin(self, *, is_rebalancing: bool) -> asyncio.Task[Interruption]:
        return self._scope.supervise(
            lambda: self.beat(is_rebalancing=is_rebalancing), name="heartbeat"
        )

    @contextlib.asynccontextmanager
    async def kept_alive(self) -> AsyncIterator[None]:
        """Send heartbeats during the block. A loss interrupts the member."""
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
        await self._scope.stop(task)

    async def beat(self, *, is_rebalancing: bool) -> Interruption:
        """Send heartbeats until an interruption.

        Args:
            is_rebalancing: The member is preparing for a rebalance, so only a loss interrupts it.
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
                    if interruption.is_loss and self.lease.delivers:
                        # Until the group task has dropped the partitions, or a join has succeeded.
                        self._gate.hold(Hold.LOST)
                    return interruption
            else:
                self.beat_count += 1
                self.note_contact(sent_at)

    def _poll_time_left_s(self) -> float:
        now = self._loop.time()
        return self._config.max_poll_interval_s - self._reads.idle_s(now)

    async def _sleep_until_due(self, is_rebalancing: bool) -> bool:
        """Sleep to the next heartbeat or the end of the poll interval. Return whether to send."""
        loop = self._loop
        wake_at = self._next_beat
        if not is_rebalancing:
            wake_at = min(wake_at, loop.time() + self._poll_time_left_s())
        wake_at = max(wake_at, loop.time())
        self._note_next(wake_at - loop.time())
        await asyncio.sleep(wake_at - loop.time())
        self._note_lateness(loop.time() - wake_at)
        return loop.time() >= self._next_beat

    async def _send(self, identity: Identity) -> None:
        member = self._member
        request = heartbeat_request(member.group_id, member.group_instance_id, identity)
        answer_s, loop = self._answer_s, self._loop
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
            if took_s - answer_s > self._session_s * BLOCKED_SHARE:
                self._blocked_s = took_s  # the deadline's timer fired late

    def _judge(self, error: KafkaError) -> Interruption | None:
        if (interruption := interruption_by(error)) is not None:
            return interruption
        if recovery_for(error) is Recovery.SURFACE:
            self._task.surface(error)
        self._log_failure(error)
        return None
