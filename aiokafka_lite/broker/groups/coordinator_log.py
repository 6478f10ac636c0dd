"""The internal topic of a coordinator: its records, and the partitions that a node serves.

absent  → LOADING   elected
LOADING → ACTIVE    all records have been replayed, by a task that loads partitions in turn
LOADING, ACTIVE → absent   resigned: the groups are dropped, the log remains

The records of `__consumer_offsets` have Kafka's format (GroupCoordinatorRecordSerde.java). Keys
begin with the record type, values with the layout version, both int16."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.broker.log.producers import NO_PRODUCER, ProducerIdentity
from aiokafka_lite.broker.topics import GROUP_METADATA_TOPIC, partition_for
from aiokafka_lite.errors import (
    BrokerResponseError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    KafkaError,
    KafkaProtocolError,
    NoError,
    NotCoordinatorError,
)
from aiokafka_lite.protocol.codec import decode_key, decode_versioned, encode_key, encode_versioned
from aiokafka_lite.protocol.messages.coordinator_records import (
    GROUP_KEY_CLASSES,
    VALUE_OF,
    GroupMetadataValue,
    GroupRecordKey,
    GroupRecordValue,
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

ErrorType: TypeAlias = type[BrokerResponseError]


class CoordinatorRecord(NamedTuple):
    """One record of the log. Tombstones have no value."""

    key: GroupRecordKey
    value: GroupRecordValue | None
    # The producer of the transaction that commits the offset, NO_PRODUCER outside one.
    producer: ProducerIdentity = NO_PRODUCER


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
    stored = None if value is None else decode_versioned(VALUE_OF[type(decoded)], value)
    return CoordinatorRecord(decoded, stored)


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


log = logging.getLogger(__name__)


@dataclass(eq=False)
class Term:
    is_loading: bool


RecordT = TypeVar("RecordT")


class PartitionCoordinator(ABC, Generic[RecordT]):
    """Serves the partitions of its internal topic that its node leads."""

    load_task_name = "group-load"

    def __init__(self, source: InternalTopicLog[RecordT], scope: TaskScope) -> None:
        self._source = source
        self._scope = scope
        self._terms: dict[int, Term] = {}
        self._load_task: asyncio.Task[None] | None = None
        self._is_open = True

    @abstractmethod
    def _replay(self, record: RecordT) -> None: ...

    @abstractmethod
    def _loaded(self, partition: int) -> None:
        """Continue after the last record of a partition."""

    @abstractmethod
    def _unload(self, partition: int) -> None:
        """Drop the state of a partition."""

    @property
    def is_loading(self) -> bool:
        """Whether the state of some partitions may be incomplete."""
        return any(term.is_loading for term in self._terms.values())

    def partition_for(self, key: str) -> int:
        return self._source.partition_for(key)

    def _keys_in(self, partition: int, keys: Iterable[str]) -> list[str]:
        return [key for key in keys if self.partition_for(key) == partition]

    def availability(self, key: str) -> ErrorType:
        """Return NoError if this coordinator serves the key now."""
        if not self._is_open:
            return CoordinatorNotAvailableError
        return self.availability_of(self.partition_for(key))

    def availability_of(self, partition: int) -> ErrorType:
        term = self._terms.get(partition)
        if term is None:
            return NotCoordinatorError
        return CoordinatorLoadInProgressError if term.is_loading else NoError

    def elect(self, partitions: Iterable[int]) -> None:
        """Serve partitions, which the node leads now, once a task has read their log."""
        for partition in partitions:
            if partition not in self._terms:
                self._terms[partition] = Term(is_loading=not self._source.is_empty(partition))
        if self.is_loading and (self._load_task is None or self._load_task.done()):
            self._load_task = self._scope.spawn(self._load(), name=self.load_task_name)

    def resign(self, partitions: Iterable[int]) -> None:
        for partition in partitions:
            if self._terms.pop(partition, None) is not None:
                self._unload(partition)

    def _written(self, what: str, write: Callable[[], None]) -> ErrorType:
        """Write to the log. If that fails, clients look for another coordinator, as in Kafka."""
        try:
            write()
        except (KafkaError, OSError) as error:
            log.error("cannot write %s to %s: %s", what, self._source.topic, error)
            return NotCoordinatorError
        return NoError

    async def until_loaded(self) -> None:
        """Wait for the load task, and raise its error."""
        if self._load_task is not None:
            await asyncio.shield(self._load_task)

    async def _load(self) -> None:
        while (partition := self._next_to_load()) is not None:
            term = self._terms[partition]
            if await self._read(partition, term):
                term.is_loading = False
                self._loaded(partition)

    def _next_to_load(self) -> int | None:
        return next((index for index, term in self._terms.items() if term.is_loading), None)

    async def _read(self, partition: int, term: Term) -> bool:
        """Replay a partition. Return False if its term ended, even if another term has begun."""
        for records in self._source.read(partition):
            for record in records:
                self._replay(record)
            await asyncio.sleep(0)  # a long log must not hold the loop
            if self._terms.get(partition) is not term:
                return False
        return True
