"""`ack_mode="explicit"`: the application acknowledges each record by itself, in any order.

Gets hand out records as ever, and each carries a `RecordReceipt`. What `record.ack()` has finished
is in the same table as what handlers of `run` have (assignment/progress.py), so the same is
committed: the first offset that is not finished, and beside it what is finished behind.

A record that is refused, by `record.nack(delay_ms)`, is returned again by a read that comes after
its delay (refusals.py). Nothing is sought and nothing fetched for it.
"""

from __future__ import annotations

import asyncio
import random
from asyncio import _get_running_loop
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Final

from aiokafka_lite._compat import override
from aiokafka_lite._record_py import RECEIPT
from aiokafka_lite._transaction import BegunTransaction
from aiokafka_lite.consumer.assignment.assignment import Assignment
from aiokafka_lite.consumer.assignment.batches import Block
from aiokafka_lite.consumer.assignment.cursor import Cursor, Epochs, Range, joined
from aiokafka_lite.consumer.assignment.observers import Observers
from aiokafka_lite.consumer.assignment.reads import Reads
from aiokafka_lite.consumer.assignment.work import DeliveredRecords
from aiokafka_lite.consumer.assignment.works import Works
from aiokafka_lite.consumer.buffer.buffer import Buffer, Limits, Wanted
from aiokafka_lite.consumer.delivery.gets import Gets
from aiokafka_lite.consumer.gate import Gate
from aiokafka_lite.consumer.processing.acked_records import MOST_AT_A_TIME, AckedRecords
from aiokafka_lite.consumer.processing.allowance import OneByOne
from aiokafka_lite.consumer.processing.refusals import Refusals
from aiokafka_lite.errors import IllegalStateError, WrongLoopError
from aiokafka_lite.structs import TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.consumer.buffer.chunk import Chunk, Record
    from aiokafka_lite.consumer.commits.transactional import DeliveryToCommit


class Redelivery(Exception):
    """Refused records are due, and have their turn: the read that waits for others takes them."""


class RecordReceipt:
    """What a record is acknowledged by. It counts while its partition's table has it.

    Attributes:
        record: The record, which has this; None once it is finished: then neither holds the other.
        cursor: Of the assignment that handed it out.
        offset: Of the record.
        handed_out_at: Loop time of the read that returned it last; None: it is not in hand.
        refusal_count: How often it was refused.
        batch: The open block that it is of (acked_batch.py); None: none.
        transaction: Decides whether the record is finished; None: an acknowledgement does.
    """

    __slots__ = (
        "_acks",
        "batch",
        "cursor",
        "handed_out_at",
        "offset",
        "record",
        "refusal_count",
        "transaction",
    )

    def __init__(self, acks: Acks, record: Record, cursor: Cursor, now: float | None) -> None:
        self._acks = acks
        self.record: Record | None = record
        self.cursor = cursor
        self.offset = record.offset
        self.handed_out_at = now
        self.refusal_count = 0
        self.batch: object | None = None
        self.transaction: object | None = None

    def __reduce__(self) -> tuple[object, ...]:
        """Let a record be pickled, for another process say, which cannot acknowledge it."""
        return _nothing, ()

    @property
    def is_current(self) -> bool:
        """Whether it is still to be acknowledged."""
        progress = self.cursor.progress
        is_held = progress is not None and progress.is_held_by(self.offset, self)
        return is_held and not self._acks.is_over

    @property
    def is_waiting(self) -> bool:
        """Whether the record was refused, and waits to be returned again."""
        return self.refusal_count > 0 and self.handed_out_at is None

    @property
    def is_finished(self) -> bool:
        """Whether the record was acknowledged in time."""
        return self.record is None

    def ack(self) -> bool:
        """Finish the record; False: it is another's by now, or finished.

        A record that an open transaction commits is finished by that.
        """
        if self.transaction is not None:
            return self.is_current
        return self._acks.finish(self)

    def enlist(self, transaction: object | None) -> None:
        """Let a transaction decide whether the record is finished; None: it has decided."""
        self.transaction = transaction

    def delivery(self) -> DeliveryToCommit:
        """Return the record for a transaction that commits it."""
        return self._acks.deliver(self)

    def nack(self, delay_ms: float) -> bool:
        """Have the record handed out again; False: it is another's by now, or finished."""
        return self._acks.refuse(self, delay_ms / 1000)


