"""Fetches ranges of offsets from their leaders, with one request in flight per node.

The next request is sent to a node before its response is decoded. There are no fetch sessions,
because ranges and limits change with each response.

An empty response is weak evidence: records of other partitions may have filled it, or a new leader
may lag behind. It counts if no partition before it in the request has records. After two of them,
the rest of a range below the high watermark is a gap that compaction left, unless the leader has
moved it to slow remote storage (KIP-405).

A partition that fails is looked up in new metadata and retried, first at once, then with growing
delays, for kafkaConsumer.pollTimeoutMs. Deleted records are data loss: an error, or with
failOnDataLoss=false a warning, and reading continues with the rest of the range.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Final, NamedTuple

from aiokafka_lite.client.backoff import delay_after
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.connection import Connection
from aiokafka_lite.client.offsets import EARLIEST, ISOLATION_LEVELS, LATEST, offsets_request
from aiokafka_lite.client.view import GONE_AFTER_S, NO_EPOCH, Node, TopicView
from aiokafka_lite.client.wire import Exchange
from aiokafka_lite.errors import (
    KafkaError,
    KafkaProtocolError,
    NoError,
    OffsetOutOfRangeError,
    StaleMetadata,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
    for_code,
)
from aiokafka_lite.protocol.fetch_template import FetchTemplate, PreparedFetch
from aiokafka_lite.protocol.messages.fetch import FetchResponse, PartitionData
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.records.record_set import end_offset
from aiokafka_lite.spark.errors import DataLossPolicy, ReadTimeoutError
from aiokafka_lite.spark.options import SourceOptions
from aiokafka_lite.spark.ranges import KafkaOffsetRange
from aiokafka_lite.structs import TopicPartition

log = logging.getLogger(__name__)


# --- Progress ---------------------------------------------------------------------------------
# The size of a record of a topic that was not read yet.
FIRST_GUESS_BYTES: Final = 1024.0
# The size of a topic's first fetch: rows arrive soon, and the next fetch has a better estimate.
FIRST_FETCH_BYTES: Final = 1024 * 1024
# Added to the expected size of the rest of a range, because it has to end with a whole batch.
SPARE_SHARE: Final = 1.05
SPARE_BYTES: Final = 16 * 1024
# The factor by which the limit grows when a batch of the range did not fit.
SPARE_GROWTH: Final = 8


class FetchedChunk(NamedTuple):
    """The records of a range in one response."""

    progress: RangeProgress
    fetch_offset: int
    records: memoryview
    aborted: list[tuple[int, int]] | None


class RangeProgress:
    """A range that is being fetched. Only the fetching thread changes it.

    `is_located` is False after an error, until `node` was looked up again. `failing_since` and
    `failures` are of the time since records were received.
    """

    def __init__(self, wanted: KafkaOffsetRange, record_bytes: MutableMapping[str, float]) -> None:
        self.topic = wanted.topic
        self.partition = wanted.partition
        self.tp = TopicPartition(wanted.topic, wanted.partition)
        self.position = wanted.start
        self.end = wanted.end
        self.topic_id = wanted.topic_id
        self.node: Node | None = wanted.leader
        self.leader_epoch = wanted.leader_epoch
        self.is_located = wanted.leader is not None
        self.failing_since = math.inf
        self.failures = 0
        self.retry_at = 0.0
        self.error: KafkaError | None = None
        self.empty_answers = 0
        self._record_bytes = record_bytes
        self._spare_bytes = SPARE_BYTES

    @property
    def is_done(self) -> bool:
        return self.position >= self.end

    @property
    def left_bytes(self) -> int:
        """About how many bytes the rest of the range has."""
        record_bytes = self._record_bytes.get(self.topic, FIRST_GUESS_BYTES)
        return int((self.end - self.position) * record_bytes)

    def limit_bytes(self, most: int) -> int:
        """Return the size of the next fetch: not much beyond the end."""
        if self.topic not in self._record_bytes:
            most = min(most, FIRST_FETCH_BYTES)
        return min(most, int(self.left_bytes * SPARE_SHARE) + self._spare_bytes)

    def ask_for_more(self) -> None:
        """Request a larger batch with the next fetch.

        Only the first partition of a response gets a batch beyond its limit (KIP-74).
        """
        self._spare_bytes *= SPARE_GROWTH

    def advance(self, position: int, size_bytes: int) -> None:
        # Only the latest response counts, because sizes of records change over time.
        self._record_bytes[self.topic] = size_bytes / (position - self.position)
        self.position = position
        self.failing_since, self.error = math.inf, None
        self.failures = self.empty_answers = 0

    def failed(self, error: KafkaError, now: float) -> None:
        """Note a failure. The node is not used again before it is looked up."""
        self.error = error
        self.failures += 1
        self.is_located = False
        self.failing_since = min(self.failing_since, now)

    def __str__(self) -> str:
        where = (
            ""
            if self.node is None
            else f" from node {self.node.id} ({self.node.host}:{self.node.port})"
        )
        return f"partition {self.partition} of topic {self.topic} at offset {self.position}{where}"


# --- Failures ---------------------------------------------------------------------------------
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
        failing_s = now - progress.failing_since
        if failing_s < self._timeout_s:
            return
        error = progress.error
        timeout = ReadTimeoutError(
            f"no records of {progress} were received for {failing_s:.0f} s. Check the broker, or "
            f"raise the option kafkaConsumer.pollTimeoutMs. The last failure was: {error}"
        )
        raise timeout.at(progress.tp, progress.position) from error

    def wait(self, unfinished: Iterable[RangeProgress]) -> None:
        retry_at = min(progress.retry_at for progress in unfinished)
        if (delay_s := retry_at - self._clock()) > 0:
            self._sleep(delay_s)

    # --- Where to go on --------------------------------------------------------------------
    def locate(self, waiting: Iterable[RangeProgress]) -> None:
        """Look up the leaders of ranges whose retry is due."""
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
        missing_for_s = self._clock() - progress.failing_since
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


# --- Requests and responses -------------------------------------------------------------------
# Larger responses are not faster, and two of them are in memory.
MOST_ANSWER_BYTES: Final = 16 * 1024 * 1024
# This number of empty responses proves a gap at the end of a log.
EMPTY_ANSWERS: Final = 2
NO_REPLICA: Final = -1


class _Asked(NamedTuple):
    """A request in flight, and its ranges: by topic name or id, and partition."""

    node: Node
    connection: Connection
    exchange: Exchange[FetchResponse]
    partitions: dict[tuple[str | bytes, int], RangeProgress]


class Fetching:
    """Fetches all of some ranges, once. The cluster is used only here until `close`.

    `record_bytes` has the average bytes of an offset by topic, and is updated here. `sleep` by
    default ends at `close`.
    """

    def __init__(
        self,
        ranges: Sequence[KafkaOffsetRange],
        options: SourceOptions,
        cluster: BlockingCluster,
        record_bytes: MutableMapping[str, float],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._is_committed_only: Final = options.isolation_level == "read_committed"
        # The requested records exist already, and the rest of a range may be less than `min_bytes`.
        self._template = FetchTemplate(min_bytes=1, isolation_level=int(self._is_committed_only))
        self._max_wait_ms: Final = options.max_wait_ms
        self._timeout_s: Final = options.client.request_timeout_s + options.max_wait_ms / 1000
        self._max_bytes: Final = min(options.max_bytes, MOST_ANSWER_BYTES)
        self._partition_max_bytes: Final = options.partition_max_bytes
        self._rack = options.client_rack or ""
        self._unfinished = [
            RangeProgress(each, record_bytes) for each in ranges if each.start < each.end
        ]
        self._in_flight: deque[_Asked] = deque()
        self._closed = threading.Event()
        self._failures = FetchFailures(
            options, cluster, clock=clock, sleep=sleep or self._closed.wait
        )

    @property
    def left_bytes(self) -> int:
        return sum(progress.left_bytes for progress in self._unfinished)

    def answers(self) -> Iterator[list[FetchedChunk]]:
        """Yield the chunks of each response, in order of offsets for each range."""
        self._send_all()
        while self._unfinished and not self._closed.is_set():
            # The response is not referenced here, so that its memory is reused.
            if self._in_flight:
                yield self._receive()
            else:
                self._failures.wait(self._unfinished)
                if not self._closed.is_set():
                    self._send_all()

    def close(self) -> None:
        """Close connections if requests are in flight. A thread in `answers` ends soon."""
        self._closed.set()
        if self._in_flight:
            self._cluster.hang_up()

    # --- Requests --------------------------------------------------------------------------
    def _send_all(self) -> None:
        """Send a request to every node that has ranges to fetch and no request in flight."""
        busy = {asked.node for asked in self._in_flight}
        flying = {id(each) for asked in self._in_flight for each in asked.partitions.values()}
        waiting = [each for each in self._unfinished if id(each) not in flying]
        if not all(each.is_located for each in waiting):
            self._failures.locate(waiting)
            self._drop_done()
        now = self._clock()
        by_node: dict[Node, list[RangeProgress]] = {}
        taken: set[TopicPartition] = set()  # a response does not name the range
        for progress in waiting:
            node = progress.node
            if progress.is_done or not progress.is_located or progress.retry_at > now:
                continue
            if node is not None and node not in busy and progress.tp not in taken:
                taken.add(progress.tp)
                by_node.setdefault(node, []).append(progress)
        for node, wanted in by_node.items():
            self._send(node, wanted)

    def _send(self, node: Node, wanted: list[RangeProgress]) -> None:
        topics: dict[tuple[str, bytes], list[tuple[int, int, int, int]]] = {}
        for each in wanted:
            limit_bytes = each.limit_bytes(self._partition_max_bytes)
            topics.setdefault((each.topic, each.topic_id), []).append(
                (each.partition, each.leader_epoch, each.position, limit_bytes)
            )
        request = PreparedFetch(
            self._template,
            session_id=0,
            session_epoch=-1,
            max_bytes=self._max_bytes,
            topics=[(name, topic_id, parts) for (name, topic_id), parts in topics.items()],
            rack_id=self._rack,
            max_wait_ms=self._max_wait_ms,
        )
        try:
            connection = self._cluster.connection(node)
            if connection.muted_until > self._clock():
                # A quota is used up: that is no failure, and other nodes are not affected.
                for progress in wanted:
                    progress.retry_at = connection.muted_until
                return
            exchange = connection.send(request, timeout_s=self._timeout_s)
        except KafkaError as error:
            self._failed(wanted, error)
            return
        partitions: dict[tuple[str | bytes, int], RangeProgress] = {}
        for progress in wanted:
            partitions[progress.topic, progress.partition] = progress
            partitions[progress.topic_id, progress.partition] = progress
        self._in_flight.append(_Asked(node, connection, exchange, partitions))

    # --- Answers ---------------------------------------------------------------------------
    def _receive(self) -> list[FetchedChunk]:
        asked = self._in_flight[0]
        chunks: list[FetchedChunk] = []
        try:
            response = self._cluster.receive(asked.exchange)
            if response.error_code != NoError.errno:
                raise for_code(response.error_code)(f"{asked.connection.peer} refused the fetch")
        except KafkaError as error:
            self._in_flight.popleft()
            if self._closed.is_set():
                raise
            self._failed(dict.fromkeys(asked.partitions.values()), error)
        else:
            self._in_flight.popleft()
            # A response has no topics if a quota is used up.
            if response.responses or not response.throttle_time_ms:
                chunks = self._settle(asked, response)
        self._drop_done()
        if not self._closed.is_set():
            self._send_all()
        return chunks

    def _drop_done(self) -> None:
        self._unfinished = [each for each in self._unfinished if not each.is_done]

    def _settle(self, asked: _Asked, response: FetchResponse) -> list[FetchedChunk]:
        chunks: list[FetchedChunk] = []
        left_out = set(asked.partitions.values())
        nodes = {
            each.node_id: Node(each.node_id, each.host, each.port, each.rack)
            for each in response.node_endpoints
        }
        for topic in response.responses:
            for answer in topic.partitions:
                key = (topic.topic or topic.topic_id, answer.partition_index)
                progress = asked.partitions.get(key)
                if progress not in left_out:
                    continue  # not asked for
                left_out.remove(progress)
                if answer.error_code != NoError.errno:
                    self._refused(progress, answer, nodes)
                elif answer.records:
                    self._received(progress, answer, chunks)
                else:
                    self._empty(progress, answer, is_first=not chunks)
        if left_out:
            error = KafkaProtocolError(
                f"the fetch response of {asked.connection.peer} does not contain all requested "
                "partitions"
            )
            self._failed(left_out, error)
        return chunks

    def _received(
        self, progress: RangeProgress, answer: PartitionData, chunks: list[FetchedChunk]
    ) -> None:
        records = memoryview(answer.records or b"")
        aborted = None
        if self._is_committed_only:
            aborted = [
                (each.producer_id, each.first_offset) for each in answer.aborted_transactions or ()
            ]
        position, behind = progress.position, end_offset(records)
        if behind is not None and behind <= position:
            error = KafkaProtocolError(
                f"the leader sent only records before offset {behind}, but offset {position} was "
                "requested"
            )
            self._failed([progress], error)
            return
        chunks.append(FetchedChunk(progress, position, records, aborted))
        if behind is None:
            progress.position = progress.end  # no whole batch: decoding raises the error
        else:
            progress.advance(behind, len(records))

    def _empty(self, progress: RangeProgress, answer: PartitionData, *, is_first: bool) -> None:
        if answer.preferred_read_replica != NO_REPLICA:
            self._read_from(progress, answer.preferred_read_replica)
            return
        if not is_first:
            progress.ask_for_more()
            return
        reachable = answer.high_watermark
        if self._is_committed_only and answer.last_stable_offset >= 0:
            reachable = answer.last_stable_offset
        progress.empty_answers += 1
        if reachable < progress.end:
            error = LogEndsError(f"the partition's log now ends at offset {reachable}")
            self._failed([progress], error)
        elif progress.empty_answers >= EMPTY_ANSWERS:
            nothing = NothingLeftError(
                f"the leader sent no records, although its log ends at offset {reachable}"
            )
            self._failures.note([progress], nothing)

    def _read_from(self, progress: RangeProgress, replica: int) -> None:
        """Continue at the follower that the leader names (KIP-392)."""
        node = self._cluster.view.nodes.get(replica)
        if node is None:
            error = StaleMetadata(
                f"the leader redirects reads to node {replica}, which is not in the metadata"
            )
            self._failed([progress], error)
        else:
            progress.node = node

    def _failed(self, failed: Iterable[RangeProgress], error: KafkaError) -> None:
        # After a failure only leaders are read: they would name the same lagging follower again.
        self._rack = ""
        self._failures.note(failed, error)

    def _refused(
        self, progress: RangeProgress, answer: PartitionData, nodes: Mapping[int, Node]
    ) -> None:
        error = for_code(answer.error_code)
        self._failed([progress], error(f"the broker answers {error.message}"))
        hint = answer.current_leader
        if hint.leader_id >= 0 and hint.leader_epoch > progress.leader_epoch:
            node = nodes.get(hint.leader_id) or self._cluster.view.nodes.get(hint.leader_id)
            if node is not None:
                # Later tasks begin there, too.
                self._cluster.apply_leader_hint(
                    progress.tp, node.id, hint.leader_epoch, nodes.values()
                )
                progress.node, progress.leader_epoch = node, hint.leader_epoch
                progress.is_located = True
