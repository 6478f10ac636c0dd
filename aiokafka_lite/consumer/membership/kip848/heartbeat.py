"""The task "heartbeat" of KIP-848: sends a member's heartbeats, and applies the responses."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Final

from aiokafka_lite.consumer.config import CONSUMER_SESSION_S
from aiokafka_lite.consumer.gate import Hold
from aiokafka_lite.consumer.membership.heartbeat import MemberHeartbeat
from aiokafka_lite.consumer.membership.heartbeat_thread import Outcome, Send, SendHeartbeat
from aiokafka_lite.consumer.membership.kip848.member import (
    JOIN_EPOCH,
    ConsumerMember,
    MemberState,
    PartitionId,
)
from aiokafka_lite.consumer.membership.kip848.schedule import (
    HeartbeatSchedule,
    SentHeartbeat,
    by_topic,
    identity_in,
    target_in,
)
from aiokafka_lite.consumer.membership.protocol import Identity
from aiokafka_lite.consumer.membership.recovery import (
    KEPT_CLASSIC,
    Recovery,
    loss_by,
    recovery_for,
)
from aiokafka_lite.consumer.membership.surroundings import Surroundings
from aiokafka_lite.errors import (
    BrokerResponseError,
    FencedMemberEpochError,
    IncompatibleBrokerVersion,
    InvalidRegularExpressionError,
    KafkaError,
    UnknownError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
    UnsupportedVersionError,
    for_code,
)
from aiokafka_lite.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

if TYPE_CHECKING:
    from aiokafka_lite.consumer.membership.kip848.membership import ConsumerMembership

log = logging.getLogger(__name__)

# Longest pause while the instance id belongs to another member.
UNRELEASED_BACKOFF_MAX_S: Final = 5.0
# Between two attempts after a permanent error.
SURFACED_PAUSE_S: Final = 1.0
# The broker, or this group, does not offer KIP-848.
NOT_OFFERED: Final = (UnsupportedVersionError, *KEPT_CLASSIC)


def send_brief(
    group_id: str,
    instance_id: str | None,
    owned: Collection[PartitionId],
    send: Send,
    sent_as: Identity,
) -> tuple[Identity, ConsumerGroupHeartbeatResponse]:
    """Send a brief heartbeat from the heartbeat thread. See SendHeartbeat.

    The response to one of the loop's heartbeats, unread, may have changed the epoch. Then a brief
    one is refused, and one with the owned partitions counts as a repetition.
    """
    request = ConsumerGroupHeartbeatRequest(
        group_id=group_id,
        member_id=sent_as.member_id,
        member_epoch=sent_as.generation,
        instance_id=instance_id,
    )
    answer = send(request)
    if answer.error_code == FencedMemberEpochError.errno:
        request.topic_partitions = by_topic(owned)
        answer = send(request)
    if answer.error_code:
        raise for_code(answer.error_code)(f"heartbeat of group {group_id}")
    return identity_in(answer, sent_as, sent_as.generation), answer


class Heartbeat(MemberHeartbeat[ConsumerMember]):
    def __init__(
        self,
        around: Surroundings,
        member: ConsumerMember,
        schedule: HeartbeatSchedule,
        membership: ConsumerMembership,
    ) -> None:
        super().__init__(around, member, around.core.config.group_session_s)
        self._schedule = schedule
        self._membership = membership
        # The latest one of the heartbeat thread.
        self._outcome: Outcome | None = None
        self._unreleased = around.core.new_backoff(UNRELEASED_BACKOFF_MAX_S)
        # Loop times of the last heartbeat, and before which no other is sent.
        self._sent_at = 0.0
        self._not_before = 0.0
        # The sentence that explains why it is no member; "" if it is one.
        self.trouble = ""
        self.trouble_since = 0.0
        # The latest join was refused, so the group does not have this member.
        self.is_refused = False

    def _due_at(self) -> float | None:
        member, schedule = self._member, self._schedule
        if not member.is_heard or self._not_before == math.inf:
            return None
        if (
            not member.is_member
            or member.is_epoch_stale
            or schedule.has_news(self._membership.subscribed)
        ):
            return self._not_before
        return max(self._sent_at + self._interval_s(), self._not_before)

    def _interval_s(self) -> float:
        return self._schedule.interval_s(
            self._loop.time(), is_unsettled=self._member.state is MemberState.RECONCILING
        )

    # --- The heartbeat thread -------------------------------------------------------------
    def _of_thread(self) -> tuple[SendHeartbeat, float, float]:
        member, held = self._member, tuple(self._membership.held)
        return (
            partial(send_brief, member.group_id, member.group_instance_id, held),
            self._schedule.settled_s,
            self._config.max_poll_interval_s - self._membership.idle_s,
        )

    def take_outcome(self, outcome: Outcome) -> None:
        """Apply the outcome. The next heartbeat is full, so that an assignment is repeated."""
        member, error = self._member, outcome.error
        self._outcome = outcome
        self._schedule.note_failure()
        if error is None:
            self.beat_count += 1
            answer = outcome.answer
            target = None
            if isinstance(answer, ConsumerGroupHeartbeatResponse):
                target = target_in(answer)
            if member.take_late_answer(outcome.identity, target):
                self._renew(outcome.sent_at)
        else:
            self.failure_count += 1
            loss = loss_by(error)
            if loss is not None and member.drop(outcome.sent_as, loss, str(error)):
                self._gate.hold(Hold.LOST)  # until the group task has dropped the partitions
        member.notify()

    async def _beat(self) -> None:
        await self._wait_for_turn(self._interval_s())
        if not self._member.is_heard:
            return
        sent = self._schedule.next(self._membership.subscribed, self._membership.held)
        self.is_refused = False
        self._sent_at = sent_at = self._loop.time()
        outcome = self._outcome
        try:
            answer = await self._send(sent.request)
            identity, target = self._schedule.answered(sent, answer, self._loop.time())
        except KafkaError as error:
            self._schedule.note_failure()
            self._failed(sent, error)
            return
        self.beat_count += 1
        self._backoff.reset()
        self._unreleased.reset()
        self.trouble = ""
        self._blocked_s = 0.0
        if sent.sent_as.generation != identity.generation:
            self._schedule.note_unsettled(self._loop.time())
        if outcome is not self._outcome:
            # The thread's responses may be newer than this one, which was read late.
            self._schedule.note_failure()
            target = None
        if self._member.take_answer(sent.sent_as, identity, target):
            self._renew(sent_at)

    async def _send(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        if request.member_epoch == JOIN_EPOCH and not self._coordinator.has_topic_ids:
            raise IncompatibleBrokerVersion(
                "KIP-848 needs topic ids, but the broker supports only versions of Metadata below "
                "10, which have no topic ids"
            )
        answer_s = self._answer_s
        return await self._coordinator.request(
            request,
            error_code=lambda response: response.error_code,
            error_message=lambda response: response.error_message,
            deadline=self._loop.time() + answer_s,
            answer_s=answer_s,
        )

    # --- Failures -------------------------------------------------------------------------
    def _failed(self, sent: SentHeartbeat, error: KafkaError) -> None:
        self.failure_count += 1
        member, recovery = self._member, recovery_for(error)
        is_joining = sent.sent_as == member.identity and not member.is_member
        if self._is_refused_regex(sent, error):
            self._membership.match_here()
            return
        if isinstance(error, UnreleasedInstanceIdError):
            self._wait_for_release()
            return
        self._pause(self._backoff.next_delay_s())
        if is_joining and isinstance(error, NOT_OFFERED):
            if self._membership.fall_back is None:
                self._note_refusal(error)
            else:
                self._membership.fall_back(error)
                self._not_before = math.inf
            return
        if (loss := loss_by(error)) is not None and (
            not is_joining or recovery is Recovery.FENCED or isinstance(error, UnknownMemberIdError)
        ):
            if member.drop(sent.sent_as, loss, self.why_silent or str(error)):
                self._gate.hold(Hold.LOST)  # until the group task has dropped the partitions
        elif recovery is Recovery.SURFACE:
            # After an unknown error, the group may have this member.
            is_named = isinstance(error, BrokerResponseError) and not isinstance(
                error, UnknownError
            )
            self.is_refused = is_joining and is_named
            self._note_trouble(str(error))
            self._pause(SURFACED_PAUSE_S)
            self._membership.surface(error)
        self._log_failure(error)

    def _note_refusal(self, error: KafkaError) -> None:
        """Report that KIP-848 was refused, and retry later, because brokers may change."""
        self.is_refused = True
        group_id = self._member.group_id
        reason = (
            f"group {group_id} has members that use the classic protocol, and the broker does not "
            "allow converting the group to KIP-848"
            if isinstance(error, KEPT_CLASSIC)
            else f"group {group_id} cannot be joined with the consumer protocol (KIP-848), because "
            "the broker does not offer this protocol"
        )
        detail = error.args[0] if error.args else error
        text = (
            f'{reason}: {detail}. Use group_protocol="auto" to join with the classic protocol '
            "instead"
        )
        refusal = type(error)(text)
        self._note_trouble(str(refusal))
        self._pause(SURFACED_PAUSE_S)
        self._membership.surface(refusal)
        if (ending := self._log_limit.let_in("refused", self._loop.time())) is not None:
            log.warning("%s%s", refusal, ending)

    def _is_refused_regex(self, sent: SentHeartbeat, error: KafkaError) -> bool:
        """Whether the coordinator refused the expression, or the version has no field for it."""
        if sent.request.subscribed_topic_regex is None:
            return False
        return isinstance(error, (InvalidRegularExpressionError, UnsupportedVersionError))

    @property
    def _why_removed(self) -> str:
        return "the group removes a member after a session timeout without heartbeats"

    def _wait_for_release(self) -> None:
        """Retry later while another member has the instance id; report it after a session."""
        text = (
            f"group_instance_id {self._member.group_instance_id!r} still belongs to a member "
            "that has not left: waiting until it leaves or its session times out. Every "
            "consumer needs a group_instance_id of its own"
        )
        self._note_trouble(text)
        self._pause(self._unreleased.next_delay_s())
        error = UnreleasedInstanceIdError(f"group {self._member.group_id}: {text}")
        # The session of a crashed member is over by then, with the broker's default timeout.
        session_s = max(self._session_s, CONSUMER_SESSION_S)
        if self._loop.time() - self.trouble_since > session_s:
            self._membership.surface(error)
        self._log_failure(error)

    def _note_trouble(self, text: str) -> None:
        if not self.trouble:
            self.trouble_since = self._loop.time()
        self.trouble = text

    def _pause(self, delay_s: float) -> None:
        self._not_before = self._loop.time() + delay_s
