"""A member of a share group: its heartbeats, and what the coordinator assigns to it (KIP-932).

As in KIP-848, the one request joins (epoch 0), stays, and leaves (epoch -1). The assignment is a
set: partitions are not handed over, because records are locked one by one. The member id is kept
from the start to the stop, also if the group has removed the member.

The coordinator computes assignments once a second at most, and returns them with the next
heartbeat. So the first heartbeat after a join is sent a second later, and others soon after that,
until there is an assignment. At the coordinator's interval the first record would arrive after 5 s.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from aiokafka_lite._compat import override
from aiokafka_lite.consumer.membership.heartbeat import MemberHeartbeat
from aiokafka_lite.consumer.membership.heartbeat_thread import Outcome, Send, SendHeartbeat
from aiokafka_lite.consumer.membership.kip848.heartbeat import (
    BROKERS_INTERVAL_S,
    SURFACED_PAUSE_S,
    identity_in,
    target_in,
)
from aiokafka_lite.consumer.membership.kip848.member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    ConsumerMember,
    MemberState,
)
from aiokafka_lite.consumer.membership.protocol import Identity
from aiokafka_lite.consumer.membership.recovery import Recovery, loss_by, recovery_for
from aiokafka_lite.consumer.sharing.source import SentByThread, ShareSource
from aiokafka_lite.errors import GroupIdNotFound, KafkaError, for_code
from aiokafka_lite.protocol.messages.share import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

if TYPE_CHECKING:
    from aiokafka_lite.consumer.sharing.sharing import Leasing

# share.assignment.interval.ms
ASSIGNMENT_S: Final = 1.0
# Between two heartbeats of a member without partitions after that, and how long it sends so many.
UNASSIGNED_S: Final = 0.1
UNASSIGNED_FOR_S: Final = 5.0
# The group removes a member after this time without a heartbeat (share.session.timeout.ms).
SESSION_S: Final = 45.0
# Heartbeats in the time of a lock: the heartbeat thread has to notice a blocked loop, and to renew,
# in half of it.
BEATS_A_LOCK: Final = 6
# The thread stops after the loop was blocked for so long: the application hangs.
BLOCKED_MAX_S: Final = 300.0


class ShareMember(ConsumerMember):
    @override
    def reset(self, *, keeps_id: bool) -> None:
        super().reset(keeps_id=True)


def send_brief(
    group_id: str,
    sources: Callable[[], Iterable[ShareSource]],
    sent: deque[SentByThread],
    clock: Callable[[], float],
    send: Send,
    sent_as: Identity,
) -> tuple[Identity, ShareGroupHeartbeatResponse]:
    """Renew locks and send a heartbeat from the heartbeat thread. See SendHeartbeat."""
    for source in sources():
        if (renewal := source.renew_in_thread(send, clock())) is not None:
            sent.append(renewal)
    answer = send(heartbeat_request(group_id, sent_as))
    if answer.error_code:
        raise for_code(answer.error_code)(f"heartbeat of group {group_id}")
    return identity_in(answer, sent_as, sent_as.generation), answer


def heartbeat_request(
    group_id: str, sent_as: Identity, epoch: int | None = None
) -> ShareGroupHeartbeatRequest:
    return ShareGroupHeartbeatRequest(
        group_id=group_id,
        member_id=sent_as.member_id,
        member_epoch=sent_as.generation if epoch is None else epoch,
    )


class ShareHeartbeat(MemberHeartbeat[ShareMember]):
    def __init__(self, leasing: Leasing, member: ShareMember) -> None:
        settings = leasing.settings
        super().__init__(
            member,
            leasing.coordinator,
            leasing.scope,
            leasing.new_backoff(),
            session_s=SESSION_S,
            answer_s=min(settings.request_timeout_s, SESSION_S / 2),
            open_cluster=leasing.open_cluster,
        )
        self._leasing = leasing
        self._brokers_s = BROKERS_INTERVAL_S
        self._sent_topics: frozenset[str] = frozenset()
        # Loop times.
        self._sent_at = self._not_before = 0.0
        self._unassigned_since = 0.0
        self._has_just_joined = False
        # Written by the heartbeat thread, and read after its outcome.
        self._sent_by_thread: deque[SentByThread] = deque()

    # --- The pace -------------------------------------------------------------------------
    @override
    def _due_at(self) -> float | None:
        member = self._member
        if not member.is_heard:
            return None
        if not member.is_member or self._sent_topics != self._leasing.topics:
            return self._not_before
        return max(self._sent_at + self._interval_s, self._not_before)

    @property
    def _interval_s(self) -> float:
        if self._member.target:
            return self._settled_s
        is_new = self._loop.time() < self._unassigned_since + UNASSIGNED_FOR_S
        return UNASSIGNED_S if is_new and not self._has_just_joined else ASSIGNMENT_S

    @property
    def _settled_s(self) -> float:
        return min(self._brokers_s, self._leasing.lock_s / BEATS_A_LOCK)

    # --- The heartbeat thread -------------------------------------------------------------
    @override
    def _of_thread(self) -> tuple[SendHeartbeat, float, float]:
        loop, leasing = self._loop, self._leasing
        send = partial(
            send_brief,
            self._member.group_id,
            leasing.copy_sources,
            self._sent_by_thread,
            loop.time,
        )
        return send, self._settled_s, BLOCKED_MAX_S

    @override
    def take_outcome(self, outcome: Outcome) -> None:
        while self._sent_by_thread:
            sent = self._sent_by_thread.popleft()
            sent.source.take_over_from_thread(sent)
        answer, error = outcome.answer, outcome.error
        if error is None:
            self.beat_count += 1
            assert isinstance(answer, ShareGroupHeartbeatResponse)  # noqa: S101 -- to `send_brief`
            if self._member.take_late_answer(outcome.identity, target_in(answer)):
                self._renew(outcome.sent_at)
                self._leasing.assigned()
        else:
            self._failed(outcome.sent_as, error)
        self._leasing.wanted()
        self._member.notify()

    # --- Requests -------------------------------------------------------------------------
    @override
    async def _beat(self) -> None:
        await self._wait_for_turn(self._interval_s)
        member = self._member
        if not member.is_heard:
            return
        sent_as, topics = member.identity, self._leasing.topics
        is_joining = not member.is_member
        request = heartbeat_request(member.group_id, sent_as, JOIN_EPOCH if is_joining else None)
        if is_joining:
            request.rack_id = self._leasing.settings.client_rack or None
        if is_joining or topics != self._sent_topics:
            request.subscribed_topic_names = sorted(topics)
            self._unassigned_since = self._loop.time()
        self._sent_at = sent_at = self._loop.time()
        try:
            answer = await self._coordinator.request(
                request,
                error_code=lambda response: response.error_code,
                error_message=lambda response: response.error_message,
                deadline=sent_at + self._answer_s,
                answer_s=self._answer_s,
            )
            identity = identity_in(answer, sent_as, request.member_epoch)
        except KafkaError as error:
            self._sent_topics = frozenset()  # the lost answer may have had an assignment
            self._failed(sent_as, error)
            return
        self.beat_count += 1
        self._backoff.reset()
        self._blocked_s = 0.0
        self._has_just_joined = is_joining
        self._sent_topics = topics
        if answer.heartbeat_interval_ms > 0:
            self._brokers_s = answer.heartbeat_interval_ms / 1000
        if member.take_answer(sent_as, identity, target_in(answer)):
            self._renew(sent_at)
            self._leasing.assigned()

    async def leave(self, until: float) -> None:
        """Send the last heartbeat. The group removes the member by itself if this fails."""
        member = self._member
        if member.is_member:
            request = heartbeat_request(member.group_id, member.identity, LEAVE_EPOCH)
            try:
                await self._coordinator.request(
                    request, error_code=lambda response: 0, deadline=until
                )
            except KafkaError as error:
                self._log_failure(error)

    # --- Failures -------------------------------------------------------------------------
    def _failed(self, sent_as: Identity, error: KafkaError) -> None:
        self.failure_count += 1
        member = self._member
        is_joining = sent_as == member.identity and not member.is_member
        self._not_before = self._loop.time() + self._backoff.next_delay_s()
        loss = loss_by(error)
        # A group of another type is not found by a member that joins.
        is_surfaced = is_joining and isinstance(error, GroupIdNotFound)
        if is_surfaced or recovery_for(error) is Recovery.SURFACE:
            self._not_before = self._loop.time() + SURFACED_PAUSE_S
            self._leasing.surface(error)
        elif loss is not None and member.drop(sent_as, loss, self.why_silent or str(error)):
            self._leasing.dropped(f"the group has removed this member: {error}")
            member.enter(MemberState.UNJOINED)
            member.enter(MemberState.JOINING)
        self._log_failure(error)

    @property
    @override
    def _why_removed(self) -> str:
        return "the group removes a member after a session timeout without heartbeats"
