"""Fetches ranges of offsets from their leaders, with one request in flight per node.

The next request is sent to a node before its response is decoded. There are no fetch sessions,
because ranges and limits change with each response.

An empty response is weak evidence: records of other partitions may have filled it, or a new leader
may lag behind. It counts if no partition before it in the request has records. After two of them,
the rest of a range below the high watermark is a gap that compaction left, unless the leader has
moved it to slow remote storage (KIP-405).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Final, NamedTuple

from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.connection import Connection
from aiokafka_lite.client.view import Node
from aiokafka_lite.client.wire import Exchange
from aiokafka_lite.errors import KafkaError, KafkaProtocolError, NoError, StaleMetadata, for_code
from aiokafka_lite.protocol.fetch_template import FetchTemplate, PreparedFetch, TopicToFetch
from aiokafka_lite.protocol.messages.fetch import FetchResponse, PartitionData
from aiokafka_lite.records.record_set import end_offset
from aiokafka_lite.spark.options import SourceOptions
from aiokafka_lite.spark.ranges import KafkaOffsetRange
from aiokafka_lite.spark.reading.failures import FetchFailures, LogEndsError, NothingLeftError
from aiokafka_lite.spark.reading.progress import FetchedChunk, RangeProgress
from aiokafka_lite.structs import TopicPartition

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
        topics: dict[tuple[str, bytes], list[RangeProgress]] = {}
        for progress in wanted:
            topics.setdefault((progress.topic, progress.topic_id), []).append(progress)
        request = PreparedFetch(
            self._template,
            session_id=0,
            session_epoch=-1,
            max_bytes=self._max_bytes,
            topics=[self._topic(name, topic_id, each) for (name, topic_id), each in topics.items()],
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

    def _topic(self, name: str, topic_id: bytes, wanted: list[RangeProgress]) -> TopicToFetch:
        most = self._partition_max_bytes
        return (
            name,
            topic_id,
            [
                (each.partition, each.leader_epoch, each.position, each.limit_bytes(most))
                for each in wanted
            ],
        )

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
