"""Open batches: the records of an `async with consumer.batch()` block while it runs.

The end of the block, not the next read, proves that its records are processed. Batches do not
overlap: reads leave out the partitions of open ones. Unfinished records lie between the cursor's
`processed` and the batch's end.
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from aiokafka_lite._compat import override
from aiokafka_lite._tasks import Event
from aiokafka_lite._transaction import BegunTransaction, transaction_around
from aiokafka_lite.consumer.assignment.cursor import Cursor, Range, Truncation
from aiokafka_lite.consumer.assignment.work import DeliveredRecords
from aiokafka_lite.consumer.assignment.works import Works
from aiokafka_lite.errors import IllegalStateError
from aiokafka_lite.structs import TopicPartition


class Block(ABC):
    """The work (work.py) of one `async with consumer.batch()` block.

    A transaction that commits its records decides on them, however the block ends. A block that
    ends earlier holds its partitions until the transaction is over, unless the transaction began
    before the block. After an abort the records are returned again.

    Args:
        hold_s: How long it may delay a rebalance; None: as long as other work.

    Attributes:
        is_open: Whether its records are neither processed nor to be returned again.
        is_left: Whether the application has left the block.
    """

    def __init__(self, hold_s: float | None = None) -> None:
        self.hold_s = hold_s
        self.is_open = self.is_left = False
        # Transactions that commit it and are not over, and whether the latest one was aborted.
        self._deciding: set[BegunTransaction] = set()
        self._is_aborted = False
        # Whether the application has left it without an exception, and no abort has undone that.
        self._is_done = False
        # The task that runs the block, while it is open.
        self._task: asyncio.Task[Any] | None = None
        # Set when a rebalance or the stop wants some of it, and the loop time at which it is
        # revoked anyway.
        self.revoking = Event()
        self.until = math.inf

    def is_wanted_by(self, until: float) -> None:
        self.until = min(self.until, until)
        self.revoking.set()

    def is_of(self, task: asyncio.Task[Any] | None) -> bool:
        return self._task is task

    def is_ending(self, partitions: Collection[TopicPartition]) -> bool:
        return False

    def open(self, found: Mapping[TopicPartition, Sequence[object]]) -> None:
        """Take the records of a read, in the same step of the loop."""
        self.is_open = True
        self._task = asyncio.current_task()
        self._take(found)
        if (transaction := transaction_around()) is not None:
            self._begin_in(transaction)
            transaction.hold(self)

    def close(self, *, is_done: bool) -> None:
        """Count its records as processed, or return them again. Idempotent."""
        if self.is_open and not self.is_left:
            self.is_left = True
            self._is_done = is_done
            self._end_if_decided()

    def enlist(self, transaction: BegunTransaction) -> None:
        self._deciding.add(transaction)

    @property
    def is_enlisted(self) -> bool:
        return bool(self._deciding)

    def decide(self, transaction: BegunTransaction, *, is_committed: bool) -> None:
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
        if not (self.is_open or self._is_done):
            raise IllegalStateError(
                "the batch cannot be committed, because its `async with` block raised an "
                "exception or its transaction was aborted: its records are returned again"
            )

    @abstractmethod
    def _begin_in(self, transaction: BegunTransaction) -> None: ...

    @abstractmethod
    def _undo(self) -> None: ...

    @abstractmethod
    def _take(self, found: Mapping[TopicPartition, Sequence[object]]) -> None: ...

    @abstractmethod
    def _end(self, *, is_done: bool) -> None: ...

    @abstractmethod
    def to_commit(self) -> Mapping[TopicPartition, int] | None:
        """Return the offsets after the records of partitions that it holds.

        With single acknowledgements, acknowledge them; None: commit all acknowledged ones.
        """

    @abstractmethod
    def delivery(self) -> DeliveredRecords: ...

    @abstractmethod
    def held(self) -> frozenset[TopicPartition]: ...

    @abstractmethod
    def lost(self) -> frozenset[TopicPartition]:
        """Return the partitions that it lost before it finished their records."""


class OpenBatch(Block):
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
        # The transaction whose block encloses this one.
        self._around: BegunTransaction | None = None
        # Revoked before they were finished.
        self._given_up: set[Cursor] = set()

    @override
    def _take(self, found: Mapping[TopicPartition, Sequence[object]]) -> None:
        self._returned = self._works.begin(self, found)
        self._truncations = {cursor: cursor.next_truncation for cursor in self._returned}
        self._topic_ids = {cursor: cursor.topic_id for cursor in self._returned}
        self._seeks = {cursor: cursor.seeks for cursor in self._returned}

    @property
    def spans(self) -> dict[Cursor, Range]:
        return {cursor: self._span(cursor) for cursor in self._returned}

    def _span(self, cursor: Cursor) -> Range:
        first, end = self._returned[cursor]
        end = min((end, *self._truncations[cursor].end_offsets()))
        return Range(min(first, end), end)

    @override
    def _end(self, *, is_done: bool) -> None:
        self._works.end(self, self.spans, is_done=is_done, moved=self._moved())

    def _moved(self) -> set[Cursor]:
        return {cursor for cursor, count in self._seeks.items() if cursor.seeks != count}

    @override
    def _begin_in(self, transaction: BegunTransaction) -> None:
        """Hold no partition until its end: more is read in it. An abort undoes that."""
        self._around = transaction
        self._await_outcome(transaction)

    def _await_outcome(self, transaction: BegunTransaction) -> None:
        for cursor, (first, _) in self.spans.items():
            cursor.await_outcome(transaction, first, block=self)

    @override
    def enlist(self, transaction: BegunTransaction) -> None:
        if transaction is not self._around:
            super().enlist(transaction)
            self._await_outcome(transaction)

    @override
    def decide(self, transaction: BegunTransaction, *, is_committed: bool) -> None:
        super().decide(transaction, is_committed=is_committed)
        self._works.decided()

    @override
    def _undo(self) -> None:
        """Return its records again, unless they are committed or the application has moved."""
        moved = self._moved()
        for cursor, (first, end) in self.spans.items():
            present = None if cursor in moved else self._present(cursor)
            if present is not None and present.position is not None and present.position >= end:
                self._works.return_again(present, first, end)

    def _present(self, cursor: Cursor) -> Cursor | None:
        """Return the log's current cursor, unless another member may have had the partition."""
        present = self._works.present(cursor.tp)
        if present is None or present.topic_id != self._topic_ids[cursor]:
            return None
        return present if present is cursor or present.is_undecided_of(self) else None

    def partitions(self) -> set[TopicPartition]:
        return {cursor.tp for cursor in self._returned}

    def undone(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Range]:
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
        going = [cursor for cursor in self._returned if cursor.tp in partitions]
        if going:
            self.is_wanted_by(now)
        self._given_up.update(cursor for cursor in going if self._is_undone(cursor))

    def _is_undone(self, cursor: Cursor) -> bool:
        return cursor.processed is None or cursor.processed < self._span(cursor).end

    @override
    def to_commit(self) -> dict[TopicPartition, int]:
        """Return the offsets to commit, whatever the outcome of an enclosing transaction."""
        for cursor in self._returned:
            cursor.commit_apart(self)
        return {cursor.tp: end for cursor, (_, end) in self.spans.items() if self._holds(cursor)}

    @override
    def delivery(self) -> DeliveredRecords:
        ends = {
            cursor: end
            for cursor, (_, end) in self.spans.items()
            if self.is_open or cursor.has_uncommitted(end)
        }
        return DeliveredRecords(ends, (), self.lost(), [self], self._topic_ids)

    @override
    def held(self) -> frozenset[TopicPartition]:
        return frozenset(cursor.tp for cursor in self._returned if self._holds(cursor))

    @override
    def lost(self) -> frozenset[TopicPartition]:
        return frozenset(
            cursor.tp
            for cursor in self._returned
            if not self._holds(cursor) and self._is_undone(cursor)
        )
