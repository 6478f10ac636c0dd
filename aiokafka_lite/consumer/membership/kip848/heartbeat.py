"""The heartbeats of KIP-848: their contents and times, without I/O, and the task that sends them.

A full heartbeat contains the subscription, the timeout and the owned partitions, and is answered
with the whole assignment. Others are brief. Full ones are sent to join, after partitions were
assigned or revoked, after the subscription has changed, and after a failure, because the lost
response may have contained an assignment.

Partitions are owned until they are revoked and committed. No owned partitions are sent as an empty
list, because null means "as before".

The assignment changes in steps, each with a heartbeat of one member. So a member sends more than
the coordinator demands (every 5 s by default) for some seconds after it has joined, or its
partitions have changed. Otherwise a group sends about ten heartbeats a second, each member at least
one. A throttled member uses the coordinator's interval.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from aiokafka_lite.consumer.config import CONSUMER_SESSION_S, ConsumerConfig
from aiokafka_lite.consumer.gate import Hold
from aiokafka_lite.consumer.membership.heartbeat import LeasedHeartbeat
from aiokafka_lite.consumer.membership.heartbeat_thread import Outcome, Send, SendHeartbeat
from aiokafka_lite.consumer.membership.kip848.member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_FOR_NOW_EPOCH,
    ConsumerMember,
    Held,
    MemberState,
    PartitionId,
    Target,
)
from aiokafka_lite.consumer.membership.protocol import Identity, Surroundings
from aiokafka_lite.consumer.membership.recovery import (
    KEPT_CLASSIC,
    Recovery,
    loss_by,
    recovery_for,
)
from aiokafka_lite.errors import (
    BrokerResponseError,
    FencedMemberEpochError,
    IncompatibleBrokerVersion,
    InvalidRegularExpressionError,
    KafkaError,
    KafkaProtocolError,
    UnknownError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
    UnsupportedAssignorError,
    UnsupportedVersionError,
    for_code,
)
from aiokafka_lite.protocol.messages.group_members import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from aiokafka_lite.protocol.messages.share import ShareGroupHeartbeatResponse
from aiokafka_lite.protocol.regex import IGNORE_CASE, tokens_of

if TYPE_CHECKING:
    from aiokafka_lite.consumer.membership.kip848.membership import ConsumerMembership

log = logging.getLogger(__name__)

# The topics that brokers keep for themselves.
INTERNAL_TOPICS: Final = ("__consumer_offsets", "__transaction_state", "__share_group_state")


def as_re2(pattern: re.Pattern[str], *, exclude_internal_topics: bool) -> str | None:
    """Return the coordinator's regular expression for a pattern of Python's `re`.

    The consumer matches patterns at the beginning of names, as aiokafka, the coordinator whole
    names. None: the consumer must match topics itself.
    """
    text, flags = pattern.pattern, pattern.flags & ~re.UNICODE
    if exclude_internal_topics and any(map(pattern.match, INTERNAL_TOPICS)):
        return None
    body = text.removeprefix(IGNORE_CASE)
    ignores_case = flags == re.IGNORECASE
    if flags and not ignores_case:
        return None
    _, unlike = tokens_of(body)
    if unlike:
        return None
    return f"{IGNORE_CASE if ignores_case else ''}(?:{body}).*"


# Between two heartbeats of an unsettled member.
UNSETTLED_S: Final = 0.25
# Of a settled one: for each member of the group, and at most.
SETTLED_S_A_MEMBER: Final = 0.1
SETTLED_MAX_S: Final = 1.0
# How long a member is unsettled after it has joined, or its partitions have changed.
UNSETTLED_FOR_S: Final = 5.0
# Until the coordinator has named one.
BROKERS_INTERVAL_S: Final = 5.0
# The broker's default. A request without an assignor does not change the one that was named.
DEFAULT_ASSIGNOR: Final = "uniform"


class Subscription(NamedTuple):
    """Topic names, or the coordinator's RE2 expression, and the assignor by default."""

    names: frozenset[str] = frozenset()
    regex: str | None = None
    assignor: str | None = None

    def covers(self, topic: str) -> bool:
        return self.regex is not None or topic in self.names


class SentHeartbeat(NamedTuple):
    request: ConsumerGroupHeartbeatRequest
    sent_as: Identity
    subscribed: Subscription
    # The number of changes of the owned partitions. None: the request does not contain them.
    change_count: int | None


