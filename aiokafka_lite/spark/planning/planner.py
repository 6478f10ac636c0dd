"""Determines the offsets that a query reads, by requests of the driver to Kafka.

The rules are those of Spark's `KafkaOffsetReaderAdmin` and `KafkaMicroBatchStream`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple, TypeVar

from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.offset_lookups import Lookups
from aiokafka_lite.client.offsets import EARLIEST, LATEST, Offsets
from aiokafka_lite.client.view import NO_EPOCH, ClusterView
from aiokafka_lite.errors import (
    KafkaConnectionError,
    KafkaTimeoutError,
    OptionError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.spark import worker
from aiokafka_lite.spark.errors import DataLossError, DataLossPolicy, named
from aiokafka_lite.spark.options import SourceOptions
from aiokafka_lite.spark.planning.resolution import Bounds, Edge
from aiokafka_lite.spark.planning.splitting import Task, split
from aiokafka_lite.spark.process import settle
from aiokafka_lite.spark.ranges import KafkaOffsetRange
from aiokafka_lite.structs import TopicPartition

log = logging.getLogger("aiokafka_lite.spark")

T = TypeVar("T")


class Beginning(NamedTuple):
    """The start of a query, and the error of a new query whose options name other partitions."""

    offsets: Offsets
    mismatch: OptionError | None


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
        clock: Callable[[], float] = time.monotonic,
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
            clock=clock,
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
        """Retry a lookup, which takes up to `kafka.request.timeout.ms` each time.

        There is no retry before any broker was reached, because an address may be wrong.
        """
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
    def beginning(self) -> Beginning:
        """Return the start of a query without a checkpoint.

        Raises:
            OptionError: A partition has no record as late as the timestamp.
            DataLossError: The log does not have an offset that the option names.
        """
        start = self._start()
        tps = self.partitions()
        bounds, (times,) = self._bounds(tps, start.query(tps))
        offsets = start.within(start.resolve(bounds, times), bounds, self._data_loss)
        return Beginning(offsets, start.mismatch(tps))

    def _start(self) -> Edge:
        options = self._options
        return Edge("starting", options.starting, is_strict=options.timestamp_strategy == "error")

    def batch_ranges(self) -> list[KafkaOffsetRange]:
        """Return the ranges of a batch query, in order. Empty ranges are left out.

        Raises: as `beginning`, and
            OptionError: An option names other partitions than there are, or a start is after its
                end.
        """
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
        """Return the ranges of a micro-batch, in order. Empty ranges are left out.

        Raises:
            DataLossError: Partitions are deleted or end before they begin, or new ones do not begin
                at 0, and failOnDataLoss is true.
        """
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
