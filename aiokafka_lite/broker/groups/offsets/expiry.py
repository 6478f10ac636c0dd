"""When committed offsets lapse, and groups that have nothing else with them.

Reference: org.apache.kafka.coordinator.group.OffsetMetadataManager.cleanupExpiredOffsets and
ClassicGroup.offsetExpirationCondition (KIP-211). What a group still subscribes to never lapses. The
rest does, offsets.retention.minutes after

- a classic group lost its last member (for an empty group: all of it),
- or else after the commit: of topics that a stable consumer group has ceased to subscribe to, of
  groups of KIP-848, and of whoever commits without being a member.

An old client's commit may say itself when it lapses. What an open transaction commits waits for its
end. While a classic group rebalances, or where its members cannot be understood, nothing lapses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from aiokafka_lite.broker.groups.classic.machine import ClassicGroup
from aiokafka_lite.broker.groups.classic.records import group_tombstone
from aiokafka_lite.broker.groups.classic.state import GroupState
from aiokafka_lite.broker.groups.coordinator_log import CoordinatorRecord
from aiokafka_lite.broker.groups.kip848.group import ConsumerGroup
from aiokafka_lite.broker.groups.kip848.records import group_tombstones
from aiokafka_lite.broker.groups.offsets.cache import NO_EXPIRY, CommittedOffset, OffsetManager
from aiokafka_lite.broker.groups.offsets.subscription import is_subscribed_to
from aiokafka_lite.structs import TopicPartition

# Tells from when on an offset's time counts.
BaseTime: TypeAlias = Callable[[CommittedOffset], int]


def base_time(group: ClassicGroup | ConsumerGroup) -> BaseTime | None:
    """Return from when on the time of a group's offsets counts, None while none of them lapses."""
    if isinstance(group, ConsumerGroup) or group.protocol_type is None:
        return _time_of_commit
    if group.state is GroupState.EMPTY:
        since_ms = group.state_since_ms
        return lambda committed: since_ms
    if group.state is GroupState.STABLE and group.is_consumer_group:
        return _time_of_commit
    return None


def _time_of_commit(committed: CommittedOffset) -> int:
    return committed.commit_timestamp_ms


def expired(
    group: ClassicGroup | ConsumerGroup,
    group_id: str,
    offsets: OffsetManager,
    now_ms: int,
    retention_ms: int,
) -> Iterator[TopicPartition]:
    """Yield the partitions whose offsets have lapsed."""
    base = base_time(group)
    if base is None:
        return
    for topic, partitions in offsets.fetch_all(group_id).items():
        if is_subscribed_to(group, topic):
            continue
        for partition, committed in partitions.items():
            if offsets.is_unstable(group_id, TopicPartition(topic, partition)):
                continue
            lapses_ms = committed.expire_timestamp_ms
            if lapses_ms == NO_EXPIRY:
                lapses_ms = base(committed) + retention_ms
            if now_ms >= lapses_ms:
                yield TopicPartition(topic, partition)


def end_of(group: ClassicGroup | ConsumerGroup) -> Sequence[CoordinatorRecord]:
    """Return the records that end a group."""
    if isinstance(group, ConsumerGroup):
        return group_tombstones(group)
    return [group_tombstone(group.group_id)]
