"""The choice of a record's partition and batch, and the buffer memory.

`append` is the path of every record, without an await. If the topic's metadata or buffer memory is
missing, it returns None, and the caller fetches metadata or waits `in_turn`.

A record counts with an upper bound of its size, until its outcome. Callers get free memory in the
order of their calls. No batch lingers while a caller waits for memory.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from aiokafka_lite._compat import timeout_at
from aiokafka_lite._virtual import wall_clock
from aiokafka_lite.client.view import ClusterView, TopicView
from aiokafka_lite.errors import (
    IllegalArgumentError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.producing.batch import (
    RECORD_OVERHEAD_BYTES,
    BatchState,
    Headers,
    OwnBatch,
    OwnReceipt,
    ProducerBatch,
    Receipt,
    Tell,
    record_size_bound,
)
from aiokafka_lite.producing.config import AnyProducerConfig, Partitioner
from aiokafka_lite.producing.partition_queue import PartitionQueue
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.records.partitioner import partition_for_key
from aiokafka_lite.structs import RecordMetadata, TopicPartition

log = logging.getLogger(__name__)

NO_HEADERS: Final[Headers] = ()


class KnownTopic:
    """A topic's partitions. `every_queue` includes former ones, whose log may turn out the same."""

    def __init__(self, name: str, rng: random.Random) -> None:
        self.name = name
        self.queues: list[PartitionQueue] = []
        self.every_queue: list[PartitionQueue] = []
        self.topic_id = ZERO_UUID
        # The numbers of all partitions, and of those with a leader.
        self.all: list[int] = []
        self.available: list[int] = []
        self.sticky = -1
        self._sticky_bytes: int  # `unstick` sets it, with the first partitions
        self._rng = rng

    def update(self, view: TopicView, leaders: set[int]) -> bool:
        """Update the partitions from metadata and return whether the topic was recreated."""
        count = max(view.partitions, default=-1) + 1
        is_recreated = count > 0 and self._is_another(view.topic_id, count)
        if view.topic_id != ZERO_UUID:
            self.topic_id = view.topic_id
        for index in range(len(self.every_queue), count):
            self.every_queue.append(PartitionQueue(TopicPartition(self.name, index)))
        self.queues = self.every_queue[:count]
        self.all = list(range(count))
        available = [index for index, each in view.partitions.items() if each.leader in leaders]
        self.available = available
        if self.sticky not in (available or self.all):
            self.unstick()
        return is_recreated

    def _is_another(self, topic_id: bytes, count: int) -> bool:
        if ZERO_UUID not in (self.topic_id, topic_id):
            return self.topic_id != topic_id
        is_back = not self.queues and bool(self.every_queue)
        return is_back or count < len(self.queues)

    def stick(self, size_bytes: int, enough_bytes: int) -> int:
        """Return the partition for a record without a key: the same for a batch's bytes."""
        if self._sticky_bytes >= enough_bytes:
            self.unstick()
        self._sticky_bytes += size_bytes
        return self.sticky

    def unstick(self) -> None:
        """Change to another partition, one with a leader if possible."""
        others = [index for index in self.available or self.all if index != self.sticky]
        if others:
            self.sticky = self._rng.choice(others)
        self._sticky_bytes = 0


