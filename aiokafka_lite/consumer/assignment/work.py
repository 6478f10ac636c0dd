"""Defines Work, records whose completion is not implied by the next read, and DeliveredRecords.

A work is an open batch (delivery/batch.py), the records of `consumer.run`'s handlers, or records
that wait for acknowledgement (processing/). Rebalances and stops wait for it until a limit.

A delivery is returned records as a value. Rebalances run in the background, so positions and
generation may be of another assignment by the time of a commit. A transaction names records by
cursors instead: each is one assignment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from types import MappingProxyType
from typing import Any, Final, Protocol, runtime_checkable

from aiokafka_lite._transaction import BegunTransaction
from aiokafka_lite.consumer.assignment.cursor import Cursor, Holder, Range, joined
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition

# How long rebalances and stops wait for handlers that were cancelled, and for transactions.
LONGEST_END_S: Final = 1.0


class HeldRecord(Protocol):
    @property
    def offset(self) -> int: ...

    @property
    def cursor(self) -> Cursor: ...

    @property
    def is_current(self) -> bool: ...

    @property
    def is_finished(self) -> bool: ...

    @property
    def refusal_count(self) -> int:
        """How often it was refused: after a refusal it belongs to another delivery."""

    def enlist(self, transaction: object | None) -> None:
        """Let a transaction decide on the record. None: it has decided."""

    def ack(self) -> bool:
        """Finish the record. False: another holder has it, or it is finished."""


@runtime_checkable
class Enlisted(Protocol):
    def enlist(self, transaction: BegunTransaction) -> None: ...

    def decide(self, transaction: BegunTransaction, *, is_committed: bool) -> None: ...


class DeliveredRecords:
    """Records of some partitions.

    Attributes:
        is_all: They are everything being processed, not named by the application.
        ends: By partition whose records are finished in order, the offset behind the last.
        receipts: The records finished singly, with their refusal counts.
        lost: Partitions that were revoked before.
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
        return {*self.ends, *(receipt.cursor for receipt in self.receipts)}

    def topic_ids(self) -> set[tuple[TopicPartition, bytes]]:
        """Return partitions with their topics' ids when the records were returned."""
        return {(c.tp, self._topic_ids.get(c, c.topic_id)) for c in self.cursors}

    def unfinished(self) -> dict[Cursor, set[int]]:
        found: dict[Cursor, set[int]] = {receipt.cursor: set() for receipt in self.receipts}
        for receipt in self.receipts:
            if receipt.is_current:
                found[receipt.cursor].add(receipt.offset)
        return {cursor: offsets for cursor, offsets in found.items() if cursor.is_assigned}

    def leave_out_refused(self) -> None:
        for receipt, count in tuple(self.receipts.items()):
            if receipt.refusal_count != count:
                del self.receipts[receipt]

    def join(self, other: DeliveredRecords) -> None:
        self.blocks += other.blocks
        for cursor, end in other.ends.items():
            self.ends[cursor] = max(end, self.ends.get(cursor, end))
        self._topic_ids = {**other._topic_ids, **self._topic_ids}  # of the first records
        self.receipts |= other.receipts
        self.lost |= other.lost

    def revoked(self) -> frozenset[TopicPartition]:
        """Return partitions with unfinished records that another member may have by now."""
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


def spans_of(
    records: Iterable[tuple[Cursor, int]], partitions: Collection[TopicPartition]
) -> dict[TopicPartition, Range]:
    found: dict[TopicPartition, Range] = {}
    for cursor, offset in records:
        if (tp := cursor.tp) in partitions:
            found[tp] = joined(found.get(tp), Range(offset, offset + 1))
    return found


def in_words(undone: Iterable[Mapping[TopicPartition, Range]]) -> dict[str, str]:
    return {
        f"{tp.topic}/{tp.partition}": f"{first} to {end - 1}"
        for ranges in undone
        for tp, (first, end) in sorted(ranges.items())
    }


PROCESSING_COUNTS: Final = (
    "concurrency", "calls", "at_work", "ready", "waiting_for_retry", "in_outbox", "uncommitted"
)  # fmt: skip
"""The limit of handler calls, their number, and where records may be. See `Processing.counts`."""


class Work(Protocol):
    """`hold_s`: how long it may delay a rebalance; None: as long as reads."""

    hold_s: float | None = None

    @property
    def is_open(self) -> bool: ...

    def partitions(self) -> Set[TopicPartition]: ...

    def undone(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Range]:
        """Return the unfinished records that a rebalance waits for."""

    def is_wanted_by(self, until: float) -> None:
        """Note that a rebalance or the stop waits for it, until a loop time."""
        return

    def give_up(self, partitions: Collection[TopicPartition], now: float) -> None:
        """Note a revocation: another member may process the unfinished records from now on."""
        return

    def is_of(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether it cannot end while this task waits."""
        return False

    def is_ending(self, partitions: Collection[TopicPartition]) -> bool:
        """Whether it still winds up records that it has given up."""
        return False


class Processing(Work, Protocol):
    """`consumer.run`, or acknowledging reads: all returned records belong to it."""

    @property
    def is_always_asking(self) -> bool:
        """Whether it counts as reading all the time, for `max_poll_interval_ms`."""

    @property
    def is_paused(self) -> bool: ...

    def is_delaying(self, cursor: Cursor) -> bool:
        """Whether the partition's next records are not due, so that it rightly stands still."""

    def takes(self, sink: object) -> bool: ...

    def own_records(self) -> Mapping[Cursor, Mapping[int, Holder]] | None:
        """Return the current handler's records with holders. None: commits finish all."""

    def as_read(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        """Name delayed records of the current handler by their places in the delay topic."""
        return

    async def end(self, until: float, deadline: float) -> None:
        """Start no more records. Cancel those still processed at `until`, before the deadline."""

    def note_stopper(self, deadline: float) -> None:
        """Note that the current handler stops the consumer, too: `end` does not wait for it."""

    def receipts(self) -> Iterable[HeldRecord]:
        """Return the records that the application is processing. Raises if handlers have them."""

    def troubles(self, now: float) -> Iterator[str]: ...

    def explain(self, cursor: Cursor, now: float) -> str:
        """Describe the records being processed, and why a commit is delayed."""

    def counts(self) -> dict[str, int]: ...
