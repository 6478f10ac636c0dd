"""`consumer.batch()` with `ack_mode="explicit"`: a block whose records are acknowledged one by one.

What the block has not acknowledged or refused by its end is acknowledged then; left by an
exception, it is refused, and so handed out again. All of it is in the table of Acks. The block
only says since when a rebalance waits, and until when.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from aiokafka_lite._compat import override
from aiokafka_lite._record_py import RECEIPT
from aiokafka_lite._transaction import BegunTransaction
from aiokafka_lite.consumer.assignment.batches import Block
from aiokafka_lite.consumer.assignment.cursor import Range, joined
from aiokafka_lite.consumer.assignment.delivery import DeliveredRecords
from aiokafka_lite.consumer.assignment.works import Works
from aiokafka_lite.consumer.processing.acks import RecordReceipt
from aiokafka_lite.errors import IllegalStateError
from aiokafka_lite.structs import TopicPartition


class AckedBatch(Block):
    """The records of one block.

    A record that is refused, and may be in other hands before the block ends, is none of it any
    more.

    Args:
        works: Of the consumer whose records these are.
        hold_s: How long it may hold up a rebalance; None: as long as other work.
    """

    def __init__(self, works: Works, hold_s: float | None) -> None:
        super().__init__(hold_s)
        self._works = works
        self._receipts: list[RecordReceipt] = []

    @override
    def _take(self, found: Mapping[TopicPartition, Sequence[object]]) -> None:
        """Take what a get has handed out."""
        for records in found.values():
            for record in records:
                receipt = getattr(record, RECEIPT)
                receipt.batch = self
                self._receipts.append(receipt)
        self._works.begun.append(self)

    @override
    def _begin_in(self, transaction: BegunTransaction) -> None:
        """Acknowledge nothing before the transaction is over: an acknowledgement is not undone."""
        self.enlist(transaction)

    @override
    def _undo(self) -> None:
        """Do nothing: what is acknowledged stays so, and that waits for transactions."""

    @override
    def _end(self, *, is_done: bool) -> None:
        """Acknowledge what is left, or have it handed out again."""
        self._works.begun.remove(self)
        if is_done:
            self._acknowledge()
            return
        for receipt in self._left():
            receipt.nack(0)

    def _acknowledge(self) -> None:
        for receipt in self._left():
            receipt.ack()

    def _left(self) -> Iterator[RecordReceipt]:
        return (each for each in self._receipts if each.batch is self and each.is_current)

    # --- For whoever commits within it --------------------------------------------------------
    @override
    def to_commit(self) -> None:
        """Acknowledge what is left: all that is acknowledged is to be committed."""
        self._acknowledge()

    @override
    def require_delivered(self) -> None:
        """Check that the application has its records in hand.

        Raises:
            IllegalStateError: They are acknowledged, or returned again.
        """
        if not self.is_open:
            raise IllegalStateError(
                "the `async with` block of the batch has ended, so a transaction can no longer "
                "commit its records: begin the transaction inside the block"
            )

    @override
    def delivery(self) -> DeliveredRecords:
        """Return its records as a value, but for those that were refused."""
        receipts = (each for each in self._receipts if each.batch is self)
        return DeliveredRecords(receipts=receipts, blocks=[self])

    @override
    def held(self) -> frozenset[TopicPartition]:
        """Return the partitions that it holds."""
        return frozenset(each.cursor.tp for each in self._receipts if each.cursor.is_assigned)

    @override
    def lost(self) -> frozenset[TopicPartition]:
        """Return the partitions that it does not hold any more, and had not finished."""
        return frozenset(
            each.cursor.tp
            for each in self._receipts
            if each.batch is self and not each.is_current and not each.is_finished
        )

    # --- As a work (assignment/work.py) -----------------------------------------------------
    def partitions(self) -> set[TopicPartition]:
        """Return the partitions of which it has records."""
        return {receipt.cursor.tp for receipt in self._receipts}

    def undone(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Range]:
        """Return what is neither acknowledged nor refused of these partitions."""
        found: dict[TopicPartition, Range] = {}
        for receipt in self._left():
            tp, offset = receipt.cursor.tp, receipt.offset
            if tp in partitions:
                found[tp] = joined(found.get(tp), Range(offset, offset + 1))
        return found

    def give_up(self, partitions: Collection[TopicPartition], now: float) -> None:
        """Note that partitions go: what is undone of them may be another member's from now on."""
        if not self.partitions().isdisjoint(partitions):
            self.is_wanted_by(now)
