"""Batches of records for one partition, also those that the application fills, and receipts.

Its bytes are the same in every attempt, because a broker recognises duplicates by them. Only
`number` changes them, if the batch was certainly not written.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Iterator, Sequence
from operator import index
from typing import Final, NamedTuple, SupportsIndex, TypeAlias, cast

from aiokafka_lite._tasks import own_copy
from aiokafka_lite._virtual import wall_ms
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.records import decode_all
from aiokafka_lite.records.batch import patch_producer
from aiokafka_lite.records.build import BatchBuilder
from aiokafka_lite.records.codec import Codec
from aiokafka_lite.structs import RecordMetadata, TopicPartition

Headers = Sequence[tuple[str, bytes | None]]

Receipt: TypeAlias = "asyncio.Future[RecordMetadata] | int"
"""The receipt of a record: a future, or a number that `Tell` is called with."""
Tell: TypeAlias = "Callable[[Sequence[int], RecordMetadata | KafkaError], None]"
"""Called with the numbers of records in the order in which they were sent, and their outcome: the
metadata of the first, or the error of all."""

NO_SEQUENCE: Final = -1
MAX_SEQUENCE: Final = 2**31 - 1
# The bytes of a batch's header, and the most bytes of a record without its contents.
BATCH_OVERHEAD_BYTES: Final = 61
RECORD_OVERHEAD_BYTES: Final = 35
HEADER_OVERHEAD_BYTES: Final = 10

_new_metadata = tuple.__new__


class Output(NamedTuple):
    """A serialized record."""

    topic: str
    key: bytes | None
    value: bytes | None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: Headers = ()

    @property
    def size(self) -> int:
        """An upper bound of its bytes in a batch."""
        return record_size_bound(self.key, self.value, self.headers)


class ProducerIdAndEpoch(NamedTuple):
    """The producer of a batch (KIP-98)."""

    producer_id: int
    epoch: int


class BatchState(enum.Enum):
    WAITING = "waiting for its first attempt"
    ON_WIRE = "in flight"
    TO_RETRY = "waiting for another attempt"
    DONE = "acknowledged or failed"


class ProducerBatch:
    """Records for one partition, in one batch. Its partition's queue writes the fields.

    Attributes:
        write: Adds a record to its bytes. The caller adds to receipts and timestamps.
        size_bytes: An upper bound of its uncompressed size. See `measure`.
        due_at: The loop time of its next attempt at the earliest.
        place: The number of batches that the queue gave a sequence before this one.
        is_expired: It timed out in flight, so its records have failed. Its response only shows
            whether there is a gap.
    """

    __slots__ = (
        "_builder",
        "_count",
        "_encoded",
        "_overcounted_bytes",
        "_tell",
        "attempts",
        "base_sequence",
        "created_at",
        "due_at",
        "identity",
        "is_closed",
        "is_expired",
        "is_transactional",
        "last_error",
        "place",
        "receipts",
        "size_bytes",
        "state",
        "timestamps",
        "tp",
        "write",
    )

    def __init__(
        self,
        tp: TopicPartition,
        created_at: float,
        *,
        codec: Codec,
        is_transactional: bool,
        linger_s: float = 0.0,
        tell: Tell | None = None,
    ) -> None:
        self.tp = tp
        self.created_at = created_at
        self.due_at = created_at + linger_s
        self.size_bytes = BATCH_OVERHEAD_BYTES
        self.is_transactional = is_transactional
        self.is_closed = False
        self.is_expired = False
        self.state = BatchState.WAITING
        self.identity: ProducerIdAndEpoch | None = None
        self.base_sequence = NO_SEQUENCE
        self.place: int  # set with the sequence
        self.attempts = 0
        self.last_error: KafkaError | None = None
        self._builder: BatchBuilder | None = BatchBuilder(
            codec=codec, is_transactional=is_transactional
        )
        self.write = self._builder.append
        self._tell = tell
        self.receipts: list[Receipt] = []
        self.timestamps: list[int] = []
        self._encoded: bytes | None = None
        # The final number of records; 0 before.
        self._count = 0
        # The bytes by which the upper bounds of its records exceed their sizes.
        self._overcounted_bytes = 0

    def __repr__(self) -> str:
        return (
            f"<batch of {self.count} records for {self.tp.topic}-{self.tp.partition}, sequence "
            f"{self.base_sequence}, {self.state.value}>"
        )

    def append(
        self,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        size_bytes: int,
        receipt: Receipt,
    ) -> None:
        self.write(timestamp_ms, key, value, headers)
        self.receipts.append(receipt)
        self.timestamps.append(timestamp_ms)
        self.size_bytes += size_bytes

    @property
    def count(self) -> int:
        return self._count or len(self.timestamps)

    @property
    def room_bytes(self) -> int:
        """The buffer memory that its records take."""
        return self.size_bytes + self._overcounted_bytes - BATCH_OVERHEAD_BYTES

    def measure(self) -> int:
        """Return its size in bytes, and replace the upper bound by it."""
        if self._builder is not None:
            exact = self._builder.size_estimate
            self._overcounted_bytes += self.size_bytes - exact
            self.size_bytes = exact
        return self.size_bytes

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.due_at = self.created_at

    @property
    def next_sequence(self) -> int:
        return sequence_after(self.base_sequence, self.count)

    # --- Bytes -----------------------------------------------------------------------------
    def number(self, identity: ProducerIdAndEpoch, base_sequence: int) -> None:
        if self._encoded is not None:
            self._encoded = patch_producer(
                self._encoded,
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                base_sequence=base_sequence,
            )
        self._count = self.count
        self.identity = identity
        self.base_sequence = base_sequence

    def encoded(self) -> bytes:
        if self._encoded is None:
            if self._builder is None or self.identity is None:
                raise AssertionError(
                    f"cannot encode {self!r}: the batch has no sequence number, or has already "
                    "finished"
                )
            self._encoded = self._builder.build(
                producer_id=self.identity.producer_id,
                producer_epoch=self.identity.epoch,
                base_sequence=self.base_sequence,
            )
            self._builder = None
            del self.write  # which holds the builder
        return self._encoded

    def split(self, max_size_bytes: int, codec: Codec) -> list[ProducerBatch]:
        """Return smaller batches with its records and sequences."""
        parts: list[ProducerBatch] = []
        records = decode_all(memoryview(self.encoded()))
        sequence = self.base_sequence
        for number, record in enumerate(records):
            size = record_size_bound(record.key, record.value, record.headers)
            part = parts[-1] if parts else None
            if part is None or part.size_bytes + size > max_size_bytes:
                part = ProducerBatch(
                    self.tp,
                    self.created_at,
                    codec=codec,
                    is_transactional=self.is_transactional,
                    tell=self._tell,
                )
                parts.append(part)
            receipt, timestamp_ms = self.receipts[number], self.timestamps[number]
            part.append(timestamp_ms, record.key, record.value, record.headers, size, receipt)
        for part in parts:
            if self.identity is not None:
                part.number(self.identity, sequence)
            sequence = part.next_sequence
        self._forget()
        return parts

    # --- Outcomes --------------------------------------------------------------------------
    def succeed(self, base_offset: int, append_time_ms: int, log_start_offset: int) -> None:
        """Complete the receipts. -1: the broker returned no value."""
        tp = self.tp
        topic, partition = tp
        kind = 0 if append_time_ms < 0 else 1
        offset, step = base_offset, (0 if base_offset < 0 else 1)
        if self._tell is not None:
            first_ms = append_time_ms if kind else self.timestamps[0]
            first = RecordMetadata(topic, partition, tp, offset, first_ms, kind, log_start_offset)
            self._tell(cast("list[int]", self.receipts), first)
            self._forget()
            return
        futures = cast("list[asyncio.Future[RecordMetadata]]", self.receipts)
        for future, timestamp in zip(futures, self.timestamps, strict=True):
            if not future.done():
                values = (
                    topic,
                    partition,
                    tp,
                    offset,
                    append_time_ms if kind else timestamp,
                    kind,
                    log_start_offset,
                )
                # Half the cost of the class's own constructor, once for each record.
                future.set_result(_new_metadata(RecordMetadata, values))
            offset += step
        self._forget()

    def fail(self, error: KafkaError) -> None:
        self._count = self.count
        receipts, self.receipts, self.timestamps = self.receipts, [], []
        if self._tell is not None:
            self._tell(cast("list[int]", receipts), error)
            return
        for future in cast("list[asyncio.Future[RecordMetadata]]", receipts):
            if not future.done():
                # A copy, because raising adds to its traceback.
                future.set_exception(own_copy(error))
                if self.is_transactional:
                    future.exception()  # the commit raises it, so asyncio need not log it

    def _forget(self) -> None:
        self._builder, self._encoded = None, None
        self.receipts, self.timestamps = [], []


def sequence_after(sequence: int, count: int) -> int:
    """Return a sequence plus a number of records, modulo 2**31."""
    return (sequence + count) & MAX_SEQUENCE


def record_size_bound(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    size = RECORD_OVERHEAD_BYTES
    if key is not None:
        size += len(key)
    if value is not None:
        size += len(value)
    for name, content in headers:
        size += HEADER_OVERHEAD_BYTES + 4 * len(name) + (0 if content is None else len(content))
    return size


MAX_TIMESTAMP_MS: Final = 2**63 - 1


class BatchedRecord(NamedTuple):
    """A record in an `OwnBatch`.

    Attributes:
        offset: Its index in the batch.
        size: An upper bound of its size, in bytes.
        timestamp: Milliseconds since the epoch.
    """

    offset: int
    size: int
    timestamp: int


class Row(NamedTuple):
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    size_bytes: int


class OwnBatch:
    """Records that are sent together, to one partition.

    A batch that would grow beyond `max_size_bytes` is full. One record always fits.
    """

    def __init__(
        self,
        max_size_bytes: int,
        encode: Callable[
            [object, object, Headers | None], tuple[bytes | None, bytes | None, Headers]
        ],
    ) -> None:
        self._max_size_bytes = max_size_bytes
        self._encode = encode
        self._rows: list[Row] = []
        self._size_bytes = BATCH_OVERHEAD_BYTES
        self._is_closed = False

    def append(
        self,
        *,
        timestamp: int | None,
        key: object,
        value: object,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> BatchedRecord | None:
        """Append a record. Return None if the batch is closed, or is full, which closes it.

        Args:
            timestamp: Milliseconds since the epoch, 0 or more. None is the current time.
            key: As in `AIOKafkaProducer.send`.
            value: As in `AIOKafkaProducer.send`.
            headers: As in `AIOKafkaProducer.send`.

        Raises:
            TypeError, ValueError: As `AIOKafkaProducer.send`.
        """
        if timestamp is not None:
            check_timestamp(timestamp)
        if self._is_closed:
            return None
        key_bytes, value_bytes, checked = self._encode(key, value, headers)
        size = record_size_bound(key_bytes, value_bytes, checked)
        if self._rows and self._size_bytes + size > self._max_size_bytes:
            self._is_closed = True
            return None
        stamp = wall_ms() if timestamp is None else timestamp
        self._rows.append(Row(stamp, key_bytes, value_bytes, checked, size))
        self._size_bytes += size
        return BatchedRecord(len(self._rows) - 1, size, stamp)

    def close(self) -> None:
        """Accept no more records."""
        self._is_closed = True

    def closed(self) -> bool:
        """Whether the batch accepts no more records."""
        return self._is_closed

    def size(self) -> int:
        """Return an upper bound of the batch's size in bytes, before compression."""
        return self._size_bytes

    def record_count(self) -> int:
        """Return the number of records."""
        return len(self._rows)

    def rows(self) -> Iterator[Row]:
        """Return the serialized records."""
        return iter(self._rows)


