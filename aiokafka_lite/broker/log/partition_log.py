"""One partition's log: batches by offset, as the producers built them.

Only base offset and leader epoch are overwritten, which are outside the checksum. All methods run
on the broker's loop, without locks, and wait for no disk.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from aiokafka_lite._compat import Buffer, Never
from aiokafka_lite.broker.log.producers import ProducerStates
from aiokafka_lite.broker.log.segment import NO_TIMESTAMP, Segment
from aiokafka_lite.broker.log.storage import LeaderEpochs, LogState, LogStore, OffsetAndEpoch
from aiokafka_lite.errors import (
    CorruptRecordException,
    InvalidRecordError,
    InvalidTimestampError,
    MessageSizeTooLargeError,
    OffsetOutOfRangeError,
    UnsupportedCompressionTypeError,
    UnsupportedMagicError,
)
from aiokafka_lite.records import (
    BatchHeader,
    Codec,
    each_record,
    iter_batches,
    patch_batch,
    read_header,
)
from aiokafka_lite.records.batch import check_crc

NEVER_MS: Final = 2**63 - 1


LOG_APPEND_TIME: Final = "LogAppendTime"


@dataclass(frozen=True)
class TopicConfig:
    """A topic's settings that have an effect on its logs, by Kafka's names (Kafka: LogConfig)."""

    overrides: Mapping[str, str]  # the topic's own settings, as text
    cleanup_policy: list[str]
    max_message_bytes: int
    segment_bytes: int
    min_insync_replicas: int
    message_timestamp_type: str
    message_timestamp_after_max_ms: int
    retention_ms: int  # -1 for no limit
    retention_bytes: int  # -1 for no limit
    segment_ms: int  # with compaction, at most max.compaction.lag.ms
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    delete_retention_ms: int
    errors_deadletterqueue_group_enable: bool  # share groups may write dead letters (KIP-1191)

    @property
    def is_log_append_time(self) -> bool:
        return self.message_timestamp_type == LOG_APPEND_TIME

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def is_deleted_by_retention(self) -> bool:
        return "delete" in self.cleanup_policy


class AppendResult(NamedTuple):
    """The result of appending one batch."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int  # the broker's time, -1 if the producer's timestamps are kept
    is_duplicate: bool  # the log has the batch already, at these offsets


class TimedOffset(NamedTuple):
    offset: int
    timestamp: int


