"""Removal of committed offsets: on request, with their topic, or when they expire (KIP-211).

Offsets of subscribed topics do not expire. Other offsets expire offsets.retention.minutes after

- a classic group lost its last member (for an empty group: all offsets),
- otherwise after the commit: topics that a stable consumer group has unsubscribed from, groups of
  KIP-848, and commits without a member.

Commits of old clients may have their own expiry. Offsets of open transactions are kept, as are
those of classic groups that rebalance or whose members' metadata cannot be decoded (Kafka:
OffsetMetadataManager.cleanupExpiredOffsets, ClassicGroup.offsetExpirationCondition).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from aiokafka_lite.broker.groups.classic.machine import ClassicGroup, GroupState
from aiokafka_lite.broker.groups.classic.records import group_tombstone
from aiokafka_lite.broker.groups.coordinator_log import CoordinatorRecord
from aiokafka_lite.broker.groups.kip848.driver import Group
from aiokafka_lite.broker.groups.kip848.group import ConsumerGroup
from aiokafka_lite.broker.groups.kip848.records import group_tombstones
from aiokafka_lite.broker.groups.offsets.cache import NO_EXPIRY, CommittedOffset, OffsetManager
from aiokafka_lite.broker.groups.values import ErrorType
from aiokafka_lite.errors import (
    GroupIdNotFound,
    GroupSubscribedToTopicError,
    KafkaError,
    NoError,
    NonEmptyGroup,
)
from aiokafka_lite.protocol.codec import decode_versioned
from aiokafka_lite.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from aiokafka_lite.protocol.source import Steps
from aiokafka_lite.structs import TopicPartition

# Returns the start of an offset's retention in ms.
BaseTime: TypeAlias = Callable[[CommittedOffset], int]


def base_time(group: Group) -> BaseTime | None:
    """Return the start of an offset's retention, or None if the group's offsets do not expire."""
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
    group: Group,
    group_id: str,
    offsets: OffsetManager,
    now_ms: int,
    retention_ms: int,
) -> Iterator[TopicPartition]:
    base = base_time(group)
    if base is None:
        return
    for topic, partitions in offsets.fetch_all(group_id).items():
        if is_subscribed_to(group, topic):
            continue
        for partition, committed in partitions.items():
            if offsets.is_unstable(group_id, TopicPartition(topic, partition)):
                continue
            expires_ms = committed.expire_timestamp_ms
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
    for member in group.members:
        try:
            metadata = member.metadata(group.protocol or "")
            topics.update(decode_versioned(ConsumerProtocolSubscription, metadata).topics)
        except (ValueError, KafkaError):
            return None
    return frozenset(topics)


class OffsetRemoval:
    """The part of `GroupCoordinator` that deletes offsets.

    `check` and `availability` return NoError if requests about a group can be answered. Only
    `availability` accepts the empty id.
    """

    def __init__(
        self,
        groups: Mapping[str, Group],
        offsets: OffsetManager,
        *,
        clock: Callable[[], int],
        check: Callable[[str], ErrorType],
        availability: Callable[[str], ErrorType],
        append: Callable[[str, Sequence[CoordinatorRecord]], ErrorType],
    ) -> None:
        self._groups = groups
        self._offsets = offsets
        self._clock = clock
        self._check = check
        self._availability = availability
        self._append = append

    def delete(
        self, group_id: str, tps: Sequence[TopicPartition]
    ) -> tuple[ErrorType, Sequence[ErrorType]]:
        """Delete offsets of topics that the group does not consume now."""
        error = self._check(group_id)
        if error is not NoError:
            return error, ()
        group = self._groups.get(group_id)
        if group is None:
            return GroupIdNotFound, ()
        if isinstance(group, ClassicGroup) and not (group.is_empty or group.is_consumer_group):
            return NonEmptyGroup, ()
        topics = {tp.topic for tp in tps}
        consumed = {topic for topic in topics if is_subscribed_to(group, topic)}
        records = self._offsets.delete(group_id, [tp for tp in tps if tp.topic not in consumed])
        error = self._append(group_id, records)
        if error is not NoError:
            return error, ()
        return NoError, [
            GroupSubscribedToTopicError if tp.topic in consumed else NoError for tp in tps
        ]

    def topic_deleted(self, topic: str, topic_id: bytes) -> None:
        for group_id, records in self._offsets.delete_topic(topic, topic_id).items():
            self._append(group_id, records)

    def expire(self, retention_ms: int) -> Steps[None]:
        """Delete expired offsets, and empty groups without offsets. One group per step."""
        now_ms = self._clock()
        for group_id, group in tuple(self._groups.items()):
            if self._availability(group_id) is NoError and self._groups.get(group_id) is group:
                expired_tps = list(expired(group, group_id, self._offsets, now_ms, retention_ms))
                self._append(group_id, self._offsets.delete(group_id, expired_tps))
                is_needed = self._offsets.has_offsets(group_id) or self._offsets.has_pending(
                    group_id
                )
                if group.is_empty and not is_needed:
                    self._append(group_id, end_of(group))
            yield
