"""Batches that are open: what `async with consumer.batch()` was handed, and is worked on.

The end of the block proves that the batch's records are processed, not the application's next get.
Of a partition in an open batch nothing more is handed out, so no two batches overlap: what is left
to do lies between the cursor's `processed` and the batch's end.
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from aiokafka_lite._compat import override
from aiokafka_lite._event import Event
from aiokafka_lite._transaction import BegunTransaction, transaction_around
from aiokafka_lite.consumer.assignment.cursor import Cursor, Range, Truncation
from aiokafka_lite.consumer.assignment.delivery import DeliveredRecords
from aiokafka_lite.consumer.assignment.works import Works
from aiokafka_lite.errors import IllegalStateError
from aiokafka_lite.structs import TopicPartition


class Block(ABC):
    """What the block of `async with consumer.batch()` holds: a work (work.py).

    If a transaction commits its records, that decides what becomes of them, however the block is
    left. So a block that is left before holds its partitions until the transaction is over. If the
    transaction was begun before the block, or commits it after its end, more of the partitions is
    returned meanwhile. An abort has the records returned again.

    Writers: whoever gives partitions back says since when they are wanted.

    Args:
        hold_s: How long it may hold up a rebalance; None: as long as other work.

    Attributes:
        is_open: Whether its records are neither processed nor to be returned again.
        is_left: Whether the application has left it.
    """

    __slots__ = (
        "_deciding",
        "_is_aborted",
        "_is_done",
        "_task",
        "hold_s",
        "is_left",
        "is_open",
        "revoking",
        "until",
    )

    def __init__(self, hold_s: float | None = None) -> None:
        self.hold_s = hold_s
        self.is_open = self.is_left = False
        # Transactions that commit it and are not over, and whether the latest one was aborted.
        self._deciding: set[BegunTransaction] = set()
        self._is_aborted = False
        # Whether the application has left it without an exception, and no abort has undone that.
        self._is_done = False
        # Whose block it is, while it is open.
        self._task: asyncio.Task[Any] | None = None
        # Set once a rebalance or the stop wants some of it; and the loop time at which that goes
        # anyway.
        self.revoking = Event()
        self.until = math.inf

    def is_wanted_by(self, until: float) -> None:
        """Note that a rebalance or the stop waits for it, until a loop time at most."""
        self.until = min(self.until, until)
        self.revoking.set()

    def is_of(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether it is this task's block."""
        return self._task is task

    def is_ending(self, partitions: Collection[TopicPartition]) -> bool:
        """Return False: nobody can end a block but the application."""
        return False

    def open(self, found: Mapping[TopicPartition, Sequence[object]]) -> None:
        """Take what a get has handed out, before anybody else runs."""
        self.is_open = True
        self._task = asyncio.current_task()
        self._take(found)
        if (transaction := transaction_around()) is not None:
            self._begin_in(transaction)
            transaction.hold(self)

    def close(self, *, is_done: bool) -> None:
        """Count its records as processed, or have them handed out again; idempotent."""
        if self.is_open and not self.is_left:
            self.is_left = True
            self._is_done = is_done
            self._end_if_decided()

    def enlist(self, transaction: BegunTransaction) -> None:
        """Let a transaction decide what becomes of the records."""
        self._deciding.add(transaction)

    @property
    def is_enlisted(self) -> bool:
        """Whether an open transaction decides what becomes of the records."""
        return bool(self._deciding)

    def decide(self, transaction: BegunTransaction, *, is_committed: bool) -> None:
        """Note that a transaction which the block was enlisted in, or opened in, is over."""
        self._deciding.discard(transaction)
        self._is_aborted = not is_committed
        if self.is_open:
            self._end_if_decided()
        elif self._is_done and self._is_aborted:
            self._is_done = False
            self._undo()

    def _end_if_decided(self) -> None:
        if self.is_open and self.is_left and not self._deciding:
            self.is_open = False
            self._task = None
            self._is_done &= not self._is_aborted
            self._end(is_done=self._is_done)

    def require_delivered(self) -> None:
        """Check that its records are in the application's hands, or count as processed.

        Raises:
            IllegalStateError: They are returned again.
        """
        if not (self.is_open or self._is_done):
            raise IllegalStateError(
                "the batch cannot be committed, because its `async with` block raised an "
                "exception or its transaction was aborted: its records are returned again"
            )

    @abstractmethod
    def _begin_in(self, transaction: BegunTransaction) -> None:
        """Note that the block of a transaction is around this one."""

    @abstractmethod
    def _undo(self) -> None:
        """Have records returned again that count as processed: their transaction was aborted."""

    @abstractmethod
    def _take(self, found: Mapping[TopicPartition, Sequence[object]]) -> None:
        """Take what a get has handed out."""

    @abstractmethod
    def _end(self, *, is_done: bool) -> None:
        """Count its records as processed, or have them handed out again."""

    @abstractmethod
    def to_commit(self) -> Mapping[TopicPartition, int] | None:
        """Acknowledge what is left, if that is done record by record; return what to commit.

        Returns:
            The offsets behind its records, of the partitions that it holds; None: all that is
            acknowledged is to be committed.
        """

    @abstractmethod
    def delivery(self) -> DeliveredRecords:
        """Return its records as a value, for a transaction that commits them."""

    @abstractmethod
    def held(self) -> frozenset[TopicPartition]:
        """Return the partitions that it holds: those that a commit of it is about."""

    @abstractmethod
    def lost(self) -> frozenset[TopicPartition]:
        """Return the partitions that it does not hold any more, and had not finished."""


