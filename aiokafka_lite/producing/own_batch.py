"""Batches that the application fills (`create_batch`, `send_batch`), under aiokafka's names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from operator import index
from typing import Final, NamedTuple, SupportsIndex

from aiokafka_lite._tasks import own_copy
from aiokafka_lite._virtual import wall_ms
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.producing.batch import BATCH_OVERHEAD_BYTES, Headers, record_size_bound
from aiokafka_lite.structs import RecordMetadata

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
    """The future of an `OwnBatch`, whose records may be sent in several batches.

    Its result is the first record's offset, or the first error.
    """

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
