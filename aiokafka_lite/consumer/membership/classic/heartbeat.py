"""The heartbeats of a classic member."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from aiokafka_lite.consumer.gate import Hold
from aiokafka_lite.consumer.membership.classic.member import Member, MemberState
from aiokafka_lite.consumer.membership.heartbeat import LeasedHeartbeat
from aiokafka_lite.consumer.membership.heartbeat_thread import Outcome, Send, SendHeartbeat
from aiokafka_lite.consumer.membership.protocol import Identity, Surroundings
from aiokafka_lite.consumer.membership.recovery import (
    Interruption,
    Recovery,
    interruption_by,
    recovery_for,
)
from aiokafka_lite.errors import KafkaError, for_code
from aiokafka_lite.protocol.messages.group_members import HeartbeatRequest, HeartbeatResponse

if TYPE_CHECKING:
    from aiokafka_lite.consumer.membership.classic.membership import ClassicMembership

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
    response = send(heartbeat_request(group_id, group_instance_id, sent_as))
    if response.error_code:
        raise for_code(response.error_code)(f"heartbeat of group {group_id}")
    return sent_as, response


class Heartbeat(LeasedHeartbeat[Member]):
    """JoinGroup and SyncGroup count as heartbeats, so an eager member sends none while it joins."""

    def __init__(self, around: Surroundings, member: Member, membership: ClassicMembership) -> None:
        super().__init__(around, member, around.core.config.session_timeout_s)
        self._membership = membership
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

    # --- When -----------------------------------------------------------------------------
    def _due_at(self) -> float | None:
        if not self._member.is_heard:
            return None
        if self._awaits_application:
            return min(self._next_beat, self._loop.time() + self._membership.poll_left_s)
        return self._next_beat

    @property
    def _awaits_application(self) -> bool:
        return self._membership.is_settled and self._member.interruption is None

    @property
    def _is_stable(self) -> bool:
        return self._member.state is MemberState.STABLE

    def _of_thread(self) -> tuple[SendHeartbeat, float, float]:
        member, config = self._member, self._config
        return (
            partial(send_heartbeat, member.group_id, member.group_instance_id),
            min(config.heartbeat_interval_s, self._session_s / THREAD_BEATS),
            self._membership.poll_left_s if self._is_stable else config.max_poll_interval_s,
        )

    # --- Requests and responses -----------------------------------------------------------
    async def _beat(self) -> None:
        identity, sent_at, error = self._member.identity, self._loop.time(), None
        if self._awaits_application and self._membership.poll_left_s <= 0:
            self._member.interrupt(identity, Interruption.POLL_INTERVAL_EXCEEDED)
        if sent_at < self._next_beat:
            return
        try:
            await self._send(identity)
        except KafkaError as failure:
            error = failure
        self.take_outcome(Outcome(identity, identity, None, error, sent_at))
        if error is not None and interruption_by(error) is None:
            self._next_beat = self._loop.time() + self._backoff.next_delay_s()
            if recovery_for(error) is Recovery.SURFACE:
                self._membership.surface(error)
            self._log_failure(error)

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
                    # Until the group task has dropped the partitions, or a join has succeeded.
                    self._gate.hold(Hold.LOST)
            member.interrupt(outcome.sent_as, interruption)
        elif error is None or interruption is not None:
            self.note_contact(outcome.sent_at)
            if interruption is not None and self._is_stable:  # it is busy with one otherwise
                member.interrupt(outcome.sent_as, interruption)
