"""Says which topics a subscription means just now, and how many partitions they have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from aiokafka_lite.client import Cluster, ClusterView
from aiokafka_lite.consumer.assignment.subscription import SubscriptionMode, SubscriptionState
from aiokafka_lite.errors import UnknownTopicOrPartitionError

# Who watches what is subscribed and assigned.
SUBSCRIPTION: Final = "subscription"


def watch_topics(state: SubscriptionState, cluster: Cluster) -> None:
    """Make metadata cover what is subscribed and assigned: for a pattern every topic."""
    is_pattern = state.mode is SubscriptionMode.PATTERN
    cluster.watch(SUBSCRIPTION, None if is_pattern else state.topics)


def match_pattern(
    state: SubscriptionState, view: ClusterView, *, exclude_internal_topics: bool
) -> None:
    """Bring a subscription by pattern in line with the topics that exist."""
    if state.mode is not SubscriptionMode.PATTERN or state.pattern is None:
        return
    state.set_matched_topics(
        name
        for name, topic in view.topics.items()
        if state.pattern.match(name) and not (topic.is_internal and exclude_internal_topics)
    )


def is_subscribed(state: SubscriptionState) -> bool:
    """Whether partitions come from a subscription, not from `assign`."""
    return state.mode in (SubscriptionMode.TOPICS, SubscriptionMode.PATTERN)


class SharedOut(NamedTuple):
    """What a group's leader knew of the topics when it shared their partitions out."""

    # How many partitions each topic had, 0 for those that were not known.
    counts: Mapping[str, int] = MappingProxyType({})
    # In which racks each partition had replicas; nothing where no member is in a rack.
    racks: Mapping[str, Mapping[int, frozenset[str]]] = MappingProxyType({})


def known_of(view: ClusterView, topics: Iterable[str], *, with_racks: bool) -> SharedOut:
    """Return what is known of topics now."""
    names = sorted(topics)
    return SharedOut(
        {name: len(view.partitions_for_topic(name) or ()) for name in names},
        {name: view.replica_racks(name) for name in names} if with_racks else {},
    )


def have_changed(shared_out: SharedOut, view: ClusterView) -> bool:
    """Whether partitions have come or gone, or moved to other racks, since they were shared out.

    A topic whose metadata is not available just now counts as unchanged: a leader election is no
    reason to rebalance. A topic that brokers call unknown was deleted. Nor is a broker that is away
    for a while: where it stands is not known meanwhile.
    """
    for topic, count in shared_out.counts.items():
        now = len(view.partitions_for_topic(topic) or ())
        if now == count:
            continue
        known = view.topics.get(topic)
        if now or (known is not None and known.error is UnknownTopicOrPartitionError):
            return True
    return any(_have_moved(topic, racks, view) for topic, racks in shared_out.racks.items())


def _have_moved(topic: str, before: Mapping[int, frozenset[str]], view: ClusterView) -> bool:
    known = view.topics.get(topic)
    if known is None:
        return False
    now = view.replica_racks(topic)
    return any(
        now[number] != racks and view.nodes.keys() >= set(known.partitions[number].replicas)
        for number, racks in before.items()
        if number in known.partitions
    )
