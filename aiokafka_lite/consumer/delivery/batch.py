"""`async with consumer.batch()`: records whose partitions stay assigned until the block ends.

The end of the block, not the next read, proves that its records are processed. Batches do not
overlap: reads leave out the partitions of open ones. Unfinished records lie between the cursor's
`processed` and the batch's end.
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, overload

from aiokafka_lite._compat import KT, VT, override
from aiokafka_lite._tasks import Event
from aiokafka_lite._transaction import BegunTransaction, transaction_around
from aiokafka_lite.consumer.assignment.cursor import Cursor, Range, Truncation
from aiokafka_lite.consumer.assignment.work import DeliveredRecords
from aiokafka_lite.consumer.assignment.works import Works
from aiokafka_lite.errors import (
    BatchRevokedError,
    CommitFailedError,
    IllegalOperation,
    IllegalStateError,
)
from aiokafka_lite.structs import TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.consumer.commits.transactional import Deliver, DeliveryToCommit
    from aiokafka_lite.structs import ConsumerRecord


class Block(ABC):
    """The work (work.py) of one `async with consumer.batch()` block.

    A transaction that commits its records decides on them, however the block ends. A block that
    ends earlier holds its partitions until the transaction is over, unless the transaction began
    before the block. After an abort the records are returned again.

    Attributes:
        hold_s: How long it may delay a rebalance; None: as long as other work.
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
        """Return the offsets to commit. None: acknowledge the records, and commit all of those."""

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


Commit = Callable[[Mapping[TopicPartition, int] | None], Awaitable[None]]


class Revoking:
    """Set when a rebalance waits for the batch: ``await batch.revoking`` waits until then.

    Without a group it is never set. It stays set, because the partitions are revoked when the block
    ends, or after its time limit.
    """

    __slots__ = ("_batch", "_loop")

    def __init__(self, batch: Block) -> None:
        self._batch = batch
        self._loop = asyncio.get_running_loop()

    def is_set(self) -> bool:
        """Whether a rebalance waits for the batch, or has revoked partitions of it."""
        return self._batch.revoking.is_set()

    async def wait(self) -> None:
        """Wait until a rebalance waits for the batch. May be cancelled."""
        await self._batch.revoking.wait()

    def __await__(self) -> Generator[object, None, None]:
        return self.wait().__await__()

    @property
    def left_s(self) -> float:
        """Seconds until the rebalance stops waiting; infinity without one, 0 after the limit."""
        return max(0.0, self._batch.until - self._loop.time())


class Batch(Sequence["ConsumerRecord[KT, VT]"], Generic[KT, VT]):
    """The records of an ``async with consumer.batch()`` block, empty after its timeout.

    Attributes:
        by_partition: The records by partition, in order.
        records: All records, one partition after the other.
        revoking: Set when a rebalance waits for this batch.
    """

    __slots__ = ("_batch", "_commit", "_deliver", "by_partition", "records", "revoking")

    def __init__(
        self,
        by_partition: Mapping[TopicPartition, list[ConsumerRecord[KT, VT]]],
        batch: Block,
        commit: Commit,
        deliver: Deliver,
    ) -> None:
        self.by_partition = by_partition
        self.records = [record for records in by_partition.values() for record in records]
        self.revoking = Revoking(batch)
        self._batch = batch
        self._commit = commit
        self._deliver = deliver

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} records of {sorted(self.by_partition)}>"

    @override
    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, index: int) -> ConsumerRecord[KT, VT]: ...
    @overload
    def __getitem__(self, index: slice) -> list[ConsumerRecord[KT, VT]]: ...
    @override
    def __getitem__(
        self, index: int | slice
    ) -> ConsumerRecord[KT, VT] | list[ConsumerRecord[KT, VT]]:
        """Return a record, or for a slice a list of them."""
        return self.records[index]

    async def commit(self) -> None:
        """Commit the records of the batch, and no others.

        A rebalance can only delay the commit while the batch holds its partitions. If the call is
        cancelled, the offsets may or may not be committed.

        Raises:
            BatchRevokedError: Partitions were revoked by `max_hold_ms`, the group's removal of
                this member, or `stop`. The other partitions are committed.
            IllegalStateError: The block has ended.
            IllegalOperation: The consumer has no group, or an open transaction commits the batch.
            KafkaError: The broker rejected the commit, or could not be reached in time.
        """
        batch = self._batch
        if not batch.is_open or batch.is_left:
            raise IllegalStateError(
                "the batch's `async with` block has ended: call commit() inside the block"
            )
        if batch.is_enlisted:
            raise IllegalOperation(
                "an open transaction will commit this batch, so do not call commit(): if the "
                "transaction aborted, the batch's records would be skipped"
            )
        cause: CommitFailedError | None = None
        lost = batch.lost()
        if held := batch.held():
            try:
                await self._commit(batch.to_commit())
            except CommitFailedError as error:
                cause, lost = error, lost | held
        if lost:
            names = ", ".join(f"{tp.topic}/{tp.partition}" for tp in sorted(lost))
            why = "" if cause is None else f" ({cause})"
            raise BatchRevokedError(
                f"{BatchRevokedError.cause}, so other members will read the records of {names} "
                f"again{why}. To commit in time, {BatchRevokedError.remedy}",
                partitions=lost,
            ) from cause

    def delivery(self) -> DeliveryToCommit:
        """Return the batch's records for `tx.commit_offsets(batch)`, in the block or after it.

        If the transaction is aborted, the records are returned again.

        Raises:
            IllegalStateError: The records have already been returned again, or acknowledged.
            IllegalOperation: The consumer has no group.
            ConsumerStoppedError: The consumer is stopped.
        """
        self._batch.require_delivered()
        return self._deliver(self._batch.delivery())


@dataclass(eq=False, repr=False)
class BatchScope(Generic[KT, VT]):
    """The `async with` block of one batch, returned by `consumer.batch()`."""

    _batch: Block
    _take: Callable[[], Awaitable[dict[TopicPartition, list[ConsumerRecord[KT, VT]]]]]
    _commit: Commit
    _deliver: Deliver
    _is_used: bool = field(default=False, init=False)

    async def __aenter__(self) -> Batch[KT, VT]:
        """Wait for records, and open the block. A cancelled wait takes no records."""
        if self._is_used:
            raise IllegalStateError(
                "a batch() block can be entered only once: call consumer.batch() again"
            )
        self._is_used = True
        try:
            found = await self._take()
        except BaseException:
            self._batch.close(is_done=False)
            raise
        return Batch(found, self._batch, self._commit, self._deliver)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Finish the records, or after an exception return them again."""
        self._batch.close(is_done=exc_type is None)
