"""Values of the public API, under aiokafka's names and with its fields."""

# No annotations from __future__: they would be strings, and NamedTuple compiles each of those.
from typing import NamedTuple

try:
    from aiokafka_lite._record import ConsumerRecord
except ModuleNotFoundError:  # the extension is not built: the same class in plain Python
    from aiokafka_lite._record_py import ConsumerRecord

__all__ = [
    "BrokerMetadata",
    "ConsumerGroupMetadata",
    "ConsumerRecord",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "PartitionMetadata",
    "RecordMetadata",
    "TopicPartition",
]


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class OffsetAndMetadata(NamedTuple):
    """A committed offset: the next record to read, and a string stored with it."""

    offset: int
    metadata: str


class OffsetAndTimestamp(NamedTuple):
    """The first record at or after a timestamp: offset and timestamp (ms since the epoch)."""

    offset: int
    timestamp: int | None


class BrokerMetadata(NamedTuple):
    """A broker of the cluster."""

    nodeId: int | str  # noqa: N815 -- aiokafka's name
    host: str
    port: int
    rack: str | None


class PartitionMetadata(NamedTuple):
    """A partition's leader and replicas."""

    topic: str
    partition: int
    leader: int
    replicas: list[int]
    isr: list[int]
    error: type[Exception] | None


class ConsumerGroupMetadata(NamedTuple):
    """A group member, for a transaction that commits offsets. The coordinator verifies it.

    With KIP-848 the generation is the member epoch. For partitions of `assign` it is -1, and the
    member id is empty.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class RecordMetadata(NamedTuple):
    """The partition, offset and timestamp of a produced record."""

    topic: str
    partition: int
    topic_partition: TopicPartition
    offset: int
    timestamp: int | None
    timestamp_type: int
    log_start_offset: int | None
