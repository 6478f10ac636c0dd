"""The assignor of share groups, `simple`: a function without state.

Each partition has about as many members as the others, at least one, and each member has about as
many partitions as the others. Members keep partitions if they can (Kafka: SimpleAssignor)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from typing import Final, NamedTuple

from aiokafka_lite.broker.groups.modern.group import Assignment
from aiokafka_lite.broker.topics import PartitionKey

ASSIGNOR: Final = "simple"


class ShareMemberSpec(NamedTuple):
    """One member. `assigned` is its part of the previous target assignment."""

    topic_ids: Set[bytes]
    assigned: Assignment


def assign(
    members: Mapping[str, ShareMemberSpec], partitions: Mapping[bytes, Collection[int]]
) -> dict[str, Assignment]:
    """Assign partitions, by topic id. With the same subscriptions, all topics are one pool."""
    assigned = {member_id: set[PartitionKey]() for member_id in members}
    subscriptions = {frozenset(member.topic_ids) for member in members.values()}
    topic_ids = sorted(frozenset().union(*subscriptions) & partitions.keys())
    pools = [topic_ids] if len(subscriptions) == 1 else [[topic_id] for topic_id in topic_ids]
    for pool in pools:
        of_pool = [PartitionKey(each, index) for each in pool for index in sorted(partitions[each])]
        subscribers = {
            member_id: {
                PartitionKey(each, index)
                for each in pool
                for index in member.assigned.get(each, ())
            }
            for member_id, member in members.items()
            if not member.topic_ids.isdisjoint(pool)
        }
        for member_id, found in _assign_pool(of_pool, subscribers).items():
            assigned[member_id] |= found
    return {member_id: _by_topic(found) for member_id, found in assigned.items()}


def _assign_pool(
    pool: Sequence[PartitionKey], previous: Mapping[str, Set[PartitionKey]]
) -> dict[str, set[PartitionKey]]:
    """Assign partitions to their subscribers, given the previous assignments."""
    if not pool or not previous:
        return {}
    count = len(previous)
    most_holders = -(-count // len(pool))
    total = len(pool) * most_holders
    assigned: dict[str, set[PartitionKey]] = {}
    quotas: dict[str, int] = {}
    holders = Counter(dict.fromkeys(pool, 0))
    # Members with more partitions get the larger quotas.
    by_load = sorted(previous, key=lambda member_id: -len(previous[member_id]))
    for place, member_id in enumerate(by_load):
        quotas[member_id] = total // count + (place < total % count)
        kept = assigned[member_id] = set()
        for partition in sorted(previous[member_id] & holders.keys()):
            if len(kept) < quotas[member_id] and holders[partition] < most_holders:
                kept.add(partition)
                holders[partition] += 1
    for member_id, found in assigned.items():
        missing = quotas[member_id] - len(found)
        others = (partition for partition in pool if partition not in found)
        for partition in sorted(others, key=holders.__getitem__)[:missing]:
            found.add(partition)
            holders[partition] += 1
    return assigned


def _by_topic(partitions: Collection[PartitionKey]) -> Assignment:
    topics: dict[bytes, set[int]] = {}
    for topic_id, index in sorted(partitions):
        topics.setdefault(topic_id, set()).add(index)
    return {topic_id: frozenset(indexes) for topic_id, indexes in topics.items()}
