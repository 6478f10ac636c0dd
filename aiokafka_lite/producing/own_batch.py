"""A batch that the application fills by itself, under aiokafka's names: `create_batch`.

It only collects: `send_batch` puts what is in it into a batch of the partition's queue, in order
and with nothing between.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from aiokafka_lite._tasks import own_copy
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.producing.batch import BATCH_OVERHEAD_BYTES, Headers, record_size_bound
from aiokafka_lite.structs import RecordMetadata

MAX_TIMESTAMP_MS: Final = 2**63 - 1


class BatchedRecord(NamedTuple):
    """A record in a batch of one's own: its number there, its size at most, its timestamp."""

    offset: int
    size: int
    timestamp: int


class Row(NamedTuple):
    """A record as it is written."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    size_bytes: int


class OwnBatch:
    """Records that are sent together, to one partition.

    Args:
        max_size_bytes: From how many bytes on it takes no further record.
        encode: Makes bytes of a key, a value and headers.
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
        """Add a record; None if the batch is full, which closes it, or closed.

        Args:
            timestamp: Milliseconds since the epoch, 0 or more; None for now.
            key: In bytes, or what the producer's `key_serializer` takes.
            value: In bytes, or what its `value_serializer` takes.
            headers: Pairs of name and value.

        Raises:
            TypeError: It cannot be written.
            ValueError: The timestamp is negative, or 2**63 or more.
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
        stamp = int(time.time() * 1000) if timestamp is None else timestamp
        self._rows.append(Row(stamp, key_bytes, value_bytes, checked, size))
        self._size_bytes += size
        return BatchedRecord(len(self._rows) - 1, size, stamp)

    def close(self) -> None:
        """Take no further record."""
        self._is_closed = True

    def closed(self) -> bool:
        """Whether it takes no further record."""
        return self._is_closed

    def size(self) -> int:
        """Return its size in bytes, at most, before compression."""
        return self._size_bytes

    def record_count(self) -> int:
        """Return how many records it has."""
        return len(self._rows)

    def rows(self) -> Iterator[Row]:
        """Return its records."""
        return iter(self._rows)


class OwnReceipt:
    """What the sender of such a batch has of it; the batch may be sent in parts.

    Attributes:
        future: Done once every record is written, with where the first is, or with the first error.
    """

    def __init__(
        self, future: asyncio.Future[RecordMetadata], batch: OwnBatch, *, is_quiet: bool
    ) -> None:
        self.future = future
        self._left = batch.record_count()
        self._is_quiet = is_quiet  # somebody else is told of errors as well
        self._first: RecordMetadata | None = None

    def tell(self, numbers: Sequence[int], outcome: RecordMetadata | KafkaError) -> None:
        """Take note of what became of some of its records."""
        self._left -= len(numbers)
        if isinstance(outcome, RecordMetadata):
            if self._first is None or numbers[0] == 0:
                self._first = outcome
            if not self._left and not self.future.done():
                self.future.set_result(self._first)
        elif not self.future.done():
            self.future.set_exception(own_copy(outcome))
            if self._is_quiet:
                self.future.exception()


def check_timestamp(timestamp_ms: object) -> int:
    """Return a timestamp, unless no record can have it.

    Raises:
        TypeError: It is not an int.
        ValueError: It is negative, or does not fit.
    """
    if not isinstance(timestamp_ms, int) or isinstance(timestamp_ms, bool):
        raise TypeError(f"a timestamp is an int of milliseconds, not {timestamp_ms!r}")
    if not 0 <= timestamp_ms <= MAX_TIMESTAMP_MS:
        raise ValueError(
            f"a timestamp is 0 to 2**63 - 1 milliseconds since the epoch, not {timestamp_ms}"
        )
    return timestamp_ms
