"""A delivery: records that were returned to the application, as a value.

Rebalances run in the background. So positions and generation may be those of another assignment
when the application says that records are processed. A transaction names the records instead: by
the cursors that they were returned of, and so by this assignment of these partitions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.structs import TopicPartition


class HeldRecord(Protocol):
    """A record that is finished by itself."""

    @property
    def offset(self) -> int:
        """The record's offset."""

    @property
    def cursor(self) -> Cursor:
        """The assignment that it was returned of."""

    @property
    def is_current(self) -> bool:
        """Whether it is still to be finished, and by its holder."""

    @property
    def is_finished(self) -> bool:
        """Whether it was finished in time."""

    def ack(self) -> bool:
        """Finish the record; False: it is another's by now, or finished."""


@runtime_checkable
class Enlisted(Protocol):
    """The block of a batch, which ends as the transaction does that commits its records."""

    opened_at: int

    def enlist(self, transaction: object) -> None:
        """Let a transaction decide what becomes of the records."""

    def decide(self, transaction: object, *, is_committed: bool) -> None:
        """Note that the transaction is over."""


class DeliveredRecords:
    """Records of some partitions.

    Attributes:
        blocks: The open blocks of batches that the records are of.
        ends: Of partitions whose records are finished in their order, the offset behind the last.
        receipts: The records that are finished one by one.
        lost: Partitions that were taken away before the records were put into this.
    """

    __slots__ = ("blocks", "ends", "lost", "receipts")

    def __init__(
        self,
        ends: dict[Cursor, int] | None = None,
        receipts: Iterable[HeldRecord] = (),
        lost: Iterable[TopicPartition] = (),
        blocks: Iterable[Enlisted] = (),
    ) -> None:
        self.blocks = list(blocks)
        self.ends: dict[Cursor, int] = ends or {}
        self.receipts = list(receipts)
        self.lost = set(lost)

    @property
    def cursors(self) -> set[Cursor]:
        """The cursors that have records in it."""
        return {*self.ends, *(receipt.cursor for receipt in self.receipts)}

    def unfinished(self) -> dict[Cursor, set[int]]:
        """Return the offsets of the records that are still to be finished one by one."""
        found: dict[Cursor, set[int]] = {receipt.cursor: set() for receipt in self.receipts}
        for receipt in self.receipts:
            if receipt.is_current:
                found[receipt.cursor].add(receipt.offset)
        return {cursor: offsets for cursor, offsets in found.items() if cursor.is_assigned}

    def join(self, other: DeliveredRecords) -> None:
        """Take over the records of another one."""
        self.blocks += other.blocks
        self.ends |= other.ends
        self.receipts += other.receipts
        self.lost |= other.lost

    def revoked(self) -> frozenset[TopicPartition]:
        """Return the partitions that may be another member's by now, with records not finished."""
        return frozenset(
            {
                *self.lost,
                *(
                    cursor.tp
                    for cursor, end in self.ends.items()
                    if not cursor.is_assigned and cursor.has_uncommitted(end)
                ),
                *(
                    receipt.cursor.tp
                    for receipt in self.receipts
                    if not (receipt.is_current or receipt.is_finished)
                ),
            }
        )
