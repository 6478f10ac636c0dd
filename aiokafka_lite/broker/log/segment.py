"""Segments: the pieces of a partition's log, in memory or in files, and their batch index.

Memory that `view` returns stays valid and unchanged, also after the segment is truncated, replaced,
closed or deleted, because responses are sent from it without a copy.
"""

from __future__ import annotations

import itertools
import logging
import mmap
import os
import struct
import threading
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import le, lt
from pathlib import Path
from typing import Final, NamedTuple

from aiokafka_lite.broker.log.disk import FILE_MODE, replace_file, sync_folder
from aiokafka_lite.errors import CorruptRecordException, KafkaStorageError
from aiokafka_lite.records import BatchHeader, read_header

log = logging.getLogger(__name__)

NO_TIMESTAMP: Final = -1
_ROW_BYTES = 3 * 8

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
# Larger reads are views of the mapped file. Copies of smaller ones cost less.
MAP_FROM_BYTES: Final = 64 << 10
# Files of compaction: incomplete, and complete while it replaces others.
CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
_cleaned_numbers = itertools.count()

# A magic number, which also detects another byte order, and the segment's size at that time.
_INDEX_HEADER: Final = struct.Struct("=IQ")
_INDEX_MAGIC: Final = 0x616B6C01


class BatchIndex:
    """Three parallel columns, one row per batch, in log order.

    Unlike Kafka's sparse index it has every batch, 24 bytes each, so that no batch is scanned in
    Python. The third column is the newest timestamp up to the row: the first row that reaches a
    timestamp has the first such record.
    """

    __slots__ = ("_base_offsets", "_newest_timestamps", "_positions", "end_position")

    def __init__(self) -> None:
        self._base_offsets = array("q")
        self._positions = array("q")
        self._newest_timestamps = array("q")
        self.end_position = 0

    def __len__(self) -> int:
        return len(self._positions)

    @property
    def first_timestamp(self) -> int:
        return self._newest_timestamps[0] if self._newest_timestamps else NO_TIMESTAMP

    @property
    def newest_timestamp(self) -> int:
        """The newest timestamp, -1 without records."""
        return self._newest_timestamps[-1] if self._newest_timestamps else NO_TIMESTAMP

    def add(self, base_offset: int, size: int, max_timestamp: int) -> None:
        self._base_offsets.append(base_offset)
        self._positions.append(self.end_position)
        self._newest_timestamps.append(max(max_timestamp, self.newest_timestamp))
        self.end_position += size

    def truncate(self, row: int) -> None:
        self.end_position = self._positions[row]
        del self._base_offsets[row:], self._positions[row:], self._newest_timestamps[row:]

    def row_of(self, offset: int) -> int:
        """Return the row of the batch that has an offset, or of the last batch before it."""
        return max(bisect_right(self._base_offsets, offset) - 1, 0)

    def span(self, row: int) -> tuple[int, int]:
        is_last = row + 1 == len(self._positions)
        return self._positions[row], self.end_position if is_last else self._positions[row + 1]

    def end_before(self, offset: int) -> int:
        """Return the end of the batches whose base offsets are below an offset."""
        row = bisect_left(self._base_offsets, offset)
        return self._positions[row] if row < len(self._positions) else self.end_position

    def end_within(self, row: int, max_bytes: int) -> int:
        """Return the end of the last whole batch within `max_bytes` of the start of `row`."""
        limit = self._positions[row] + max_bytes
        if limit >= self.end_position:
            return self.end_position
        return self._positions[bisect_right(self._positions, limit) - 1]

    def first_row_reaching(self, timestamp: int) -> int:
        """Return the first row with a record of that time or later, or the end."""
        return bisect_left(self._newest_timestamps, timestamp)

    def to_bytes(self) -> bytes:
        columns = (self._base_offsets, self._positions, self._newest_timestamps)
        return b"".join(column.tobytes() for column in columns)

    @classmethod
    def from_bytes(cls, stored: bytes, base_offset: int, end_position: int) -> BatchIndex | None:
        """Return a stored index, or None if it is impossible."""
        rows, rest = divmod(len(stored), _ROW_BYTES)
        if rest or not rows:
            return None
        index = cls()
        columns = index._base_offsets, index._positions, index._newest_timestamps
        offsets, positions, timestamps = columns
        for number, column in enumerate(columns):
            column.frombytes(stored[number * rows * 8 : (number + 1) * rows * 8])
        index.end_position = end_position
        is_possible = (
            offsets[0] >= base_offset
            and positions[0] == 0
            and positions[-1] < end_position
            and timestamps[0] >= NO_TIMESTAMP
            and all(map(lt, offsets, offsets[1:]))
            and all(map(lt, positions, positions[1:]))
            and all(map(le, timestamps, timestamps[1:]))
        )
        return index if is_possible else None


