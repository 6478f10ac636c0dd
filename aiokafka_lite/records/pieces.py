"""A compressed batch of magic 2, decompressed a piece at a time while its records are read.

For batches that would take much memory as a whole. Each piece holds whole records: the bytes of a
record that is cut move to the front of the buffer, and the next piece begins with them. A record
that is larger than the buffer makes the buffer grow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from aiokafka_lite.errors import CorruptRecordException, DecompressionLimitError, KafkaError
from aiokafka_lite.records.decoders import BatchReader
from aiokafka_lite.records.scratch import lend

__all__ = ["BatchPieces"]

PIECE_BYTES: Final = 1024 * 1024
_GROWTH: Final = 4


class BatchPieces:
    """The pieces of one batch.

    Attributes:
        cursor: Goes through the records of the piece at hand.
        is_last: Whether the batch ends with the piece at hand.
    """

    __slots__ = (
        "_buffer",
        "_count_left",
        "_end",
        "_error",
        "_is_ended",
        "_max_bytes",
        "_pos",
        "_rest",
        "_stream",
        "_whole_records",
        "cursor",
        "is_last",
    )

    def __init__(
        self,
        stream: Iterator[bytes | memoryview],
        count: int,
        max_bytes: int,
        cursor: BatchReader,
        whole_records: Callable[[memoryview, int], tuple[int, int, int]],
    ) -> None:
        """Decompress nothing yet.

        Args:
            stream: The decompressed bytes; each item is used up before the next is asked for.
            count: Of records in the batch, as its header claims.
            max_bytes: How large the buffer may become.
            cursor: Goes through the batch, of which it has no records yet.
            whole_records: The decoder's function of that name.

        Raises:
            CorruptRecordException: There cannot be that many records.
        """
        if count < 0:
            raise CorruptRecordException(f"a batch has the invalid record count {count}")
        self.cursor: Final = cursor
        self.is_last = False
        self._stream = stream
        self._rest: bytes | memoryview = b""  # of the item at hand
        self._is_ended = False
        self._error: KafkaError | None = None  # why the stream has ended, behind what came of it
        self._count_left = count
        self._max_bytes = max_bytes
        self._whole_records = whole_records
        self._buffer = _buffer_of(min(PIECE_BYTES, max_bytes))
        self._pos = self._end = 0  # of what is decompressed and not returned yet

    def next_piece(self) -> memoryview:
        """Decompress the next piece, and have the cursor go on there; return its bytes.

        They are valid until the next call. What is no record, or follows the last one, is in the
        piece: the cursor is what says so.

        Raises:
            CorruptRecordException: The bytes are not of that codec, or they are cut short.
            DecompressionLimitError: The next record takes more memory than allowed.
        """
        self._move_to(self._buffer)
        while True:
            self._fill()
            count, size, next_bytes = self._whole_records(
                self._buffer[: self._end], self._count_left
            )
            if count or self._is_ended or not next_bytes:
                break
            self._grow(next_bytes)
        if self._error is not None:
            if not count:
                raise self._error
        elif self._is_ended or not count:
            self.is_last = self._is_ended
            count, size = min(count + 1, self._count_left), self._end
        self._pos = size
        self._count_left -= count
        piece = self._buffer[:size]
        self.cursor.go_on(piece, count)
        return piece

    def _fill(self) -> None:
        """Decompress until the buffer is full, or the stream has ended."""
        while not self._is_ended and (room := len(self._buffer) - self._end):
            if not self._rest:
                try:
                    self._rest = next(self._stream, b"")
                except KafkaError as error:
                    self._error = error
                self._is_ended = not self._rest
            added = self._rest[:room]
            self._rest = self._rest[room:]
            self._buffer[self._end : self._end + len(added)] = added
            self._end += len(added)

    def _grow(self, record_bytes: int) -> None:
        if record_bytes > self._max_bytes:
            raise DecompressionLimitError(
                f"a record of a compressed batch has {record_bytes} bytes, but the limit is "
                f"{self._max_bytes}. The limit protects against malicious producers. If you trust "
                "the producer, raise the consumer's max_batch_bytes"
            )
        # By a factor, which bounds what a liar can cost.
        size = min(_GROWTH * len(self._buffer), record_bytes)
        self._move_to(_buffer_of(size))

    def _move_to(self, buffer: memoryview) -> None:
        """Move what is not returned yet to the front of a buffer."""
        left = self._buffer[self._pos : self._end]
        buffer[: len(left)] = left
        self._buffer = buffer
        self._pos, self._end = 0, len(left)


def _buffer_of(size: int) -> memoryview:
    return memoryview(lend(size))[:size]
