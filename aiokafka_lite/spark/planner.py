"""Determines the offsets that a query reads, by requests of the driver to Kafka.

The rules are those of Spark's `KafkaOffsetReaderAdmin` and `KafkaMicroBatchStream`. Large ranges
are split as by `KafkaOffsetRangeCalculator`, to the offset, hence the floating point. In addition
small ranges share a task, those of one leader first, because a task costs Spark some 30 ms of CPU.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.offset_lookups import NO_OFFSET, Lookups, OffsetQuery
from aiokafka_lite.client.offsets import EARLIEST, LATEST, Offsets
from aiokafka_lite.client.view import NO_EPOCH, ClusterView, Node
from aiokafka_lite.errors import (
    KafkaConnectionError,
    KafkaTimeoutError,
    OptionError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.spark import worker
from aiokafka_lite.spark.errors import DataLossError, DataLossPolicy, named
from aiokafka_lite.spark.options import Position, SourceOptions
from aiokafka_lite.spark.process import settle
from aiokafka_lite.spark.ranges import KafkaOffsetRange
from aiokafka_lite.structs import TopicPartition

log = logging.getLogger("aiokafka_lite.spark")

T = TypeVar("T")


# --- Tasks ------------------------------------------------------------------------------------
Task: TypeAlias = tuple[KafkaOffsetRange, ...]


def split(
    ranges: Iterable[KafkaOffsetRange],
    *,
    min_partitions: int | None,
    max_records_per_partition: int | None,
    min_records_per_task: int,
) -> list[Task]:
    """Return the ranges of each task, the largest task first. Empty ranges are left out.

    With `min_records_per_task` 0, small ranges do not share tasks.
    """
    pieces = divide(
        ranges,
        min_partitions=min_partitions,
        max_records_per_partition=max_records_per_partition,
    )
    large = [piece for piece in pieces if piece.size >= min_records_per_task]
    small = [piece for piece in pieces if piece.size < min_records_per_task]
    tasks: list[Task] = [(piece,) for piece in large]
    if small:
        wanted = sum(piece.size for piece in small) // min_records_per_task
        if min_partitions is not None:
            wanted = max(wanted, min_partitions - len(large))
        tasks += _shared(small, wanted, max_records_per_partition)
    # A query would wait for a large task that starts last.
    return sorted(tasks, key=lambda task: (-_size(task), task[0][:3]))


def divide(
    ranges: Iterable[KafkaOffsetRange],
    *,
    min_partitions: int | None,
    max_records_per_partition: int | None,
) -> list[KafkaOffsetRange]:
    """Return the ranges as Spark's own source would split them, without the empty ones."""
    pieces = [piece for piece in ranges if piece.size > 0]
    if max_records_per_partition is not None:
        limit = float(max_records_per_partition)
        pieces = [
            part for piece in pieces for part in _parts(piece, math.ceil(float(piece.size) / limit))
        ]
    if min_partitions is None or min_partitions <= len(pieces):
        return pieces
    total = sum(piece.size for piece in pieces)
    whole = [piece for piece in pieces if _part_count(piece.size, total, min_partitions) == 1]
    whole_tps = {piece[:2] for piece in whole}
    total -= sum(piece.size for piece in whole)
    wanted = max(min_partitions - len(whole), 1)
    return [
        part
        for piece in pieces
        for part in (
            (piece,)
            if piece[:2] in whole_tps
            else _parts(piece, _part_count(piece.size, total, wanted))
        )
    ]


def _part_count(size: int, total: int, wanted: int) -> int:
    """Return how many of `wanted` parts a range gets, rounded like Java's Math.round."""
    exact = float(size) / float(total) * wanted
    below = math.floor(exact)
    return max(below + 1 if exact - below >= 0.5 else below, 1)


