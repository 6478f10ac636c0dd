"""Says which topics a subscription means just now, and how many partitions they have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

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


def partition_counts(view: ClusterView, topics: Iterable[str]) -> Mapping[str, int]:
    """Return the number of partitions of each topic, 0 for those that are not known."""
    return {topic: len(view.partitions_for_topic(topic) or ()) for topic in sorted(topics)}


def have_changed(shared_out: Mapping[str, int], view: ClusterView) -> bool:
    """Whether partitions have come or gone since these counts were shared out.

    A topic whose metadata is not available just now counts as unchanged: a leader election is no
    reason to rebalance. A topic that brokers call unknown was deleted.
    """
    for topic, count in shared_out.items():
        now = len(view.partitions_for_topic(topic) or ())
        if now == count:
            continue
        known = view.topics.get(topic)
        if now or (known is not None and known.error is UnknownTopicOrPartitionError):
            return True
    return False