class PartitionLog:
    """`run_slowly` runs blocking disk work in order, off the loop."""

    def __init__(
        self, store: LogStore, *, run_slowly: Callable[[Callable[[], None]], None]
    ) -> None:
        self._store = store
        self._run_slowly = run_slowly
        loaded = store.load()
        self.segments: list[Segment] = list(loaded.segments)
        self._base_offsets = [segment.base_offset for segment in self.segments]
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.epochs: LeaderEpochs = loaded.epochs
        self.producers: ProducerStates = loaded.producers
        self.was_clean = loaded.was_clean
        self._is_saved = loaded.was_clean
        self._states = itertools.count()
        self.clean_end = loaded.clean_end
        # Compaction may have left gaps between batches before this offset.
        self._gaps_end = loaded.gaps_end
        self.is_uncleanable = False  # compaction failed, which alone sets it
        self._segment_ms = NEVER_MS
        # The timestamp that starts a new segment.
        self._roll_at_ms = NEVER_MS
        # The newest timestamp up to each segment but the last, computed on demand.
        self._newest_timestamps: list[int] | None = None

    def configure(self, config: TopicConfig) -> None:
        self._store.segment_bytes, self._segment_ms = config.segment_bytes, config.segment_ms
        self._set_roll_time()

    def _set_roll_time(self) -> None:
        first = self.segments[-1].index.first_timestamp if self.segments else NO_TIMESTAMP
        self._roll_at_ms = NEVER_MS if first < 0 else first + self._segment_ms + 1

    # Offsets

    @property
    def high_watermark(self) -> int:
        """The log end offset, because there is one replica."""
        return self.log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """The offset before which no transaction is open."""
        unstable = self.producers.first_unstable_offset
        return self.log_end_offset if unstable is None else max(unstable, self.log_start_offset)

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    # Writing

    def append(
        self,
        header: BatchHeader,
        batch: Buffer,
        *,
        leader_epoch: int,
        append_time_ms: int | None = None,
    ) -> AppendResult:
        """Append one batch with a validated header. Writable memory is patched in place.

        Raises as `ProducerStates.check`, and KafkaStorageError, after which no byte was appended.
        """
        has_producer = header.producer_id >= 0
        if has_producer and not header.is_control:
            known = self.producers.duplicate_of(header)
            if known is not None:
                return AppendResult(known.base_offset, known.last_offset, NO_TIMESTAMP, True)
            self.producers.check(header)
        base_offset = self.log_end_offset
        writable = _writable(batch)
        patch_batch(
            writable,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            append_time_ms=append_time_ms,
        )
        newest = header.max_timestamp if append_time_ms is None else append_time_ms
        self._segment_for(len(writable), newest).append(base_offset, newest, writable)
        self.log_end_offset = base_offset + header.last_offset_delta + 1
        self._is_saved = False
        self.epochs.begin(leader_epoch, base_offset)
        if has_producer:
            self.producers.note(header, base_offset, writable)
        stamp = NO_TIMESTAMP if append_time_ms is None else append_time_ms
        return AppendResult(base_offset, self.log_end_offset - 1, stamp, False)

    def _segment_for(self, size: int, newest: int) -> Segment:
        if self.segments:
            last = self.segments[-1]
            if newest < self._roll_at_ms and last.has_room(size):
                return last
            self._seal(last)
        segment = self._store.new_segment(self.log_end_offset, size, len(self.segments))
        self._roll_at_ms = NEVER_MS if newest < 0 else newest + self._segment_ms + 1
        self.segments.append(segment)
        self._base_offsets.append(segment.base_offset)
        return segment

    def _seal(self, last: Segment) -> None:
        last.seal()
        self._newest_timestamps = None
        self._run_slowly(last.checkpoint)
        self._save_slowly()

    def begin_epoch(self, leader_epoch: int) -> None:
        self.epochs.begin(leader_epoch, self.log_end_offset)

    def delete_before(self, offset: int) -> int:
        """Make an offset the log start offset (DeleteRecords). Return the log start offset."""
        if offset > self.high_watermark:
            raise OffsetOutOfRangeError(
                f"cannot delete records before offset {offset}: "
                f"this offset is above the high watermark ({self.high_watermark})"
            )
        if offset > self.log_start_offset:
            # As in Kafka, the last segment stays.
            keep = max(bisect_right(self._base_offsets, offset) - 1, 0)
            self._start_at(offset, keep)
        return self.log_start_offset

    def expire_segments(self, count: int) -> None:
        """Delete the oldest segments (retention). A log without segments starts at its end."""
        is_all = count >= len(self.segments)
        self._start_at(
            self.log_end_offset
            if is_all
            else max(self._base_offsets[count], self.log_start_offset),
            count,
        )

    def _start_at(self, offset: int, count: int) -> None:
        gone = self.segments[:count]
        del self.segments[:count], self._base_offsets[:count]
        self.log_start_offset = offset
        self._newest_timestamps = None
        self.epochs.trim_before(offset)
        self.producers.transactions.trim_before(offset)
        # Save first: without the state, a log without segments would start at 0 again.
        self._save_slowly()
        for segment in gone:
            self._run_slowly(segment.delete)

    def truncate_to(self, offset: int) -> int:
        """Remove the batch that has an offset and all later ones. Return the new log end offset.

        That is at most `offset`, but not below the log start offset. Leader epochs and producer
        state are restored. The log is shorter on disk when this returns.
        """
        if offset >= self.log_end_offset:
            return self.log_end_offset
        number, row = self._locate(max(offset, self.log_start_offset))
        truncated = self.segments[number] if row else None
        keep = number + (truncated is not None)
        while keep and not len(self.segments[keep - 1].index):
            keep -= 1
        gone = self.segments[keep:]
        del self.segments[keep:], self._base_offsets[keep:]
        self.log_end_offset = self.log_start_offset
        if self.segments:
            last_row = row - 1 if truncated else len(self.segments[-1].index) - 1
            last = self.segments[-1].header(last_row)
            self.log_end_offset = max(last.last_offset + 1, self.log_start_offset)
        self.clean_end = min(self.clean_end, self.log_end_offset)
        self.epochs.truncate(self.log_end_offset)
        self._forget_producers_behind(truncated, row)
        # Recovery adds newer batches to a state, but a state must not have deleted batches. Files
        # are deleted newest first, so that a crash leaves no gap.
        self._store.save(self.state())
        for segment in reversed(gone):
            segment.delete()
        if truncated is not None:
            truncated.truncate(row)
        self._newest_timestamps = None
        self._set_roll_time()
        return self.log_end_offset

    def _forget_producers_behind(self, truncated: Segment | None, row: int) -> None:
        affected = self.producers.truncate(self.log_end_offset)
        if not affected:
            return
        for segment in self.segments:
            end = segment.index.span(row)[0] if segment is truncated else segment.size
            for header, batch in iter_batches(segment.view(0, end), check_crcs=False):
                if header.producer_id in affected:
                    self.producers.note(header, header.base_offset, batch)

    # Compaction

    def new_cleaned(self, base_offset: int, max_bytes: int) -> Segment:
        return self._store.new_cleaned(base_offset, max_bytes)

    def replace_segments(
        self, old: Sequence[Segment], cleaned: Segment | None, removed_markers: Container[int]
    ) -> bool:
        """Replace segments, not the last, by at most one. Return False if the log has changed."""
        first = self._segment_row(old[0].base_offset)
        behind = first + len(old)
        if self.segments[first:behind] != [*old] or behind >= len(self.segments):
            return False
        end_offset = self._base_offsets[behind]
        self.segments[first:behind] = [] if cleaned is None else [cleaned]
        self._base_offsets = [segment.base_offset for segment in self.segments]
        self._newest_timestamps = None
        self._gaps_end = max(self._gaps_end, end_offset)
        self.producers.transactions.forget_markers(removed_markers)
        # Save first: a state without these gaps and marker removals would mislead readers.
        self._save_slowly()
        if cleaned is None:
            for segment in old:
                self._run_slowly(segment.delete)
        else:
            cleaned.seal()
            cleaned.replace(old, end_offset)
            self._run_slowly(cleaned.settle)
        return True

    def cleaned_to(self, offset: int) -> None:
        self.clean_end = min(offset, self.log_end_offset)
        self._save_slowly()

    def _save_slowly(self) -> None:
        state = self.state()
        self._run_slowly(lambda: self._store.save(state))

    # Reading

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        at_least_one: bool = True,
        end_offset: int | None = None,
    ) -> memoryview:
        """Return whole batches from the one that has `offset` on, without a copy.

        They are read-only bytes of one segment, which may be fewer than available, and none at the
        end of the log, or at `end_offset`. With `at_least_one`, the first batch may exceed
        `max_bytes` (KIP-74).
        """
        log_end = self.log_end_offset if end_offset is None else end_offset
        self._require_in_range(offset, log_end)
        if offset == log_end:
            return memoryview(b"")
        number, row = self._locate(offset)
        if number == len(self.segments):
            return memoryview(b"")
        segment = self.segments[number]
        start, end_of_first = segment.index.span(row)
        end = segment.index.end_within(row, max_bytes)
        if end <= start:
            if not at_least_one:
                return memoryview(b"")
            end = end_of_first
        return segment.view(start, min(end, segment.index.end_before(log_end)))

    def bytes_from(self, offset: int, limit: int, end_offset: int | None = None) -> int:
        log_end = self.log_end_offset if end_offset is None else end_offset
        self._require_in_range(offset, log_end)
        if offset == log_end:
            return 0
        number, row = self._locate(offset)
        if number == len(self.segments):
            return 0
        segment = self.segments[number]
        available = segment.index.end_before(log_end) - segment.index.span(row)[0]
        for later in self.segments[number + 1 :]:
            available += later.index.end_before(log_end)
        return min(available, limit)

    def _require_in_range(self, offset: int, end_offset: int) -> None:
        if not self.log_start_offset <= offset <= end_offset:
            raise OffsetOutOfRangeError(
                f"offset {offset} is out of range: "
                f"reads can start at offsets {self.log_start_offset} to {end_offset}"
            )

    def _locate(self, offset: int) -> tuple[int, int]:
        """Return segment and row of the batch that has an offset, or of the next one, if any."""
        for number in range(self._segment_row(offset), len(self.segments)):
            segment = self.segments[number]
            row, count = segment.index.row_of(offset), len(segment.index)
            if offset < self._gaps_end and row < count:
                row += segment.header(row).last_offset < offset
            if row < count:
                return number, row
        return len(self.segments), 0

    def _segment_row(self, offset: int) -> int:
        return max(bisect_right(self._base_offsets, offset) - 1, 0)

    # Times and epochs

    def offset_at_time(self, timestamp: int) -> TimedOffset | None:
        """Return the first record that is not older than a timestamp, if any."""
        for segment in self.segments[self._first_segment_reaching(timestamp) :]:
            index = segment.index
            first = max(index.first_row_reaching(timestamp), index.row_of(self.log_start_offset))
            for row in range(first, len(index)):
                found = self._first_record(segment, row, timestamp)
                if found is not None:
                    return found  # in the first row, unless its newest records were deleted
        return None

    def _first_segment_reaching(self, timestamp: int) -> int:
        if self._newest_timestamps is None:
            newest = (segment.index.newest_timestamp for segment in self.segments[:-1])
            self._newest_timestamps = list(itertools.accumulate(newest, max))
        return bisect_left(self._newest_timestamps, timestamp)

    def offset_of_newest(self) -> TimedOffset | None:
        """Return the first record with the log's newest timestamp (KIP-734)."""
        newest = max((s.index.newest_timestamp for s in self.segments), default=NO_TIMESTAMP)
        return None if newest == NO_TIMESTAMP else self.offset_at_time(newest)

    def _first_record(self, segment: Segment, row: int, timestamp: int) -> TimedOffset | None:
        if segment.header(row).max_timestamp < timestamp:
            return None
        for record in each_record(segment.view(*segment.index.span(row))):
            if record.timestamp >= timestamp and record.offset >= self.log_start_offset:
                return TimedOffset(record.offset, record.timestamp)
        return None

    def end_of_epoch(self, epoch: int) -> OffsetAndEpoch:
        return self.epochs.end_of(epoch, self.log_end_offset)

    # The end

    def state(self) -> LogState:
        return LogState(
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
            epochs=self.epochs.entries,
            producers=self.producers.snapshot(),
            aborted=self.producers.transactions.snapshot(),
            clean_end=self.clean_end,
            gaps_end=self._gaps_end,
            serial=next(self._states),
        )

    def close(self) -> None:
        """Make all batches durable and close files. Blocks on the disk. Idempotent."""
        for segment in self.segments:
            segment.close()
        if not self._is_saved:
            self._store.save(self.state())
            self._is_saved = True

    def delete(self) -> None:
        for segment in self.segments:
            self._run_slowly(segment.delete)
        self.segments, self._base_offsets = [], []
        self._newest_timestamps = None
        self.log_start_offset = self.log_end_offset
        self._is_saved = True


