"""Periodic jobs: retention, compaction, expiry of offsets and transactional ids.

One task runs one job at a time, in slices of the loop's time, with requests in between.

Compaction keeps only the newest record of each key. Kafka:
org.apache.kafka.storage.internals.log.Cleaner, LogCleanerManager. A pass collects the newest
offset of each key after the last pass, then rewrites all segments up to there. The last segment,
open transactions and records younger than min.compaction.lag.ms are excluded.

- Offsets do not change. Empty batches are removed, except each producer's last one, which stores
  its sequence number, and the last of the pass.
- A tombstone is removed delete.retention.ms after the pass that first read it. The batch stores
  that time (KIP-534).
- Records of aborted transactions are removed at once. A marker remains as long as records of its
  transaction, then as long as a tombstone."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from aiokafka_lite.broker.log.partition_log import PartitionLog, TopicConfig, count_expired
from aiokafka_lite.broker.log.producers import AbortedTransaction
from aiokafka_lite.broker.log.segment import NO_TIMESTAMP, Segment, newest_timestamp
from aiokafka_lite.broker.slices import run_in_slices
from aiokafka_lite.broker.topics import Topic
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.protocol.source import Steps
from aiokafka_lite.records import BatchHeader, ControlType, each_record, iter_batches, read_header
from aiokafka_lite.records.filtering import filter_batch
from aiokafka_lite.records.transactions import end_marker

logger = logging.getLogger(__name__)

# Kafka's delay of these jobs after the start (log.initial.task.delay.ms).
FIRST_DELAY_S: Final = 30.0


@dataclass(frozen=True)
class Chore:
    """A periodic job. `interval_s` is from its end to its next start."""

    interval_s: float
    steps: Callable[[], Steps[None]]


class Maintenance:
    def __init__(self, jobs: Iterable[Chore]) -> None:
        self._jobs = tuple(jobs)
        self._running = asyncio.Lock()

    async def run(self) -> None:
        """Run each job at its interval until cancelled, possibly in the middle of a job."""
        loop = asyncio.get_running_loop()
        due = {job: loop.time() + min(job.interval_s, FIRST_DELAY_S) for job in self._jobs}
        while due:
            job = min(due, key=lambda job: due[job])
            await asyncio.sleep(due[job] - loop.time())
            async with self._running:
                await run_in_slices(job.steps())
            due[job] = loop.time() + job.interval_s

    async def run_once(self) -> None:
        async with self._running:
            for job in self._jobs:
                await run_in_slices(job.steps())


def delete_expired(topics: Iterable[Topic], now_ms: int) -> Steps[None]:
    """Delete expired segments, one partition per step."""
    for topic in tuple(topics):
        if not topic.config.is_deleted_by_retention:
            continue
        for partition in topic.partitions:
            segments = partition.log.segments
            count = count_expired(segments, topic.config, now_ms)
            # Segments that followers do not have yet are not deleted.
            while count < len(segments) and segments[count].base_offset > partition.high_watermark:
                count -= 1
            if count:
                partition.expire_segments(count)
            yield


def compact_all(topics: Iterable[Topic], now_ms: int) -> Steps[None]:
    """Compact the dirty logs of compacted topics. A failed log is not compacted again."""
    for topic in tuple(topics):
        for partition in topic.partitions if topic.config.is_compacted else ():
            if partition.log.is_uncleanable:
                continue
            try:
                yield from compact(partition.log, topic.config, now_ms)
            except (KafkaError, OSError) as error:
                partition.log.is_uncleanable = True
                logger.error(
                    "compaction of %s-%d failed, and is disabled until the broker restarts: %s",
                    topic.name, partition.index, error,
                )  # fmt: skip
            yield


# Per pass. A log with more keys needs several passes.
MAX_KEYS: Final = 1 << 20


class Cleanable(NamedTuple):
    """The work of a pass."""

    segments: Sequence[Segment]
    dirty_start: int  # records before it were compacted by earlier passes
    end: int
    dirty_ratio: float  # share of bytes that no pass has read
    is_overdue: bool  # a record is older than max.compaction.lag.ms


def cleanable(log: PartitionLog, config: TopicConfig, now_ms: int) -> Cleanable | None:
    segments = log.segments
    bound = min(log.last_stable_offset, log.high_watermark)
    dirty_start = max(log.clean_end, log.log_start_offset)
    count = dirty_bytes = clean_bytes = 0
    is_overdue = False
    for segment, later in itertools.pairwise(segments):
        if later.base_offset > bound:
            break
        if later.base_offset > dirty_start:
            if _is_too_young(segment, config, now_ms):
                break
            dirty_bytes += segment.size
            is_overdue = is_overdue or _is_overdue(segment, config, now_ms)
        else:
            clean_bytes += segment.size
        count += 1
    if not dirty_bytes:
        return None
    return Cleanable(
        segments=segments[:count],
        dirty_start=dirty_start,
        end=segments[count].base_offset,
        dirty_ratio=dirty_bytes / (dirty_bytes + clean_bytes),
        is_overdue=is_overdue,
    )


def _is_too_young(segment: Segment, config: TopicConfig, now_ms: int) -> bool:
    lag_ms = config.min_compaction_lag_ms
    return lag_ms > 0 and now_ms - segment.index.newest_timestamp < lag_ms


def _is_overdue(segment: Segment, config: TopicConfig, now_ms: int) -> bool:
    first = segment.index.first_timestamp
    return first > 0 and now_ms - first > config.max_compaction_lag_ms


def compact(log: PartitionLog, config: TopicConfig, now_ms: int) -> Steps[None]:
    """Compact a log if it is dirty enough. One batch per step."""
    plan = cleanable(log, config, now_ms)
    if plan is None or not (plan.is_overdue or plan.dirty_ratio > config.min_cleanable_dirty_ratio):
        return
    keys = _NewestOffsets(plan.dirty_start)
    yield from keys.read(plan.segments, plan.end, log.producers.transactions.snapshot())
    cleaning = _Cleaning(log, keys, plan.end, now_ms, config.delete_retention_ms)
    seen = [segment for segment in plan.segments if segment.base_offset < keys.end]
    for group in _groups(seen, config.segment_bytes):
        if not (yield from cleaning.clean(group)):
            return  # the log has changed: another pass follows
    log.cleaned_to(keys.end)


def _groups(segments: Iterable[Segment], segment_bytes: int) -> Iterator[list[Segment]]:
    group: list[Segment] = []
    size = 0
    for segment in segments:
        if group and size + segment.size > segment_bytes:
            yield group
            group, size = [], 0
        group.append(segment)
        size += segment.size
    if group:
        yield group


class _Transactions:
    """Which batches, read in offset order, were aborted, and which markers have none left."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._later_aborts = sorted(aborted, key=lambda each: each.first_offset, reverse=True)
        # By producer: whether batches of the transaction were read.
        self._aborted: dict[int, bool] = {}
        self._committed: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._aborted:
            self._aborted[header.producer_id] = True
            return True
        self._committed.add(header.producer_id)
        return False

    def is_needless(self, header: BatchHeader, batch: memoryview) -> bool:
        self._begin_up_to(header.last_offset)
        if not header.count:
            return True
        marker = end_marker(header, batch)
        if marker is None:
            return False
        if marker.type is ControlType.ABORT:
            return not self._aborted.pop(header.producer_id, False)
        was_seen = header.producer_id in self._committed
        self._committed.discard(header.producer_id)
        return not was_seen

    def _begin_up_to(self, offset: int) -> None:
        while self._later_aborts and self._later_aborts[-1].first_offset <= offset:
            self._aborted.setdefault(self._later_aborts.pop().producer_id, False)


