"""What the next heartbeat says, when it is due, and what of an answer is believed; without I/O.

A heartbeat is full or brief. A full one says all: subscription, timeout, what is owned; the
coordinator answers it with the whole assignment. A brief one says that the member lives. Full ones
are sent

    to join
    after something was taken, or given back: whoever waits for it waits for this
    after any heartbeat that failed: its answer may be what brought a new assignment
    after the subscription has changed

What is owned is what the membership holds, whatever is being done with it at the moment. So a
heartbeat that is sent while partitions are given back says that they are still owned: the next
owner must not begin before the last commit. Nothing owned is said as an empty list; null would be
"as before".

The pace. The coordinator names an interval (5 s by default), which is a wish. A change of the
assignment goes through the group in steps, each with a heartbeat of somebody: so a member is quick
while it is unsettled, for some seconds after it has joined, taken or given back something. When it
is settled it hears of a change with its next heartbeat, so the first step takes up to that long.
Members of a small group can be quick all the time: a group's members send some ten heartbeats a
second together, each at least one. Where the broker throttles, a member keeps to the coordinator's
interval.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.membership.kip848.member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_FOR_NOW_EPOCH,
    ConsumerMember,
    PartitionId,
    Target,
)
from aiokafka_lite.consumer.membership.kip848.target import Held
from aiokafka_lite.consumer.membership.protocol import Identity
from aiokafka_lite.consumer.membership.stand_in import Send
from aiokafka_lite.errors import FencedMemberEpochError, KafkaProtocolError, for_code
from aiokafka_lite.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

# Between two heartbeats of an unsettled member.
UNSETTLED_S: Final = 0.25
# Between two of a settled one: so much for each member of the group, and at most that.
SETTLED_S_A_MEMBER: Final = 0.1
SETTLED_MAX_S: Final = 1.0
# How long a member counts as unsettled after it has joined, taken or given back something.
UNSETTLED_FOR_S: Final = 5.0
# The coordinator's interval until it has named one that makes sense.
BROKERS_INTERVAL_S: Final = 5.0


class Wish(NamedTuple):
    """What is subscribed: names, or an expression that the coordinator matches (RE2)."""

    names: frozenset[str] = frozenset()
    regex: str | None = None

    def covers(self, topic: str) -> bool:
        """Whether a topic that was assigned for this wish is wanted."""
        return self.regex is not None or topic in self.names


class Said(NamedTuple):
    """A heartbeat on its way, and what is known once it is answered."""

    request: ConsumerGroupHeartbeatRequest
    sent_as: Identity
    wish: Wish
    # How often what is owned had changed by then; None: it does not say what is owned.
    change_count: int | None


class BriefVoice(NamedTuple):
    """Says that a member lives, from a thread, and nothing new; see Voice.

    The answer to a heartbeat of the loop may wait there, unread, and have brought another epoch.
    Then a brief heartbeat is refused, and one that says what is owned counts as its repetition.
    """

    group_id: str
    instance_id: str | None
    owned: tuple[PartitionId, ...]

    def beat(
        self, send: Send, sent_as: Identity
    ) -> tuple[Identity, ConsumerGroupHeartbeatResponse]:
        """Send a brief heartbeat; return as whom the coordinator knows the member, and its answer.

        Raises:
            KafkaError: It refuses, or makes no sense.
        """
        request = self._request(sent_as)
        answer = send(request)
        if answer.error_code == FencedMemberEpochError.errno:
            request.topic_partitions = by_topic(self.owned)
            answer = send(request)
        if answer.error_code:
            raise for_code(answer.error_code)(f"heartbeat of group {self.group_id}")
        return identity_in(answer, sent_as, sent_as.generation), answer

    def _request(self, sent_as: Identity) -> ConsumerGroupHeartbeatRequest:
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=sent_as.member_id,
            member_epoch=sent_as.generation,
            instance_id=self.instance_id,
        )


class SubscribedTopics(Protocol):
    """The topics that a member subscribes to."""

    @property
    def partition_count(self) -> int:
        """How many partitions they have; 0: not known."""


class Beats:
    """Makes heartbeats of one member, and remembers what the coordinator was told.

    Args:
        config: Says what they say, and how often they are sent.
        member: Whose they are.
        topics: The subscribed topics.
    """

    def __init__(
        self, config: ConsumerConfig, member: ConsumerMember, topics: SubscribedTopics
    ) -> None:
        self._config = config
        self._member = member
        self._topics = topics
        self._settled_s = config.group_heartbeat_interval_s
        # What the coordinator knows: only what an answered heartbeat has said.
        self.told_wish: Wish | None = None
        # None: a heartbeat has failed since, and may have changed that.
        self._told_change_count: int | None = None
        self._has_told_regex = False
        # Goes up with each change of what is owned.
        self._change_count = 0
        # What it has assigned last, and whether it may wait until it is told what is owned.
        self._assigned: Target = frozenset()
        self._is_unconfirmed = False
        self._brokers_s = BROKERS_INTERVAL_S
        self._is_throttled = False
        self._unsettled_until = 0.0

    # --- What is said ---------------------------------------------------------------------
    def has_news(self, wish: Wish) -> bool:
        """Whether there is something to tell at once."""
        return self._told_change_count != self._change_count or wish != self.told_wish

    def note_change(self, now: float) -> None:
        """Note that what is owned has changed."""
        self._change_count += 1
        self._is_unconfirmed = False
        self.note_unsettled(now)

    def confirm(self, now: float) -> bool:
        """Say what is owned if the coordinator may wait for that; whether it may.

        It waits also where nothing changes here: partitions that could not be taken yet, as
        metadata did not know their topics, were withdrawn. Others of the kind may be left: their
        topics may be deleted by now, and it withdraws them only then.
        """
        if not self._is_unconfirmed:
            return False
        self.note_change(now)
        return True

    def note_unsettled(self, now: float) -> None:
        """Be quick for some seconds."""
        self._unsettled_until = now + UNSETTLED_FOR_S

    def note_failure(self) -> None:
        """Say all with the next heartbeat: what the coordinator has made of the last is not known.

        Its answer may be what brought a new assignment, which is not sent again by itself.
        """
        self._told_change_count = None

    def forget(self) -> None:
        """Begin anew: the member that the coordinator was told of is no more."""
        self.told_wish = None
        self._assigned = frozenset()

    def next(self, wish: Wish, held: Held) -> Said:
        """Make the next heartbeat.

        Args:
            wish: What is subscribed now.
            held: What the member owns: all that it has taken and not given back.
        """
        member = self._member
        is_joining = not member.is_member
        is_full = is_joining or self.has_news(wish)
        request = ConsumerGroupHeartbeatRequest(
            group_id=member.group_id,
            member_id=member.identity.member_id,
            member_epoch=JOIN_EPOCH if is_joining else member.identity.generation,
            instance_id=member.group_instance_id,
        )
        if not is_full:
            return Said(request, member.identity, wish, None)
        request.rack_id = self._config.client_rack or None
        request.rebalance_timeout_ms = round(self._config.group_timeout_s * 1000)
        request.server_assignor = self._config.group_remote_assignor
        request.subscribed_topic_names = sorted(wish.names)
        request.subscribed_topic_regex = wish.regex
        if wish.regex is None and self._has_told_regex:
            request.subscribed_topic_regex = ""  # no more
        # Whoever joins owns nothing, whatever it had.
        owned = frozenset[PartitionId]() if is_joining else frozenset(held)
        request.topic_partitions = by_topic(owned)
        return Said(request, member.identity, wish, self._change_count)

    def leave(self, *, for_good: bool = False) -> ConsumerGroupHeartbeatRequest:
        """Make the heartbeat that says that the member goes.

        Args:
            for_good: Also of a static member, whose place is kept for a session otherwise.
        """
        member = self._member
        comes_back = member.is_static and not for_good
        return ConsumerGroupHeartbeatRequest(
            group_id=member.group_id,
            member_id=member.identity.member_id,
            member_epoch=LEAVE_FOR_NOW_EPOCH if comes_back else LEAVE_EPOCH,
            instance_id=member.group_instance_id,
        )

    # --- What is answered -----------------------------------------------------------------
    def answered(
        self, said: Said, answer: ConsumerGroupHeartbeatResponse, now: float
    ) -> tuple[Identity, Target | None]:
        """Take over what an answer says of the heartbeat; return what it says of the member.

        Raises:
            KafkaProtocolError: It makes no sense: the next heartbeat says all again.
        """
        identity = identity_in(answer, said.sent_as, said.request.member_epoch)
        if answer.heartbeat_interval_ms > 0:
            self._brokers_s = answer.heartbeat_interval_ms / 1000
        self._is_throttled = answer.throttle_time_ms > 0
        if said.change_count is not None:
            self.told_wish = said.wish
            self._told_change_count = said.change_count
            self._has_told_regex = said.wish.regex is not None
            self._is_unconfirmed = False
        target = target_in(answer)
        if target is not None and target != self._assigned:
            self._assigned, self._is_unconfirmed = target, True
        return identity, target

    # --- The pace -------------------------------------------------------------------------
    def interval_s(self, now: float, *, is_unsettled: bool) -> float:
        """Return how long after the last heartbeat the next one is due, if there is no news."""
        settled_s = self.settled_s
        if not self._is_throttled and (is_unsettled or now < self._unsettled_until):
            return min(UNSETTLED_S, settled_s)
        return settled_s

    @property
    def settled_s(self) -> float:
        """The interval of a settled member."""
        if self._is_throttled:
            return self._brokers_s
        return min(self._share_s if self._settled_s is None else self._settled_s, self._brokers_s)

    @property
    def _share_s(self) -> float:
        """The interval by the group's size: as many members as if all had alike."""
        partition_count = self._topics.partition_count
        if not partition_count:
            return SETTLED_MAX_S
        member_count = partition_count / max(1, len(self._member.target or ()))
        return min(max(UNSETTLED_S, SETTLED_S_A_MEMBER * member_count), SETTLED_MAX_S)


