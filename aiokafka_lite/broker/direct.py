"""Methods of `Broker` that replace clients in tests: write, read, wait.

Records that tests write without a producer are validated like a producer's."""

from __future__ import annotations

import asyncio
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias

from aiokafka_lite._arguments import INT, Kind, checks_arguments, expected, is_list, one_of, plain
from aiokafka_lite.broker.cluster import EmbeddedCluster
from aiokafka_lite.broker.log.partition_log import validated_batch
from aiokafka_lite.broker.topics import INTERNAL_TOPICS, NO_LEADER, Partition, Topic
from aiokafka_lite.errors import (
    InvalidTopicError,
    KafkaError,
    LeaderNotAvailableError,
    NoError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.records import BatchHeader, Codec, RecordSet
from aiokafka_lite.records.build import BatchBuilder, size_of
from aiokafka_lite.records.partitioner import partition_for_key
from aiokafka_lite.structs import ConsumerRecord, RecordMetadata, TopicPartition

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


IsolationLevel: TypeAlias = Literal["read_uncommitted", "read_committed"]

READ_BYTES: Final = 1 << 20
LOOK_EVERY_S: Final = 0.005
WAIT_S: Final = 10.0
# The state, of both kinds of groups, in which all members have their partitions.
STABLE: Final = "Stable"


KINDS: Final[Mapping[str, Kind]] = {
    "IsolationLevel": one_of("read_uncommitted", "read_committed"),
    "Iterable[NewRecord]": Kind("a list of NewRecord", is_list),
    "Iterable[tuple[str, Text]]": Kind("a list of (name, value) pairs", is_list),
    "Codec | str": Kind(
        "the name of a compression codec", lambda given: isinstance(given, str | Codec)
    ),
}
"""The kinds of arguments of these methods."""


@checks_arguments(KINDS)
class DirectAccess(EmbeddedCluster):
    """Replaces clients, in the broker's event loop. `BrokerThread` does it in other threads."""

    # Writing

    def produce(
        self,
        topic: str,
        value: Text,
        *,
        key: Text = None,
        headers: Iterable[tuple[str, Text]] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Write one record and return its offset.

        If the topic does not exist, it is created, unless `auto_create_topics` is False.

        Args:
            topic: The topic.
            value: Bytes, or a string that is encoded as UTF-8. None writes a tombstone.
            key: Chooses the partition like Java's partitioner, if `partition` is None.
            headers: Pairs of a name and a value.
            partition: None without a key chooses the partition with the lowest end offset.
            timestamp_ms: Milliseconds since the epoch. By default the broker's clock.

        Raises:
            KafkaError: The error that a producer would get, such as a record without a key for a
                compacted topic.
        """
        record = NewRecord(value, key, headers, partition, timestamp_ms)
        (written,) = self.produce_all(topic, [record])
        return written

    def produce_all(
        self, topic: str, records: Iterable[NewRecord], *, codec: Codec | str = Codec.NONE
    ) -> list[RecordMetadata]:
        """Write records in large batches, in order, and return their offsets.

        Raises as `produce`. After any error but KafkaStorageError the topic is unchanged.
        """
        writer = self.writer(topic, codec=codec)
        try:
            for record in records:
                writer.add(record)
            writer.write()
        except RecordRefusedError as refused:
            raise refused.reason from None
        return writer.places()

    def writer(self, topic: str, *, codec: Codec | str = Codec.NONE) -> TopicWriter:
        """Return a writer that validates records one by one, and writes all or none.

        Raises:
            UnknownTopicOrPartitionError: The topic does not exist, and `auto_create_topics` is
                False.
            InvalidTopicError: The topic is written by brokers only, or its name is not allowed.
            UnsupportedCodecError: The codec does not exist.
            RuntimeError: The broker is not running.
        """
        self._check_caller()
        self._check_running()
        if topic in INTERNAL_TOPICS:
            raise InvalidTopicError(f"only brokers can write to the internal topic {topic}")
        known = self.topics.get(topic)
        if known is None and self.config.auto_create_topics:
            known = self.create_topic(topic)
        if known is None:
            raise UnknownTopicOrPartitionError(f"there is no topic {topic!r}")
        return TopicWriter(known, clock=self.clock, codec=Codec.of(codec))

    # Reading

    def records(
        self,
        topic: str,
        partition: int | None = None,
        *,
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> list[ConsumerRecord]:
        """Return all records of a topic or of one partition, in the order of partition and offset.

        With "read_committed" it skips the records of aborted transactions, and ends at the first
        record of an open transaction.
        """
        self._check_caller()
        known = self.known_topic(topic)
        chosen = known.partitions if partition is None else [partition_of(known, partition)]
        is_committed = isolation_level == "read_committed"
        return [record for each in chosen for record in _read(each, is_committed)]

    def end_offsets(self, topic: str) -> list[int]:
        """Return the end offset of each partition of a topic."""
        return [each.high_watermark for each in self.known_topic(topic).partitions]

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group.

        The dict is empty for an unknown group, and while the coordinator loads the group from the
        log.

        Raises:
            RuntimeError: The broker is not running.
        """
        self._check_running()
        return {
            TopicPartition(topic, partition): committed.offset
            for node in self.nodes.values()
            if node.groups.availability(group) is NoError  # the one that coordinates the group
            for topic, partitions in node.groups.offsets.fetch_all(group).items()
            for partition, committed in partitions.items()
        }

    # Waiting

    async def wait_until(
        self,
        is_so: Callable[[], bool],
        *,
        timeout_s: float = WAIT_S,
        what: Callable[[], str] = lambda: "the condition was still False",
    ) -> None:
        """Wait until `is_so()` returns True, and call it every 5 ms. Cancellation has no effect.

        Raises:
            TimeoutError: The timeout has passed. Its text is `what()`.
            TypeError: `is_so` is a coroutine function, whose result would always be true.
        """
        self._check_caller()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while not plain("is_so must be a plain function", is_so()):
            if loop.time() >= deadline:
                raise TimeoutError(f"{what()}, after {timeout_s:g} s")
            await asyncio.sleep(LOOK_EVERY_S)

    async def wait_for_records(
        self, topic: str, count: int = 1, *, timeout_s: float = WAIT_S
    ) -> list[ConsumerRecord]:
        """Wait until a topic has at least `count` records, and return all its records.

        The topic may be created during the wait.

        Raises:
            TimeoutError: The topic has fewer records after the timeout.
        """
        found: list[ConsumerRecord] = []
        seen: list[int] = []

        def are_there() -> bool:
            nonlocal found, seen
            if topic in self.topics and (ends := self.end_offsets(topic)) != seen:
                found, seen = self.records(topic), ends
            return len(found) >= count

        await self.wait_until(
            are_there,
            timeout_s=timeout_s,
            what=lambda: (
                f"topic {topic!r} has {len(found)} records, but at least {count} were expected"
            ),
        )
        return found

    async def wait_for_commits(
        self, group: str, topic: str, *, timeout_s: float = WAIT_S
    ) -> dict[TopicPartition, int]:
        """Wait until a group has committed all records of a topic and return its committed offsets.

        Raises:
            TimeoutError: Records are uncommitted after the timeout.
        """

        def missing() -> dict[TopicPartition, int]:
            """Return the number of uncommitted records by partition."""
            committed = self.committed(group)
            lags = {}
            for each in self.topics[topic].partitions if topic in self.topics else ():
                tp = TopicPartition(topic, each.index)
                lag = each.high_watermark - committed.get(tp, each.log_start_offset)
                if lag > 0:
                    lags[tp] = lag
            return lags

        def text() -> str:
            if topic not in self.topics:
                return f"there is no topic {topic!r}"
            lags = ", ".join(f"{lag} of {topic}-{tp.partition}" for tp, lag in missing().items())
            return f"group {group!r} has not committed all records. Uncommitted: {lags}"

        await self.wait_until(
            lambda: topic in self.topics and not missing(), timeout_s=timeout_s, what=text
        )
        return self.committed(group)

    async def wait_for_members(
        self, group: str, count: int = 1, *, timeout_s: float = WAIT_S
    ) -> None:
        """Wait until a group is stable with at least `count` members.

        Members that start at the end of the log (auto_offset_reset="latest") know their positions
        only at their first Fetch, which `Broker.requests` shows.

        Raises:
            TimeoutError: The group is not stable, or has fewer members, after the timeout.
            RuntimeError: The broker is not running.
        """
        self._check_running()

        def found() -> tuple[str, int]:
            for node in self.nodes.values():
                if (known := node.groups.groups.get(group)) is not None:
                    return known.state.value, len(known.members)
            return "not found", 0

        def are_there() -> bool:
            state, members = found()
            return state == STABLE and members >= count

        def text() -> str:
            state, members = found()
            return (
                f"group {group!r} has {members} members (state: {state}), "
                f"but at least {count} members and state {STABLE} were expected"
            )

        await self.wait_until(are_there, timeout_s=timeout_s, what=text)


def _read(partition: Partition, is_committed: bool) -> Iterator[ConsumerRecord]:
    log = partition.log
    offset = log.log_start_offset
    end = log.last_stable_offset if is_committed else log.high_watermark
    transactions = log.producers.transactions
    while offset < end:
        aborted = None
        if is_committed:
            aborted = [
                (each.producer_id, each.first_offset)
                for each in transactions.aborted_within(offset, end)
            ]
        view = log.read(offset, READ_BYTES)
        batches = RecordSet(
            partition.topic, partition.index, view, fetch_offset=offset, aborted=aborted
        )
        while taken := batches.take(sys.maxsize):
            yield from (record for record in taken if record.offset < end)
        offset = batches.next_offset