class Replacement(NamedTuple):
    old: Sequence[Segment]
    end_offset: int


class Segment(ABC):
    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.index = BatchIndex()

    @property
    def size(self) -> int:
        return self.index.end_position

    def append(self, base_offset: int, max_timestamp: int, batch: memoryview) -> None:
        self._write(batch)
        self.index.add(base_offset, len(batch), max_timestamp)

    def header(self, row: int) -> BatchHeader:
        header = read_header(self.view(*self.index.span(row)), 0)
        if header is None:
            raise CorruptRecordException(
                f"batch {row} of a log segment is incomplete: the file was changed or truncated"
            )
        return header

    @abstractmethod
    def has_room(self, size: int) -> bool:
        """Return whether a batch of this size may be appended."""

    @abstractmethod
    def view(self, start: int, end: int) -> memoryview:
        """Return written bytes, read-only."""

    @abstractmethod
    def truncate(self, row: int) -> None:
        """Remove the batch in a row and all later ones, at once."""

    @abstractmethod
    def seal(self) -> None:
        """Accept no more batches."""

    @abstractmethod
    def checkpoint(self) -> None:
        """Make all bytes durable. Blocks on the disk, may run in another thread."""

    @abstractmethod
    def close(self) -> None:
        """Make all bytes durable and close files. Blocks on the disk."""

    @abstractmethod
    def delete(self) -> None:
        """Remove the segment."""

    @abstractmethod
    def replace(self, old: Sequence[Segment], end_offset: int) -> None:
        """Replace the segments before `end_offset`, the first of which has this base offset.

        Only holders of views still see the old ones. A crash leaves either them or this one.
        Completed by `settle`, which any change to this segment implies.
        """

    @abstractmethod
    def settle(self) -> None:
        """Finish replacing. Blocks on the disk, may run in another thread. Idempotent."""

    @abstractmethod
    def _write(self, batch: memoryview) -> None:
        """Append all bytes, or raise and leave the segment unchanged."""


class MemorySegment(Segment):
    def __init__(self, base_offset: int, capacity: int) -> None:
        super().__init__(base_offset)
        self._capacity = capacity
        self._memory = anonymous_memory(capacity)

    def has_room(self, size: int) -> bool:
        return self.size + size <= self._capacity

    def view(self, start: int, end: int) -> memoryview:
        return self._memory[start:end].toreadonly()

    def truncate(self, row: int) -> None:
        self.index.truncate(row)
        self._capacity = self.size  # views may still show later bytes: never overwrite them

    def seal(self) -> None:
        pass

    checkpoint = close = delete = settle = seal

    def replace(self, old: Sequence[Segment], end_offset: int) -> None:
        pass

    def _write(self, batch: memoryview) -> None:
        if self.size + len(batch) > self._capacity:
            raise KafkaStorageError(
                f"a batch of {len(batch)} bytes does not fit into the log segment, which has "
                f"{self._capacity - self.size} free bytes"
            )
        self._memory[self.size : self.size + len(batch)] = batch