def _parts(piece: KafkaOffsetRange, count: int) -> list[KafkaOffsetRange]:
    """Return a range in `count` parts of about the same size, the larger ones last."""
    parts = []
    start, remaining = piece.start, piece.size
    for left in range(count, 0, -1):
        size = remaining // left
        remaining -= size
        if size > 0:
            parts.append(piece._replace(start=start, end=start + size))
            start += size
    return parts


def _shared(small: Sequence[KafkaOffsetRange], wanted: int, limit: int | None) -> list[Task]:
    """Return `wanted` tasks of about the same size, more if `limit` offsets a task need more."""
    wanted = min(max(wanted, 1), len(small))
    total = sum(piece.size for piece in small)
    tasks: list[list[KafkaOffsetRange]] = []
    before = task_size = 0
    for taken, piece in enumerate(sorted(small, key=_by_leader)):
        is_due = before * wanted >= total * len(tasks)
        is_last_chance = len(small) - taken <= wanted - len(tasks)
        is_too_large = limit is not None and task_size + piece.size > limit
        if is_due or is_last_chance or is_too_large:
            tasks.append([])
            task_size = 0
        _add(tasks[-1], piece)
        task_size += piece.size
        before += piece.size
    return [tuple(task) for task in tasks]


def _add(task: list[KafkaOffsetRange], piece: KafkaOffsetRange) -> None:
    if task and task[-1][:2] == piece[:2] and task[-1].end == piece.start:
        task[-1] = task[-1]._replace(end=piece.end)
    else:
        task.append(piece)


def _by_leader(piece: KafkaOffsetRange) -> tuple[int, str, int, int]:
    leader: Node | None = piece.leader
    return (-1 if leader is None else leader.id, piece.topic, piece.partition, piece.start)


def _size(task: Task) -> int:
    return sum(piece.size for piece in task)


# --- Starts and ends, by the options ----------------------------------------------------------
class Bounds(NamedTuple):
    """The offsets of partitions: the earliest, and the latest, which is exclusive."""

    earliest: Offsets
    latest: Offsets


class Edge:
    """The start or end of a query. `is_strict`: a record as late as the timestamp must exist."""

    def __init__(
        self, name: Literal["starting", "ending"], position: Position, *, is_strict: bool = False
    ) -> None:
        self._name = name
        self._position = position
        self._is_strict = is_strict

    @property
    def option(self) -> str:
        if not self._position.is_time:
            return f"{self._name}Offsets"
        is_one = isinstance(self._position.at, int)
        return f"{self._name}{'Timestamp' if is_one else 'OffsetsByTimestamp'}"

    def mismatch(self, tps: Collection[TopicPartition]) -> OptionError | None:
        """Return the error of an option that does not name these partitions exactly."""
        if isinstance(self._position.at, int):
            return None
        given = self._position.at.keys()
        hint = "" if self._position.is_time else " (-1 is the latest offset, -2 the earliest)"
        problems = []
        if absent := set(tps) - given:
            problems.append(f"leaves out {named(absent)}")
        if unknown := given - set(tps):
            problems.append(f"names {named(unknown)}, which do not exist or are not subscribed")
        if not problems:
            return None
        return OptionError(
            f"option {self.option} {' and '.join(problems)}: the option must name each subscribed "
            f"partition{hint}"
        )

    def query(self, tps: Collection[TopicPartition]) -> OffsetQuery:
        """Return the timestamps to look up, in addition to both ends of the log."""
        return self._position.by_partition(tps) if self._position.is_time else {}

    def resolve(self, bounds: Bounds, times: Offsets) -> Offsets:
        """Return an offset for each partition that exists. `times` are the results of `query`."""
        if self._position.is_time:
            return {
                tp: self._unmatched(tp, bounds) if offset == NO_OFFSET else offset
                for tp, offset in times.items()
            }
        special = {EARLIEST: bounds.earliest, LATEST: bounds.latest}
        return {
            tp: special[offset][tp] if offset in special else offset
            for tp, offset in self._position.by_partition(bounds.latest).items()
        }

    def _unmatched(self, tp: TopicPartition, bounds: Bounds) -> int:
        if not self._is_strict:
            return bounds.latest[tp]
        raise OptionError(
            f"option {self.option}: topic {tp.topic}, partition {tp.partition} has no record "
            f"at or after {self.query([tp])[tp]} (ms since the epoch). To begin with the next new "
            "record, set startingOffsetsByTimestampStrategy to latest"
        )

    def within(self, offsets: Offsets, bounds: Bounds, data_loss: DataLossPolicy) -> Offsets:
        """Return offsets that the log has: the nearest ones, if `data_loss` does not raise."""
        if self._position.is_time:
            return offsets
        nearest = dict(offsets)
        for tp, offset in offsets.items():
            first, last = bounds.earliest[tp], bounds.latest[tp]
            if not first <= offset <= last:
                data_loss.report(
                    f"option {self.option} is set to offset {offset} for topic {tp.topic}, "
                    f"partition {tp.partition}, but the log begins at offset {first} and ends at "
                    f"{last}",
                    tp,
                    min(offset, last),
                )
                nearest[tp] = min(max(offset, first), last)
        return nearest

    def check_order(self, begins: Offsets, ends: Offsets, end: Edge) -> None:
        for tp, begin in begins.items():
            if ends[tp] < begin:
                raise OptionError(
                    f"for topic {tp.topic}, partition {tp.partition}, the start offset {begin} "
                    f"(option {self.option}) is after the end offset {ends[tp]} (option "
                    f"{end.option}). Change option {self.option} or option {end.option}"
                )


