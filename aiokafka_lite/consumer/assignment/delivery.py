"""A delivery: records that were returned to the application, as a value.

Rebalances run in the background. So positions and generation may be those of another assignment
when the application says that records are processed. A transaction names the records instead: by
the cursors that they were returned of, and so by this assignment of these partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Protocol, runtime_checkable

from aiokafka_lite._transaction import BegunTransaction
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

    @property
    def refusal_count(self) -> int:
        """How often it was refused: after a refusal it is another delivery's."""

    def enlist(self, transaction: object | None) -> None:
        """Let a transaction decide whether the record is finished; None: it has decided."""

    def ack(self) -> bool:
        """Finish the record; False: it is another's by now, or finished."""


@runtime_checkable
class Enlisted(Protocol):
    """The block of a batch, which ends as the transaction does that commits its records."""

    def enlist(self, transaction: BegunTransaction) -> None:
        """Let a transaction decide what becomes of the records."""

    def decide(self, transaction: BegunTransaction, *, is_committed: bool) -> None:
        """Note that the transaction is over."""


class DeliveredRecords:
    """Records of some partitions.

    Attributes:
        is_all: These are all that the application has in hand of its consumer, and not named.
        blocks: The open blocks of batches that the records are of.
        ends: Of partitions whose records are finished in their order, the offset behind the last.
        receipts: The records that are finished one by one, with how often each was refused.
        lost: Partitions that were taken away before the records were put into this.
    """

    __slots__ = ("_topic_ids", "blocks", "ends", "is_all", "lost", "receipts")

    def __init__(
        self,
        ends: dict[Cursor, int] | None = None,
        receipts: Iterable[HeldRecord] = (),
        lost: Iterable[TopicPartition] = (),
        blocks: Iterable[Enlisted] = (),
        topic_ids: Mapping[Cursor, bytes] = MappingProxyType({}),
        *,
        is_all: bool = False,
    ) -> None:
        self.is_all = is_all
        self.blocks = list(blocks)
        self.ends: dict[Cursor, int] = ends or {}
        # Of `ends`: the topics' ids when the records were returned.
        self._topic_ids = {cursor: topic_ids.get(cursor, cursor.topic_id) for cursor in self.ends}
        self.receipts = {receipt: receipt.refusal_count for receipt in receipts}
        self.lost = set(lost)

    @property
    def cursors(self) -> set[Cursor]:
        """The cursors that have records in it."""
        return {*self.ends, *(receipt.cursor for receipt in self.receipts)}

    def topic_ids(self) -> set[tuple[TopicPartition, bytes]]:
        """Return the ids of the partitions' topics when the records were returned.

        A record that is finished by itself is taken from its holder if its topic is recreated.
        """
        return {(c.tp, self._topic_ids.get(c, c.topic_id)) for c in self.cursors}

    def unfinished(self) -> dict[Cursor, set[int]]:
        """Return the offsets of the records that are still to be finished one by one."""
        found: dict[Cursor, set[int]] = {receipt.cursor: set() for receipt in self.receipts}
        for receipt in self.receipts:
            if receipt.is_current:
                found[receipt.cursor].add(receipt.offset)
        return {cursor: offsets for cursor, offsets in found.items() if cursor.is_assigned}

    def leave_out_refused(self) -> None:
        """Forget the records that were refused since they were put into this."""
        for receipt, count in tuple(self.receipts.items()):
            if receipt.refusal_count != count:
                del self.receipts[receipt]

    def join(self, other: DeliveredRecords) -> None:
        """Take over the records of another one."""
        self.blocks += other.blocks
        for cursor, end in other.ends.items():
            self.ends[cursor] = max(end, self.ends.get(cursor, end))
        self._topic_ids = {**other._topic_ids, **self._topic_ids}  # of the first records
        self.receipts |= other.receipts
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