class OwnReceipt:
    """The future of an `OwnBatch`: the first record's offset, or the first error of its batches."""

    def __init__(
        self, future: asyncio.Future[RecordMetadata], batch: OwnBatch, *, is_quiet: bool
    ) -> None:
        self.future = future
        self._left = batch.record_count()
        self._is_quiet = is_quiet  # the commit raises the errors, too
        self._first: RecordMetadata | None = None

    def tell(self, numbers: Sequence[int], outcome: RecordMetadata | KafkaError) -> None:
        self._left -= len(numbers)
        if isinstance(outcome, RecordMetadata):
            self._first = self._first or outcome
            if not self._left and not self.future.done():
                self.future.set_result(self._first)
        elif not self.future.done():
            self.future.set_exception(own_copy(outcome))
            if self._is_quiet:
                self.future.exception()


def check_partition(given: object) -> int:
    if isinstance(given, SupportsIndex) and not isinstance(given, bool):
        return index(given)
    raise TypeError(f"partition must be an int or None, not {given!r}")


def check_timestamp(timestamp_ms: object) -> int:
    if not isinstance(timestamp_ms, int) or isinstance(timestamp_ms, bool):
        raise TypeError(f"timestamp_ms must be an int of milliseconds, not {timestamp_ms!r}")
    if not 0 <= timestamp_ms <= MAX_TIMESTAMP_MS:
        raise ValueError(
            "timestamp_ms must be from 0 to 2**63 - 1 (milliseconds since 1970), not "
            f"{timestamp_ms}"
        )
    return timestamp_ms
