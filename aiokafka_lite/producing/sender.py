"""Sends batches to the leaders of their partitions, and handles the responses.

Each leader has a list of the queues with a batch to send. An addition to the list schedules its
processing for the loop's next turn (`_pump`), so one request takes the batches of one turn, at most
one of each partition. Responses are handled in callbacks. Only waits for a connection are tasks, at
most one for each leader.

    queue      why it is not on the list             listed again by
    ---------  ------------------------------------  --------------------------------------
    empty      it has no batch                       a record
    lingers    its batch may take more records       a full batch, or the end of its time
    full       the broker might forget its oldest    a response
    backs off  its oldest batch has just failed      a timer
    homeless   the partition has no known leader     metadata
    broken     the broker accepts no more batches    another epoch, see partition_queue.py
    outside    the transaction lacks the partition   the coordinator's response

References: KIP-219 (throttle), KIP-951 (leader hints); for the meaning of errors, Java's
`Sender.completeBatch` and `TransactionManager.canRetry`.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import random
from collections.abc import Callable, Iterable
from typing import Final

from aiokafka_lite._tasks import Event, TaskScope
from aiokafka_lite.client.backoff import LONGEST_BACKOFF_S, delay_after
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.client.connection import Connection
from aiokafka_lite.client.lanes import Lane
from aiokafka_lite.client.view import ClusterView, Node
from aiokafka_lite.client.wire import Exchange
from aiokafka_lite.errors import (
    ClusterAuthorizationFailedError,
    DuplicateSequenceNumber,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    KafkaError,
    KafkaProtocolError,
    LeaderNotAvailableError,
    MessageSizeTooLargeError,
    NoError,
    OutOfOrderSequenceNumber,
    ProducerFencedError,
    TransactionalIdAuthorizationFailed,
    UnknownProducerId,
    UnsupportedVersionError,
    for_code,
)
from aiokafka_lite.producing.accumulator import Accumulator
from aiokafka_lite.producing.batch import BatchState, ProducerBatch
from aiokafka_lite.producing.config import AnyProducerConfig
from aiokafka_lite.producing.partition_queue import MAX_IN_FLIGHT, CurrentIdentity, PartitionQueue
from aiokafka_lite.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from aiokafka_lite.protocol.prepared import UpTo
from aiokafka_lite.protocol.schema import ZERO_UUID

log = logging.getLogger(__name__)

ACKS_ALL: Final = -1
# The last version that names topics.
NEWEST_BY_NAME: Final = 12
# This version has topic ids, so that no record of a deleted topic is written to its successor.
NEWEST: Final = 13
# From the next version on brokers add partitions to the transaction (KIP-890).
NEWEST_WITHOUT_ADDING: Final = 11
# How many records an error names.
MOST_NAMED_RECORDS: Final = 3
# After these errors a producer can only be stopped, with or without transactions.
FATAL: Final = (
    ClusterAuthorizationFailedError,
    InvalidProducerIdMapping,
    ProducerFencedError,
    TransactionalIdAuthorizationFailed,
    UnsupportedVersionError,
)


class BatchFate(enum.Enum):
    WRITTEN = "the batch is in the log, but the broker does not know its offset"
    RETRY = "the batch is sent again unchanged"
    OUT_OF_ORDER = "the batch follows a failed batch, or a gap in the sequence"
    SPLIT = "the batch is split and sent again"
    FAIL = "the broker's error is set on the futures of the batch's records"


def fate_of(error: type[KafkaError], record_count: int) -> BatchFate:
    if error is DuplicateSequenceNumber:
        return BatchFate.WRITTEN
    if error in (OutOfOrderSequenceNumber, UnknownProducerId):
        return BatchFate.OUT_OF_ORDER
    if error is MessageSizeTooLargeError:
        return BatchFate.SPLIT if record_count > 1 else BatchFate.FAIL
    return BatchFate.RETRY if error.retriable else BatchFate.FAIL


def is_fatal(error: BaseException) -> bool:
    return isinstance(error, FATAL)


class Destination:
    """A node that leads partitions, and the batches for it. The sender writes the fields."""

    __slots__ = ("connecting", "in_flight_count", "is_pump_due", "listed", "node_id")

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        # In the order in which they are served.
        self.listed: dict[PartitionQueue, None] = {}
        self.in_flight_count = 0
        self.is_pump_due = False
        self.connecting: asyncio.Task[None] | None = None


class BatchSender:
    """`admit` returns whether a queue may send in the transaction; if not, it is woken later.
    `on_failed` returns the error of a failed batch's records.
    """

    def __init__(
        self,
        config: AnyProducerConfig,
        cluster: Cluster,
        identity: CurrentIdentity,
        scope: TaskScope,
        rng: random.Random,
        *,
        admit: Callable[[PartitionQueue], bool],
        on_failed: Callable[[ProducerBatch, KafkaError], KafkaError],
    ) -> None:
        self._config = config
        self._cluster = cluster
        self._identity = identity
        self._scope = scope
        self._rng = rng
        self._admit = admit
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._is_transactional = config.transactional_id is not None
        self._timeout_ms = config.brokers_timeout_ms
        self._request_timeout_s = config.request_timeout_s
        self._max_request_size = config.max_request_size
        self._leaders: dict[int, Destination] = {}
        self._is_closed = False
        self._is_quiet = Event()
        self._accumulator: Accumulator
        # Why no batch of the transaction may be sent again. Only `Transactions` writes it.
        self.abort_reason: KafkaError | None = None
        # The newest version of Produce. Its value decides about transactions at the broker.
        self.newest_version = NEWEST_WITHOUT_ADDING if self._is_transactional else NEWEST

    def serve(self, accumulator: Accumulator) -> None:
        self._accumulator = accumulator

    def close(self) -> None:
        self._is_closed = True

    # --- Queues with a batch to send ---------------------------------------------------------
    def wake(self, queue: PartitionQueue) -> None:
        if queue.is_broken:  # listed queues, too, because `_take` unlists broken ones
            self._mend(queue)
        if queue.is_listed:
            return
        if queue.leader is None and not self._find_leader(queue, self._cluster.view):
            return
        leader = self._leaders[queue.leader]  # type: ignore[index]
        queue.is_listed = True
        leader.listed[queue] = None
        self._pump_soon(leader)

    def wake_all(self, queues: Iterable[PartitionQueue]) -> None:
        for queue in queues:
            if not queue.is_empty:
                self.wake(queue)

    def _find_leader(self, queue: PartitionQueue, view: ClusterView) -> bool:
        found = view.leader(queue.tp)
        if found is None:
            error = LeaderNotAvailableError("the partition has no leader").at(queue.tp)
            for batch in (*queue.numbered, *queue.waiting):
                batch.last_error = batch.last_error or error
            self._cluster.look_for_leader()
            return False
        queue.leader = found.leader
        if found.leader not in self._leaders:
            self._leaders[found.leader] = Destination(found.leader)
        return True

    def view_changed(self, view: ClusterView, topics: Iterable[str] | None = None) -> None:
        """Move queues to their partitions' new leaders."""
        for queue in self._accumulator.queues(topics):
            found = view.leader(queue.tp)
            if found is not None and found.leader == queue.leader:
                continue
            if queue.leader is not None:
                self._leaders[queue.leader].listed.pop(queue, None)
                queue.leader, queue.is_listed = None, False
            if queue.waiting or queue.retry_count:
                self.wake(queue)

    # --- Sending ---------------------------------------------------------------------------
    def _pump_soon(self, leader: Destination) -> None:
        if not leader.is_pump_due:
            leader.is_pump_due = True
            self._loop.call_soon(self._pump, leader)

    def _pump(self, leader: Destination) -> None:
        leader.is_pump_due = False
        try:
            self._send_listed(leader)
        except Exception as error:  # noqa: BLE001 -- kept, and raised by every send
            self._scope.fail(error, name=f"sending to leader {leader.node_id}")

    def _send_listed(self, leader: Destination) -> None:
        if self._is_closed or leader.connecting is not None:
            return
        while leader.listed and leader.in_flight_count < MAX_IN_FLIGHT:
            connection = self._cluster.pool.ready_connection(leader.node_id, Lane.PRODUCE)
            if connection is None:
                leader.connecting = self._scope.spawn(
                    self._until_connected(leader), name=f"connect to leader {leader.node_id}"
                )
                return
            batches = self._take(leader)
            if not batches:
                return
            self._send(leader, connection, batches)

    def _take(self, leader: Destination) -> list[ProducerBatch]:
        now = self._loop.time()
        left_bytes = self._max_request_size
        batches: list[ProducerBatch] = []
        for queue in tuple(leader.listed):
            batch = queue.next_batch(now)
            identity = queue.identity if batch and queue.numbered else self._identity.current
            if batch is None or identity is None or not self._may_send(queue):
                leader.listed.pop(queue, None)
                queue.is_listed = False
                continue
            if batches and batch.size_bytes > left_bytes:
                break
            left_bytes -= batch.size_bytes
            queue.send(batch, identity)
            batches.append(batch)
            # It is listed behind the others, if it has more batches.
            del leader.listed[queue]
            if queue.next_batch(now) is None:
                queue.is_listed = False
            else:
                leader.listed[queue] = None
        return batches

    def _may_send(self, queue: PartitionQueue) -> bool:
        return self.abort_reason is None and (queue.is_in_transaction or self._admit(queue))

    def _send(
        self, leader: Destination, connection: Connection, batches: list[ProducerBatch]
    ) -> None:
        topics: dict[str, TopicProduceData] = {}
        newest = self.newest_version
        for batch in batches:
            name, index = batch.tp
            if (topic := topics.get(name)) is None:
                topic_id = self._accumulator.topic_id(name)
                topic = topics[name] = TopicProduceData(
                    name=name, topic_id=topic_id, partition_data=[]
                )
                if topic_id == ZERO_UUID:
                    newest = min(newest, NEWEST_BY_NAME)
            topic.partition_data.append(PartitionProduceData(index=index, records=batch.encoded()))
        request = ProduceRequest(
            transactional_id=self._config.transactional_id,
            acks=ACKS_ALL,
            timeout_ms=self._timeout_ms,
            topic_data=list(topics.values()),
        )
        names = {topic.topic_id: name for name, topic in topics.items()}
        leader.in_flight_count += 1
        try:
            connection.send(
                UpTo(request, newest),
                timeout_s=self._request_timeout_s,
                on_done=lambda exchange: self._answered(leader, batches, names, exchange),
            )
        except KafkaError as error:
            self._note_answer(leader)
            self._all_failed(leader, batches, error)

    def why_unsent(self, queue: PartitionQueue) -> KafkaError | None:
        leader = None if queue.leader is None else self._leaders[queue.leader]
        if leader is None or leader.connecting is None or queue not in leader.listed:
            return None
        return self._cluster.pool.why_not_ready(leader.node_id, Lane.PRODUCE)

    async def _until_connected(self, leader: Destination) -> None:
        try:
            await self._cluster.pool.connect(leader.node_id, Lane.PRODUCE)
        except KafkaError as error:
            for queue in tuple(leader.listed):
                for batch in (*queue.numbered, *queue.waiting):
                    batch.last_error = error
            self._cluster.look_for_leader()
            await asyncio.sleep(self._backoff_s(0))
        finally:
            leader.connecting = None
        self._pump_soon(leader)

    # --- Answers ---------------------------------------------------------------------------
    async def until_quiet(self) -> None:
        """Wait until every request has a response, or has lost its connection."""
        while any(leader.in_flight_count for leader in self._leaders.values()):
            self._is_quiet.clear()
            await self._is_quiet.wait()

    def _note_answer(self, leader: Destination) -> None:
        leader.in_flight_count -= 1
        if not leader.in_flight_count:
            self._is_quiet.set()

    def _answered(
        self,
        leader: Destination,
        batches: list[ProducerBatch],
        names: dict[bytes, str],
        exchange: Exchange[ProduceResponse],
    ) -> None:
        """A callback of the connection, so it must not raise."""
        self._note_answer(leader)
        try:
            response = exchange.result()
            answers = {
                (topic.name or names.get(topic.topic_id), partition.index): partition
                for topic in response.responses
                for partition in topic.partition_responses
            }
            if any(batch.tp not in answers for batch in batches):
                raise KafkaProtocolError(
                    f"the response to {exchange} does not contain all partitions of the request"
                )
        except KafkaError as error:
            self._all_failed(leader, batches, error)
            return
        endpoints = [Node(n.node_id, n.host, n.port, n.rack) for n in response.node_endpoints]
        leaders = {
            batch.tp: (hint.leader_id, hint.leader_epoch)
            for batch in batches
            if answers[batch.tp].error_code != NoError.errno  # only errors name leaders (KIP-951)
            and (hint := answers[batch.tp].current_leader).leader_id >= 0
        }
        moved = self._cluster.apply_leader_hints(leaders, endpoints) if leaders else ()
        for batch in batches:
            self._settle(batch, answers[batch.tp], has_moved=batch.tp in moved)
        self._pump_soon(leader)

    def _all_failed(
        self, leader: Destination, batches: list[ProducerBatch], error: KafkaError
    ) -> None:
        if error.retriable:
            self._cluster.invalidate()
        for batch in batches:
            if error.retriable:
                self._retry(batch, error)
            else:
                self._fail(batch, error)
        self._pump_soon(leader)

    def _settle(
        self, batch: ProducerBatch, answer: PartitionProduceResponse, *, has_moved: bool
    ) -> None:
        if answer.error_code == NoError.errno:
            self._acknowledge(
                batch, answer.base_offset, answer.log_append_time_ms, answer.log_start_offset
            )
            return
        error_class = for_code(answer.error_code)
        error = error_class(_refusal(batch, answer, error_class.description)).at(batch.tp)
        error.batch_indexes = tuple(each.batch_index for each in answer.record_errors)
        fate = fate_of(error_class, batch.count)
        if fate is BatchFate.WRITTEN:
            self._acknowledge(batch, -1, -1, answer.log_start_offset)
        elif fate is BatchFate.SPLIT and not batch.is_expired:
            self._split(batch)
        elif fate is BatchFate.OUT_OF_ORDER:
            self._out_of_order(batch, error)
        elif fate is BatchFate.RETRY:
            if error_class.invalid_metadata and not has_moved:
                self._cluster.look_for_leader()
            is_at_once = error_class.invalid_metadata and has_moved
            self._retry(batch, error, is_at_once=is_at_once)
        else:
            self._fail(batch, error)

    def _acknowledge(
        self, batch: ProducerBatch, base_offset: int, append_time_ms: int, log_start_offset: int
    ) -> None:
        queue = self._accumulator.queue_of(batch)
        queue.acknowledge(batch)
        if not batch.is_expired:
            batch.succeed(base_offset, append_time_ms, log_start_offset)
        self._finish(queue, batch)

    def _retry(self, batch: ProducerBatch, error: KafkaError, *, is_at_once: bool = False) -> None:
        if self.abort_reason is not None:
            self._fail(batch, self.abort_reason)
            return
        queue = self._accumulator.queue_of(batch)
        delay_s = 0.0 if is_at_once else self._backoff_s(batch.attempts - 1)
        queue.retry(batch, error, self._loop.time() + delay_s)
        self._wake_later(queue, batch, delay_s)

    def _out_of_order(self, batch: ProducerBatch, error: KafkaError) -> None:
        queue = self._accumulator.queue_of(batch)
        is_gap = batch is queue.numbered[0]
        if self.abort_reason is not None or (self._is_transactional and is_gap):
            self._fail(batch, self.abort_reason or error)
            return
        delay_s = self._backoff_s(batch.attempts - 1)
        queue.refuse_as_out_of_order(batch, error, self._loop.time() + delay_s)
        self._wake_later(queue, batch, delay_s)

    def _wake_later(self, queue: PartitionQueue, batch: ProducerBatch, delay_s: float) -> None:
        if batch.state is BatchState.DONE:  # it had expired
            self._finish(queue, batch)
        elif delay_s > 0:
            self._loop.call_later(delay_s, self.wake, queue)
        else:
            self.wake(queue)

    def _split(self, batch: ProducerBatch) -> None:
        """Send a batch that the broker finds too large as two halves, repeatedly."""
        if self.abort_reason is not None:  # no batch is sent any more
            self._fail(batch, self.abort_reason)
            return
        queue = self._accumulator.queue_of(batch)
        parts = batch.split(batch.size_bytes // 2, self._config.codec)
        log.info(
            "the broker rejected %s because it is too large, so its records are sent again in %d "
            "smaller batches",
            batch,
            len(parts),
        )
        queue.replace(batch, parts)
        self._accumulator.replaced(batch, parts)
        self.wake(queue)

    def _fail(self, batch: ProducerBatch, error: KafkaError) -> None:
        if isinstance(error, InvalidProducerEpoch) and not self._is_transactional:
            # A broker has a higher epoch of the id, so ours plus one may be too low, too.
            self._identity.give_up()
        queue = self._accumulator.queue_of(batch)
        queue.give_up(batch)
        if not batch.is_expired:
            batch.fail(self._on_failed(batch, error))
        self._finish(queue, batch)

    def expired(self, queue: PartitionQueue, batch: ProducerBatch, error: KafkaError) -> None:
        queue.expire(batch)
        batch.fail(self._on_failed(batch, error))
        self._accumulator.finished(batch)
        self._look_again(queue)

    def _finish(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        if not batch.is_expired:
            self._accumulator.finished(batch)
        self._look_again(queue)

    def _look_again(self, queue: PartitionQueue) -> None:
        if not queue.is_empty:
            self.wake(queue)

    def _mend(self, queue: PartitionQueue) -> None:
        if not self._is_transactional and queue.can_be_mended:
            before = queue.identity
            self._identity.mend(queue)
            if not queue.is_broken:
                log.warning(
                    "the broker rejected the sequence numbers of %s-%d as out of order, so the "
                    "producer starts again at sequence number 0, with %s instead of %s",
                    *queue.tp,
                    queue.identity,
                    before,
                )

    def _backoff_s(self, failures: int) -> float:
        first_s = self._config.retry_backoff_s
        return delay_after(failures, first_s, max(first_s, LONGEST_BACKOFF_S), self._rng)


def _refusal(batch: ProducerBatch, answer: PartitionProduceResponse, description: str) -> str:
    """Return the text of a broker's error, with the records that it names (KIP-467)."""
    named = [
        f"record {each.batch_index} of the batch: {each.batch_index_error_message}"
        for each in answer.record_errors[:MOST_NAMED_RECORDS]
    ]
    tp = batch.tp
    text = (
        f"{answer.error_message or description} ({tp.topic}-{tp.partition}, {batch.count} records)"
    )
    return "; ".join([text, *named])
