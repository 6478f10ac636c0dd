"""The contents and times of KIP-848 heartbeats, without I/O.

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

import re
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.membership.kip848.member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_FOR_NOW_EPOCH,
    ConsumerMember,
    Held,
    PartitionId,
    Target,
)
from aiokafka_lite.consumer.membership.protocol import Identity
from aiokafka_lite.errors import KafkaProtocolError
from aiokafka_lite.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from aiokafka_lite.protocol.regex import IGNORE_CASE, tokens_of

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


class Subscription(NamedTuple):
    """Topic names, or an RE2 expression that the coordinator matches."""

    names: frozenset[str] = frozenset()
    regex: str | None = None

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
        self._change_count += 1
        self._is_unconfirmed = False
        self.note_unsettled(now)

    def confirm(self, now: float) -> bool:
        """Make the next heartbeat full if the coordinator may wait for the owned partitions.

        It may have withdrawn partitions whose topics were missing from the metadata. It withdraws
        others only after a confirmation, if their topics were deleted.
        """
        if not self._is_unconfirmed:
            return False
        self.note_change(now)
        return True

    def note_unsettled(self, now: float) -> None:
        self._unsettled_until = now + UNSETTLED_FOR_S

    def note_failure(self) -> None:
        self._told_change_count = None

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
            self._is_unconfirmed = False
        target = target_in(answer)
        if target is not None and target != self._assigned:
            self._assigned, self._is_unconfirmed = target, True
        return identity, target

    # --- The pace -------------------------------------------------------------------------
    def interval_s(self, now: float, *, is_unsettled: bool) -> float:
        """Return the time from the last heartbeat to the next brief one."""
        settled_s = self.settled_s
        if not self._is_throttled and (is_unsettled or now < self._unsettled_until):
            return min(UNSETTLED_S, settled_s)
        return settled_s

    @property
    def settled_s(self) -> float:
        if self._is_throttled:
            return self._brokers_s
        return min(self._share_s if self._settled_s is None else self._settled_s, self._brokers_s)

    @property
    def _share_s(self) -> float:
        """The interval by the estimated group size, as if members had equal shares."""
        partition_count = self._topics.partition_count
        if not partition_count:
            return SETTLED_MAX_S
        member_count = partition_count / max(1, len(self._member.target or ()))
        return min(max(UNSETTLED_S, SETTLED_S_A_MEMBER * member_count), SETTLED_MAX_S)


def identity_in(
    answer: ConsumerGroupHeartbeatResponse, sent_as: Identity, epoch_sent: int
) -> Identity:
    epoch = answer.member_epoch
    if epoch < max(epoch_sent, 1):
        # With an epoch below 1 the next heartbeat would be another request.
        raise KafkaProtocolError(
            f"the coordinator returned member epoch {epoch} for a heartbeat with member epoch "
            f"{epoch_sent}: epochs are positive and cannot decrease"
        )
    return sent_as._replace(member_id=answer.member_id or sent_as.member_id, generation=epoch)


def target_in(answer: ConsumerGroupHeartbeatResponse) -> Target | None:
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
