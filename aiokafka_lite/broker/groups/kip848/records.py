"""The records that store a KIP-848 group (Kafka: GroupCoordinatorRecordHelpers.java)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from aiokafka_lite.broker.groups.coordinator_log import CoordinatorRecord
from aiokafka_lite.broker.groups.kip848.assignors import Assignment
from aiokafka_lite.broker.groups.kip848.group import ConsumerGroup, ResolvedRegex
from aiokafka_lite.broker.groups.kip848.member import ConsumerGroupMember, PartitionEpochs
from aiokafka_lite.protocol.messages import coordinator_records as stored

# In the order in which they are removed.
_KEYS_OF_MEMBERS: Final = (
    stored.ConsumerGroupCurrentMemberAssignmentKey,
    stored.ConsumerGroupTargetAssignmentMemberKey,
    stored.ConsumerGroupMemberMetadataKey,
)


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> CoordinatorRecord:
    return CoordinatorRecord(
        stored.ConsumerGroupMetadataKey(group_id=group_id),
        stored.ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash),
    )


def partition_metadata_tombstone(group_id: str) -> CoordinatorRecord:
    """Remove a record of brokers before 4.1."""
    return CoordinatorRecord(stored.ConsumerGroupPartitionMetadataKey(group_id=group_id), None)


def member_record(group_id: str, member: ConsumerGroupMember) -> CoordinatorRecord:
    classic = member.classic
    return CoordinatorRecord(
        stored.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id),
        stored.ConsumerGroupMemberMetadataValue(
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=_in_java_order(member.topic_names),
            subscribed_topic_regex=member.topic_regex,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            server_assignor=member.server_assignor,
            classic_member_metadata=None
            if classic is None
            else stored.ClassicMemberMetadata(
                session_timeout_ms=classic.session_timeout_ms,
                supported_protocols=[
                    stored.ClassicProtocol(name=name, metadata=metadata)
                    for name, metadata in classic.protocols
                ],
            ),
        ),
    )


def target_record(group_id: str, member_id: str, target: Assignment) -> CoordinatorRecord:
    return CoordinatorRecord(
        stored.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        stored.ConsumerGroupTargetAssignmentMemberValue(
            topic_partitions=[
                stored.TopicPartition(topic_id=topic_id, partitions=sorted(partitions))
                for topic_id, partitions in target.items()
            ]
        ),
    )


def target_epoch_record(group_id: str, epoch: int, timestamp_ms: int) -> CoordinatorRecord:
    return CoordinatorRecord(
        stored.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id),
        stored.ConsumerGroupTargetAssignmentMetadataValue(
            assignment_epoch=epoch, assignment_timestamp=timestamp_ms
        ),
    )


def assignment_record(group_id: str, member: ConsumerGroupMember) -> CoordinatorRecord:
    return CoordinatorRecord(
        stored.ConsumerGroupCurrentMemberAssignmentKey(
            group_id=group_id, member_id=member.member_id
        ),
        stored.ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=member.epoch,
            previous_member_epoch=member.previous_epoch,
            state=member.state.value,
            assigned_partitions=_topic_partitions(member.assigned),
            partitions_pending_revocation=_topic_partitions(member.pending_revocation),
        ),
    )


def regex_record(group_id: str, regex: str, resolved: ResolvedRegex) -> CoordinatorRecord:
    return CoordinatorRecord(
        stored.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex),
        stored.ConsumerGroupRegularExpressionValue(
            topics=_in_java_order(resolved.topics),
            version=resolved.version,
            timestamp=resolved.timestamp_ms,
        ),
    )


def regex_tombstone(group_id: str, regex: str) -> CoordinatorRecord:
    key = stored.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex)
    return CoordinatorRecord(key, None)


def member_tombstones(group_id: str, member_id: str) -> list[CoordinatorRecord]:
    """Remove a member, the latest record first."""
    ids = {"group_id": group_id, "member_id": member_id}
    return [CoordinatorRecord(kind(**ids), None) for kind in _KEYS_OF_MEMBERS]


def group_tombstones(group: ConsumerGroup) -> list[CoordinatorRecord]:
    """Remove all records of a group, in Kafka's order."""
    group_id = group.group_id
    current, target, member = (
        [kind(group_id=group_id, member_id=member_id) for member_id in group.members]
        for kind in _KEYS_OF_MEMBERS
    )
    keys: list[stored.ConsumerGroupKey] = [
        *current,
        *target,
        stored.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id),
        *member,
        *(
            stored.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex)
            for regex in group.regexes
        ),
        stored.ConsumerGroupPartitionMetadataKey(group_id=group_id),
        stored.ConsumerGroupMetadataKey(group_id=group_id),
    ]
    return [CoordinatorRecord(key, None) for key in keys]


def _topic_partitions(assigned: PartitionEpochs) -> list[stored.TopicPartitions]:
    return [
        stored.TopicPartitions(
            topic_id=topic_id,
            partitions=(partitions := sorted(held)),
            assignment_epochs=[held[partition] for partition in partitions],
        )
        for topic_id, held in assigned.items()
    ]


def _in_java_order(texts: Collection[str]) -> list[str]:
    """Sort like Java's String.compareTo, by UTF-16 units."""
    if "".join(texts).isascii():  # the same order, in a fifth of the time
        return sorted(texts)
    return sorted(texts, key=lambda text: text.encode("utf-16-be", "surrogatepass"))