def _writable(batch: Buffer) -> memoryview:
    view = memoryview(batch)
    return memoryview(bytearray(view)) if view.readonly else view


def count_expired(segments: Sequence[Segment], config: TopicConfig, now_ms: int) -> int:
    """Return how many of the oldest segments retention deletes, possibly all.

    Segments without timestamps do not expire by age. Kafka: UnifiedLog.deleteOldSegments.
    """
    return max(
        _count_too_much(segments, config.retention_bytes),
        _count_too_old(segments, config.retention_ms, now_ms),
    )


def _count_too_much(segments: Sequence[Segment], retention_bytes: int) -> int:
    if retention_bytes < 0:
        return 0
    too_much = sum(segment.size for segment in segments) - retention_bytes
    count = 0
    while count < len(segments) and too_much >= segments[count].size:
        too_much -= segments[count].size
        count += 1
    return count


def _count_too_old(segments: Sequence[Segment], retention_ms: int, now_ms: int) -> int:
    if retention_ms < 0:
        return 0
    for count, segment in enumerate(segments):
        newest = segment.index.newest_timestamp
        if newest < 0 or now_ms - newest <= retention_ms:
            return count
    return len(segments)


MAGIC: Final = 2
FIRST_PRODUCE_WITH_ZSTD: Final = 7