class SubscribedTopics(Protocol):
    @property
    def partition_count(self) -> int: ...


class HeartbeatSchedule:
    """Makes one member's heartbeats, and remembers the coordinator's state."""

    def __init__(
        self, config: ConsumerConfig, member: ConsumerMember, topics: SubscribedTopics
    ) -> None:
        self._config = config
        self._member = member
        self._topics = topics
        self._settled_s = config.group_heartbeat_interval_s
        # Of the latest answered full heartbeat.
        self.told_subscription: Subscription | None = None
        # None: a heartbeat has failed since.
        self._told_change_count: int | None = None
        self._has_told_regex = False
        self._has_told_assignor = False
        # Unless the application does: the coordinator may not have it.
        self._names_assignors = True
        # Of the owned partitions.
        self._change_count = 0
        # The latest assignment, and whether the coordinator may wait for the owned partitions.
        self._assigned: Target = frozenset()
        self._is_unconfirmed = False
        self._brokers_s = BROKERS_INTERVAL_S
        self._is_throttled = False
        self._unsettled_until = 0.0

    # --- Requests -------------------------------------------------------------------------
    def has_news(self, subscribed: Subscription) -> bool:
        """Whether the next heartbeat is full, and due at once."""
        return self._told_change_count != self._change_count or subscribed != self.told_subscription

    def note_change(self, now: float) -> None:
        """Report the owned partitions at once."""
        self._change_count += 1
        self._is_unconfirmed = False
        self.note_unsettled(now)
        self._member.notify()

    def confirm(self, now: float) -> None:
        """Make the next heartbeat full if the coordinator may wait for the owned partitions.

        It may have withdrawn partitions whose topics were missing from the metadata. It withdraws
        others only after a confirmation, if their topics were deleted.
        """
        if self._is_unconfirmed:
            self.note_change(now)

    def note_unsettled(self, now: float) -> None:
        self._unsettled_until = now + UNSETTLED_FOR_S

    def note_failure(self) -> None:
        self._told_change_count = None

    def name_no_assignor(self) -> None:
        self._names_assignors = False

    def forget(self) -> None:
        self.told_subscription = None
        self._assigned = frozenset()

    def next(self, subscribed: Subscription, held: Held) -> SentHeartbeat:
        """Make the next heartbeat. `held` are the owned partitions."""
        member = self._member
        is_joining = not member.is_member
        is_full = is_joining or self.has_news(subscribed)
        request = ConsumerGroupHeartbeatRequest(
            group_id=member.group_id,
            member_id=member.identity.member_id,
            member_epoch=JOIN_EPOCH if is_joining else member.identity.generation,
            instance_id=member.group_instance_id,
        )
        if not is_full:
            return SentHeartbeat(request, member.identity, subscribed, None)
        request.rack_id = self._config.client_rack or None
        request.rebalance_timeout_ms = round(self._config.group_timeout_s * 1000)
        request.server_assignor = self._config.group_remote_assignor
        if request.server_assignor is None and self._names_assignors:
            default = DEFAULT_ASSIGNOR if self._has_told_assignor else None
            request.server_assignor = subscribed.assignor or default
        request.subscribed_topic_names = sorted(subscribed.names)
        request.subscribed_topic_regex = subscribed.regex
        if subscribed.regex is None and self._has_told_regex:
            request.subscribed_topic_regex = ""  # removes it
        owned = frozenset[PartitionId]() if is_joining else frozenset(held)
        request.topic_partitions = by_topic(owned)
        return SentHeartbeat(request, member.identity, subscribed, self._change_count)

    def leave(self, *, for_good: bool = False) -> ConsumerGroupHeartbeatRequest:
        """Make the last heartbeat; `for_good`: a static member also gives up its place."""
        member = self._member
        comes_back = member.is_static and not for_good
        return ConsumerGroupHeartbeatRequest(
            group_id=member.group_id,
            member_id=member.identity.member_id,
            member_epoch=LEAVE_FOR_NOW_EPOCH if comes_back else LEAVE_EPOCH,
            instance_id=member.group_instance_id,
        )

    # --- Responses ------------------------------------------------------------------------
    def answered(
        self, sent: SentHeartbeat, answer: ConsumerGroupHeartbeatResponse, now: float
    ) -> tuple[Identity, Target | None]:
        """Take over a response, and return the identity and assignment in it."""
        identity = identity_in(answer, sent.sent_as, sent.request.member_epoch)
        if answer.heartbeat_interval_ms > 0:
            self._brokers_s = answer.heartbeat_interval_ms / 1000
        self._is_throttled = answer.throttle_time_ms > 0
        if sent.change_count is not None:
            self.told_subscription = sent.subscribed
            self._told_change_count = sent.change_count
            self._has_told_regex = sent.subscribed.regex is not None
            self._has_told_assignor = sent.request.server_assignor is not None
            self._is_unconfirmed = False
        target = target_in(answer)
        if target is not None and target != self._assigned:
            self._assigned, self._is_unconfirmed = target, True
        return identity, target

    # --- The pace -------------------------------------------------------------------------
    def interval_s(self, now: float) -> float:
        """Return the time from the last heartbeat to the next brief one."""
        settled_s, is_unsettled = self.settled_s, self._member.state is MemberState.RECONCILING
        if not self._is_throttled and (is_unsettled or now < self._unsettled_until):
            return min(UNSETTLED_S, settled_s)
        return settled_s

    @property
    def settled_s(self) -> float:
        """The interval of a settled member, by default by the estimated size of its group."""
        if self._is_throttled:
            return self._brokers_s
        settled_s = self._settled_s
        if settled_s is None:
            # As if members had equal shares. Without metadata, the group counts as large.
            count = self._topics.partition_count or math.inf
            member_count = count / max(1, len(self._member.target or ()))
            settled_s = min(max(UNSETTLED_S, SETTLED_S_A_MEMBER * member_count), SETTLED_MAX_S)
        return min(settled_s, self._brokers_s)


