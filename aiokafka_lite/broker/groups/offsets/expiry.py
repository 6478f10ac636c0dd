"""Expiry of committed offsets (KIP-211), and subscriptions, which protect them (KIP-496).

Offsets of subscribed topics do not expire. Other offsets expire offsets.retention.minutes after

- a classic group lost its last member (for an empty group: all offsets),
- otherwise after the commit: topics that a stable consumer group has unsubscribed from, groups of
  KIP-848, and commits without a member.

Commits of old clients may have their own expiry. Offsets of open transactions are kept, as are
those of classic groups that rebalance or whose members' metadata cannot be decoded (Kafka:
OffsetMetadataManager.cleanupExpiredOffsets, ClassicGroup.offsetExpirationCondition).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from aiokafka_lite.broker.groups.classic.driver import group_tombstone
from aiokafka_lite.broker.groups.classic.machine import ClassicGroup, GroupState
from aiokafka_lite.broker.groups.coordinator_log import CoordinatorRecord
from aiokafka_lite.broker.groups.kip848.driver import Group
from aiokafka_lite.broker.groups.kip848.group import ConsumerGroup
from aiokafka_lite.broker.groups.kip848.records import group_tombstones
from aiokafka_lite.broker.groups.offsets.cache import NO_EXPIRY, OffsetManager
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.protocol.codec import decode_versioned
from aiokafka_lite.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from aiokafka_lite.protocol.messages.group_records import OffsetCommitValue
from aiokafka_lite.structs import TopicPartition

# Returns the start of an offset's retention in ms.
BaseTime: TypeAlias = Callable[[OffsetCommitValue], int]


def _base_time(group: Group) -> BaseTime | None:
    """Return the start of an offset's retention, or None if the group's offsets do not expire."""
    if isinstance(group, ConsumerGroup) or group.protocol_type is None:
        return _time_of_commit
    if group.state is GroupState.EMPTY:
        since_ms = group.state_since_ms
        return lambda committed: since_ms
    if group.state is GroupState.STABLE and group.is_consumer_group:
        return _time_of_commit
    return None


def _time_of_commit(committed: OffsetCommitValue) -> int:
    return committed.commit_timestamp


def expired(
    group: Group, group_id: str, offsets: OffsetManager, now_ms: int, retention_ms: int
) -> Iterator[TopicPartition]:
    base = _base_time(group)
    if base is None:
        return
    for topic, partitions in offsets.fetch_all(group_id).items():
        if is_subscribed_to(group, topic):
            continue
        for partition, committed in partitions.items():
            if offsets.is_unstable(group_id, TopicPartition(topic, partition)):
                continue
            expires_ms = committed.expire_timestamp
            if expires_ms == NO_EXPIRY:
                expires_ms = base(committed) + retention_ms
            if now_ms >= expires_ms:
                yield TopicPartition(topic, partition)


def end_of(group: Group) -> Sequence[CoordinatorRecord]:
    """Return the records that end a group."""
    if isinstance(group, ConsumerGroup):
        return group_tombstones(group)
    return [group_tombstone(group.group_id)]


def is_subscribed_to(group: Group, topic: str) -> bool:
    """Return whether a group subscribes to a topic (KIP-496). Unreadable metadata counts as yes."""
    if isinstance(group, ConsumerGroup):
        return group.is_subscribed_to(topic)
    topics = _subscribed_topics(group)
    return topics is None or topic in topics


def _subscribed_topics(group: ClassicGroup) -> frozenset[str] | None:
    topics: set[str] = set()
    for member in group.members.values():
        try:
            metadata = member.metadata(group.protocol or "")
            topics.update(decode_versioned(ConsumerProtocolSubscription, metadata).topics)
        except (ValueError, KafkaError):
            return None
    return frozenset(topics)