def validated_batch(
    records: Buffer | None, api_version: int, config: TopicConfig, now_ms: int
) -> tuple[BatchHeader, memoryview]:
    """Return the single batch of a partition in a Produce request, or raise Kafka's error."""
    header, batch = _only_batch(records)
    _check_header(header)
    if header.codec is Codec.ZSTD and api_version < FIRST_PRODUCE_WITH_ZSTD:
        raise UnsupportedCompressionTypeError(
            f"zstd needs Produce version {FIRST_PRODUCE_WITH_ZSTD} or newer, "
            f"but the request has version {api_version}"
        )
    if header.size > config.max_message_bytes:
        raise MessageSizeTooLargeError(
            f"the batch has {header.size} bytes, "
            f"but max.message.bytes is {config.max_message_bytes}"
        )
    ahead_ms = config.message_timestamp_after_max_ms
    if not config.is_log_append_time and header.max_timestamp > now_ms + ahead_ms:
        raise InvalidTimestampError(
            f"timestamp {header.max_timestamp} is more than {ahead_ms} ms "
            f"ahead of the broker's clock (message.timestamp.after.max.ms)"
        )
    if config.is_compacted and any(record.key is None for record in each_record(batch)):
        raise InvalidRecordError("a record has no key, but the topic has cleanup.policy=compact")
    return header, batch