# --- Requests ---------------------------------------------------------------------------------
def batch_tasks(raw: Mapping[str, str]) -> list[Task]:
    settle()
    options = worker.options_of(raw, is_streaming=False)
    # Spark also reuses processes that plan: the next query finds open connections.
    with worker.borrowed_cluster(options) as cluster:
        planner = Planner(options, cluster)
        return planner.tasks(planner.batch_ranges())


class Planner:
    """Finds the partitions of a query, and the starts and ends of its batches.

    It belongs to one query and one thread, and so does its cluster. Its methods raise KafkaError if
    no broker can be used, or leaders do not respond.
    """

    def __init__(
        self,
        options: SourceOptions,
        cluster: BlockingCluster,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        for warning in options.warnings:
            log.warning("%s", warning)
        self._options = options
        self._subscribed = options.subscription
        self._data_loss = DataLossPolicy(are_fatal=options.fail_on_data_loss)
        self._attempts = max(options.fetch_retries, 1)
        self._sleep = sleep
        self._lookups = Lookups(
            cluster,
            topics=self._subscribed.topics,
            isolation_level=options.isolation_level,
            sleep=sleep,
        )
        self._is_known = False
        self._topic_ids: dict[str, bytes] = {}  # of the topics that batches were made of
        self._missed: set[str] = set()  # topics that were waited for already

    # --- Partitions --------------------------------------------------------------------------
    def partitions(self) -> list[TopicPartition]:
        """Return the partitions of the subscription, in order, and wait for missing topics."""
        tps = self._retried(self._all_present)
        for text in self._subscribed.left_out(self.view):
            log.warning("%s", text)
        return tps

    def _all_present(self) -> list[TopicPartition]:
        self._refresh()
        return self._present(None)

    def _refresh(self) -> None:
        self._lookups.refresh()
        self._is_known = True

    def _retried(self, ask: Callable[[], T]) -> T:
        """Retry a lookup, but not before any broker was reached: an address may be wrong."""
        for _ in range(1, self._attempts):
            try:
                return ask()
            except (KafkaConnectionError, KafkaTimeoutError) as error:
                if not error.retriable or not self.view.nodes:
                    raise
                log.warning("the lookup of offsets failed and is retried: %s", error)
            self._sleep(self._options.fetch_retry_interval_s)
        return ask()

    def _present(self, known: Collection[TopicPartition] | None) -> list[TopicPartition]:
        """Return the subscription's partitions in the view, after waiting for missing topics.

        The loss of `known` topics is reported with the batch. At the start of a query (None) every
        topic must exist.
        """
        for attempt in range(1, self._attempts + 1):
            missing = self._subscribed.missing(self.view)
            may_come = any(
                error.retriable for topic, error in missing.items() if topic not in self._missed
            )
            if not may_come or attempt == self._attempts:
                break
            self._sleep(self._options.fetch_retry_interval_s)
            self._refresh()
        self._missed &= missing.keys()  # those that are back may be missed again
        read_before = {tp.topic for tp in known or ()}
        for topic, error in missing.items():
            if known is None or not isinstance(error, UnknownTopicOrPartitionError):
                raise error
            if topic in self._missed:
                continue
            if topic not in read_before:
                if self._data_loss.are_fatal:
                    raise error
                log.warning(
                    "%s. Reading continues without this topic, because failOnDataLoss is false",
                    error.args[0],
                )
            self._missed.add(topic)
        return self._subscribed.partitions(self.view)

    @property
    def view(self) -> ClusterView:
        return self._lookups.view

    # --- Where queries begin and end -----------------------------------------------------------
    def beginning(self) -> tuple[Offsets, OptionError | None]:
        """Return the start of a query without a checkpoint.

        The error is that of a new query whose options name other partitions.
        """
        start = self._start()
        tps = self.partitions()
        bounds, (times,) = self._bounds(tps, start.query(tps))
        offsets = start.within(start.resolve(bounds, times), bounds, self._data_loss)
        return offsets, start.mismatch(tps)

    def _start(self) -> Edge:
        options = self._options
        return Edge("starting", options.starting, is_strict=options.timestamp_strategy == "error")

    def batch_ranges(self) -> list[KafkaOffsetRange]:
        """Return the ranges of a batch query, in order. Empty ranges are left out."""
        start, end = self._start(), Edge("ending", self._options.ending)
        tps = self.partitions()
        for edge in (start, end):
            if (mismatch := edge.mismatch(tps)) is not None:
                raise mismatch
        queries = start.query(tps), end.query(tps)
        bounds, (start_times, end_times) = self._bounds(tps, *queries)
        begins = start.resolve(bounds, start_times)
        ends = end.resolve(bounds, end_times)
        start.check_order(begins, ends, end)
        return self._ranges(
            start.within(begins, bounds, self._data_loss), end.within(ends, bounds, self._data_loss)
        )

    def _bounds(
        self, tps: Collection[TopicPartition], *queries: Mapping[TopicPartition, int]
    ) -> tuple[Bounds, list[Offsets]]:
        """Look up both ends of partitions and offsets by time, all in one round trip."""
        ends = dict.fromkeys(tps, EARLIEST), dict.fromkeys(tps, LATEST)
        earliest, latest, *times = self._retried(lambda: self._lookups.offsets(*ends, *queries))
        if gone := [tp for tp in tps if tp not in earliest or tp not in latest]:
            raise UnknownTopicOrPartitionError(
                f"partitions {named(gone)} were deleted while the query was planned"
            )
        return Bounds(earliest, latest), times

    # --- Micro-batches -------------------------------------------------------------------------
    def latest(self, known: Offsets | None = None) -> Offsets:
        """Return the ends of all partitions, new ones included, in one round trip.

        An end below a known offset is most likely that of a broker that lags behind: the lookup is
        repeated. Missing topics of `known` are left out: their loss is reported with the batch.
        """
        for attempt in range(1, self._attempts + 1):
            ends = self._retried(lambda: self._latest(known))
            if known is None or all(end >= known.get(tp, 0) for tp, end in ends.items()):
                break
            if attempt < self._attempts:
                self._sleep(self._options.fetch_retry_interval_s)
        return ends

    def _latest(self, known: Collection[TopicPartition] | None) -> Offsets:
        is_fresh = not self._is_known
        if is_fresh:
            self._refresh()
        ends: Offsets = {}
        while True:
            tps = self._present(known or ()) if is_fresh else self._subscribed.partitions(self.view)
            query = {tp: LATEST for tp in tps if tp not in ends}
            if is_fresh and not query:
                return {tp: ends[tp] for tp in tps}
            ends.update(self._lookups.offsets(query, with_metadata=not is_fresh)[0])
            is_fresh = True

    def earliest(self, tps: Collection[TopicPartition]) -> Offsets:
        """Return the first offsets of partitions. Deleted ones are left out."""
        return self._retried(lambda: self._earliest(tps)) if tps else {}

    def _earliest(self, tps: Collection[TopicPartition]) -> Offsets:
        if not self._is_known or any(self.view.partition(tp) is None for tp in tps):
            self._refresh()
        query = {tp: EARLIEST for tp in tps if self.view.partition(tp) is not None}
        return self._lookups.offsets(query)[0]

    def stream_ranges(self, start: Offsets, end: Offsets) -> list[KafkaOffsetRange]:
        """Return the ranges of a micro-batch, in order. Empty ranges are left out."""
        if not self._is_known:
            self._retried(self._refresh)
        added = end.keys() - start.keys()
        begins = dict(start)
        if added:
            begins.update(self._data_loss.begins_of_added(added, self.earliest(added)))
        self._data_loss.check_continuation(start, end)
        self._check_topic_ids(start, end)
        return self._ranges(begins, end)

    def _check_topic_ids(self, start: Offsets, end: Offsets) -> None:
        """Report topics that were recreated since the previous batch. Checkpoints have no ids."""
        read_before = {tp.topic for tp in start}
        for topic in sorted({tp.topic for tp in end}):
            topic_id = self.view.topic_id(topic)
            if topic_id is None:
                continue
            known_id = self._topic_ids.get(topic, topic_id)
            self._topic_ids[topic] = topic_id
            if topic_id != known_id and topic in read_before:
                self._data_loss.report(f"topic {topic} was deleted and recreated")

    def check_target(self, end: Offsets) -> None:
        """Raise DataLossError unless partitions have all records for a trigger availableNow."""
        latest = self.latest(end)
        if gone := [tp for tp in end if tp not in latest]:
            raise DataLossError(
                f"partitions {named(gone)} were deleted before the availableNow query had read "
                "them to the end: run the query again"
            ).at(min(gone))
        for tp, offset in end.items():
            if latest[tp] < offset:
                raise DataLossError(
                    f"topic {tp.topic}, partition {tp.partition} now ends at offset {latest[tp]}, "
                    f"but the availableNow query had to read up to {offset}: the topic was "
                    "recreated, so run the query again"
                ).at(tp, latest[tp])

    def _ranges(self, begins: Offsets, ends: Offsets) -> list[KafkaOffsetRange]:
        nodes, topics = self.view.nodes, self.view.topics
        ranges: list[KafkaOffsetRange] = []
        for tp in sorted(ends):
            start, end = begins.get(tp, ends[tp]), ends[tp]
            if start >= end:
                continue
            topic = topics.get(tp.topic)
            partition = None if topic is None else topic.partitions.get(tp.partition)
            if topic is None or partition is None:  # it was deleted: its task reports that
                ranges.append(KafkaOffsetRange(tp.topic, tp.partition, start, end))
                continue
            leader = nodes.get(partition.leader)
            epoch = NO_EPOCH if leader is None else partition.leader_epoch
            ranges.append(
                KafkaOffsetRange(tp.topic, tp.partition, start, end, topic.topic_id, leader, epoch)
            )
        return ranges

    def tasks(self, ranges: Iterable[KafkaOffsetRange]) -> list[Task]:
        return split(
            ranges,
            min_partitions=self._options.min_partitions,
            max_records_per_partition=self._options.max_records_per_partition,
            min_records_per_task=self._options.min_records_per_task,
        )