class FileSegment(Segment):
    """A segment in a file, with its index in another file.

    The index file is written after a flush of the segment, and stores the segment's size at that
    time. It is therefore the recovery checkpoint: later bytes are checked batch by batch.
    """

    def __init__(
        self, folder: Path, base_offset: int, max_bytes: int, *, is_cleaned: bool = False
    ) -> None:
        super().__init__(base_offset)
        self._replacement: Replacement | None = None
        self._final_path = folder / f"{base_offset:020}{LOG_SUFFIX}"
        self.path = self._final_path
        flags = os.O_RDWR | os.O_CREAT
        if is_cleaned:
            self.path, flags = cleaned_path(self._final_path), flags | os.O_TRUNC
        self._max_bytes = max_bytes
        self._fd = os.open(self.path, flags, FILE_MODE)
        self._mapped: memoryview | None = None
        self._window = memoryview(b"")  # the mapped part of a file that still grows
        self._flushed_size = 0
        self._has_failed = False
        # Held while a checkpoint, which may run in another thread, uses the file descriptor.
        self._fd_lock = threading.Lock()

    def has_room(self, size: int) -> bool:
        return self._mapped is None and (self.size == 0 or self.size + size <= self._max_bytes)

    def view(self, start: int, end: int) -> memoryview:
        if self._mapped is not None:
            return self._mapped[start:end]
        if end - start < MAP_FROM_BYTES:
            return memoryview(self._pread(start, end))
        if end > len(self._window):
            self._window = memoryview(mmap.mmap(self._fd, self.size, access=mmap.ACCESS_READ))
        return self._window[start:end]

    def _pread(self, start: int, end: int) -> bytes:
        stored = os.pread(self._fd, end - start, start)
        if len(stored) != end - start:
            raise KafkaStorageError(
                f"{self.path} was truncated: the file has {start + len(stored)} bytes, "
                f"but {end} bytes are required"
            )
        return stored

    def _write(self, batch: memoryview) -> None:
        start = written = self.size
        try:
            while written < start + len(batch):
                written += os.pwrite(self._fd, batch[written - start :], written)
        except OSError as error:
            os.ftruncate(self._fd, start)
            # Log only the first failure: clients retry until their timeout.
            if not self._has_failed:
                log.error("cannot write to %s: %s", self.path, error)
            self._has_failed = True
            raise KafkaStorageError(f"cannot write to {self.path}: {error}") from error
        self._has_failed = False

    def truncate(self, row: int) -> None:
        with self._fd_lock:
            self._settle()
            # Remove the index file first: it must not cover rewritten bytes.
            self._index_path.unlink(missing_ok=True)
            self._flushed_size = 0
            self.index.truncate(row)
            if self._mapped is not None:
                self._continue_in_copy(self._mapped[: self.size])
            elif self._window:
                self._continue_in_copy(self.stored(0, self.size))
            else:
                os.ftruncate(self._fd, self.size)

    def _continue_in_copy(self, kept: memoryview) -> None:
        """Replace the file by a copy: access to a mapped file that shrinks kills the process."""
        replace_file(self.path, kept)
        self.close_file()
        self._fd = os.open(self.path, os.O_RDWR)
        self._mapped, self._window = None, memoryview(b"")

    def seal(self) -> None:
        if self._mapped is None and self.size:
            self._mapped = memoryview(mmap.mmap(self._fd, self.size, access=mmap.ACCESS_READ))

    def replace(self, old: Sequence[Segment], end_offset: int) -> None:
        self._replacement = Replacement(old, end_offset)

    def settle(self) -> None:
        with self._fd_lock:
            self._settle()

    def _settle(self) -> None:
        if self._replacement is None:
            return
        (old, end_offset), self._replacement = self._replacement, None
        for segment in old:
            segment.settle()
        os.fsync(self._fd)
        swap_path = swapping_path(self._final_path, end_offset)
        self.path.replace(swap_path)
        sync_folder(swap_path.parent)  # after a crash, recovery does the rest
        for segment in old:
            segment.delete()
        swap_path.replace(self._final_path)
        sync_folder(swap_path.parent)
        self.path = self._final_path
        self._checkpoint()
        if self._mapped is not None:
            self.close_file()

    def checkpoint(self) -> None:
        with self._fd_lock:
            self._settle()
            self._checkpoint()
            if self._mapped is not None:  # sealed: everything is read through the mapping
                self.close_file()

    def _checkpoint(self) -> None:
        if self._fd >= 0 and self.size != self._flushed_size:
            os.fsync(self._fd)
            header = _INDEX_HEADER.pack(_INDEX_MAGIC, self.size)
            replace_file(self._index_path, header + self.index.to_bytes())
            self._flushed_size = self.size

    def close(self) -> None:
        with self._fd_lock:
            self._settle()
            self._checkpoint()
            self.close_file()

    def delete(self) -> None:
        with self._fd_lock:
            self._settle()
            self.close_file()
            self._index_path.unlink(missing_ok=True)
            self.path.unlink(missing_ok=True)

    @property
    def _index_path(self) -> Path:
        return self.path.with_suffix(INDEX_SUFFIX)

    def close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    # Loading

    @property
    def file_size(self) -> int:
        return os.fstat(self._fd).st_size

    def load_index(self) -> int:
        """Read the index file and return the segment file's size. The caller checks later bytes."""
        file_size = self.file_size
        try:
            stored = self._index_path.read_bytes()
            magic, indexed_size = _INDEX_HEADER.unpack_from(stored)
        except (FileNotFoundError, struct.error):
            return file_size
        if magic == _INDEX_MAGIC and indexed_size <= file_size:
            index = BatchIndex.from_bytes(
                stored[_INDEX_HEADER.size :], self.base_offset, indexed_size
            )
            if index is not None:
                self.index = index
                self._flushed_size = indexed_size
        return file_size

    def stored(self, start: int, end: int) -> memoryview:
        return memoryview(self._pread(start, end))

    def truncate_to_index(self) -> None:
        if self.file_size != self.size:
            os.ftruncate(self._fd, self.size)
            os.fsync(self._fd)

    def require_intact(self) -> None:
        """Raise CorruptRecordException if unindexed bytes remain: truncation would leave a gap."""
        file_size = self.file_size
        if file_size != self.size:
            raise CorruptRecordException(
                f"{self.path} is damaged at byte {self.size} of {file_size}, and the log "
                f"has later segments: restore the file, or remove this file and all later segments"
            )


