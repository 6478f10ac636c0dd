"""Holds the subscription of a consumer; computes its topics, with partition counts and racks."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.consumer.assignment.assignment import Assignment
from aiokafka_lite.consumer.assignment.observers import Departure, Observers
from aiokafka_lite.consumer.assignment.reads import Reads
from aiokafka_lite.errors import CommitFailedError, IllegalStateError, UnknownTopicOrPartitionError
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.client.cluster import Cluster
    from aiokafka_lite.client.view import ClusterView


class SubscriptionMode(enum.Enum):
    """The source of the assignment, fixed until `unsubscribe`."""

    NONE = enum.auto()
    TOPICS = enum.auto()  # subscribe(topics)
    PATTERN = enum.auto()  # subscribe(pattern=...)
    ASSIGNED = enum.auto()  # assign(partitions)


# The name under which subscribed and assigned topics are watched.
SUBSCRIPTION: Final = "subscription"


class SubscriptionState(Assignment):
    def __init__(self, observers: Observers, reads: Reads) -> None:
        super().__init__(observers, reads)
        self.mode = SubscriptionMode.NONE
        # In the mode PATTERN.
        self.pattern: re.Pattern[str] | None = None
        self.listener: ConsumerRebalanceListener | None = None
        # Goes up with every change of the subscription: membership compares it to rejoin.
        self.subscription_version = 0
        # The version after the last `unsubscribe`.
        self.unsubscribed_version = -1
        self._topics: frozenset[str] | None = None

    def _subscription_changed(self) -> None:
        self.subscription_version += 1
        self._observers.subscription_changed()

    # --- Subscription ---------------------------------------------------------------------
    @property
    def subscription(self) -> frozenset[str] | None:
        return self._topics

    @property
    def is_subscribed(self) -> bool:
        return self.mode in (SubscriptionMode.TOPICS, SubscriptionMode.PATTERN)

    def _require_mode(self, mode: SubscriptionMode) -> None:
        if self.mode not in (SubscriptionMode.NONE, mode):
            raise IllegalStateError(
                "subscribe(topics), subscribe(pattern=...) and assign() exclude each other: "
                "call unsubscribe() first"
            )

    def subscribe(
        self, topics: Iterable[str], listener: ConsumerRebalanceListener | None = None
    ) -> None:
        """Subscribe to topics instead of the earlier ones, whose records are withheld."""
        self._require_mode(SubscriptionMode.TOPICS)
        self.mode = SubscriptionMode.TOPICS
        self.listener = listener
        self._topics = wanted = frozenset(topics)
        self.withhold(tp for tp in self._assignment if tp.topic not in wanted)
        self._subscription_changed()

    def subscribe_pattern(
        self, pattern: re.Pattern[str], listener: ConsumerRebalanceListener | None = None
    ) -> None:
        self._require_mode(SubscriptionMode.PATTERN)
        self.mode = SubscriptionMode.PATTERN
        self.listener = listener
        self.pattern = pattern
        self._topics = frozenset()
        self.withhold(tp for tp in self._assignment if not pattern.match(tp.topic))
        self._subscription_changed()

    def set_matched_topics(self, topics: Iterable[str]) -> bool:
        matched = frozenset(topics)
        if self.mode is not SubscriptionMode.PATTERN or matched == self._topics:
            return False
        self._topics = matched
        self._subscription_changed()
        return True

    def match_pattern(self, view: ClusterView, *, exclude_internal_topics: bool) -> None:
        if (pattern := self.pattern) is not None:
            self.set_matched_topics(
                name
                for name, topic in view.topics.items()
                if pattern.match(name) and not (topic.is_internal and exclude_internal_topics)
            )

    def watch_topics(self, cluster: Cluster) -> None:
        is_pattern = self.mode is SubscriptionMode.PATTERN
        cluster.watch(SUBSCRIPTION, None if is_pattern else self.topics)

    def unsubscribe(self) -> None:
        """Forget subscription and assignment. Commit as at a clean stop, without open batches."""
        self._depart(self._assignment.keys())
        self.mode = SubscriptionMode.NONE
        self.pattern = None
        self.listener = None
        self._topics = None
        self.change(self._assignment, ())
        self._taken.clear()
        self._subscription_changed()
        self.unsubscribed_version = self.subscription_version

    def subscribes_any(self, partitions: Iterable[TopicPartition]) -> bool:
        if self.pattern is not None:
            return any(self.pattern.match(tp.topic) for tp in partitions)
        topics = self._topics or ()
        return any(tp.topic in topics for tp in partitions)

    @property
    def topics(self) -> set[str]:
        return {*(self._topics or ()), *(tp.topic for tp in self._assignment)}

    def assign_from_user(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign exactly these partitions. Partitions that stay keep their position."""
        self._require_mode(SubscriptionMode.ASSIGNED)
        self.mode = SubscriptionMode.ASSIGNED
        wanted = frozenset(partitions)
        gone = self._assignment.keys() - wanted
        self._depart(gone)
        self.change(gone, wanted)
        self._taken.clear()
        self._subscription_changed()

    def add_from_user(self, partitions: Iterable[TopicPartition]) -> None:
        self.assign_from_user(self._assignment.keys() | frozenset(partitions))

    def remove_from_user(self, partitions: Iterable[TopicPartition]) -> None:
        gone = dict.fromkeys(partitions)
        for tp in gone:
            self.partition(tp)
        self.assign_from_user(self._assignment.keys() - gone.keys())

    def _depart(self, gone: Set[TopicPartition]) -> None:
        if gone:
            self._observers.departed(Departure(frozenset(gone), self.listener))

    def refuse_former_records(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Raise CommitFailedError for offsets of an earlier assignment or a recreated topic."""
        for tp, (offset, _) in offsets.items():
            if self.is_of_former_log(tp, offset):
                raise of_another_log(f"offset {offset} of {tp}")
            if self.is_of_earlier_assignment(tp, offset):
                raise CommitFailedError(
                    f"cannot commit offset {offset} of {tp}: its records were returned "
                    "under an earlier assignment, and another member may have owned the partition "
                    "since. To commit the offset anyway, first seek to the offset"
                )

    def is_of_earlier_assignment(self, tp: TopicPartition, offset: int) -> bool:
        """Whether an offset can only mean records that another member may have had since.

        Manually assigned partitions belong to no member.
        """
        return self.mode is not SubscriptionMode.ASSIGNED and self._is_of_before(
            self._handed_out_earlier, tp, offset
        )


def of_another_log(what: str) -> CommitFailedError:
    return CommitFailedError(
        f"{what} cannot be committed: the topic was deleted and recreated since its records "
        "were read, and offsets of the old topic are invalid in the new topic. To commit "
        "an offset anyway, first seek to that offset"
    )


class Placement(NamedTuple):
    # By partition.
    replicas: Sequence[tuple[int, ...]]
    # Of all known nodes, None if unknown.
    racks: Mapping[int, str | None]

    def racks_of(self, replicas: Iterable[int]) -> set[str | None]:
        return {self.racks.get(node) for node in replicas} - {None}


class SharedOut(NamedTuple):
    """The topics as a group's leader knew them when it computed the assignment."""

    # How many partitions each topic had, 0 for those that were not known.
    counts: Mapping[str, int] = MappingProxyType({})
    # Empty if racks make no difference.
    placements: Mapping[str, Placement] = MappingProxyType({})


def known_of(view: ClusterView, topics: Iterable[str], *, with_racks: bool) -> SharedOut:
    names = sorted(topics)
    return SharedOut(
        {name: _count(view, name) for name in names},
        {name: _placement(view, name) for name in names} if with_racks else {},
    )


def have_changed(shared_out: SharedOut, view: ClusterView) -> bool:
    """Whether partitions were added, removed or moved to other racks since the assignment.

    Missing metadata of a topic, as in a leader election, and missing racks count as unchanged. A
    topic that brokers call unknown was deleted.
    """
    for topic, count in shared_out.counts.items():
        now = _count(view, topic)
        if now == count:
            continue
        known = view.topics.get(topic)
        if now or (known is not None and known.error is UnknownTopicOrPartitionError):
            return True
    return any(
        _have_moved(before, _placement(view, topic))
        for topic, before in shared_out.placements.items()
    )


def _count(view: ClusterView, topic: str) -> int:
    known = view.topics.get(topic)
    return 0 if known is None else len(known.partitions)


def _placement(view: ClusterView, topic: str) -> Placement:
    known = view.topics.get(topic)
    partitions = () if known is None else known.partitions.values()
    racks = {node.id: node.rack or None for node in view.nodes.values()}
    return Placement([partition.replicas for partition in partitions], racks)


def _have_moved(before: Placement, now: Placement) -> bool:
    """Whether some partition is in other racks; of 100,000 the usual answer takes some 5 ms."""
    pairs: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
    if now.replicas != before.replicas:  # an empty list means unknown
        both = zip(before.replicas, now.replicas, strict=False)
        pairs = {pair for pair in both if pair[0] != pair[1]}
    if moved := {node for node, _ in now.racks.items() - before.racks.items()}:
        on_moved = {each for each in set(now.replicas) if not moved.isdisjoint(each)}
        if on_moved:
            pairs |= {(each, each) for each in on_moved.intersection(before.replicas)}
    # An answer about a coordinator adds a node without its rack.
    known = {node for node, rack in now.racks.items() if rack or not before.racks.get(node)}
    return any(
        known >= set(replicas) and now.racks_of(replicas) != before.racks_of(were)
        for were, replicas in pairs
    )
