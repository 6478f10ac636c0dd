"""Stores a partition's log in memory, or in a folder that survives the process.

A folder has the segments, their indexes, and `state.json` with the log start offset, leader epochs,
producers and transactions as of an end offset. Loading trusts flushed bytes and checks the rest
batch by batch. The first incomplete or damaged batch ends the log.

Loading warns of offsets that are missing between segments (except for compaction's gaps), at the
start, or up to the end offset of the saved state. Readers skip a gap, as in Kafka.
"""

from __future__ import annotations

import json
import logging
import threading
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple

from aiokafka_lite.broker.log.disk import load_json, replace_file
from aiokafka_lite.broker.log.producers import AbortedTransaction, ProducerStates, StoredProducer
from aiokafka_lite.broker.log.segment import (
    LOG_SUFFIX,
    FileSegment,
    MemorySegment,
    Segment,
    finish_replacing,
    newest_timestamp,
)
from aiokafka_lite.errors import KafkaError, KafkaStorageError
from aiokafka_lite.records import BatchHeader, iter_batches

log = logging.getLogger(__name__)

STATE_FILE: Final = "state.json"

# Segments in memory grow, so that ten thousand small partitions need little.
FIRST_MEMORY_SEGMENT_BYTES: Final = 1 << 16
# Factor by which batches may grow when they are rewritten without some of their records.
REWRITING_GROWTH: Final = 3


UNDEFINED_EPOCH: Final = -1
UNDEFINED_OFFSET: Final = -1


class OffsetAndEpoch(NamedTuple):
    epoch: int
    end_offset: int


UNDEFINED_END: Final = OffsetAndEpoch(UNDEFINED_EPOCH, UNDEFINED_OFFSET)


_EPOCH, _START = itemgetter(0), itemgetter(1)


