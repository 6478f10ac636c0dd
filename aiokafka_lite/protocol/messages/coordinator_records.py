"""Keys and values in ``__consumer_offsets`` and ``__transaction_state``.

A value starts with its version, as two bytes, and null is a tombstone of its key. The types of keys
are Kafka's ``CoordinatorRecordType``.
"""

from __future__ import annotations

from typing import Final

from aiokafka_lite.protocol.fields import (
    array,
    blob,
    int8,
    int16,
    int32,
    int64,
    nested,
    string,
    uuid,
)
from aiokafka_lite.protocol.messages import group_members as members
from aiokafka_lite.protocol.schema import Blob, RecordKey, Struct


class OffsetCommitKey(RecordKey, record_type=1):
    group: str = string("0")
    topic: str = string("0")
    partition: int = int32("0")


class OffsetCommitValue(Blob, versions="0-4", flexible="4+"):
    offset: int = int64("0+")
    leader_epoch: int = int32("3+", default=-1, ignorable=True)  # KIP-320
    metadata: str = string("0+")
    commit_timestamp: int = int64("0+")
    expire_timestamp: int = int64("1", default=-1, ignorable=True)
    topic_id: bytes = uuid("4+", tag=0, ignorable=True)  # KIP-848


class GroupMetadataKey(RecordKey, record_type=2):
    group: str = string("0")