class OpenBatch(Block):
    """One batch, from the get that brought it to the end of its block.

    Writers: whoever gives partitions back says since when they are wanted, and that they go all
    the same.

    Args:
        works: Of the consumer whose records these are.
        hold_s: How long it may hold up a rebalance; None: as long as other work.
    """

    __slots__ = (
        "_around",
        "_given_up",
        "_returned",
        "_seeks",
        "_topic_ids",
        "_truncations",
        "_works",
    )

    def __init__(self, works: Works, hold_s: float | None = None) -> None:
        super().__init__(hold_s)
        self._works = works
        # Its partitions, with the offsets of its records of each.
        self._returned: dict[Cursor, Range] = {}
        # The first truncations of their logs since then.
        self._truncations: dict[Cursor, Truncation] = {}
        self._topic_ids: dict[Cursor, bytes] = {}
        # How often the application had moved each by then.
        self._seeks: dict[Cursor, int] = {}
        # The transaction whose block is around this one.
        self._around: BegunTransaction | None = None
        # Those that went though they were not finished.
        self._given_up: set[Cursor] = set()

    @override
    def _take(self, found: Mapping[TopicPartition, Sequence[object]]) -> None:
        """Take what a get has handed out."""
        self._returned = self._works.begin(self, found)
        self._truncations = {cursor: cursor.next_truncation for cursor in self._returned}
        self._topic_ids = {cursor: cursor.topic_id for cursor in self._returned}
        self._seeks = {cursor: cursor.seeks for cursor in self._returned}

    @property
    def spans(self) -> dict[Cursor, Range]:
        """Return its partitions, with the offsets of its records that their logs still have."""
        return {cursor: self._span(cursor) for cursor in self._returned}

    def _span(self, cursor: Cursor) -> Range:
        first, end = self._returned[cursor]
        end = min((end, *self._truncations[cursor].end_offsets()))
        return Range(min(first, end), end)

    @override
    def _end(self, *, is_done: bool) -> None:
        """Count its records as processed, or have them handed out again."""
        self._works.end(self, self.spans, is_done=is_done, moved=self._moved())

    def _moved(self) -> set[Cursor]:
        """Return the cursors that the application has moved since."""
        return {cursor for cursor, count in self._seeks.items() if cursor.seeks != count}

    @override
    def _begin_in(self, transaction: BegunTransaction) -> None:
        """Hold no partition until its end: more of them is read in it. An abort undoes that."""
        self._around = transaction
        self._await_outcome(transaction)

    def _await_outcome(self, transaction: BegunTransaction) -> None:
        for cursor, (first, _) in self.spans.items():
            cursor.await_outcome(transaction, first, block=self)

    @override
    def enlist(self, transaction: BegunTransaction) -> None:
        """Let a transaction decide what becomes of the records."""
        if transaction is not self._around:
            super().enlist(transaction)
            self._await_outcome(transaction)

    @override
    def decide(self, transaction: BegunTransaction, *, is_committed: bool) -> None:
        """Note that a transaction which the block was enlisted in, or opened in, is over."""
        super().decide(transaction, is_committed=is_committed)
        self._works.decided()

    @override
    def _undo(self) -> None:
        """Have its records returned again, if they are not committed and nobody has sought."""
        moved = self._moved()
        for cursor, (first, end) in self.spans.items():
            present = None if cursor in moved else self._present(cursor)
            if present is not None and present.position is not None and present.position >= end:
                self._works.return_again(present, first, end)

    def _present(self, cursor: Cursor) -> Cursor | None:
        """Return the cursor of the same log by now, if nobody else can have had the partition."""
        present = self._works.present(cursor.tp)
        if present is None or present.topic_id != self._topic_ids[cursor]:
            return None
        return present if present is cursor or present.is_undecided_of(self) else None

    def partitions(self) -> set[TopicPartition]:
        """Return the partitions of which it has records."""
        return {cursor.tp for cursor in self._returned}

    def undone(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Range]:
        """Return what is left to do of these partitions, less what the application committed."""
        return {
            cursor.tp: Range(cursor.processed, end)
            for cursor, (_, end) in self.spans.items()
            if cursor.tp in partitions
            and cursor.processed is not None
            and cursor.processed < end
            and self._holds(cursor)
        }

    def _holds(self, cursor: Cursor) -> bool:
        return cursor.is_assigned and cursor not in self._given_up

    def give_up(self, partitions: Collection[TopicPartition], now: float) -> None:
        """Note that partitions go: what is undone of them may be another member's from now on."""
        going = [cursor for cursor in self._returned if cursor.tp in partitions]
        if going:
            self.is_wanted_by(now)
        self._given_up.update(cursor for cursor in going if self._is_undone(cursor))

    def _is_undone(self, cursor: Cursor) -> bool:
        return cursor.processed is None or cursor.processed < self._span(cursor).end

    @override
    def to_commit(self) -> dict[TopicPartition, int]:
        """Return the offsets behind its records, of the partitions that it holds.

        The application commits them whatever becomes of a transaction around it.
        """
        for cursor in self._returned:
            cursor.commit_apart(self)
        return {cursor.tp: end for cursor, (_, end) in self.spans.items() if self._holds(cursor)}

    @override
    def delivery(self) -> DeliveredRecords:
        """Return its records as a value, for a transaction that commits them."""
        ends = {
            cursor: end
            for cursor, (_, end) in self.spans.items()
            if self.is_open or cursor.has_uncommitted(end)
        }
        return DeliveredRecords(ends, (), self.lost(), [self], self._topic_ids)

    @override
    def held(self) -> frozenset[TopicPartition]:
        """Return the partitions that it holds."""
        return frozenset(cursor.tp for cursor in self._returned if self._holds(cursor))

    @override
    def lost(self) -> frozenset[TopicPartition]:
        """Return the partitions that it does not hold any more, and had not finished."""
        return frozenset(
            cursor.tp
            for cursor in self._returned
            if not self._holds(cursor) and self._is_undone(cursor)
        )
