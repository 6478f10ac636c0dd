"""What a partition remembers of idempotent producers, to append each batch once (KIP-98).

Reference: org.apache.kafka.storage.internals.log.ProducerStateManager. A producer numbers its
records per partition; the last five batches of each are kept because a producer may have that
many in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from aiokafka_lite.errors import InvalidProducerEpoch, OutOfOrderSequenceNumber
from aiokafka_lite.records import BatchHeader

BATCHES_KEPT: Final = 5
# Sequence numbers are int32 and start over at 0.
_SEQUENCES: Final = 2**31


class AppendedBatch(NamedTuple):
    """A batch of a producer that is in the log."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


@dataclass
class _Producer:
    epoch: int
    batches: deque[AppendedBatch] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))


def last_sequence_of(header: BatchHeader) -> int:
    """Return the sequence number of the last record of a batch."""
    return (header.base_sequence + header.last_offset_delta) % _SEQUENCES


class ProducerStates:
    """The newest batches of each producer. `note` is the only method that changes them."""

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}

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
        """Check that a batch follows the producer's last one.

        Raises:
            InvalidProducerEpoch: A newer instance of the producer has written already.
            OutOfOrderSequenceNumber: A batch before this one is missing.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return  # the first of this producer here, or all of it was deleted: any is right
        if header.producer_epoch < producer.epoch:
            raise InvalidProducerEpoch(
                f"producer {header.producer_id} has epoch {producer.epoch}, "
                f"the batch comes from epoch {header.producer_epoch}"
            )
        if header.producer_epoch > producer.epoch:
            expected = 0
        elif producer.batches:
            expected = (producer.batches[-1].last_sequence + 1) % _SEQUENCES
        else:
            return
        if header.base_sequence != expected:
            raise OutOfOrderSequenceNumber(
                f"producer {header.producer_id} sent sequence number {header.base_sequence}, "
                f"expected was {expected}"
            )

    def note(self, header: BatchHeader, base_offset: int) -> None:
        """Remember a batch that was appended at an offset."""
        producer = self._producers.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            producer = self._producers[header.producer_id] = _Producer(header.producer_epoch)
        producer.batches.append(
            AppendedBatch(
                first_sequence=header.base_sequence,
                last_sequence=last_sequence_of(header),
                base_offset=base_offset,
                last_offset=base_offset + header.last_offset_delta,
                timestamp=header.max_timestamp,
            )
        )

    def truncate(self, end_offset: int) -> set[int]:
        """Forget producers that have batches at or behind the new end of the log.

        Returns:
            Their ids: `note` what is left of them in the log, oldest first.
        """
        affected = {
            producer_id
            for producer_id, producer in self._producers.items()
            if producer.batches and producer.batches[-1].last_offset >= end_offset
        }
        for producer_id in affected:
            del self._producers[producer_id]
        return affected

    def snapshot(self) -> list[tuple[int, int, list[AppendedBatch]]]:
        """Return (producer id, epoch, batches) of every producer, for a file."""
        return [
            (producer_id, producer.epoch, list(producer.batches))
            for producer_id, producer in self._producers.items()
        ]

    def restore(self, snapshot: Iterable[tuple[int, int, Iterable[Iterable[int]]]]) -> None:
        """Take over what `snapshot` returned."""
        for producer_id, epoch, batches in snapshot:
            kept = (AppendedBatch(*batch) for batch in batches)
            self._producers[producer_id] = _Producer(epoch, deque(kept, maxlen=BATCHES_KEPT))