class MemberMetadata(Struct):
    member_id: str = string("0+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None, ignorable=True)
    client_id: str = string("0+")
    client_host: str = string("0+")
    rebalance_timeout: int = int32("1+", default=-1, ignorable=True)  # milliseconds
    session_timeout: int = int32("0+")  # milliseconds
    subscription: bytes = blob("0+")
    assignment: bytes = blob("0+")


class GroupMetadataValue(Blob, versions="0-4", flexible="4+"):
    protocol_type: str = string("0+")
    generation: int = int32("0+")
    protocol: str | None = string("0+", nullable="0+")
    leader: str | None = string("0+", nullable="0+")
    current_state_timestamp: int = int64("2+", default=-1, ignorable=True)
    members: list[MemberMetadata] = array(MemberMetadata, "0+")


# --- Groups of KIP-848 ------------------------------------------------------------------------
class ConsumerGroupMetadataKey(RecordKey, record_type=3):
    group_id: str = string("0")


class ConsumerGroupMetadataValue(Blob, versions="0", flexible="0+"):
    epoch: int = int32("0+")
    metadata_hash: int = int64("0+", default=0, tag=0)  # KIP-1101


class ConsumerGroupPartitionMetadataKey(RecordKey, record_type=4):
    """Only written as a tombstone: a hash in the group's own record replaces it (KIP-1101)."""

    group_id: str = string("0")


class PartitionMetadata(Struct):
    partition: int = int32("0+")
    racks: list[str] = array(string, "0+")


class TopicMetadata(Struct):
    topic_id: bytes = uuid("0+")
    topic_name: str = string("0+")
    num_partitions: int = int32("0+")
    partition_metadata: list[PartitionMetadata] = array(PartitionMetadata, "0+")


class ConsumerGroupPartitionMetadataValue(Blob, versions="0", flexible="0+"):
    topics: list[TopicMetadata] = array(TopicMetadata, "0+")


class ConsumerGroupMemberMetadataKey(RecordKey, record_type=5):
    group_id: str = string("0")
    member_id: str = string("0")


class ClassicMemberMetadata(Struct):
    session_timeout_ms: int = int32("0+")
    supported_protocols: list[members.JoinGroupRequestProtocol] = array(
        members.JoinGroupRequestProtocol, "0+"
    )


class ConsumerGroupMemberMetadataValue(Blob, versions="0", flexible="0+"):
    instance_id: str | None = string("0+", nullable="0+")
    rack_id: str | None = string("0+", nullable="0+")
    client_id: str = string("0+")
    client_host: str = string("0+")
    subscribed_topic_names: list[str] = array(string, "0+")
    subscribed_topic_regex: str | None = string("0+", nullable="0+")
    rebalance_timeout_ms: int = int32("0+", default=-1)
    server_assignor: str | None = string("0+", nullable="0+")
    classic_member_metadata: ClassicMemberMetadata | None = nested(
        ClassicMemberMetadata, "0+", nullable="0+", default=None, tag=0, writes_null=True
    )


class ConsumerGroupTargetAssignmentMetadataKey(RecordKey, record_type=6):
    group_id: str = string("0")


class ConsumerGroupTargetAssignmentMetadataValue(Blob, versions="0", flexible="0+"):
    assignment_epoch: int = int32("0+")
    assignment_timestamp: int = int64("0+", default=0, tag=0, ignorable=True)  # KIP-1263


class ConsumerGroupTargetAssignmentMemberKey(RecordKey, record_type=7):
    group_id: str = string("0")
    member_id: str = string("0")


class ConsumerGroupTargetAssignmentMemberValue(Blob, versions="0", flexible="0+"):
    topic_partitions: list[members.TopicPartitions] = array(members.TopicPartitions, "0+")


class ConsumerGroupCurrentMemberAssignmentKey(RecordKey, record_type=8):
    group_id: str = string("0")
    member_id: str = string("0")


class TopicPartitions(Struct):
    """Partitions of one topic, each with the epoch in which it was assigned (KIP-1251)."""

    topic_id: bytes = uuid("0+")
    partitions: list[int] = array(int32, "0+")
    assignment_epochs: list[int] | None = array(
        int32, "0+", nullable="0+", default=None, tag=0, writes_null=True
    )


class ConsumerGroupCurrentMemberAssignmentValue(Blob, versions="0", flexible="0+"):
    member_epoch: int = int32("0+")
    previous_member_epoch: int = int32("0+")
    state: int = int8("0+")
    assigned_partitions: list[TopicPartitions] = array(TopicPartitions, "0+")
    partitions_pending_revocation: list[TopicPartitions] = array(TopicPartitions, "0+")


class ConsumerGroupRegularExpressionKey(RecordKey, record_type=16):
    group_id: str = string("0")
    regular_expression: str = string("0")


class ConsumerGroupRegularExpressionValue(Blob, versions="0", flexible="0+"):
    """The topics that match in a version of the metadata."""

    topics: list[str] = array(string, "0+")
    version: int = int64("0+")
    timestamp: int = int64("0+")


ConsumerGroupKey = (
    ConsumerGroupMetadataKey
    | ConsumerGroupPartitionMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
    | ConsumerGroupRegularExpressionKey
)
ConsumerGroupValue = (
    ConsumerGroupMetadataValue
    | ConsumerGroupPartitionMetadataValue
    | ConsumerGroupMemberMetadataValue
    | ConsumerGroupTargetAssignmentMetadataValue
    | ConsumerGroupTargetAssignmentMemberValue
    | ConsumerGroupCurrentMemberAssignmentValue
    | ConsumerGroupRegularExpressionValue
)


# --- Share groups -----------------------------------------------------------------------------
class ShareGroupMemberMetadataKey(RecordKey, record_type=10):
    group_id: str = string("0")
    member_id: str = string("0")


class ShareGroupMemberMetadataValue(Blob, versions="0", flexible="0+"):
    rack_id: str | None = string("0+", nullable="0+")
    client_id: str = string("0+")
    client_host: str = string("0+")
    subscribed_topic_names: list[str] = array(string, "0+")


class ShareGroupMetadataKey(RecordKey, record_type=11):
    group_id: str = string("0")


class ShareGroupMetadataValue(Blob, versions="0", flexible="0+"):
    epoch: int = int32("0+")
    metadata_hash: int = int64("0+")


class ShareGroupTargetAssignmentMetadataKey(RecordKey, record_type=12):
    """Its value has the layout of KIP-848 groups, like that of the next key."""

    group_id: str = string("0")


class ShareGroupTargetAssignmentMemberKey(RecordKey, record_type=13):
    group_id: str = string("0")
    member_id: str = string("0")


class ShareGroupCurrentMemberAssignmentKey(RecordKey, record_type=14):
    group_id: str = string("0")
    member_id: str = string("0")


class ShareGroupCurrentMemberAssignmentValue(Blob, versions="0", flexible="0+"):
    member_epoch: int = int32("0+")
    previous_member_epoch: int = int32("0+")
    state: int = int8("0+")
    assigned_partitions: list[members.TopicPartitions] = array(members.TopicPartitions, "0+")


ShareGroupKey = (
    ShareGroupMemberMetadataKey
    | ShareGroupMetadataKey
    | ShareGroupTargetAssignmentMetadataKey
    | ShareGroupTargetAssignmentMemberKey
    | ShareGroupCurrentMemberAssignmentKey
)
ModernGroupKey = ConsumerGroupKey | ShareGroupKey
ModernGroupValue = (
    ConsumerGroupValue
    | ShareGroupMemberMetadataValue
    | ShareGroupMetadataValue
    | ShareGroupCurrentMemberAssignmentValue
)
GroupRecordKey = OffsetCommitKey | GroupMetadataKey | ModernGroupKey
GroupRecordValue = OffsetCommitValue | GroupMetadataValue | ModernGroupValue
VALUE_OF: Final[dict[type[GroupRecordKey], type[GroupRecordValue]]] = {
    OffsetCommitKey: OffsetCommitValue,
    GroupMetadataKey: GroupMetadataValue,
    ConsumerGroupMetadataKey: ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey: ConsumerGroupPartitionMetadataValue,
    ConsumerGroupMemberMetadataKey: ConsumerGroupMemberMetadataValue,
    ConsumerGroupTargetAssignmentMetadataKey: ConsumerGroupTargetAssignmentMetadataValue,
    ConsumerGroupTargetAssignmentMemberKey: ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupCurrentMemberAssignmentKey: ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupRegularExpressionKey: ConsumerGroupRegularExpressionValue,
    ShareGroupMemberMetadataKey: ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey: ShareGroupMetadataValue,
    ShareGroupTargetAssignmentMetadataKey: ConsumerGroupTargetAssignmentMetadataValue,
    ShareGroupTargetAssignmentMemberKey: ConsumerGroupTargetAssignmentMemberValue,
    ShareGroupCurrentMemberAssignmentKey: ShareGroupCurrentMemberAssignmentValue,
}
GROUP_KEY_CLASSES: Final[dict[int, type[GroupRecordKey]]] = {
    0: OffsetCommitKey,
    **{key.record_type: key for key in VALUE_OF},
}
"""By record type. Before Kafka 0.9, committed offsets had type 0."""


# --- Keys and values in ``__transaction_state`` ---------------------------------------------
class TransactionLogKey(RecordKey, record_type=0):
    transactional_id: str = string("0")


class PartitionsSchema(Struct):
    topic: str = string("0+")
    partition_ids: list[int] = array(int32, "0+")


class TransactionLogValue(Blob, versions="0-1", flexible="1+"):
    producer_id: int = int64("0+")
    previous_producer_id: int = int64("1+", default=-1, tag=0)  # KIP-890
    next_producer_id: int = int64("1+", default=-1, tag=1)  # KIP-890
    producer_epoch: int = int16("0+")
    next_producer_epoch: int = int16("1+", default=-1, tag=3)  # KIP-939
    transaction_timeout_ms: int = int32("0+")
    transaction_status: int = int8("0+")
    transaction_partitions: list[PartitionsSchema] | None = array(
        PartitionsSchema, "0+", nullable="0+"
    )
    transaction_last_update_timestamp_ms: int = int64("0+")
    transaction_start_timestamp_ms: int = int64("0+")
    client_transaction_version: int = int16("1+", default=0, tag=2)  # KIP-890


TRANSACTION_KEY_CLASSES: Final = {TransactionLogKey.record_type: TransactionLogKey}


# --- Keys and values in ``__share_group_state`` -----------------------------------------------
class ShareSnapshotKey(RecordKey, record_type=0):
    group_id: str = string("0")
    topic_id: bytes = uuid("0")
    partition: int = int32("0")


class StateBatch(Struct):
    first_offset: int = int64("0+")
    last_offset: int = int64("0+")
    delivery_state: int = int8("0+")  # 0 available, 2 acknowledged, 4 archived
    delivery_count: int = int16("0+")


class ShareSnapshotValue(Blob, versions="0", flexible="0+"):
    snapshot_epoch: int = int32("0+")
    state_epoch: int = int32("0+")
    leader_epoch: int = int32("0+")
    start_offset: int = int64("0+")
    delivery_complete_count: int = int32("0+", default=-1, tag=0)  # KIP-1226
    create_timestamp: int = int64("0+")
    write_timestamp: int = int64("0+")
    state_batches: list[StateBatch] = array(StateBatch, "0+")
