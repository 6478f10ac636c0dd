"""Keys and values in ``__consumer_offsets`` about groups of KIP-848.

Each kind of record is one of Kafka's ``CoordinatorRecordType``. Those of type 4 are only written as
tombstones: a hash in the group's own record has replaced them (KIP-1101).
"""

from __future__ import annotations

from typing import ClassVar

from aiokafka_lite.protocol.schema import (
    Blob,
    Struct,
    array,
    blob,
    int8,
    int32,
    int64,
    nested,
    string,
    uuid,
)


class ConsumerGroupMetadataKey(Blob, versions="0"):
    """The key: a group."""

    record_type: ClassVar[int] = 3

    group_id: str = string("0")


class ConsumerGroupMetadataValue(Blob, versions="0", flexible="0+"):
    """The group's epoch. No value: the group is gone."""

    epoch: int = int32("0+")
    metadata_hash: int = int64("0+", default=0, tag=0)  # KIP-1101


class ConsumerGroupPartitionMetadataKey(Blob, versions="0"):
    """The key: a group."""

    record_type: ClassVar[int] = 4

    group_id: str = string("0")


class PartitionMetadata(Struct):
    """The racks of one partition's replicas."""

    partition: int = int32("0+")
    racks: list[str] = array(string, "0+")


class TopicMetadata(Struct):
    """What the group knew of one topic."""

    topic_id: bytes = uuid("0+")
    topic_name: str = string("0+")
    num_partitions: int = int32("0+")
    partition_metadata: list[PartitionMetadata] = array(PartitionMetadata, "0+")


class ConsumerGroupPartitionMetadataValue(Blob, versions="0", flexible="0+"):
    """The topics that the group consumed, as brokers before 4.1 wrote them down."""

    topics: list[TopicMetadata] = array(TopicMetadata, "0+")


class ConsumerGroupMemberMetadataKey(Blob, versions="0"):
    """The key: a member of a group."""

    record_type: ClassVar[int] = 5

    group_id: str = string("0")
    member_id: str = string("0")


class ClassicProtocol(Struct):
    """A protocol of a member that speaks the classic one."""

    name: str = string("0+")
    metadata: bytes = blob("0+")


class ClassicMemberMetadata(Struct):
    """What only a member that speaks the classic protocol has."""

    session_timeout_ms: int = int32("0+")
    supported_protocols: list[ClassicProtocol] = array(ClassicProtocol, "0+")


class ConsumerGroupMemberMetadataValue(Blob, versions="0", flexible="0+"):
    """A member and its subscription. No value: it has left."""

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


class ConsumerGroupTargetAssignmentMetadataKey(Blob, versions="0"):
    """The key: a group."""

    record_type: ClassVar[int] = 6

    group_id: str = string("0")


class ConsumerGroupTargetAssignmentMetadataValue(Blob, versions="0", flexible="0+"):
    """For which epoch of the group the target assignment was made, and when."""

    assignment_epoch: int = int32("0+")
    assignment_timestamp: int = int64("0+", default=0, tag=0, ignorable=True)  # KIP-1263


class ConsumerGroupTargetAssignmentMemberKey(Blob, versions="0"):
    """The key: a member of a group."""

    record_type: ClassVar[int] = 7

    group_id: str = string("0")
    member_id: str = string("0")


class TopicPartition(Struct):
    """Partitions of one topic."""

    topic_id: bytes = uuid("0+")
    partitions: list[int] = array(int32, "0+")


class ConsumerGroupTargetAssignmentMemberValue(Blob, versions="0", flexible="0+"):
    """What the member is to have in the end."""

    topic_partitions: list[TopicPartition] = array(TopicPartition, "0+")


class ConsumerGroupCurrentMemberAssignmentKey(Blob, versions="0"):
    """The key: a member of a group."""

    record_type: ClassVar[int] = 8

    group_id: str = string("0")
    member_id: str = string("0")


class TopicPartitions(Struct):
    """Partitions of one topic, each with the epoch in which the member got it (KIP-1251)."""

    topic_id: bytes = uuid("0+")
    partitions: list[int] = array(int32, "0+")
    assignment_epochs: list[int] | None = array(
        int32, "0+", nullable="0+", default=None, tag=0, writes_null=True
    )


class ConsumerGroupCurrentMemberAssignmentValue(Blob, versions="0", flexible="0+"):
    """How far the member has got towards its target."""

    member_epoch: int = int32("0+")
    previous_member_epoch: int = int32("0+")
    state: int = int8("0+")
    assigned_partitions: list[TopicPartitions] = array(TopicPartitions, "0+")
    partitions_pending_revocation: list[TopicPartitions] = array(TopicPartitions, "0+")


class ConsumerGroupRegularExpressionKey(Blob, versions="0"):
    """Which regular expression in which group."""

    record_type: ClassVar[int] = 16

    group_id: str = string("0")
    regular_expression: str = string("0")


class ConsumerGroupRegularExpressionValue(Blob, versions="0", flexible="0+"):
    """The topics that match, as of a version of the metadata. No value: nobody uses it."""

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
VALUE_OF: dict[type[ConsumerGroupKey], type[ConsumerGroupValue]] = {
    ConsumerGroupMetadataKey: ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey: ConsumerGroupPartitionMetadataValue,
    ConsumerGroupMemberMetadataKey: ConsumerGroupMemberMetadataValue,
    ConsumerGroupTargetAssignmentMetadataKey: ConsumerGroupTargetAssignmentMetadataValue,
    ConsumerGroupTargetAssignmentMemberKey: ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupCurrentMemberAssignmentKey: ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupRegularExpressionKey: ConsumerGroupRegularExpressionValue,
}
