"""What a test does with a broker without a client: write, read, look, wait.

Records written here pass the checks that a producer's pass, and wake whoever waits for them. All
of it happens in the broker's event loop; `BrokerThread` offers the same to other threads.
"""

from __future__ import annotations

import asyncio
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from aiokafka_lite.broker.topics import NO_LEADER
from aiokafka_lite.broker.validation import validated_batch
from aiokafka_lite.errors import (
    InvalidTopicError,
    LeaderNotAvailableError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.records import BatchBuilder, Codec, RecordSet
from aiokafka_lite.records.partitioner import partition_for_key
from aiokafka_lite.structs import ConsumerRecord, RecordMetadata, TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.broker.config import BrokerConfig
    from aiokafka_lite.broker.node import BrokerNode
    from aiokafka_lite.broker.topics import Partition, Topic

Text: TypeAlias = "bytes | str | None"

# Batches as a producer would send them: far below any topic's limit, unless a record is not.
BATCH_BYTES: Final = 512 << 10
READ_BYTES: Final = 1 << 20
# What lengths, times and counts take at most, each a varint.
MOST_FRAMING_BYTES: Final = 40
MOST_HEADER_FRAMING_BYTES: Final = 10
NEWEST_PRODUCE: Final = 13
LOOK_EVERY_S: Final = 0.005
WAIT_S: Final = 10.0


class NewRecord(NamedTuple):
    """A record to be written; strings are written in UTF-8.

    Attributes:
        value: None is a tombstone.
        partition: None leaves it to the key, as Java's partitioner has it; records without a key
            go to the partition that ends first.
        timestamp_ms: Since the epoch; None for the broker's clock.
    """

    value: Text
    key: Text = None
    headers: Iterable[tuple[str, Text]] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class DirectAccess(ABC):
    """The part of `Broker` that needs no client. Call it in the broker's event loop.

    From other threads use the methods of the same names on `BrokerThread`.
    """

    config: BrokerConfig
    clock: Callable[[], int]
    nodes: Mapping[int, BrokerNode]

    @property
    @abstractmethod
    def topics(self) -> Mapping[str, Topic]:
        """Every topic by name."""

    @abstractmethod
    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        configs: Mapping[str, str] | None = None,
        *,
        replication_factor: int | None = None,
    ) -> Topic:
        """Create a topic."""

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
        """Write one record and return where it is. Strings are written in UTF-8.

        The topic is created if there is none, unless `auto_create_topics` is off.

        Args:
            topic: Where to.
            value: None writes a tombstone.
            key: Decides the partition, as Java's partitioner has it, if `partition` does not.
            headers: Pairs of name and value.
            partition: None without a key: the one that ends first.
            timestamp_ms: Milliseconds since the epoch; by default the broker's clock.

        Raises:
            UnknownTopicOrPartitionError: There is no such topic or partition.
            KafkaError: What a producer would be told: too large, no key for a compacted topic …
        """
        record = NewRecord(value, key, headers, partition, timestamp_ms)
        (written,) = self.produce_all(topic, [record])
        return written

    def produce_all(
        self, topic: str, records: Iterable[NewRecord], *, codec: Codec | str = Codec.NONE
    ) -> list[RecordMetadata]:
        """Write records in large batches, in their order; return where each is.

        Raises:
            UnknownTopicOrPartitionError: As `produce`; nothing was written.
            KafkaError: As `produce`; batches ahead of the refused one were written.
            UnsupportedCodecError: There is no such codec.
        """
        pending, codec, now_ms = [*map(_encoded, records)], Codec.of(codec), self.clock()
        known = self.topics.get(topic)
        if known is None and self.config.auto_create_topics:
            known = self.create_topic(topic)
        if known is None:
            raise UnknownTopicOrPartitionError(f"there is no topic {topic!r}")
        if known.is_internal:
            raise InvalidTopicError(f"{topic} is written by brokers only")
        limit = min(BATCH_BYTES, known.config.max_message_bytes)
        chooser = _PartitionChooser(known)
        chosen = [chooser.choose(record) for record in pending]
        written: dict[int, RecordMetadata] = {}
        for partition, numbers in _by_partition(chosen).items():
            for batch in _batches(numbers, pending, now_ms, limit, codec):
                written.update(self._append(known, known.partitions[partition], batch))
        return [written[number] for number in range(len(pending))]

    def _append(
        self, topic: Topic, partition: Partition, batch: _Batch
    ) -> Iterator[tuple[int, RecordMetadata]]:
        if partition.leader_id == NO_LEADER:
            raise LeaderNotAvailableError(f"nobody leads {topic.name}-{partition.index}")
        now_ms = self.clock()
        header, view = validated_batch(batch.builder.build(), NEWEST_PRODUCE, topic.config, now_ms)
        stamp = now_ms if topic.config.is_log_append_time else None
        result = partition.append_batch(header, view, append_time_ms=stamp)
        tp = TopicPartition(topic.name, partition.index)
        for delta, (number, timestamp_ms) in enumerate(batch.records):
            yield (
                number,
                RecordMetadata(
                    *tp,
                    tp,
                    result.base_offset + delta,
                    timestamp_ms if stamp is None else stamp,
                    0 if stamp is None else 1,
                    partition.log_start_offset,
                ),
            )

    # Reading

    def records(
        self, topic: str, partition: int | None = None
    ) -> list[ConsumerRecord[bytes, bytes]]:
        """Return all records of a topic, or of one partition, by partition and offset.

        Raises:
            UnknownTopicOrPartitionError: There is no such topic or partition.
        """
        known = self._require_topic(topic)
        chosen = known.partitions if partition is None else [_partition_of(known, partition)]
        found: list[ConsumerRecord[bytes, bytes]] = []
        for each in chosen:
            offset = each.log_start_offset
            while offset < each.high_watermark:
                view = each.read(offset, READ_BYTES)
                batches = RecordSet(topic, each.index, view, fetch_offset=offset)
                found += batches.take(sys.maxsize)
                offset = batches.next_offset
        return found

    def end_offsets(self, topic: str) -> list[int]:
        """Return the end offset of each partition of a topic.

        Raises:
            UnknownTopicOrPartitionError: There is none of that name.
        """
        return [each.high_watermark for each in self._require_topic(topic).partitions]

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """Return the offsets that a group has committed; empty for a group that there is not."""
        return {
            TopicPartition(topic, partition): committed.offset
            for node in self.nodes.values()  # one of which coordinates the group
            for topic, partitions in node.groups.offsets.fetch_all(group).items()
            for partition, committed in partitions.items()
        }

    # Waiting

    async def wait_until(
        self,
        is_so: Callable[[], bool],
        *,
        timeout_s: float = WAIT_S,
        what: Callable[[], str] = lambda: "what was waited for did not come",
    ) -> None:
        """Wait until a function of yours says so; it is asked every 5 ms. Cancelling is safe.

        Raises:
            TimeoutError: It did not within the timeout; `what` says what is missing.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while not is_so():
            if loop.time() >= deadline:
                raise TimeoutError(f"{what()}, after {timeout_s:g} s")
            await asyncio.sleep(LOOK_EVERY_S)

    async def wait_for_records(
        self, topic: str, count: int = 1, *, timeout_s: float = WAIT_S
    ) -> list[ConsumerRecord[bytes, bytes]]:
        """Wait until a topic holds at least so many records, and return all of them.

        The topic need not be there yet.

        Raises:
            TimeoutError: It does not within the timeout.
        """
        found: list[ConsumerRecord[bytes, bytes]] = []
        seen: list[int] = []

        def are_there() -> bool:
            nonlocal found, seen
            if topic in self.topics and (ends := self.end_offsets(topic)) != seen:
                found, seen = self.records(topic), ends
            return len(found) >= count

        await self.wait_until(
            are_there,
            timeout_s=timeout_s,
            what=lambda: f"topic {topic!r} holds {len(found)} records, not {count}",
        )
        return found

    async def wait_for_commits(
        self, group: str, topic: str, *, timeout_s: float = WAIT_S
    ) -> dict[TopicPartition, int]:
        """Wait until a group has committed all of a topic; return what it has committed.

        Partitions without records need no commit.

        Raises:
            TimeoutError: It has not within the timeout.
        """

        def missing() -> dict[TopicPartition, int]:
            """Return how many records of which partitions are not committed."""
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
            return f"group {group!r} has not committed all: records are missing, {lags}"

        await self.wait_until(
            lambda: topic in self.topics and not missing(), timeout_s=timeout_s, what=text
        )
        return self.committed(group)

    # Small parts

    def _require_topic(self, name: str) -> Topic:
        known = self.topics.get(name)
        if known is None:
            raise UnknownTopicOrPartitionError(f"there is no topic {name!r}")
        return known


def _partition_of(topic: Topic, index: int) -> Partition:
    partition = topic.partition(index)
    if partition is None:
        raise UnknownTopicOrPartitionError(
            f"there is no partition {topic.name}-{index}: the topic has {topic.partition_count}"
        )
    return partition


class _Encoded(NamedTuple):
    """A `NewRecord` in bytes."""

    value: bytes | None
    key: bytes | None
    headers: list[tuple[str, bytes | None]]
    partition: int | None
    timestamp_ms: int | None

    @property
    def size_bound(self) -> int:
        """No fewer bytes than the record takes in a batch."""
        size = MOST_FRAMING_BYTES + len(self.value or b"") + len(self.key or b"")
        for name, value in self.headers:
            size += MOST_HEADER_FRAMING_BYTES + 4 * len(name) + len(value or b"")
        return size


def _encoded(record: NewRecord) -> _Encoded:
    return _Encoded(
        _bytes(record.value),
        _bytes(record.key),
        [(name, _bytes(value)) for name, value in record.headers],
        record.partition,
        record.timestamp_ms,
    )


def _bytes(text: Text) -> bytes | None:
    return text.encode() if isinstance(text, str) else text


class _PartitionChooser:
    """Chooses partitions for records that are about to be written."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._ends = [partition.log.log_end_offset for partition in topic.partitions]

    def choose(self, record: _Encoded) -> int:
        """Return the record's partition.

        Raises:
            UnknownTopicOrPartitionError: The record names one that there is not.
        """
        if record.partition is not None:
            index = _partition_of(self._topic, record.partition).index
        elif record.key is not None:
            index = partition_for_key(record.key, len(self._ends))
        else:
            index = self._ends.index(min(self._ends))
        self._ends[index] += 1
        return index


def _by_partition(chosen: list[int]) -> dict[int, list[int]]:
    """Return the numbers of the records of each partition."""
    numbers: dict[int, list[int]] = {}
    for number, partition in enumerate(chosen):
        numbers.setdefault(partition, []).append(number)
    return numbers


@dataclass
class _Batch:
    """A batch being built, and (number, timestamp) of its records."""

    builder: BatchBuilder
    records: list[tuple[int, int]]


def _batches(
    numbers: list[int], pending: list[_Encoded], now_ms: int, limit: int, codec: Codec
) -> Iterator[_Batch]:
    batch: _Batch | None = None
    for number in numbers:
        record = pending[number]
        if batch is not None and batch.builder.size_estimate + record.size_bound > limit:
            yield batch
            batch = None
        if batch is None:
            batch = _Batch(BatchBuilder(codec=codec), [])
        timestamp_ms = now_ms if record.timestamp_ms is None else record.timestamp_ms
        batch.builder.append(timestamp_ms, record.key, record.value, record.headers)
        batch.records.append((number, timestamp_ms))
    if batch is not None:
        yield batch