class LeaderEpochs:
    """Leader epochs of a log (KIP-101, KIP-320). Kafka: LeaderEpochFileCache."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._entries: list[tuple[int, int]] = []
        for epoch, start_offset in entries:
            self.begin(epoch, start_offset)

    @property
    def entries(self) -> list[tuple[int, int]]:
        """(epoch, start offset) pairs, oldest first."""
        return self._entries.copy()

    @property
    def latest(self) -> int:
        """The newest epoch, -1 before any."""
        return self._entries[-1][0] if self._entries else UNDEFINED_EPOCH

    def begin(self, epoch: int, start_offset: int) -> None:
        """Start an epoch at an offset. No effect if the epoch is not newer."""
        if epoch <= self.latest:
            return
        while self._entries and self._entries[-1][1] >= start_offset:  # wrote nothing
            self._entries.pop()
        self._entries.append((epoch, start_offset))

    def epoch_of(self, offset: int) -> int:
        row = self._row_of(offset)
        return self._entries[row][0] if row >= 0 else UNDEFINED_EPOCH

    def end_of(self, epoch: int, log_end_offset: int) -> OffsetAndEpoch:
        """Return the largest epoch up to `epoch`, and its end offset."""
        if epoch == UNDEFINED_EPOCH:
            return UNDEFINED_END
        if epoch == self.latest:
            return OffsetAndEpoch(epoch, log_end_offset)
        above = bisect_right(self._entries, epoch, key=_EPOCH)
        if above == len(self._entries):
            return UNDEFINED_END
        floor = self._entries[above - 1][0] if above else epoch
        return OffsetAndEpoch(floor, self._entries[above][1])

    def trim_before(self, log_start_offset: int) -> None:
        """Remove epochs that ended before the log starts. The oldest one starts with the log."""
        first = self._row_of(log_start_offset)
        if first >= 0:
            self._entries[: first + 1] = [(self._entries[first][0], log_start_offset)]

    def truncate(self, end_offset: int) -> None:
        del self._entries[bisect_left(self._entries, end_offset, key=_START) :]

    def _row_of(self, offset: int) -> int:
        return bisect_right(self._entries, offset, key=_START) - 1


@dataclass(frozen=True)
class LogState:
    """The stored state of a log, as of `log_end_offset`."""

    log_start_offset: int = 0
    log_end_offset: int = 0
    epochs: Sequence[tuple[int, int]] = ()
    producers: Sequence[StoredProducer] = ()
    aborted: Sequence[AbortedTransaction] = ()
    clean_end: int = 0  # compaction has read everything before this offset
    gaps_end: int = 0  # offsets before this one may be missing
    # Counts the states of an open log. Not stored.
    serial: int = 0

    def to_json(self) -> bytes:
        stored = {name: value for name, value in vars(self).items() if name != "serial"}
        return json.dumps(stored).encode()

    @classmethod
    def from_json(cls, stored: bytes) -> LogState:
        return cls(**load_json(stored, cls))


@dataclass
class LoadedLog:
    """The log that a store found. `was_clean`: no batch was checked or removed."""

    segments: Sequence[Segment] = ()
    log_start_offset: int = 0
    log_end_offset: int = 0
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)
    producers: ProducerStates = field(default_factory=ProducerStates)
    clean_end: int = 0
    gaps_end: int = 0
    was_clean: bool = True


class LogStore(ABC):
    """`segment_bytes` limits future segments."""

    def __init__(self, segment_bytes: int) -> None:
        self.segment_bytes = segment_bytes

    @abstractmethod
    def load(self) -> LoadedLog:
        """Return the stored log. Blocks on the disk."""

    @abstractmethod
    def new_segment(self, base_offset: int, size: int, segments_before: int) -> Segment:
        """Return an empty segment with room for a batch of at least that size."""

    @abstractmethod
    def new_cleaned(self, base_offset: int, max_bytes: int) -> Segment:
        """Return an empty segment to replace others of that total size. `delete` it if unused."""

    @abstractmethod
    def save(self, state: LogState) -> None:
        """Store the state, unless a later one is stored. Blocks on the disk."""


class MemoryStore(LogStore):
    def load(self) -> LoadedLog:
        return LoadedLog()

    def new_segment(self, base_offset: int, size: int, segments_before: int) -> Segment:
        growing = FIRST_MEMORY_SEGMENT_BYTES << segments_before
        return MemorySegment(base_offset, max(size, min(growing, self.segment_bytes)))

    def new_cleaned(self, base_offset: int, max_bytes: int) -> Segment:
        # Another compressor may need more bytes. Unused memory is free.
        return MemorySegment(base_offset, REWRITING_GROWTH * max_bytes + FIRST_MEMORY_SEGMENT_BYTES)

    def save(self, state: LogState) -> None:
        pass


class FolderStore(LogStore):
    """Keeps a log in its own folder, which may not exist yet. `partition` is its name."""

    def __init__(self, folder: Path, segment_bytes: int, partition: str | None = None) -> None:
        super().__init__(segment_bytes)
        self._folder = folder
        self._partition = partition or str(folder)
        # The disk's thread saves most states, the loop some newer ones.
        self._save_lock = threading.Lock()
        self._saved_serial = -1

    def new_segment(self, base_offset: int, size: int, segments_before: int) -> Segment:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            return FileSegment(self._folder, base_offset, self.segment_bytes)
        except OSError as error:
            raise KafkaStorageError(
                f"cannot create a log segment in {self._folder}: {error}"
            ) from error

    def new_cleaned(self, base_offset: int, max_bytes: int) -> Segment:
        try:
            return FileSegment(self._folder, base_offset, max_bytes, is_cleaned=True)
        except OSError as error:
            raise KafkaStorageError(
                f"cannot create a compacted segment in {self._folder}: {error}"
            ) from error

    def save(self, state: LogState) -> None:
        with self._save_lock:
            # A late save must not recreate a deleted log.
            if state.serial > self._saved_serial and self._folder.exists():
                replace_file(self._folder / STATE_FILE, state.to_json())
                self._saved_serial = state.serial

    def load(self) -> LoadedLog:
        state = self._load_state()
        finish_replacing(self._folder)
        loaded = _RecoveredLog(state, self._partition, self._folder)
        segments: list[FileSegment] = []
        try:
            segments.extend(
                FileSegment(self._folder, int(path.stem), self.segment_bytes)
                for path in sorted(self._folder.glob(f"*{LOG_SUFFIX}"))
            )
            self._recover(loaded, segments)
        except BaseException:
            for segment in segments:
                segment.close_file()
            raise
        return loaded

    def _recover(self, loaded: _RecoveredLog, segments: Sequence[FileSegment]) -> None:
        loaded.segments = segments
        for segment in segments:
            loaded.add(segment)
            if segment is segments[-1]:
                loaded.check_tail(segment)
            else:
                segment.require_intact()
                segment.seal()
                segment.checkpoint()
        loaded.finish()

    def _load_state(self) -> LogState:
        path = self._folder / STATE_FILE
        try:
            return LogState.from_json(path.read_bytes())
        except FileNotFoundError:
            return LogState()
        except (ValueError, TypeError) as error:
            raise KafkaStorageError(
                f"cannot load the state of a log from {path}, "
                f"because its content is invalid: {error}"
            ) from error


class _RecoveredLog(LoadedLog):
    """Reads a log's segments, oldest first, and finds its end."""

    def __init__(self, state: LogState, partition: str, folder: Path) -> None:
        super().__init__(
            log_start_offset=state.log_start_offset,
            epochs=LeaderEpochs(state.epochs),
            clean_end=state.clean_end,
            gaps_end=state.gaps_end,
        )
        self.producers.restore(state.producers, state.aborted)
        self._state = state
        self._partition = partition
        self._folder = folder
        self._latest: FileSegment | None = None

    def add(self, segment: FileSegment) -> None:
        """Index a segment up to the last whole batch of its file."""
        file_size = segment.load_index()
        flushed_size = segment.size
        self._check_start(segment)
        self.log_end_offset = max(self.log_end_offset, segment.base_offset)
        if flushed_size:
            start, _ = segment.index.span(segment.index.row_of(self._state.log_end_offset))
            stored = segment.stored(start, flushed_size)
            for header, batch in iter_batches(stored, check_crcs=False):
                self._note(header, batch)
        for header, batch in _whole_batches(segment, flushed_size, file_size):
            if header.base_offset < self.log_end_offset:
                break
            segment.index.add(header.base_offset, len(batch), newest_timestamp(header))
            self._note(header, batch)
        if flushed_size != file_size:
            self.was_clean = False
        self._latest = segment

    def _check_start(self, segment: FileSegment) -> None:
        first = segment.base_offset
        if self._latest is None:
            if first > max(self.log_start_offset, self.gaps_end):
                self._warn(self.log_start_offset, first, f"before {segment.path}")
                self.log_start_offset = first
        elif first > max(self.log_end_offset, self.gaps_end):
            between = f"between {self._latest.path} and {segment.path}"
            self._warn(self.log_end_offset, first, between)
            self.gaps_end = first  # readers skip it

    def check_tail(self, segment: FileSegment) -> None:
        if segment.size != segment.file_size:
            log.warning(
                "the log of %s is truncated to offset %d, "
                "because %s is incomplete or damaged after byte %d of %d",
                self._partition, self.log_end_offset, segment.path, segment.size, segment.file_size,
            )  # fmt: skip

    def _warn(self, first: int, end: int, where: str) -> None:
        self.was_clean = False
        log.warning(
            "the log of %s is missing offsets %d to %d %s. Restore the files from a backup, "
            "otherwise these records are lost",
            self._partition, first, end - 1, where,
        )  # fmt: skip

    def _note(self, header: BatchHeader, batch: memoryview) -> None:
        self.log_end_offset = header.last_offset + 1
        if header.base_offset >= self._state.log_end_offset:  # newer than the state
            self.epochs.begin(header.leader_epoch, header.base_offset)
            if header.producer_id >= 0:
                self.producers.note(header, header.base_offset, batch)

    def finish(self) -> None:
        if self._latest is not None:
            self._latest.truncate_to_index()
        end_offset = max(self.log_end_offset, self.log_start_offset)
        if end_offset < self._state.log_end_offset:
            place = f"in {self._folder}" if self._latest is None else f"after {self._latest.path}"
            saved = f"the log ended at offset {self._state.log_end_offset} when its state was saved"
            self._warn(end_offset, self._state.log_end_offset, f"{place} ({saved})")
        self.log_end_offset = end_offset
        self.epochs.truncate(end_offset + 1)
        self.was_clean = self.was_clean and end_offset == self._state.log_end_offset


def _whole_batches(
    segment: FileSegment, start: int, end: int
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield batches up to the first that is incomplete or damaged."""
    try:
        yield from iter_batches(segment.stored(start, end), check_crcs=True)
    except KafkaError as error:
        log.warning(
            "a batch in %s is damaged, so this batch and the rest of the file are not loaded: %s",
            segment.path,
            error,
        )
