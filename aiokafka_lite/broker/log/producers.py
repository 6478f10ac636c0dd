"""A partition's producer state: idempotent appends and transactions (KIP-98).

Kafka: org.apache.kafka.storage.internals.log.{ProducerStateManager, TransactionIndex}. The last
five batches of each producer are kept, because a producer may have that many in flight. Batches
that coordinators write have no sequence numbers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from aiokafka_lite.broker.log.segment import NO_TIMESTAMP
from aiokafka_lite.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequenceNumber,
    TransactionCoordinatorFenced,
)
from aiokafka_lite.protocol.messages.transactions import ProducerState
from aiokafka_lite.records import BatchHeader, ControlType
from aiokafka_lite.records.transactions import EndMarker, end_marker

NO_OFFSET: Final = -1
BATCHES_KEPT: Final = 5
# Sequence numbers are int32 and start over at 0.
_SEQUENCES: Final = 2**31
NO_SEQUENCE: Final = -1
NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
LAST_EPOCH: Final = 2**15 - 1
# From this transaction version on, every transaction has its own epoch (KIP-890).
FIRST_VERSION_WITH_EPOCHS: Final = 2


class AbortedTransaction(NamedTuple):
    """An aborted transaction: its first record, its marker, and the last stable offset after that.

    Transactions that ended later began at or after that last stable offset.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """The aborted transactions of a log."""

    def __init__(self) -> None:
        self._aborted: list[AbortedTransaction] = []  # by last offset
        # Markers up to here are stored already. Noting them again has no effect.
        self._known_to = NO_OFFSET

    @property
    def has_aborted(self) -> bool:
        return bool(self._aborted)

    def note(self, ended: AbortedTransaction, *, is_abort: bool) -> None:
        if ended.last_offset > self._known_to:
            self._known_to = ended.last_offset
            if is_abort:
                self._aborted.append(ended)

    def _ended_before(self, offset: int) -> int:
        return bisect_left(self._aborted, offset, key=lambda each: each.last_offset)

    def aborted_within(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        first = self._ended_before(start_offset)
        last = bisect_left(self._aborted, end_offset, key=lambda each: each.last_stable_offset)
        return [each for each in self._aborted[first : last + 1] if each.first_offset < end_offset]

    def truncate(self, end_offset: int) -> None:
        del self._aborted[self._ended_before(end_offset) :]
        self._known_to = min(self._known_to, end_offset - 1)

    def trim_before(self, log_start_offset: int) -> None:
        del self._aborted[: self._ended_before(log_start_offset)]

    def forget_markers(self, offsets: Container[int]) -> None:
        """Remove aborted transactions whose markers, and so all records, compaction removes."""
        self._aborted = [each for each in self._aborted if each.last_offset not in offsets]

    def snapshot(self) -> list[AbortedTransaction]:
        return list(self._aborted)

    def restore(self, snapshot: Iterable[Iterable[int]]) -> None:
        self._aborted += (AbortedTransaction(*row) for row in snapshot)
        if self._aborted:
            self._known_to = self._aborted[-1].last_offset


class ProducerIdentity(NamedTuple):
    producer_id: int
    epoch: int


NO_PRODUCER: Final = ProducerIdentity(NO_PRODUCER_ID, NO_EPOCH)


class AppendedBatch(NamedTuple):
    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


StoredProducer: TypeAlias = tuple[int, int, list[AppendedBatch], int, int, int, int]


@dataclass
class _Producer:
    epoch: int
    batches: deque[AppendedBatch] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))
    coordinator_epoch: int = NO_EPOCH
    last_timestamp: int = NO_TIMESTAMP
    last_offset: int = NO_OFFSET

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


class _Unverified(NamedTuple):
    """The first batch of a transaction, which waits for the coordinator's verification."""

    epoch: int
    lowest_sequence: int
    has_epochs: bool


def last_sequence_of(header: BatchHeader) -> int:
    return (header.base_sequence + header.last_offset_delta) % _SEQUENCES


