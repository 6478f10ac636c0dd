"""The topics of a subscription, with partition counts and racks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from aiokafka_lite.client import Cluster, ClusterView
from aiokafka_lite.consumer.assignment.subscription import SubscriptionMode, SubscriptionState
from aiokafka_lite.errors import UnknownTopicOrPartitionError

# The name under which subscribed and assigned topics are watched.
SUBSCRIPTION: Final = "subscription"


def watch_topics(state: SubscriptionState, cluster: Cluster) -> None:
    is_pattern = state.mode is SubscriptionMode.PATTERN
    cluster.watch(SUBSCRIPTION, None if is_pattern else state.topics)


def match_pattern(
    state: SubscriptionState, view: ClusterView, *, exclude_internal_topics: bool
) -> None:
    if state.pattern is None:
        return
    state.set_matched_topics(
        name
        for name, topic in view.topics.items()
        if state.pattern.match(name) and not (topic.is_internal and exclude_internal_topics)
    )


def is_subscribed(state: SubscriptionState) -> bool:
    """Whether a subscription, not `assign`, determines the partitions."""
    return state.mode in (SubscriptionMode.TOPICS, SubscriptionMode.PATTERN)


class Placement(NamedTuple):
    """The replicas of a topic's partitions, and the racks of all nodes."""

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
    if moved := dict(now.racks.items() - before.racks.items()):
        on_moved = {each for each in set(now.replicas) if not moved.keys().isdisjoint(each)}
        if on_moved:
            pairs.update((each, each) for each in on_moved.intersection(before.replicas))
    # An answer about a coordinator adds a node without its rack.
    known = {node for node, rack in now.racks.items() if rack or not before.racks.get(node)}
    return any(
        known >= set(replicas) and now.racks_of(replicas) != before.racks_of(were)
        for were, replicas in pairs
    )