def _only_batch(records: Buffer | None) -> tuple[BatchHeader, memoryview]:
    view = memoryview(b"" if records is None else records)
    header = _read_header(view, 0)
    if header is None:
        if len(view):
            raise CorruptRecordException("the batch is incomplete")
        raise InvalidRecordError(
            "a Produce request must have exactly one batch per partition, not 0"
        )
    if header.size != len(view):
        _refuse_rest(view, header.size)
    check_crc(header, view)
    return header, view


def _read_header(view: memoryview, pos: int) -> BatchHeader | None:
    try:
        header = read_header(view, pos)
    except UnsupportedMagicError as error:
        raise InvalidRecordError(
            f"only batches with magic byte {MAGIC} are accepted: {error}"
        ) from error
    if header is not None and header.magic != MAGIC:
        raise InvalidRecordError(
            f"only batches with magic byte {MAGIC} are accepted, not {header.magic}"
        )
    return header


def _refuse_rest(view: memoryview, pos: int) -> Never:
    """Raise the error for bytes after the first batch."""
    count = 1
    while (header := _read_header(view, pos)) is not None:
        count, pos = count + 1, pos + header.size
    if count > 1:
        raise InvalidRecordError(
            f"a Produce request must have exactly one batch per partition, not {count}"
        )
    raise CorruptRecordException(
        f"the batch is followed by {len(view) - pos} bytes that are not a complete batch"
    )


def _check_header(header: BatchHeader) -> None:
    if header.is_control:
        raise InvalidRecordError(
            "only brokers can write control batches, such as transaction markers"
        )
    if header.count < 1:
        raise InvalidRecordError(f"a batch must have at least 1 record, not {header.count}")
    if header.last_offset_delta != header.count - 1:
        raise InvalidRecordError(
            f"a batch with {header.count} records must have last_offset_delta {header.count - 1}, "
            f"not {header.last_offset_delta}"
        )
    if header.base_offset != 0:
        raise InvalidRecordError(f"a new batch must have base offset 0, not {header.base_offset}")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise InvalidRecordError(
            f"a batch with producer id {header.producer_id} needs a sequence number of at least "
            f"0, not {header.base_sequence}"
        )