class ProducerStates:
    """The newest batches of each producer, which only `note` adds."""

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}
        self._unverified: dict[int, _Unverified] = {}
        self._open: dict[int, int] = {}  # first offsets of open transactions
        self.first_unstable_offset: int | None = None  # the smallest of them
        self.transactions = TransactionIndex()

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        producer = self._producers.get(producer_id)
        return producer is not None and producer.epoch == epoch and producer_id in self._open

    def verifying(self, header: BatchHeader, *, has_epochs: bool) -> None:
        """Reject later batches of a producer until its first one, now verified, is in the log."""
        known = self._unverified.get(header.producer_id)
        lowest = header.base_sequence
        if known is not None and known.epoch >= header.producer_epoch:
            if known.epoch > header.producer_epoch:
                return
            lowest = min(lowest, known.lowest_sequence)
        self._unverified[header.producer_id] = _Unverified(
            header.producer_epoch, lowest, has_epochs
        )

    def duplicate_of(self, header: BatchHeader) -> AppendedBatch | None:
        """Return the batch in the log that has the same sequence numbers, if any."""
        producer = self._producers.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            return None
        wanted = (header.base_sequence, last_sequence_of(header))
        for batch in producer.batches:
            if (batch.first_sequence, batch.last_sequence) == wanted:
                return batch
        return None

    def check(self, header: BatchHeader) -> None:
        """Check that a batch follows the producer's last one, and belongs to its transaction."""
        producer = self._producers.get(header.producer_id)
        if producer is not None and header.producer_epoch < producer.epoch:
            raise InvalidProducerEpoch(
                f"producer {header.producer_id} has epoch {producer.epoch}, but the batch has "
                f"the older epoch {header.producer_epoch}"
            )
        if header.base_sequence != NO_SEQUENCE:
            self._check_sequence(header, producer)
        if not header.is_transactional and header.producer_id in self._open:
            raise InvalidTxnState(
                f"producer {header.producer_id} has an open transaction: "
                f"non-transactional batches are rejected until the transaction ends"
            )

    def _check_sequence(self, header: BatchHeader, producer: _Producer | None) -> None:
        first = header.base_sequence
        unverified = self._unverified.get(header.producer_id)
        if unverified is not None:
            has_batches = producer is not None and producer.batches
            if unverified.has_epochs and first != 0 and not has_batches:
                raise OutOfOrderSequenceNumber(
                    f"the first batch of producer {header.producer_id} in this partition must "
                    f"have sequence number 0, not {first}"
                )
            if first > unverified.lowest_sequence:
                raise OutOfOrderSequenceNumber(
                    f"producer {header.producer_id} sent sequence number {first}, but "
                    f"sequence number {unverified.lowest_sequence} must be written first"
                )
        if producer is None:
            return  # new here, or all its batches were deleted: any number is valid
        expected = 0
        if header.producer_epoch == producer.epoch:
            expected = (producer.last_sequence + 1) % _SEQUENCES
        if first != expected:
            raise OutOfOrderSequenceNumber(
                f"producer {header.producer_id} sent sequence number {first}, "
                f"but {expected} was expected"
            )

    def check_marker(
        self, header: BatchHeader, coordinator_epoch: int, transaction_version: int
    ) -> None:
        """Check that a marker may end a producer's transaction.

        From transaction version 2 on, markers have a higher epoch than the records before them
        (KIP-1228). A repeated marker has the same epoch.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return
        epoch = header.producer_epoch
        is_repeated = epoch == producer.epoch and (
            epoch == LAST_EPOCH or header.producer_id not in self._open
        )
        is_too_old = epoch < producer.epoch
        if transaction_version >= FIRST_VERSION_WITH_EPOCHS and not is_repeated:
            is_too_old = epoch <= producer.epoch
        if is_too_old:
            raise InvalidProducerEpoch(
                f"producer {header.producer_id} has epoch {producer.epoch}, "
                f"but the transaction marker has epoch {epoch}"
            )
        if coordinator_epoch < producer.coordinator_epoch:
            raise TransactionCoordinatorFenced(
                f"the transaction marker for producer {header.producer_id} has coordinator epoch "
                f"{coordinator_epoch}, but {producer.coordinator_epoch} or higher is required"
            )

    def note(self, header: BatchHeader, base_offset: int, batch: memoryview) -> None:
        marker = end_marker(header, batch) if header.is_control else None
        if header.is_control and marker is None:
            return
        producer = self._producers.get(header.producer_id)
        if producer is None:
            producer = self._producers[header.producer_id] = _Producer(header.producer_epoch)
        elif producer.epoch != header.producer_epoch:
            producer.epoch = header.producer_epoch
            producer.batches.clear()
        producer.last_timestamp = header.max_timestamp
        producer.last_offset = base_offset + header.last_offset_delta
        if marker is not None:
            self._note_marker(header.producer_id, producer, marker)
            return
        if header.is_transactional and header.producer_id not in self._open:
            self._unverified.pop(header.producer_id, None)
            self._begin(header.producer_id, base_offset)
        if header.base_sequence != NO_SEQUENCE:
            producer.batches.append(
                AppendedBatch(
                    first_sequence=header.base_sequence,
                    last_sequence=last_sequence_of(header),
                    base_offset=base_offset,
                    last_offset=producer.last_offset,
                    timestamp=header.max_timestamp,
                )
            )

    def _begin(self, producer_id: int, first_offset: int) -> None:
        self._open[producer_id] = first_offset
        if self.first_unstable_offset is None or first_offset < self.first_unstable_offset:
            self.first_unstable_offset = first_offset

    def _note_marker(self, producer_id: int, producer: _Producer, marker: EndMarker) -> None:
        producer.coordinator_epoch = marker.coordinator_epoch
        self._unverified.pop(producer_id, None)
        first_offset, end = self._open.pop(producer_id, None), producer.last_offset
        if first_offset is None:
            return
        if first_offset == self.first_unstable_offset:
            self.first_unstable_offset = min(self._open.values(), default=None)
        stable = self.first_unstable_offset
        stable = end + 1 if stable is None else stable
        self.transactions.note(
            AbortedTransaction(producer_id, first_offset, end, stable),
            is_abort=marker.type == ControlType.ABORT,
        )

    def is_last_of_producer(self, header: BatchHeader) -> bool:
        """Return whether compaction must keep the batch, at least empty (Kafka: LastRecord)."""
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return False
        if producer.batches:
            return header.last_offset == producer.batches[-1].last_offset
        return header.is_control and header.producer_epoch == producer.epoch

    def truncate(self, end_offset: int) -> set[int]:
        """Remove producers of truncated batches. Return their ids. Callers `note` their rest."""
        affected = {
            producer_id
            for producer_id, producer in self._producers.items()
            if producer.last_offset >= end_offset
        }
        for producer_id in affected:
            del self._producers[producer_id]
            self._open.pop(producer_id, None)
        self.first_unstable_offset = min(self._open.values(), default=None)
        self.transactions.truncate(end_offset)
        return affected

    def describe(self) -> Iterator[ProducerState]:
        for producer_id, producer in self._producers.items():
            yield ProducerState(
                producer_id=producer_id,
                producer_epoch=producer.epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=self._open.get(producer_id, NO_OFFSET),
            )

    def snapshot(self) -> list[StoredProducer]:
        return [
            (
                producer_id,
                producer.epoch,
                list(producer.batches),
                producer.coordinator_epoch,
                producer.last_timestamp,
                producer.last_offset,
                self._open.get(producer_id, NO_OFFSET),
            )
            for producer_id, producer in self._producers.items()
        ]

    def restore(
        self,
        producers: Iterable[StoredProducer],
        aborted: Iterable[AbortedTransaction] = (),
    ) -> None:
        for producer_id, epoch, batches, coordinator_epoch, timestamp, offset, first in producers:
            kept = deque((AppendedBatch(*batch) for batch in batches), maxlen=BATCHES_KEPT)
            self._producers[producer_id] = _Producer(
                epoch, kept, coordinator_epoch, timestamp, offset
            )
            if first != NO_OFFSET:
                self._begin(producer_id, first)
        self.transactions.restore(aborted)
