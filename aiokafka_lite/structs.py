"""Values that users meet, under aiokafka's names and with its fields."""

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
    """A committed offset: the next record to read, and a string kept beside it."""

    offset: int
    metadata: str


class OffsetAndTimestamp(NamedTuple):
    """The first offset at or after a time, with its record's timestamp (ms since the epoch)."""

    offset: int
    timestamp: int | None


class BrokerMetadata(NamedTuple):
    """A broker of the cluster."""

    nodeId: int | str  # noqa: N815 -- aiokafka's name
    host: str
    port: int
    rack: str | None


class PartitionMetadata(NamedTuple):
    """Where a partition lives."""

    topic: str
    partition: int
    leader: int
    replicas: list[int]
    isr: list[int]
    error: type[Exception] | None


class ConsumerGroupMetadata(NamedTuple):
    """As whom a consumer holds its partitions: what a transaction that commits offsets shows.

    The generation is the member epoch in a group by the consumer protocol. It is -1, and the member
    id empty, where partitions were assigned by hand.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class RecordMetadata(NamedTuple):
    """Where a produced record is."""

    topic: str
    partition: int
    topic_partition: TopicPartition
    offset: int
    timestamp: int | None
    timestamp_type: int
    log_start_offset: int | None
