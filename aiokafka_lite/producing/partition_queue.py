"""The unacknowledged batches of one partition, in order, without I/O.

A broker accepts a producer's batch for a partition only if its sequence is the next one. With
retries, this gives order and exactly-once if the queue keeps four rules:

1. A batch gets its sequence when it is first sent, and keeps it in every attempt.
2. Batches to retry precede new ones, and are sent in order: the first alone, the next after its
   acknowledgement. Each is one of the last `MAX_IN_FLIGHT` batches with a sequence, acknowledged
   ones included: a new leader may acknowledge later batches while the previous one's answer to the
   first is lost. A broker remembers no more. It rejects an older batch in its log as out of order.
3. A broker that does not know a producer accepts any first sequence. So the first batch under an
   identity is sent alone: if it were rejected, the next one would be accepted in its place.
4. A failed batch that may have been written keeps its sequence in use. The broker decides whether
   that is a gap.

`numbered` holds the batches with a sequence, oldest first, and `waiting` the others. A failed batch
with a sequence makes the queue *doubtful*: it numbers no new batches until

    event                                               result
    a later batch is acknowledged, and none is left     no gap: the queue continues
    the first numbered batch is out of order            a gap, or the broker has lost its state
    no numbered batch is left, and the last             unknown, treated as a gap
    acknowledged one is not the latest

A gap makes the queue *broken*. Another epoch fixes it: once no batch is in flight, sequences start
at 0 again (`adopt`). The batches that are still numbered were rejected because of the gap, so they
may get new sequences. A transaction is aborted, and the queue is `reset`.

After `TransactionManager` and `TxnPartitionEntry` of Java's producer, which renumbers batches while
some are in flight, and does not keep the third rule.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from aiokafka_lite.errors import KafkaError
from aiokafka_lite.producing.batch import (
    BatchState,
    ProducerBatch,
    ProducerIdAndEpoch,
    sequence_after,
)
from aiokafka_lite.structs import TopicPartition

MAX_IN_FLIGHT: Final = 5
MAX_EPOCH: Final = 2**15 - 1
# Timers of event loops may be early by their rounding, uvloop's by 0.5 ms.
TIMER_SLACK_S: Final = 0.002


class PartitionQueue:
    """One partition's batches. One writer: its methods, except as noted.

    Attributes:
        open: The last batch of `waiting` if it takes more records.
        identity: The producer of `numbered`. None before the first.
        is_listed: It is in a list of queues with a batch to send, whose owner writes this.
        leader: The partition's known leader. The sender writes this.
        is_in_transaction: The coordinator has the partition in the transaction. Also the sender's.
    """

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.numbered: deque[ProducerBatch] = deque()
        self.waiting: deque[ProducerBatch] = deque()
        self.open: ProducerBatch | None = None
        self.identity: ProducerIdAndEpoch | None = None
        self.next_sequence = 0
        self.is_doubtful = False
        self.is_broken = False
        self.is_listed = False
        self.leader: int | None = None
        self.is_in_transaction = False
        # The number of batches in `numbered` to retry.
        self.retry_count = 0
        # The sequence behind the last batch that was acknowledged.
        self._acknowledged_next: int  # `adopt` sets it
        self._next_place = 0
        # 1 until a broker has accepted a batch under the current identity.
        self._most_in_flight = 1
        # Some numbered batches may be older than the recreated topic.
        self._is_log_new = False

    def __repr__(self) -> str:
        return (
            f"<queue of {self.tp.topic}-{self.tp.partition}: {len(self.numbered)} batches with "
            f"sequence numbers, {len(self.waiting)} batches without>"
        )

    @property
    def is_empty(self) -> bool:
        return not self.numbered and not self.waiting

    @property
    def is_on_wire(self) -> bool:
        return self.retry_count < len(self.numbered)

    # --- Waiting batches ---------------------------------------------------------------------
    def begin(self, batch: ProducerBatch) -> None:
        self.waiting.append(batch)
        self.open = batch

    def close(self, batch: ProducerBatch) -> None:
        batch.close()
        if self.open is batch:
            self.open = None

    # --- Sending -----------------------------------------------------------------------------
    def next_batch(self, now: float) -> ProducerBatch | None:
        if self.is_broken:
            return None
        now += TIMER_SLACK_S
        if self.retry_count:
            head = self.numbered[0]
            return head if head.state is BatchState.TO_RETRY and head.due_at <= now else None
        if not self.waiting or self.is_doubtful:
            return None
        if self.numbered and self._next_place - self.numbered[0].place >= self._most_in_flight:
            return None
        batch = self.waiting[0]
        return batch if batch.due_at <= now else None

    def send(self, batch: ProducerBatch, identity: ProducerIdAndEpoch) -> None:
        """Note that the batch from `next_batch` is sent now, with a sequence."""
        if batch.state is BatchState.TO_RETRY:
            self.retry_count -= 1
        else:
            if self.identity != identity and not self.numbered:
                self.adopt(identity)
            batch.number(self.identity or identity, self.next_sequence)
            self.next_sequence = batch.next_sequence
            batch.place = self._next_place
            self._next_place += 1
            self.close(self.waiting.popleft())
            self.numbered.append(batch)
        batch.state = BatchState.ON_WIRE
        batch.attempts += 1

    # --- Outcomes ----------------------------------------------------------------------------
    def acknowledge(self, batch: ProducerBatch) -> None:
        self._remove(batch)
        if batch.identity == self.identity:
            self._acknowledged_next = batch.next_sequence
            if not self._is_log_new:
                self._most_in_flight = MAX_IN_FLIGHT
        self._settle()

    def retry(self, batch: ProducerBatch, error: KafkaError, retry_at: float) -> None:
        """Note a failed attempt. A batch that has timed out is not retried."""
        batch.last_error = error
        if batch.is_expired:
            self.give_up(batch)
            return
        batch.state = BatchState.TO_RETRY
        batch.due_at = retry_at
        self.retry_count += 1

    def refuse_as_out_of_order(
        self, batch: ProducerBatch, error: KafkaError, retry_at: float
    ) -> None:
        """Note that the broker expects another sequence, after a failed batch or a gap."""
        is_first = batch is self.numbered[0]
        self.retry(batch, error, retry_at)
        if is_first and not batch.is_expired:
            self.is_broken = True

    def give_up(self, batch: ProducerBatch) -> None:
        """Note that a batch is not retried. With a sequence, it may have been written."""
        if batch.state is BatchState.WAITING:
            self.close(batch)
            self.waiting.remove(batch)
            batch.state = BatchState.DONE
            return
        self._remove(batch)
        if batch.identity == self.identity:
            self.is_doubtful = True
        self._settle()

    def expire(self, batch: ProducerBatch) -> None:
        """Fail a batch that has timed out. One in flight stays for its response."""
        if batch.state is BatchState.ON_WIRE:
            batch.is_expired = True
        else:
            self.give_up(batch)

    def replace(self, batch: ProducerBatch, parts: list[ProducerBatch]) -> None:
        """Replace a rejected batch by parts with the same sequences."""
        at = self.numbered.index(batch)
        del self.numbered[at]
        for offset, part in enumerate(parts):
            self.numbered.insert(at + offset, part)
            part.place = batch.place
            part.state = BatchState.TO_RETRY
        self.retry_count += len(parts)
        batch.state = BatchState.DONE

    def _remove(self, batch: ProducerBatch) -> None:
        if batch.state is BatchState.TO_RETRY:
            self.retry_count -= 1
        self.numbered.remove(batch)
        batch.state = BatchState.DONE

    def _settle(self) -> None:
        """Decide about a gap, and about the log, once all responses have arrived."""
        if self.numbered:
            return
        self._is_log_new = False
        if self.is_doubtful:
            self.is_doubtful = False
            self.is_broken |= self._acknowledged_next != self.next_sequence

    # --- Another log, producer id or epoch ------------------------------------------------------
    def begin_log(self, *, is_broken: bool) -> None:
        """Note that the topic was recreated, so that its broker does not know this producer.

        Sequences continue (rule 3). But if a transaction is aborted for it, its marker may be
        written first. Then the broker accepts only 0, and the queue is broken.
        """
        self.is_broken |= is_broken
        self._is_log_new = bool(self.numbered)
        self._most_in_flight = 1

    @property
    def can_be_mended(self) -> bool:
        return self.is_broken and not self.is_on_wire

    def adopt(self, identity: ProducerIdAndEpoch) -> None:
        """Restart at sequence 0 under another identity. Numbered batches get new sequences."""
        if self.is_on_wire:
            raise AssertionError(f"cannot change the producer id of {self!r}: a batch is in flight")
        self.identity = identity
        sequence = 0
        for batch in self.numbered:
            batch.number(identity, sequence)
            sequence = sequence_after(sequence, batch.count)
        self.next_sequence = sequence
        self._acknowledged_next = 0
        self._most_in_flight = 1
        self.is_broken = self.is_doubtful = False

    def reset(self) -> None:
        """Clear the sequences of an empty queue after a transaction, before the next epoch."""
        if not self.is_empty:
            raise AssertionError(f"cannot reset {self!r}: the queue is not empty")
        self.identity = None
        self.is_broken = self.is_doubtful = self.is_in_transaction = False


class CurrentIdentity:
    """The producer id and epoch of new batches; calls `on_used_up` to get another id.

    Without transactions a producer increments its epoch locally, because brokers accept any higher
    one (KIP-360). It gets another id if the epochs are used up, or a broker has a higher one. With
    transactions the coordinator assigns both.
    """

    def __init__(self, on_used_up: Callable[[], None]) -> None:
        self._on_used_up = on_used_up
        self.current: ProducerIdAndEpoch | None = None

    def renew(self, identity: ProducerIdAndEpoch) -> None:
        self.current = identity

    def give_up(self) -> None:
        """Drop the producer id until `renew`."""
        if self.current is not None:
            self.current = None
            self._on_used_up()

    def mend(self, queue: PartitionQueue) -> None:
        """Restart the sequences of a broken queue, under an epoch that it has not had."""
        if self.current is None:
            return
        if queue.identity == self.current:
            if self.current.epoch >= MAX_EPOCH:
                self.give_up()
                return
            self.current = self.current._replace(epoch=self.current.epoch + 1)
        queue.adopt(self.current)