class Accumulator:
    """The unacknowledged records, by topic and partition.

    Args:
        wake: Called with an unlisted queue that has a batch to send.
        give_up: Called with a batch that timed out or lost its partition, and the error.
        why_unsent: Returns why the leader takes no batch of a queue.
        on_loss: Aborts the transaction whose topic is deleted, and returns whether it could.
        tell: Called with outcomes by the records' numbers, from 1, instead of futures.
    """

    def __init__(
        self,
        config: AnyProducerConfig,
        loop: asyncio.AbstractEventLoop,
        rng: random.Random,
        *,
        wake: Callable[[PartitionQueue], None],
        give_up: Callable[[PartitionQueue, ProducerBatch, KafkaError], None],
        why_unsent: Callable[[PartitionQueue], KafkaError | None],
        on_loss: Callable[[KafkaError], bool],
        tell: Tell | None = None,
    ) -> None:
        self._loop = loop
        self._tell = tell
        self._new_receipt: Callable[[], Receipt] = (
            loop.create_future if tell is None else itertools.count(1).__next__
        )
        self._rng = rng
        self._now_ns = wall_clock(loop)
        self._wake = wake
        self._give_up = give_up
        self._why_unsent = why_unsent
        self._on_loss = on_loss
        self._codec = config.codec
        self._is_transactional = config.transactional_id is not None
        self._max_request_size = config.max_request_size
        self._max_batch_size = min(config.max_batch_size, config.max_request_size)
        self._buffer_memory = config.buffer_memory
        self._linger_s = config.linger_s
        self._delivery_timeout_s = config.delivery_timeout_s
        self._partitioner: Partitioner | None = config.partitioner
        self._topics: dict[str, KnownTopic] = {}
        self.used_bytes = 0
        # The callers that wait for memory, in order: each with its next wake-up.
        self._room: deque[list[asyncio.Future[None]]] = deque()
        # All batches without an outcome, oldest first, among some that have one.
        self._pending: deque[ProducerBatch] = deque()
        self._expiry: asyncio.TimerHandle | None = None
        # The callers of `flush`: each waits for the outcomes of all batches up to a number.
        self._made_count = 0
        self._done_count = 0
        self._flushes: list[tuple[int, asyncio.Future[None]]] = []

    # --- Topics ----------------------------------------------------------------------------
    def is_known(self, topic: str) -> bool:
        found = self._topics.get(topic)
        return found is not None and bool(found.queues)

    def has(self, topic: str, partition: int | None) -> bool:
        return self.is_known(topic) and (
            partition is None or 0 <= partition < self.partition_count(topic)
        )

    def partition_count(self, topic: str) -> int:
        return len(self._topics[topic].queues)

    def topic_id(self, topic: str) -> bytes:
        return self._topics[topic].topic_id

    def add_topic(self, topic: str) -> None:
        self._topics.setdefault(topic, KnownTopic(topic, self._rng))

    def drop_topic(self, topic: str) -> bool:
        """Undo `add_topic` for a topic that never existed. Return whether it is removed."""
        if topic in self._topics and not self._topics[topic].every_queue:
            del self._topics[topic]
        return topic not in self._topics

    def view_changed(self, view: ClusterView, names: Iterable[str] | None = None) -> None:
        nodes = set(view.nodes)
        for name in self._topics if names is None else names:
            topic, found = self._topics.get(name), view.topics.get(name)
            if topic is None or found is None:
                continue
            if not (found.partitions or found.error is UnknownTopicOrPartitionError):
                continue
            if topic.update(found, nodes):
                self._recreated(topic)
        self._wake_first()  # its topic may be deleted

    def _recreated(self, topic: KnownTopic) -> None:
        """Send unacknowledged records to the new topic, and fail those of missing partitions.

        A batch that may have been written keeps its sequence: the broker recognises it if the new
        log has it already.
        """
        count = len(topic.queues)
        log.warning(
            "topic %r was recreated with %d partitions: records are now sent to the new topic",
            topic.name,
            count,
        )
        is_aborted = any(queue.is_in_transaction for queue in topic.every_queue) and self._on_loss(
            UnknownTopicOrPartitionError(
                f"topic {topic.name!r} was deleted and recreated, so the records that the "
                "transaction had written to the deleted topic are lost"
            )
        )
        for queue in topic.every_queue:
            queue.begin_log(is_broken=is_aborted)
        for queue in topic.every_queue[count:]:
            for batch in (*queue.numbered, *queue.waiting):
                if not batch.is_expired:
                    self._give_up(queue, batch, _gone(batch, count))

    def queues(self, names: Iterable[str] | None = None) -> Iterator[PartitionQueue]:
        """Return the queues, including former partitions."""
        for name in self._topics if names is None else names:
            if (topic := self._topics.get(name)) is not None:
                yield from topic.every_queue

    def queue_of(self, batch: ProducerBatch) -> PartitionQueue:
        return self._topics[batch.tp.topic].every_queue[batch.tp.partition]

    # --- Records ---------------------------------------------------------------------------
    def append(
        self,
        topic_name: str,
        key: bytes | None,
        value: bytes | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Headers,
        *,
        is_in_turn: bool = False,
    ) -> asyncio.Future[RecordMetadata] | None:
        """Put a record into a batch, or return None if it has to wait.

        A caller in turn precedes the others that wait for memory. Raises as
        `AIOKafkaProducer.send`, and IllegalArgumentError for an invalid choice of the partitioner.
        """
        topic = self._topics.get(topic_name)
        if topic is None:
            return None
        if headers:
            size = record_size_bound(key, value, headers)
        else:
            size = RECORD_OVERHEAD_BYTES
            if key is not None:
                size += len(key)
            if value is not None:
                size += len(value)
        used_bytes = self.used_bytes + size
        if used_bytes > self._buffer_memory or (self._room and not is_in_turn):
            return None
        queues = topic.queues
        if partition is None:
            if not queues:
                return None
            partition = self._choose(topic, key, size)
        elif not 0 <= partition < len(queues):
            return None
        queue = queues[partition]
        batch, most = queue.open, self._max_batch_size
        if batch is None or (batch.size_bytes + size > most and batch.measure() + size > most):
            batch = self._open(queue, size)
        # Variables, because a call such as `self._now_ns()` looks for a method first.
        now_ns, new_receipt, write = self._now_ns, self._new_receipt, batch.write
        if timestamp_ms is None:
            timestamp_ms = now_ns() // 1_000_000
        try:
            write(timestamp_ms, key, value, headers)
        except BaseException:
            if not batch.count:  # it was opened for this record
                queue.give_up(batch)
                self.finished(batch)
            raise
        # ProducerBatch.append inline, because every record passes here.
        receipt = new_receipt()
        batch.receipts.append(receipt)
        batch.timestamps.append(timestamp_ms)
        batch.size_bytes += size
        self.used_bytes = used_bytes
        if batch.size_bytes >= most and batch.measure() >= most:
            self._close(queue, batch)
        return receipt  # type: ignore[return-value]  # a number, with `tell`

    def _choose(self, topic: KnownTopic, key: bytes | None, size: int) -> int:
        if self._partitioner is not None:
            return self._ask_partitioner(topic, key)
        if key is not None:
            return partition_for_key(key, len(topic.queues))
        return topic.stick(size, self._max_batch_size)

    def partition_of_next(self, topic: str, key: bytes | None) -> int:
        """Return the partition of the next record of a known topic, if the record is small."""
        return self._choose(self._topics[topic], key, 0)

    def append_batch(
        self, topic_name: str, partition: int | None, own: OwnBatch, *, is_in_turn: bool = False
    ) -> asyncio.Future[RecordMetadata] | None:
        """Put an application's records into one batch. The future gets the first offset."""
        topic = self._topics.get(topic_name)
        size = own.size()
        if topic is None or not topic.queues:
            return None
        if self.used_bytes + size > self._buffer_memory or (self._room and not is_in_turn):
            return None
        if partition is None:
            partition = self._choose(topic, None, size)
        elif not 0 <= partition < len(topic.queues):
            return None
        queue = topic.queues[partition]
        receipt = OwnReceipt(self._loop.create_future(), own, is_quiet=self._is_transactional)
        batch = self._open(queue, size, receipt.tell)
        try:
            for number, row in enumerate(own.rows()):
                batch.append(*row, receipt=number)
        except BaseException:
            queue.give_up(batch)
            self.used_bytes += batch.room_bytes
            self.finished(batch)
            raise
        self.used_bytes += batch.room_bytes
        self._close(queue, batch)
        return receipt.future

    def _ask_partitioner(self, topic: KnownTopic, key: bytes | None) -> int:
        chosen = self._partitioner(key, topic.all, topic.available or topic.all)  # type: ignore[misc]
        if not 0 <= chosen < len(topic.queues):
            raise IllegalArgumentError(
                f"the partitioner chose partition {chosen} of {topic.name!r}, but the topic has "
                f"{len(topic.queues)} partitions"
            )
        return chosen

    def _open(self, queue: PartitionQueue, size: int, tell: Tell | None = None) -> ProducerBatch:
        if size > self._max_request_size:
            raise MessageSizeTooLargeError(
                f"Message is {size} bytes when serialized which is larger than the maximum request "
                f"size you have configured with the max_request_size configuration: "
                f"{self._max_request_size}"
            ).at(queue.tp)
        now = self._loop.time()
        linger_s = 0.0 if self._room else self._linger_s
        if queue.waiting:
            self._close(queue, queue.waiting[-1])
        batch = ProducerBatch(
            queue.tp,
            now,
            codec=self._codec,
            is_transactional=self._is_transactional,
            linger_s=linger_s,
            tell=tell or self._tell,
        )
        queue.begin(batch)
        self._made_count += 1
        self._pending.append(batch)
        if self._expiry is None:
            self._expiry = self._loop.call_at(self._deadline_of(batch), self._expire)
        if not linger_s:
            if not queue.is_listed:
                self._wake(queue)
        else:
            self._loop.call_at(batch.due_at, self._wake, queue)
        return batch

    def _close(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        queue.close(batch)
        if not queue.is_listed:
            self._wake(queue)

    # --- Room ------------------------------------------------------------------------------
    def raise_if_never_fits(self, size: int) -> None:
        if size > self._buffer_memory:
            raise IllegalArgumentError(
                f"a record of {size} bytes is larger than buffer_memory={self._buffer_memory}: "
                "raise buffer_memory"
            )

    async def in_turn(
        self, append: Callable[[], asyncio.Future[RecordMetadata] | None], deadline: float
    ) -> asyncio.Future[RecordMetadata]:
        """Append a record when there is memory, in the order of calls, or raise a timeout."""
        # It keeps its place until the end.
        place = [self._loop.create_future()]
        if self._linger_s and not self._room:
            for queue in self.queues():
                if queue.open is not None:
                    self._close(queue, queue.open)
        self._room.append(place)
        try:
            async with timeout_at(deadline):
                while True:
                    await place[0]
                    if (future := append()) is not None:
                        return future
                    place[0] = self._loop.create_future()
        except asyncio.TimeoutError:
            raise KafkaTimeoutError(
                "there was no room for the record, because unacknowledged records use "
                f"{self.used_bytes} of buffer_memory={self._buffer_memory} bytes. Send fewer "
                "records at a time, or raise buffer_memory"
            ) from None
        finally:
            self._room.remove(place)
            self._wake_first()

    def _wake_first(self) -> None:
        if self._room and not self._room[0][0].done():
            self._room[0][0].set_result(None)

    # --- Batches ---------------------------------------------------------------------------
    def _deadline_of(self, batch: ProducerBatch) -> float:
        return batch.created_at + self._delivery_timeout_s

    def finished(self, batch: ProducerBatch) -> None:
        self.used_bytes -= batch.room_bytes
        if self._room:
            self._wake_first()
        pending = self._pending
        while pending and (pending[0].state is BatchState.DONE or pending[0].is_expired):
            pending.popleft()
            self._done_count += 1
        for number, waiter in self._flushes:
            if number <= self._done_count and not waiter.done():
                waiter.set_result(None)

    def replaced(self, batch: ProducerBatch, parts: Sequence[ProducerBatch]) -> None:
        before = deque[ProducerBatch]()
        while (first := self._pending.popleft()) is not batch:
            before.append(first)
        before.extend(parts)
        # Callers that wait for the batch wait for its parts.
        more = len(parts) - 1
        number = self._done_count + len(before) - more
        self._flushes = [(n + more if n >= number else n, w) for n, w in self._flushes]
        self._made_count += more
        self._pending.extendleft(reversed(before))

    def _expire(self) -> None:
        self._expiry = None
        now = self._loop.time()
        for batch in tuple(self._pending):
            if self._deadline_of(batch) > now:
                break
            if batch.state is not BatchState.DONE and not batch.is_expired:
                self._give_up(self.queue_of(batch), batch, self._expired(batch))
        oldest = next((b for b in self._pending if b.state is not BatchState.DONE), None)
        if oldest is not None and self._expiry is None:
            self._expiry = self._loop.call_at(self._deadline_of(oldest), self._expire)

    def _expired(self, batch: ProducerBatch) -> KafkaError:
        is_there = self.has(*batch.tp)
        error_class = KafkaTimeoutError if is_there else UnknownTopicOrPartitionError
        tried = f"was sent {batch.attempts} times" if batch.attempts else "could not be sent"
        unsent = None
        if batch.state is not BatchState.ON_WIRE:
            unsent = self._why_unsent(self.queue_of(batch))
        cause = unsent or batch.last_error
        error = error_class(
            ("" if is_there else f"topic {batch.tp.topic!r} does not exist any more: ")
            + f"{batch.count} records for {batch.tp.topic}-{batch.tp.partition} were not "
            f"acknowledged within delivery_timeout_ms={self._delivery_timeout_s * 1000:g}: the "
            f"batch {tried}"
            + (f". The last error was: {cause}" if cause else "")
            + (". The broker may have written the records" if batch.attempts else "")
        )
        error.__cause__ = cause
        return error

    def fail_unsent(self, error: KafkaError) -> None:
        """Fail all batches except those in flight, whose outcome is unknown."""
        for batch in tuple(self._pending):
            if batch.state in (BatchState.WAITING, BatchState.TO_RETRY):
                self.queue_of(batch).give_up(batch)
                batch.fail(error)
                self.finished(batch)

    def fail_all(self, error: KafkaError) -> None:
        for batch in tuple(self._pending):
            if batch.state is not BatchState.DONE and not batch.is_expired:
                self.queue_of(batch).expire(batch)
                batch.fail(error)
                self.finished(batch)

    def close(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    # --- Flush -----------------------------------------------------------------------------
    @property
    def is_empty(self) -> bool:
        return not self._pending

    def send_now(self) -> None:
        for batch in self._pending:
            if batch.state is BatchState.WAITING:
                self._close(self.queue_of(batch), batch)

    async def flush(self) -> None:
        """See `AIOKafkaProducer.flush`."""
        self.send_now()
        if self._pending:
            done: asyncio.Future[None] = self._loop.create_future()
            self._flushes.append((self._made_count, done))
            try:
                await done
            finally:
                self._flushes = [each for each in self._flushes if each[1] is not done]


def _gone(batch: ProducerBatch, count: int) -> KafkaError:
    tp = batch.tp
    sent = ". The records may have been written to the deleted topic" if batch.attempts else ""
    return UnknownTopicOrPartitionError(
        f"partition {tp.topic}-{tp.partition} no longer exists: the topic was deleted and "
        f"recreated with {count} partitions{sent}"
    ).at(tp)