def _nothing() -> None:
    """Stand for a receipt in another process."""


class Acks:
    """The records of one consumer that wait for their acknowledgement."""

    #: As long as for what gets have handed out.
    hold_s: Final[float | None] = None
    #: The application has to come back for more, as ever.
    is_always_asking: Final = False
    #: No circuit breaker pauses the application.
    is_paused: Final = False

    def __init__(
        self,
        state: Assignment,
        reads: Reads,
        works: Works,
        buffer: Buffer,
        gate: Gate,
        observers: Observers,
        max_uncommitted: int,
        rng: random.Random,
        deliver: Callable[[DeliveredRecords], DeliveryToCommit],
    ) -> None:
        self._state = state
        self._reads = reads
        self._works = works
        self._buffer = buffer
        self._gate = gate
        self._observers = observers
        self._most = max_uncommitted
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._refusals = Refusals(buffer.wake, rng)
        # What is read one by one.
        self.ready = AckedRecords(reads, buffer, gate, observers, self)
        # The stop waits for acknowledgements.
        self._is_wanted = False
        self.is_over = False
        works.open_processing(self)

    # --- Gets -------------------------------------------------------------------------------
    def takes(self, sink: object) -> bool:
        """Whether a get's records are acknowledged: all but rows are."""
        return isinstance(sink, (OneByOne, AckedRecords))

    def own_records(self) -> None:
        """Return None: the application has all records, and a commit says which are finished."""

    async def take(
        self, limits: Limits, raise_in_poll: Callable[[], None] | None = None
    ) -> dict[TopicPartition, list[Record]]:
        """Return what is buffered, or refused records, whichever have their turn."""
        self.ready.close()
        deadline = None if limits.timeout_s is None else self._loop.time() + limits.timeout_s

        def look() -> None:
            if self.is_turn_of_refused(limits.wanted):
                raise Redelivery
            if raise_in_poll is not None:
                raise_in_poll()

        while True:
            found: dict[TopicPartition, list[Record]] = {}

            def accept(
                cursor: Cursor,
                records: list[Record],
                epochs: Epochs,
                found: dict[TopicPartition, list[Record]] = found,
            ) -> None:
                if kept := self._hand_out(cursor, records, epochs):
                    found.setdefault(cursor.tp, []).extend(kept)

            try:
                if not await self._buffer.take(OneByOne(accept), limits, look):
                    return {}
                self._refusals.others_served(len(found))
            except Redelivery:
                await self.pause_for_refused()
                found = self._take_refused(limits)
            if found:
                return found
            # All of them were finished before, or went meanwhile.
            if deadline is not None:
                limits = limits._replace(timeout_s=max(0.0, deadline - self._loop.time()))

    def _hand_out(self, cursor: Cursor, records: list[Record], epochs: Epochs) -> list[Record]:
        now = self._loop.time()
        found = []
        for receipt in self._receipts(cursor, records, epochs, now):
            assert receipt.record is not None  # noqa: S101 -- it is new
            found.append(receipt.record)
        return found

    def _receipts(
        self, cursor: Cursor, records: list[Record], epochs: Epochs, now: float | None
    ) -> list[RecordReceipt]:
        def receipt_of(record: Record) -> RecordReceipt:
            receipt = RecordReceipt(self, record, cursor, now)
            setattr(record, RECEIPT, receipt)
            return receipt

        receipts = self._works.hand_out_each(cursor, records, epochs, receipt_of)
        if cursor.progress is not None and (count := cursor.progress.uncommitted_count):
            self._works.put_into_processing(cursor, is_enough=count >= self._most)
        return receipts

    # --- One by one (acked_records.py) ------------------------------------------------------
    def now(self) -> float:
        """Return the loop's time."""
        return self._loop.time()

    def prepare(self, chunk: Chunk, most: int) -> tuple[int, list[RecordReceipt]]:
        """Make receipts of the first records of a chunk, which are not in hand yet.

        Returns:
            How many records before them were finished before, and the receipts.
        """
        cursor, epochs = chunk.partition, chunk.epochs
        records = chunk.decoded[: min(most, self._most)]
        if cursor.progress is not None:
            records = records[: max(1, self._most - cursor.progress.uncommitted_count)]
        passed_over_count, end = self._works.pass_over_finished(cursor, records, epochs)
        records = records[passed_over_count:end]
        return passed_over_count, self._receipts(cursor, records, epochs, None)

    def take_back(self, receipts: list[RecordReceipt]) -> None:
        """Forget records of a partition that were prepared, and not returned."""
        if not receipts:
            return
        cursor = receipts[0].cursor
        if cursor.progress is not None:
            cursor.progress.go_back_to(receipts[0].offset)
            self._reads.settle_progress(cursor)
            self._take_more(cursor)

    def put_back(self, receipts: list[RecordReceipt]) -> None:
        """Keep refused records of a partition that were not returned."""
        if receipts:
            self._refusals.put_back(receipts[0].cursor, receipts)

    # --- Again --------------------------------------------------------------------------------
    def _first_refused(
        self, wanted: Wanted, served: Collection[TopicPartition] = ()
    ) -> Cursor | None:
        """Return the partition whose refused records are returned next; None: none are due."""

        def may_be_served(cursor: Cursor) -> bool:
            is_wanted = (not wanted or cursor.tp in wanted) and cursor.tp not in served
            return is_wanted and not cursor.is_paused and not cursor.is_revoking

        return None if self._gate.holds else self._refusals.first(may_be_served)

    def is_turn_of_refused(self, wanted: Wanted) -> bool:
        """Whether refused records are due, and come before what is buffered."""
        if self._first_refused(wanted) is None:
            return False
        return self._refusals.have_their_turn or not self._buffer.can_serve(wanted)

    async def pause_for_refused(self) -> None:
        """Go once round the loop: nothing else makes reads of refused records let others run."""
        await self._buffer.let_others_run()
        self._gate.check()

    def open_refused(self, wanted: Wanted, most: int) -> None:
        """Have refused records of one partition read one by one, if some are due."""
        self.ready.close()
        cursor = self._first_refused(wanted)
        if cursor is not None:
            self.ready.open_refused(cursor, self._refusals.take(cursor, most))
            self._refusals.served(len(self._buffer.partitions))

    def end_turn(self) -> None:
        """Note that a partition has had its turn, if its records are read one by one."""
        if self.ready.is_full:
            self._refusals.others_served(1)

    def _take_refused(self, limits: Limits) -> dict[TopicPartition, list[Record]]:
        """Return refused records that are due, within the limits."""
        now, left = self._loop.time(), limits.max_records
        found: dict[TopicPartition, list[Record]] = {}
        while left != 0 and (cursor := self._first_refused(limits.wanted, found)) is not None:
            most = min((m for m in (left, limits.max_of_each) if m is not None), default=None)
            records = found[cursor.tp] = []
            for receipt in self._refusals.take(cursor, most):
                receipt.handed_out_at = now
                if receipt.record is not None:
                    records.append(receipt.record)
            left = None if left is None else left - len(records)
        if found:
            self._refusals.served(len(self._buffer.partitions))
        return found

    # --- Acknowledging --------------------------------------------------------------------
    def finish(self, receipt: RecordReceipt) -> bool:
        """Count a record as finished; False: it is another's by now, or finished."""
        if _get_running_loop() is not self._loop:
            self._refuse_elsewhere()
        if receipt.is_waiting and self.ready.partition is receipt.cursor:
            self.ready.close()  # it must not be returned by that any more
        cursor = receipt.cursor
        progress = cursor.progress
        if self.is_over or progress is None or not progress.is_held_by(receipt.offset, receipt):
            return False
        self._works.finish(cursor, receipt.offset, receipt)
        receipt.record = None
        self._works.totals["finished_total"] += 1
        if cursor.has_enough:
            self._take_more(cursor)
        if cursor.is_revoking or self._is_wanted:
            self._acted()
        return True

    def _refuse_elsewhere(self) -> None:
        """Refuse what comes from another thread or loop while that of the consumer runs.

        Raises:
            WrongLoopError: So it does.
        """
        if self._loop.is_running():
            raise WrongLoopError(
                "ack() and nack() must be called on the event loop of the consumer: from another "
                "thread, call loop.call_soon_threadsafe(record.ack)"
            )

    def _take_more(self, cursor: Cursor) -> None:
        progress = cursor.progress
        if cursor.has_enough and progress is not None and progress.uncommitted_count < self._most:
            self._works.take_more(cursor)

    def refuse(self, receipt: RecordReceipt, delay_s: float) -> bool:
        """Return a record again after a while; False: it is another's by now, or finished.

        Raises:
            ValueError: The delay is negative.
            WrongLoopError: Another thread calls it.
        """
        if not delay_s >= 0:
            raise ValueError(f"the delay of nack() must not be negative, but is {delay_s:g} s")
        if _get_running_loop() is not self._loop:
            self._refuse_elsewhere()
        self._reads.settle()
        if not receipt.is_current:
            return False
        if receipt.is_waiting:
            return True  # refused already
        receipt.handed_out_at = receipt.batch = receipt.transaction = None
        receipt.refusal_count += 1
        if self._refusals.have_their_turn:
            self.ready.close()  # the next read looks whose turn it is
        self._refusals.put(receipt, delay_s)
        self._works.totals["failed_total"] += 1
        self._acted()
        return True

    def _acted(self) -> None:
        self._observers.acted()  # a rebalance or the stop may wait for it

    # --- As a work (assignment/work.py) -----------------------------------------------------
    @property
    def is_open(self) -> bool:
        """Whether anything may be left to do."""
        return True

    def _in_hand(self, cursor: Cursor) -> Iterator[RecordReceipt]:
        progress = cursor.progress
        for holder in () if progress is None else progress.holders():
            if not isinstance(holder, RecordReceipt) or holder.handed_out_at is None:
                continue
            if holder.batch is None:  # that has its own time
                yield holder

    def deliver(self, receipt: RecordReceipt) -> DeliveryToCommit:
        """Return a record for a transaction that commits it."""
        return self._deliver(DeliveredRecords(receipts=[receipt]))

    def receipts(self) -> list[RecordReceipt]:
        """Return what the application has in hand, in open batches as well."""
        return [
            holder
            for cursor in self._state.assignment.values()
            if cursor.progress is not None
            for holder in cursor.progress.holders()
            if isinstance(holder, RecordReceipt) and holder.handed_out_at is not None
        ]

    def partitions(self) -> Set[TopicPartition]:
        """Return the partitions of which records are to be acknowledged."""
        cursors = self._state.assignment.values()
        return {cursor.tp for cursor in cursors if cursor.worked_by is self}

    def undone(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Range]:
        """Return what the application has in hand, but for what is in an open batch.

        What is to be handed out again goes as it is.
        """
        self._reads.settle()
        found: dict[TopicPartition, Range] = {}
        for tp in partitions:
            cursor = self._state.assignment.get(tp)
            if cursor is None or cursor.worked_by is not self:
                continue
            offsets = [receipt.offset for receipt in self._in_hand(cursor)]
            if offsets:
                found[tp] = Range(min(offsets), max(offsets) + 1)
        return found

    def is_wanted_by(self, until: float) -> None:
        """Tell of each acknowledgement from now on: the stop waits for all partitions."""
        self._is_wanted = True

    def is_of(self, task: asyncio.Task[Any] | None) -> bool:
        """Return False: any task may acknowledge a record."""
        return False

    def give_up(self, partitions: Collection[TopicPartition], now: float) -> None:
        """Do nothing: an acknowledgement that comes later counts no more."""

    def is_ending(self, partitions: Collection[TopicPartition]) -> bool:
        """Return False: what the application does with a record is its own affair."""
        return False

    async def end(self, until: float) -> None:
        """Take no acknowledgement any more: the consumer is being stopped."""
        self.ready.close()
        self.is_over = True
        self._refusals.clear()

    # --- For operators --------------------------------------------------------------------
    def troubles(self, now: float) -> Iterator[str]:
        """Say what is wrong, at loop time `now`."""
        self.ready.close()
        for cursor in self._state.assignment.values():
            progress = cursor.progress
            receipt = None if progress is None else progress.holder_of_first()
            since = receipt.handed_out_at if isinstance(receipt, RecordReceipt) else None
            if since is not None and cursor.has_enough:
                yield self.explain(cursor, now)

    def explain(self, cursor: Cursor, now: float) -> str:
        """Say which record of a partition holds the commit back."""
        self.ready.close()
        progress = cursor.progress
        receipt = None if progress is None else progress.holder_of_first()
        if progress is None or not isinstance(receipt, RecordReceipt):
            return ""
        since = receipt.handed_out_at
        doing = "waits to be returned again"
        if since is not None:
            doing = f"was returned {now - since:.1f} s ago and has not been acknowledged"
        return (
            f"{cursor.tp.topic}/{cursor.tp.partition} offset {receipt.offset} {doing}. The "
            f"partition's commit waits for this record ({progress.finished_count} later records "
            f"are finished, {progress.uncommitted_count - progress.finished_count} records are "
            "unfinished)"
        )

    def counts(self) -> dict[str, int]:
        """Return how many records are where, by name."""
        self.ready.close()
        progresses = [c.progress for c in self._state.assignment.values() if c.progress]
        uncommitted_count = sum(each.uncommitted_count for each in progresses)
        finished_count = sum(each.finished_count for each in progresses)
        refused_count = len(self._refusals)
        return {
            "at_work": uncommitted_count - finished_count - refused_count,
            "waiting_for_retry": refused_count,
            "uncommitted": uncommitted_count,
        }


