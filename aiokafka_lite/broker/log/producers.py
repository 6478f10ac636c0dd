"""A partition's producer state: idempotent appends and transactions (KIP-98).

Kafka: org.apache.kafka.storage.internals.log.{ProducerStateManager, TransactionIndex}. Producers
number their records per partition. The last five batches of each producer are kept, because a
producer may have that many in flight. Batches that coordinators write have no sequence numbers.

The state is stored with the log's state. Recovery reads newer batches from the log.
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
from aiokafka_lite.records import BatchHeader, ControlType
from aiokafka_lite.records.transactions import EndMarker, end_marker

NO_OFFSET: Final = -1


class AbortedTransaction(NamedTuple):
    """A transaction whose records must not be seen.

    Attributes:
        first_offset: Of its first record.
        last_offset: Of its marker.
        last_stable_offset: Behind its marker, as it was then: no transaction that ended later
            began before it.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class LogTransactions:
    """Open and aborted transactions. Changed by what is appended to the log only."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}  # producer id -> first offset
        self._first_unstable: int | None = None  # the smallest of them
        self._aborted: list[AbortedTransaction] = []  # by last offset, as they ended
        # Markers up to here are known: whoever notes batches again need not remember that.
        self._known_to = NO_OFFSET

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of any open transaction."""
        return self._first_unstable

    @property
    def has_aborted(self) -> bool:
        """There are aborted transactions in the log."""
        return bool(self._aborted)

    def first_offset_of(self, producer_id: int) -> int | None:
        """Return where a producer's open transaction began, if it has one."""
        return self._open.get(producer_id)

    def begin(self, producer_id: int, first_offset: int) -> None:
        """Note a producer's first transactional batch."""
        self._open[producer_id] = first_offset
        unstable = self._first_unstable
        self._first_unstable = first_offset if unstable is None else min(first_offset, unstable)

    def end(self, producer_id: int, marker_offset: int, *, is_abort: bool) -> None:
        """Note a marker; one without an open transaction says nothing about any record."""
        first_offset = self._open.pop(producer_id, None)
        if first_offset is None:
            return
        if first_offset == self._first_unstable:
            self._first_unstable = min(self._open.values(), default=None)
        if marker_offset <= self._known_to:
            return
        self._known_to = marker_offset
        if is_abort:
            stable = self._first_unstable
            stable = marker_offset + 1 if stable is None else stable
            self._aborted.append(
                AbortedTransaction(producer_id, first_offset, marker_offset, stable)
            )

    def _ended_before(self, offset: int) -> int:
        """Return how many aborted transactions have their marker before an offset."""
        return bisect_left(self._aborted, offset, key=lambda each: each.last_offset)

    def aborted_within(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that have records from one offset on, before another."""
        first = self._ended_before(start_offset)
        last = bisect_left(self._aborted, end_offset, key=lambda each: each.last_stable_offset)
        return [each for each in self._aborted[first : last + 1] if each.first_offset < end_offset]

    def forget(self, producer_ids: Iterable[int]) -> None:
        """Forget the open transactions of producers, whose batches are going to be noted again."""
        for producer_id in producer_ids:
            self._open.pop(producer_id, None)
        self._first_unstable = min(self._open.values(), default=None)

    def truncate(self, end_offset: int) -> None:
        """Forget the aborted transactions whose markers lie at or after the log's new end."""
        del self._aborted[self._ended_before(end_offset) :]
        self._known_to = min(self._known_to, end_offset - 1)

    def trim_before(self, log_start_offset: int) -> None:
        """Forget the aborted transactions that ended before the log starts."""
        del self._aborted[: self._ended_before(log_start_offset)]

    def forget_markers(self, offsets: Container[int]) -> None:
        """Forget aborted transactions whose markers compaction removes, and all records before."""
        self._aborted = [each for each in self._aborted if each.last_offset not in offsets]

    def snapshot(self) -> list[AbortedTransaction]:
        """Return the aborted transactions, for a file; the open ones are their producers'."""
        return list(self._aborted)

    def restore(self, snapshot: Iterable[Iterable[int]]) -> None:
        """Take over what `snapshot` returned."""
        self._aborted += (AbortedTransaction(*row) for row in snapshot)
        if self._aborted:
            self._known_to = self._aborted[-1].last_offset


BATCHES_KEPT: Final = 5
# Sequence numbers are int32 and start over at 0.
_SEQUENCES: Final = 2**31
NO_SEQUENCE: Final = -1
NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
LAST_EPOCH: Final = 2**15 - 1
# From this version of the protocol on every transaction has an epoch of its own (KIP-890).
FIRST_VERSION_WITH_EPOCHS: Final = 2


class ProducerIdentity(NamedTuple):
    """A producer id, and the epoch of one of its instances."""

    producer_id: int
    epoch: int


NO_PRODUCER: Final = ProducerIdentity(NO_PRODUCER_ID, NO_EPOCH)


class AppendedBatch(NamedTuple):
    """A batch of a producer that is in the log."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


StoredProducer: TypeAlias = "tuple[int, int, list[AppendedBatch], int, int, int, int]"


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


class ProducerDescription(NamedTuple):
    """A producer, as DescribeProducers tells of it."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start_offset: int


class _Unverified(NamedTuple):
    """The first batch of a transaction that has been asked about and is not in the log yet."""

    epoch: int
    lowest_sequence: int
    has_epochs: bool


def last_sequence_of(header: BatchHeader) -> int:
    """Return the sequence number of the last record of a batch."""
    return (header.base_sequence + header.last_offset_delta) % _SEQUENCES


class ProducerStates:
    """The newest batches of each producer. `note` is the only method that adds to them."""

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}
        self._unverified: dict[int, _Unverified] = {}
        self.transactions = LogTransactions()

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        """Say whether a producer of that epoch has records here that are not decided."""
        producer = self._producers.get(producer_id)
        return (
            producer is not None
            and producer.epoch == epoch
            and self.transactions.first_offset_of(producer_id) is not None
        )

    def verifying(self, header: BatchHeader, *, has_epochs: bool) -> None:
        """Note that a coordinator is asked about a transaction that has no records here yet.

        Until its first batch is in the log, none may overtake that: a batch sent after it does
        not get in because the question about it was answered first.

        Args:
            header: Of the batch to be appended.
            has_epochs: The transaction has an epoch of its own, so its numbers begin with 0.
        """
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
        """Return the batch in the log that this one repeats, if there is one."""
        producer = self._producers.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            return None
        wanted = (header.base_sequence, last_sequence_of(header))
        for batch in producer.batches:
            if (batch.first_sequence, batch.last_sequence) == wanted:
                return batch
        return None

    def check(self, header: BatchHeader) -> None:
        """Check that a batch follows the producer's last one, and belongs to its transaction.

        Raises:
            InvalidProducerEpoch: A newer instance of the producer has written already.
            OutOfOrderSequenceNumber: A batch before this one is missing.
            InvalidTxnState: The producer's transaction is open, and the batch is not part of it.
        """
        producer = self._producers.get(header.producer_id)
        if producer is not None and header.producer_epoch < producer.epoch:
            raise InvalidProducerEpoch(
                f"producer {header.producer_id} has epoch {producer.epoch}, but the batch has "
                f"the older epoch {header.producer_epoch}"
            )
        if header.base_sequence != NO_SEQUENCE:
            self._check_sequence(header, producer)
        if not header.is_transactional and self._is_open(header.producer_id):
            raise InvalidTxnState(
                f"producer {header.producer_id} has an open transaction: "
                f"non-transactional batches are rejected until the transaction ends"
            )

    def _is_open(self, producer_id: int) -> bool:
        return self.transactions.first_offset_of(producer_id) is not None

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
            return  # the first of this producer here, or all of it was deleted: any is right
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

        Args:
            header: Of the control batch.
            coordinator_epoch: Of whoever wants it written.
            transaction_version: From version 2 on markers have a higher epoch than the records
                before them (KIP-1228); one with the same is taken when it is repeated.

        Raises:
            InvalidProducerEpoch: The marker comes from an earlier epoch.
            TransactionCoordinatorFenced: A newer coordinator has written a marker already.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return
        epoch = header.producer_epoch
        is_repeated = epoch == producer.epoch and (
            epoch == LAST_EPOCH or not self._is_open(header.producer_id)
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
        """Remember a batch that was appended at an offset."""
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
        if header.is_transactional and not self._is_open(header.producer_id):
            self._unverified.pop(header.producer_id, None)
            self.transactions.begin(header.producer_id, base_offset)
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

    def _note_marker(self, producer_id: int, producer: _Producer, marker: EndMarker) -> None:
        producer.coordinator_epoch = marker.coordinator_epoch
        self._unverified.pop(producer_id, None)
        self.transactions.end(
            producer_id, producer.last_offset, is_abort=marker.type == ControlType.ABORT
        )

    def is_last_of_producer(self, header: BatchHeader) -> bool:
        """Say whether compaction must leave a batch, be it empty, to tell of its producer.

        Reference: org.apache.kafka.storage.internals.log.Cleaner, LastRecord.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return False
        if producer.batches:
            return header.last_offset == producer.batches[-1].last_offset
        return header.is_control and header.producer_epoch == producer.epoch

    def truncate(self, end_offset: int) -> set[int]:
        """Forget producers that have batches at or after the new end of the log.

        Returns:
            Their ids: `note` what is left of them in the log, oldest first.
        """
        affected = {
            producer_id
            for producer_id, producer in self._producers.items()
            if producer.last_offset >= end_offset
        }
        for producer_id in affected:
            del self._producers[producer_id]
        self.transactions.forget(affected)
        self.transactions.truncate(end_offset)
        return affected

    def describe(self) -> Iterator[ProducerDescription]:
        """Give what is known of each producer."""
        for producer_id, producer in self._producers.items():
            first_offset = self.transactions.first_offset_of(producer_id)
            yield ProducerDescription(
                producer_id=producer_id,
                epoch=producer.epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp,
                coordinator_epoch=producer.coordinator_epoch,
                transaction_start_offset=NO_OFFSET if first_offset is None else first_offset,
            )

    def snapshot(self) -> list[StoredProducer]:
        """Return what `restore` wants of every producer, for a file."""
        described = {each.producer_id: each for each in self.describe()}
        return [
            (
                producer_id,
                producer.epoch,
                list(producer.batches),
                producer.coordinator_epoch,
                producer.last_timestamp,
                producer.last_offset,
                described[producer_id].transaction_start_offset,
            )
            for producer_id, producer in self._producers.items()
        ]

    def restore(
        self,
        producers: Iterable[StoredProducer],
        aborted: Iterable[AbortedTransaction] = (),
    ) -> None:
        """Take over what `snapshot` returned, here and of the transactions."""
        for producer_id, epoch, batches, coordinator_epoch, timestamp, offset, first in producers:
            kept = deque((AppendedBatch(*batch) for batch in batches), maxlen=BATCHES_KEPT)
            self._producers[producer_id] = _Producer(
                epoch, kept, coordinator_epoch, timestamp, offset
            )
            if first != NO_OFFSET:
                self.transactions.begin(producer_id, first)
        self.transactions.restore(aborted)
