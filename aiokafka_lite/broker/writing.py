"""Records that tests write without a producer. They are validated like a producer's."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from aiokafka_lite._arguments import INT, expected
from aiokafka_lite.broker.log.validation import validated_batch
from aiokafka_lite.broker.topics import NO_LEADER, Partition, Topic
from aiokafka_lite.errors import (
    KafkaError,
    LeaderNotAvailableError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.records import BatchHeader, Codec
from aiokafka_lite.records.build import BatchBuilder, size_of
from aiokafka_lite.records.partitioner import partition_for_key
from aiokafka_lite.structs import RecordMetadata, TopicPartition

Text: TypeAlias = bytes | str | None

# The batch size of a producer, far below the limit of any topic.
BATCH_BYTES: Final = 512 << 10
NEWEST_PRODUCE: Final = 13


class NewRecord(NamedTuple):
    """A record to be written. Strings are encoded as UTF-8. See `Broker.produce` for the fields."""

    value: Text
    key: Text = None
    headers: Iterable[tuple[str, Text]] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class RecordRefusedError(Exception):
    """A record that its topic rejects.

    Attributes:
        number: Its number among the writer's records, from 0.
        reason: The error that a producer would get.
    """

    def __init__(self, number: int, reason: KafkaError) -> None:
        self.number = number
        self.reason = reason
        super().__init__(f"record {number}: {reason}")


def partition_of(topic: Topic, index: int) -> Partition:
    INT.check("partition", index)
    partition = topic.partition(index)
    if partition is None:
        raise UnknownTopicOrPartitionError(
            f"there is no partition {topic.name}-{index}: "
            f"the topic's partition count is {topic.partition_count}"
        )
    return partition


class _Encoded(NamedTuple):
    """A `NewRecord` in bytes, with its number among the writer's records."""

    number: int
    value: bytes | None
    key: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int


@dataclass
class _Open:
    partition: Partition
    builder: BatchBuilder
    records: list[_Encoded] = field(default_factory=list)


class _Checked(NamedTuple):
    """A validated batch, and its records' numbers and timestamps."""

    partition: Partition
    header: BatchHeader
    view: memoryview
    numbers: array[int]
    timestamps_ms: array[int]


