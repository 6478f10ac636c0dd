"""The records of `__consumer_offsets`, in Kafka's format (GroupCoordinatorRecordSerde.java).

Keys begin with the record type, values with the layout version, both int16.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from aiokafka_lite.broker.log.producers import NO_PRODUCER, ProducerIdentity
from aiokafka_lite.broker.topics import GROUP_METADATA_TOPIC, partition_for
from aiokafka_lite.errors import KafkaProtocolError
from aiokafka_lite.protocol.codec import decode_key, decode_versioned, encode_key, encode_versioned
from aiokafka_lite.protocol.messages.coordinator_records import (
    GROUP_KEY_CLASSES,
    VALUE_OF,
    ConsumerGroupKey,
    ConsumerGroupValue,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from aiokafka_lite.records import BatchHeader, ControlType, RecordSet, build_batch, iter_batches
from aiokafka_lite.records.transactions import end_marker
from aiokafka_lite.structs import ConsumerRecord

READ_BYTES: Final = 1 << 20
RECORDS_AT_ONCE: Final = 100  # replayed in less than a millisecond

# Versions of the layouts of values, written at the front of the value.
OFFSET_COMMIT_VERSION: Final = 4
OFFSET_COMMIT_VERSION_WITH_EXPIRY: Final = 1  # the only one that has the field
GROUP_METADATA_VERSION: Final = 3
CONSUMER_GROUP_VERSION: Final = 0

RecordKey: TypeAlias = "OffsetCommitKey | GroupMetadataKey | ConsumerGroupKey"
RecordValue: TypeAlias = "OffsetCommitValue | GroupMetadataValue | ConsumerGroupValue | None"


class CoordinatorRecord(NamedTuple):
    """One record of the log. Tombstones have no value.

    Attributes:
        producer: The producer of the transaction that commits the offset, NO_PRODUCER outside one.
    """

    key: RecordKey
    value: RecordValue
    producer: ProducerIdentity = NO_PRODUCER


def group_tombstone(group_id: str) -> CoordinatorRecord:
    """Remove a classic group."""
    return CoordinatorRecord(GroupMetadataKey(group=group_id), None)


class TransactionEnd(NamedTuple):
    """A marker, which commits or aborts the producer's earlier records in the partition."""

    partition: int
    producer_id: int
    is_commit: bool


LogEntry: TypeAlias = "CoordinatorRecord | TransactionEnd"
EntryT = TypeVar("EntryT")


class OffsetsLog(Protocol):
    @property
    def log_start_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    def append(self, batch: bytes) -> object: ...

    def read(self, offset: int, max_bytes: int) -> memoryview | bytes: ...


def encode_record(record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
    key = encode_key(record.key)
    value = record.value
    if value is None:
        return key, None
    if isinstance(value, GroupMetadataValue):
        version = GROUP_METADATA_VERSION
    elif not isinstance(value, OffsetCommitValue):
        version = CONSUMER_GROUP_VERSION
    elif value.expire_timestamp != -1:
        version = OFFSET_COMMIT_VERSION_WITH_EXPIRY
    else:
        version = OFFSET_COMMIT_VERSION
    return key, encode_versioned(value, version)


def decode_record(key: bytes | None, value: bytes | None) -> CoordinatorRecord | None:
    """Return a record of the log, or None if its type is unknown (a newer Kafka's)."""
    if key is None:
        raise KafkaProtocolError(f"a record of {GROUP_METADATA_TOPIC} has no key")
    decoded = decode_key(GROUP_KEY_CLASSES, key)
    if decoded is None:
        return None
    if value is None:
        return CoordinatorRecord(decoded, None)
    if isinstance(decoded, OffsetCommitKey):
        return CoordinatorRecord(decoded, decode_versioned(OffsetCommitValue, value))
    if isinstance(decoded, GroupMetadataKey):
        return CoordinatorRecord(decoded, decode_versioned(GroupMetadataValue, value))
    return CoordinatorRecord(decoded, decode_versioned(VALUE_OF[type(decoded)], value))


@dataclass(eq=False)
class InternalTopicLog(ABC, Generic[EntryT]):
    """The records of an internal topic, from which a coordinator loads its state."""

    topic: ClassVar[str]
    open_partition: Callable[[int], OffsetsLog]
    partition_count: Callable[[], int]
    clock: Callable[[], int]

    def partition_for(self, key: str) -> int:
        return partition_for(key, self.partition_count())

    @abstractmethod
    def _entries(
        self, partition: int, header: BatchHeader, batch: memoryview
    ) -> Iterator[EntryT]: ...

    def _records(
        self, partition: int, header: BatchHeader, batch: memoryview
    ) -> Iterator[ConsumerRecord]:
        found = RecordSet(self.topic, partition, batch, fetch_offset=header.base_offset)
        while taken := found.take(RECORDS_AT_ONCE):
            yield from taken

    def is_empty(self, partition: int) -> bool:
        log = self.open_partition(partition)
        return log.log_start_offset >= log.high_watermark

    def read(self, partition: int) -> Iterator[list[EntryT]]:
        """Yield the records of a partition in lists. Raise KafkaError if the log is damaged."""
        log = self.open_partition(partition)
        offset = log.log_start_offset
        while offset < log.high_watermark:
            start, entries = offset, list[EntryT]()
            chunk = memoryview(log.read(offset, READ_BYTES))
            for header, batch in iter_batches(chunk, check_crcs=False):
                for entry in self._entries(partition, header, batch):
                    entries.append(entry)
                    if len(entries) == RECORDS_AT_ONCE:
                        yield entries
                        entries = []
                offset = max(offset, header.last_offset + 1)
            yield entries
            if offset == start:
                raise KafkaProtocolError(
                    f"cannot load {self.topic}-{partition}: no batch can be read at offset "
                    f"{offset}, which is below the high watermark ({log.high_watermark})"
                )


class CoordinatorLog(InternalTopicLog[LogEntry]):
    topic = GROUP_METADATA_TOPIC

    def append(self, group_id: str, records: Sequence[CoordinatorRecord]) -> None:
        """One batch, which a crash cannot split."""
        now_ms = self.clock()
        producer = records[0].producer
        batch = build_batch(
            ((now_ms, *encode_record(record), ()) for record in records),
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            is_transactional=producer != NO_PRODUCER,
        )
        self.open_partition(self.partition_for(group_id)).append(batch)

    def _entries(
        self, partition: int, header: BatchHeader, batch: memoryview
    ) -> Iterator[LogEntry]:
        if header.is_control:
            marker = end_marker(header, batch)
            if marker is not None:
                is_commit = marker.type is ControlType.COMMIT
                yield TransactionEnd(partition, header.producer_id, is_commit)
            return
        producer = NO_PRODUCER
        if header.is_transactional:
            producer = ProducerIdentity(header.producer_id, header.producer_epoch)
        for record in self._records(partition, header, batch):
            decoded = decode_record(record.key, record.value)
            if decoded is not None:
                yield decoded._replace(producer=producer)