def identity_in(
    answer: ConsumerGroupHeartbeatResponse | ShareGroupHeartbeatResponse,
    sent_as: Identity,
    epoch_sent: int,
) -> Identity:
    epoch = answer.member_epoch
    if epoch < max(epoch_sent, 1):
        # With an epoch below 1 the next heartbeat would be another request.
        raise KafkaProtocolError(
            f"the coordinator returned member epoch {epoch} for a heartbeat with member epoch "
            f"{epoch_sent}: epochs are positive and cannot decrease"
        )
    return sent_as._replace(member_id=answer.member_id or sent_as.member_id, generation=epoch)


def target_in(
    answer: ConsumerGroupHeartbeatResponse | ShareGroupHeartbeatResponse,
) -> Target | None:
    if answer.assignment is None:
        return None
    return frozenset(
        PartitionId(topic.topic_id, number)
        for topic in answer.assignment.topic_partitions
        for number in topic.partitions
    )


def by_topic(held: Iterable[PartitionId]) -> list[TopicPartitions]:
    numbers: dict[bytes, list[int]] = {}
    for each in sorted(held):
        numbers.setdefault(each.topic_id, []).append(each.number)
    return [TopicPartitions(topic_id=each, partitions=n) for each, n in numbers.items()]


# --- The task ---------------------------------------------------------------------------------
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


class Heartbeat(LeasedHeartbeat[ConsumerMember]):
    def __init__(
        self,
        around: Surroundings,
        member: ConsumerMember,
        schedule: HeartbeatSchedule,
        membership: ConsumerMembership,
    ) -> None:
        super().__init__(around, member, around.core.config.group_session_s)
        self._cluster = around.cluster
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
        return max(self._sent_at + schedule.interval_s(self._loop.time()), self._not_before)

    # --- The heartbeat thread -------------------------------------------------------------
    def _of_thread(self) -> tuple[SendHeartbeat, float, float]:
        member, membership = self._member, self._membership
        held, left_s = tuple(membership.held), self._config.max_poll_interval_s
        return (
            partial(send_brief, member.group_id, member.group_instance_id, held),
            self._schedule.settled_s,
            membership.poll_left_s if membership.was_settled else left_s,
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
        await self._wait_for_turn(self._schedule.interval_s(self._loop.time()))
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
        if request.member_epoch == JOIN_EPOCH and not self._cluster.has_topic_ids:
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
        if self._is_refused_assignor(sent, error):
            log.warning("%s. Members may have unequal shares of delay topics and others", error)
            self._schedule.name_no_assignor()
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

    def _is_refused_assignor(self, sent: SentHeartbeat, error: KafkaError) -> bool:
        """Whether the coordinator does not have an assignor that the application has not named."""
        is_own = sent.request.server_assignor != self._config.group_remote_assignor
        return is_own and isinstance(error, UnsupportedAssignorError)

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