def newest_timestamp(header: BatchHeader) -> int:
    return header.max_timestamp if header.count else NO_TIMESTAMP


def cleaned_path(log_path: Path) -> Path:
    return log_path.with_name(f"{log_path.name}.{next(_cleaned_numbers)}{CLEANED_SUFFIX}")


def swapping_path(log_path: Path, end_offset: int) -> Path:
    return log_path.with_name(f"{log_path.stem}-{end_offset:020}{LOG_SUFFIX}{SWAP_SUFFIX}")


def finish_replacing(folder: Path) -> None:
    """Remove incomplete files of a crash, and finish interrupted replacements."""
    for path in folder.glob(f"*{CLEANED_SUFFIX}"):
        path.unlink()
    for swap_path in sorted(folder.glob(f"*{LOG_SUFFIX}{SWAP_SUFFIX}")):
        offsets = swap_path.name.removesuffix(LOG_SUFFIX + SWAP_SUFFIX).split("-")
        first, end = (int(offset) for offset in offsets)
        for path in [*folder.glob(f"*{LOG_SUFFIX}"), *folder.glob(f"*{INDEX_SUFFIX}")]:
            if first <= int(path.stem) < end:
                path.unlink()
        swap_path.replace(folder / f"{first:020}{LOG_SUFFIX}")
        sync_folder(folder)


# A new page of Python's default, shared memory, costs twice as much.
_PRIVATE: Final = (
    {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
)


def anonymous_memory(size: int) -> memoryview:
    return memoryview(mmap.mmap(-1, size, **_PRIVATE))