class AckedGets(Gets):
    """Gets whose records are acknowledged one by one."""

    def __init__(
        self,
        state: Assignment,
        reads: Reads,
        buffer: Buffer,
        raise_in_poll: Callable[[], None],
        acks: Acks,
    ) -> None:
        super().__init__(state, reads, buffer, acks.ready, raise_in_poll)
        self._acks = acks

    async def some(
        self, timeout_s: float | None, max_records: int | None, max_of_each: int | None = None
    ) -> dict[TopicPartition, list[Record]]:
        """As `Gets.some`."""
        limits = Limits((), timeout_s, max_records or self._cached_records, max_of_each)
        return await self._acks.take(limits, self._raise_in_poll)

    async def many(
        self,
        wanted: Wanted,
        timeout_s: float | None,
        max_records: int | None,
        max_of_each: int | None = None,
    ) -> dict[TopicPartition, list[Record]]:
        """As `Gets.many`."""
        if max_records is None and max_of_each is None:
            max_of_each = self._cached_records
        return await self._acks.take(Limits(wanted, timeout_s, max_records, max_of_each))

    async def one(self, wanted: Wanted) -> Record:
        """As `Gets.one`."""
        acks, ready = self._acks, self._ready
        limits = Limits(wanted, None, self._cached_records) if wanted else self._one_of_all

        def look() -> None:
            if acks.is_turn_of_refused(wanted):
                raise Redelivery

        while True:
            record = ready.next(wanted)
            if record is not None:
                return record
            try:
                acks.end_turn()
                look()
                if ready.has_rest(wanted):  # but the time slice is used up
                    await ready.go_on()
                elif not await self._buffer.take(ready, limits, look):
                    # None of the partitions is assigned any more, or they came back.
                    for tp in wanted:
                        self._state.partition(tp)
            except Redelivery:
                await acks.pause_for_refused()
                acks.open_refused(wanted, MOST_AT_A_TIME)


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
