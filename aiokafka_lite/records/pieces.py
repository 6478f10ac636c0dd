"""A compressed batch of magic 2 that is decompressed in pieces while its records are read.

This bounds the memory of large batches. Each piece has complete records: the bytes of an incomplete
one move to the front of the buffer, which grows if a record is larger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from aiokafka_lite.errors import CorruptRecordException, DecompressionLimitError, KafkaError
from aiokafka_lite.records._decode_py import BatchCursor
from aiokafka_lite.records.scratch import lend

PIECE_BYTES: Final = 1024 * 1024
_GROWTH: Final = 4


class BatchPieces:
    """`cursor` reads the current piece, and `is_last` is whether the batch ends with it."""

    def __init__(
        self,
        stream: Iterator[bytes | memoryview],
        count: int,
        max_bytes: int,
        cursor: BatchCursor,
        whole_records: Callable[[memoryview, int], tuple[int, int, int]],
    ) -> None:
        """Prepare without decompressing. `max_bytes` limits the buffer for the records."""
        if count < 0:
            raise CorruptRecordException(f"a batch has the invalid record count {count}")
        self.cursor: Final = cursor
        self.is_last = False
        self._stream = stream
        self._rest: bytes | memoryview = b""  # of the current item
        self._is_ended = False
        self._error: KafkaError | None = None  # the end of the stream, after its bytes
        self._count_left = count
        self._max_bytes = max_bytes
        self._whole_records = whole_records
        self._buffer = _buffer_of(min(PIECE_BYTES, max_bytes))
        self._pos = self._end = 0  # of what is decompressed and not returned yet

    def next_piece(self) -> memoryview:
        """Decompress the next piece for the cursor, and return it. It is valid until the next.

        The piece includes invalid bytes, and bytes after the last record: the cursor reports them.
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
        elif self._is_ended or count in {0, self._count_left}:
            self.is_last = self._is_ended
            count, size = min(count + 1, self._count_left), self._end
        self._pos = size
        self._count_left -= count
        piece = self._buffer[:size]
        self.cursor.go_on(piece, count)
        return piece

    def _fill(self) -> None:
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
        # The factor bounds the costs of a false length.
        size = min(_GROWTH * len(self._buffer), record_bytes)
        self._move_to(_buffer_of(size))

    def _move_to(self, buffer: memoryview) -> None:
        left = self._buffer[self._pos : self._end]
        buffer[: len(left)] = left
        self._buffer = buffer
        self._pos, self._end = 0, len(left)


def _buffer_of(size: int) -> memoryview:
    return memoryview(lend(size))[:size]
