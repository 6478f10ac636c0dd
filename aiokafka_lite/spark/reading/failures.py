"""Handles ranges that could not be fetched: finds another leader, retries, or fails.

A partition that fails is looked up in new metadata and retried, first at once, then with growing
delays, for kafkaConsumer.pollTimeoutMs. Deleted records are data loss: an error, or with
failOnDataLoss=false a warning, and reading continues with the rest of the range.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable
from typing import Final

from aiokafka_lite.client.backoff import delay_after
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.offsets import EARLIEST, ISOLATION_LEVELS, LATEST, offsets_request
from aiokafka_lite.client.view import GONE_AFTER_S, NO_EPOCH, TopicView
from aiokafka_lite.errors import (
    KafkaError,
    OffsetOutOfRangeError,
    StaleMetadata,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
    for_code,
)
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.spark.errors import DataLossPolicy, ReadTimeoutError
from aiokafka_lite.spark.options import SourceOptions
from aiokafka_lite.spark.reading.progress import RangeProgress

log = logging.getLogger(__name__)

# A topic that brokers do not know for this long does not exist.
MISSING_FOR_S: Final = 2 * GONE_AFTER_S

# ListOffsets: where those records begin that the leader has on its own disk (KIP-405).
EARLIEST_LOCAL: Final = -4


class LogEndsError(StaleMetadata):
    """A log seems to end before the range does: true, or a new leader that lags behind."""


class NothingLeftError(StaleMetadata):
    """A log seems to have no more records of a range, or its remote storage is slow."""


class FetchFailures:
    def __init__(
        self,
        options: SourceOptions,
        cluster: BlockingCluster,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object],
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._sleep = sleep
        self._rng = random.Random()
        self._timeout_s: Final = options.poll_timeout_s
        self._first_delay_s: Final = options.client.retry_backoff_s
        self._last_delay_s: Final = options.client.retry_backoff_max_s
        self._isolation_level: Final = ISOLATION_LEVELS[options.isolation_level]
        self._data_loss = DataLossPolicy(are_fatal=options.fail_on_data_loss)

    # --- Failures that pass ----------------------------------------------------------------
    def note(self, failed: Iterable[RangeProgress], error: KafkaError) -> None:
        """Note ranges that could not be fetched. Raise an error that is permanent or lasts."""
        now = self._clock()
        for progress in failed:
            if not error.retriable and not isinstance(error, OffsetOutOfRangeError):
                raise _with_place(progress, error) from error
            progress.failed(error, now)
            progress.retry_at = now + self._delay_s(progress.failures)
            self._check_time(progress, now)
            log.info("fetching %s failed and is retried: %s", progress, error)

    def _delay_s(self, failures: int) -> float:
        if failures <= 1:
            return 0.0  # usually the leader has moved, or the connection was idle
        return delay_after(failures - 2, self._first_delay_s, self._last_delay_s, self._rng)

    def _check_time(self, progress: RangeProgress, now: float) -> None:
        since = now if progress.failing_since is None else progress.failing_since
        if now - since < self._timeout_s:
            return
        error = progress.error
        timeout = ReadTimeoutError(
            f"no records of {progress} were received for {now - since:.0f} s. Check the broker, or "
            f"raise the option kafkaConsumer.pollTimeoutMs. The last failure was: {error}"
        )
        raise timeout.at(progress.tp, progress.position) from error

    def wait(self, unfinished: Iterable[RangeProgress]) -> None:
        retry_at = min(progress.retry_at for progress in unfinished)
        if (delay_s := retry_at - self._clock()) > 0:
            self._sleep(delay_s)

    # --- Where to go on --------------------------------------------------------------------
    def locate(self, waiting: Iterable[RangeProgress]) -> None:
        """Look up the leaders of ranges whose retry is due. Raises as `read_ranges`."""
        now = self._clock()
        due = [each for each in waiting if not each.is_located and each.retry_at <= now]
        if not due:
            return
        for progress in due:
            if progress.error is None:
                self._find(progress, is_fresh=False)
        asked = [each for each in due if not each.is_located]
        if not asked:
            return
        try:
            self._cluster.refresh({each.topic for each in asked})
        except KafkaError as error:
            self.note(asked, error)
            return
        for progress in asked:
            if not self._find(progress, is_fresh=True):
                self._not_found(progress)
            elif isinstance(progress.error, (OffsetOutOfRangeError, LogEndsError)):
                self._look_for_offsets(progress)
            elif isinstance(progress.error, NothingLeftError):
                self._look_for_gap(progress)

    def _find(self, progress: RangeProgress, *, is_fresh: bool) -> bool:
        """Set the leader from the current metadata. Return whether there is one."""
        view = self._cluster.view
        topic = view.topics.get(progress.topic)
        leader = view.leader(progress.tp)
        if topic is None or leader is None:
            return False
        if progress.topic_id not in (ZERO_UUID, topic.topic_id):
            if not is_fresh:
                return False
            self._recreated(progress)
        progress.topic_id = topic.topic_id
        progress.node, progress.leader_epoch = view.nodes[leader.leader], leader.leader_epoch
        progress.is_located = True
        return True

    def _not_found(self, progress: RangeProgress) -> None:
        """Retry a partition without a leader later. A deleted one is data loss."""
        topic = self._cluster.view.topics.get(progress.topic)
        error = UnknownTopicOrPartitionError if topic is None else topic.error
        if error is not None and not error.retriable:
            reason = error.description.rstrip(".")
            raise _with_place(progress, error(f"topic {progress.topic} cannot be read ({reason})"))
        self.note(
            [progress], (error or UnknownTopicOrPartitionError)("the partition has no leader now")
        )
        now = self._clock()
        missing_for_s = now - (now if progress.failing_since is None else progress.failing_since)
        if _is_gone(topic, progress) and missing_for_s >= MISSING_FOR_S:
            self._lost(progress, progress.end, "the topic was deleted")

    # --- Data loss -------------------------------------------------------------------------
    def _recreated(self, progress: RangeProgress) -> None:
        self._lost(progress, progress.position, "the topic was deleted and recreated")
        progress.leader_epoch = NO_EPOCH

    def _look_for_offsets(self, progress: RangeProgress) -> None:
        """Look up which offsets of a range still exist.

        A leader that does not know the high watermark yet does not answer (KIP-207).
        """
        try:
            earliest, latest = (self._offset(progress, at) for at in (EARLIEST, LATEST))
        except KafkaError as error:
            self.note([progress], error)
            return
        if earliest > progress.position:
            why = f"records before offset {earliest} were deleted by retention or DeleteRecords"
            self._lost(progress, min(earliest, progress.end), why)
        elif latest <= progress.position or (
            latest < progress.end and isinstance(progress.error, LogEndsError)
        ):
            why = (
                f"the log ends at offset {latest}: the topic was recreated, or its log was "
                "truncated"
            )
            self._lost(progress, progress.end, why)
        # Otherwise the leader had lagged behind.

    def _look_for_gap(self, progress: RangeProgress) -> None:
        """End a range for which a leader has no records, if all its records are on its disk."""
        try:
            local = self._offset(progress, EARLIEST_LOCAL)
        except UnsupportedVersionError:
            local = progress.position  # such a broker has no remote storage
        except KafkaError as error:
            self.note([progress], error)
            return
        if local <= progress.position:
            log.info(
                "reading %s is finished: the log has no more records before offset %d",
                progress,
                progress.end,
            )
            progress.position = progress.end

    def _offset(self, progress: RangeProgress, at: int) -> int:
        if progress.node is None:
            raise AssertionError(f"the leader of {progress} is not known")
        request = offsets_request({progress.tp: (progress.leader_epoch, at)}, self._isolation_level)
        response = self._cluster.request(progress.node.id, request)
        found = response.topics[0].partitions[0]
        if found.error_code:
            error = for_code(found.error_code)
            raise error(f"the leader of {progress} answered ListOffsets with {error.message}")
        return found.offset

    def _lost(self, progress: RangeProgress, position: int, why: str) -> None:
        """Raise DataLossError, or warn and continue the range at another offset."""
        there = f"the remaining records of this range begin at offset {position}"
        if position >= progress.end:
            there = "no records of this range remain"
        loss = (
            f"offsets {progress.position} to {progress.end - 1} of partition {progress.partition} "
            f"of topic {progress.topic} cannot be read, because {why} ({there})"
        )
        self._data_loss.report(loss, progress.tp, progress.position, position)
        progress.position = position
        progress.error = None


def _is_gone(topic: TopicView | None, progress: RangeProgress) -> bool:
    if topic is None or not topic.partitions:
        return True
    return progress.partition not in topic.partitions


def _with_place(progress: RangeProgress, error: KafkaError) -> KafkaError:
    text = error.args[0] if error.args else type(error).__name__
    return type(error)(f"{progress}: {text}").at(progress.tp, progress.position)