class TopicWriter:
    """Validates records of one topic one by one, and writes all or none.

    The topic may change while records are added, but must keep its partitions.
    """

    def __init__(self, topic: Topic, *, clock: Callable[[], int], codec: Codec) -> None:
        self._topic = topic
        self._clock = clock
        self._codec = codec
        self._batch_bytes = min(BATCH_BYTES, topic.config.max_message_bytes)
        self._ends = [partition.log.log_end_offset for partition in topic.partitions]
        self._open: dict[int, _Open] = {}
        self._checked: list[_Checked] = []
        # With their base offsets, and the time that replaces their records' timestamps.
        self._written: list[tuple[_Checked, int, int | None]] = []
        self.count = 0

    def add(self, record: NewRecord) -> None:
        """Add a record. A full batch is validated.

        Raises:
            RecordRefusedError: The topic rejects this record, or an earlier one.
            TypeError: It is not a `NewRecord`, or a field has another type. The record is not
                added.
        """
        if not isinstance(record, NewRecord):
            raise TypeError(expected("a record", "NewRecord(value, key, ...)", record))
        number = self.count
        encoded = _Encoded(
            number,
            _bytes("value", record.value),
            _bytes("key", record.key),
            [*_headers(record.headers)],
            self._clock() if record.timestamp_ms is None else record.timestamp_ms,
        )
        self.count += 1
        try:
            partition = self._choose(record.partition, encoded.key)
        except KafkaError as error:
            raise RecordRefusedError(number, error) from error
        batch = self._open.get(partition.index)
        if batch is not None and (
            batch.builder.size_estimate + size_of(encoded.key, encoded.value, encoded.headers)
            > self._batch_bytes
        ):
            self._check(self._open.pop(partition.index))
            batch = None
        if batch is None:
            batch = self._open[partition.index] = _Open(partition, BatchBuilder(codec=self._codec))
        _add(batch.builder, encoded)
        batch.records.append(encoded)

    def finish(self) -> None:
        """Validate the remaining records. After this, `write` fails only if the disk fails.

        Raises:
            RecordRefusedError: The topic rejects a record.
        """
        for index in tuple(self._open):
            self._check(self._open.pop(index))

    def write(self) -> None:
        """Append all batches.

        Raises:
            RecordRefusedError: See `finish`. The log is unchanged.
            KafkaStorageError: A write to the disk failed. Earlier batches were written.
        """
        self.finish()
        is_stamped = self._topic.config.is_log_append_time
        for batch in self._checked:
            stamp = self._clock() if is_stamped else None
            result = batch.partition.append_batch(batch.header, batch.view, append_time_ms=stamp)
            self._written.append((batch, result.base_offset, stamp))
        self._checked.clear()

    def places(self) -> list[RecordMetadata]:
        places: dict[int, RecordMetadata] = {}
        for batch, base_offset, stamp in self._written:
            tp = TopicPartition(self._topic.name, batch.partition.index)
            for delta, number in enumerate(batch.numbers):
                places[number] = RecordMetadata(
                    *tp,
                    tp,
                    base_offset + delta,
                    batch.timestamps_ms[delta] if stamp is None else stamp,
                    0 if stamp is None else 1,
                    batch.partition.log_start_offset,
                )
        return [places[number] for number in sorted(places)]

    def _choose(self, partition: int | None, key: bytes | None) -> Partition:
        ends = self._ends
        if partition is not None:
            chosen = partition_of(self._topic, partition)
        elif key is not None:
            chosen = self._topic.partitions[partition_for_key(key, len(ends))]
        else:
            chosen = self._topic.partitions[ends.index(min(ends))]
        if chosen.leader_id == NO_LEADER:
            raise LeaderNotAvailableError(f"nobody leads {self._topic.name}-{chosen.index}")
        ends[chosen.index] += 1
        return chosen

    def _check(self, batch: _Open) -> None:
        try:
            header, view = self._validated(batch.builder)
        except KafkaError as error:
            self._blame(batch)
            raise RecordRefusedError(batch.records[0].number, error) from error
        numbers = array("q", (record.number for record in batch.records))
        timestamps_ms = array("q", (record.timestamp_ms for record in batch.records))
        self._checked.append(_Checked(batch.partition, header, view, numbers, timestamps_ms))

    def _blame(self, batch: _Open) -> None:
        """Raise the error of the record that makes a batch invalid, if there is one."""
        for record in batch.records:
            builder = BatchBuilder(codec=self._codec)
            _add(builder, record)
            try:
                self._validated(builder)
            except KafkaError as error:
                raise RecordRefusedError(record.number, error) from error

    def _validated(self, builder: BatchBuilder) -> tuple[BatchHeader, memoryview]:
        config = self._topic.config
        return validated_batch(builder.build(), NEWEST_PRODUCE, config, self._clock())


def _bytes(what: str, given: object) -> bytes | None:
    if given is None or isinstance(given, bytes):
        return given
    if isinstance(given, str):
        return given.encode()
    if isinstance(given, (bytearray, memoryview)):
        return bytes(given)
    raise TypeError(
        f"a record's {what} must be bytes, a str (written in UTF-8) or None, not "
        f"{type(given).__name__}: convert the {what} to a str, for example with json.dumps(...)"
    )


def _headers(given: Iterable[object]) -> Iterator[tuple[str, bytes | None]]:
    for header in given:
        if not (isinstance(header, (tuple, list)) and len(header) == 2):
            raise TypeError(
                f"headers must be pairs of name and value, like [('trace', 'a1')], not {header!r}"
            )
        name, value = header
        if not isinstance(name, str):
            raise TypeError(f"a header's name must be a str, not {type(name).__name__}")
        yield name, _bytes(f"header {name!r}", value)


def _add(builder: BatchBuilder, record: _Encoded) -> None:
    builder.append(record.timestamp_ms, record.key, record.value, record.headers)