class _NewestOffsets:
    """`end` is the offset after the last record that was read."""

    def __init__(self, start: int) -> None:
        self._start = start
        self._offsets: dict[bytes, int] = {}
        self.end = start

    def read(
        self, segments: Sequence[Segment], end: int, aborted: Iterable[AbortedTransaction]
    ) -> Steps[None]:
        """Read all records from `start` to `end`, up to MAX_KEYS keys."""
        transactions = _Transactions(each for each in aborted if each.last_offset >= self._start)
        for header, batch in _batches(segments):
            if header.last_offset < self._start:
                continue
            if len(self._offsets) + header.count > MAX_KEYS and self._offsets:
                return
            if header.is_control:
                transactions.is_needless(header, batch)
            elif not transactions.is_aborted(header):
                for record in each_record(batch):
                    if record.key is not None and record.offset >= self._start:
                        self._offsets[record.key] = record.offset
            self.end = header.last_offset + 1
            yield
        self.end = end

    def is_superseded(self, key: bytes | None, offset: int) -> bool:
        return key is None or self._offsets.get(key, offset) > offset


@dataclass
class _Cleaning:
    log: PartitionLog
    keys: _NewestOffsets
    end: int
    now_ms: int
    delete_retention_ms: int

    def __post_init__(self) -> None:
        self._transactions = _Transactions(self.log.producers.transactions.snapshot())
        self._removed_markers: set[int] = set()

    def clean(self, group: Sequence[Segment]) -> Generator[None, None, bool]:
        """Rewrite segments into one. Return False if the log changed."""
        cleaned = self.log.new_cleaned(group[0].base_offset, sum(segment.size for segment in group))
        is_used = False
        try:
            is_changed = len(group) > 1
            for header, batch in _batches(group):
                kept = self._cleaned(header, batch)
                if kept is not None:
                    cleaned.append(header.base_offset, _newest_timestamp(kept), kept)
                is_changed = is_changed or kept is not batch
                yield
            if not is_changed:
                return True
            is_used = bool(cleaned.size)
            replacement = cleaned if is_used else None
            if not self.log.replace_segments(group, replacement, self._removed_markers):
                is_used = False
                return False
            self._removed_markers = set()
            return True
        finally:
            if not is_used:
                cleaned.delete()

    def _cleaned(self, header: BatchHeader, batch: memoryview) -> memoryview | None:
        """Return the rest of a batch: None if empty, the same object if unchanged."""
        kept, is_horizon_due, newest = self._kept_records(header, batch)
        horizon_ms = None
        if is_horizon_due and any(kept) and header.delete_horizon_ms is None:
            horizon_ms = self.now_ms + self.delete_retention_ms
        if all(kept) and horizon_ms is None and (kept or self._must_stay(header)):
            return batch
        if header.is_control and not any(kept):
            self._removed_markers.add(header.last_offset)
        if not any(kept):
            if not self._must_stay(header):
                return None
            newest = header.max_timestamp
        return memoryview(
            filter_batch(header, batch, kept, max_timestamp=newest, delete_horizon_ms=horizon_ms)
        )

    def _must_stay(self, header: BatchHeader) -> bool:
        """Return whether at least an empty batch must remain."""
        if header.producer_id >= 0 and self.log.producers.is_last_of_producer(header):
            return True
        return header.last_offset + 1 == self.end

    def _kept_records(self, header: BatchHeader, batch: memoryview) -> tuple[list[bool], bool, int]:
        """Return the records to keep, whether some stay only temporarily, the newest timestamp."""
        horizon_ms = header.delete_horizon_ms
        is_over = horizon_ms is not None and horizon_ms <= self.now_ms
        if header.is_control:
            is_needless = self._transactions.is_needless(header, batch)
            return [not (is_needless and is_over)] * header.count, is_needless, header.max_timestamp
        if self._transactions.is_aborted(header):
            return [False] * header.count, False, header.max_timestamp
        kept, has_tombstones, newest = [], False, NO_TIMESTAMP
        for record in each_record(batch):
            is_tombstone = record.value is None
            is_kept = (
                not (
                    self.keys.is_superseded(record.key, record.offset) or (is_tombstone and is_over)
                )
                or record.offset >= self.keys.end
            )
            kept.append(is_kept)
            if is_kept:
                has_tombstones = has_tombstones or is_tombstone
                newest = max(newest, record.timestamp)
        return kept, has_tombstones, newest


def _batches(segments: Iterable[Segment]) -> Iterator[tuple[BatchHeader, memoryview]]:
    for segment in segments:
        yield from iter_batches(segment.view(0, segment.size), check_crcs=False)


def _newest_timestamp(batch: memoryview) -> int:
    header = read_header(batch, 0)
    return NO_TIMESTAMP if header is None else newest_timestamp(header)