def identity_in(
    answer: ConsumerGroupHeartbeatResponse, sent_as: Identity, epoch_sent: int
) -> Identity:
    """Return as whom the coordinator knows a member.

    Raises:
        KafkaProtocolError: It says what makes no sense.
    """
    epoch = answer.member_epoch
    if epoch < max(epoch_sent, 1):
        # With an epoch below 1 the next heartbeat would be another request.
        raise KafkaProtocolError(
            f"the coordinator returned member epoch {epoch} for a heartbeat with member epoch "
            f"{epoch_sent}: epochs are positive and cannot decrease"
        )
    return Identity(answer.member_id or sent_as.member_id, epoch)


def target_in(answer: ConsumerGroupHeartbeatResponse) -> Target | None:
    """Return what an answer assigns; None: nothing was said."""
    if answer.assignment is None:
        return None
    return frozenset(
        PartitionId(topic.topic_id, number)
        for topic in answer.assignment.topic_partitions
        for number in topic.partitions
    )


def by_topic(held: Iterable[PartitionId]) -> list[TopicPartitions]:
    """Group partitions by topic, in order."""
    numbers: dict[bytes, list[int]] = {}
    for each in sorted(held):
        numbers.setdefault(each.topic_id, []).append(each.number)
    return [TopicPartitions(topic_id=each, partitions=n) for each, n in numbers.items()]
