"""`ack_mode="explicit"`: the application acknowledges each record singly, in any order.

Acknowledged records are in the same table as those of `run` (assignment/progress.py), so the
commits are the same. A refused record is returned again by a read after its delay, without a seek
or a fetch.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from asyncio import _get_running_loop
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING, Final

from aiokafka_lite._compat import override
from aiokafka_lite._record_py import RECEIPT
from aiokafka_lite._transaction import BegunTransaction
from aiokafka_lite.client.backoff import delay_after
from aiokafka_lite.consumer.assignment.cursor import Cursor, Epochs, Range
from aiokafka_lite.consumer.assignment.work import DeliveredRecords, Processing, spans_of
from aiokafka_lite.consumer.assignment.works import Works
from aiokafka_lite.consumer.buffer.buffer import Buffer, Limits, Taken, Wanted
from aiokafka_lite.consumer.buffer.chunk import Chunk
from aiokafka_lite.consumer.core import Core
from aiokafka_lite.consumer.delivery.batch import Block
from aiokafka_lite.consumer.delivery.gets import Gets, OneByOne
from aiokafka_lite.consumer.delivery.ready import ReadyRecords
from aiokafka_lite.errors import IllegalOperation, IllegalStateError, WrongLoopError
from aiokafka_lite.structs import TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.consumer.buffer.chunk import Record
    from aiokafka_lite.consumer.commits.transactional import Deliver, DeliveryToCommit

# Of a record that is refused again without a delay, as in `Retry`.
FIRST_DELAY_S: Final = 0.1
LAST_DELAY_S: Final = 30.0
# Records at a time: about as many as a time slice is enough for, as an early close wastes receipts.
MOST_AT_A_TIME: Final = 256


class Refusals:
    """Refused records until they are returned again: one more partition in the buffer's turns.

    The first refusal without a delay returns the record at once. After that its delay grows, so
    that a record that is always refused does not keep the processor busy.
    """

    def __init__(self, buffer: Buffer, rng: random.Random) -> None:
        self._buffer = buffer
        self._rng = rng
        self._loop = asyncio.get_running_loop()
        # By when they are due, and in the order of their refusals.
        self._later: list[tuple[float, int, RecordReceipt]] = []
        self._number = itertools.count()
        self._alarm: asyncio.TimerHandle | None = None
        self._due: dict[Cursor, deque[RecordReceipt]] = {}
        # How many partitions of the buffer have their turn before them.
        self._turns_of_others = 0

    def __len__(self) -> int:
        later = (receipt for _, _, receipt in self._later)
        return sum(receipt.is_current for receipt in itertools.chain(later, *self._due.values()))

    # --- Refused --------------------------------------------------------------------------
    def put(self, receipt: RecordReceipt, delay_s: float) -> None:
        if not delay_s and receipt.refusal_count > 1:
            earlier = receipt.refusal_count - 2
            delay_s = delay_after(earlier, FIRST_DELAY_S, LAST_DELAY_S, self._rng)
        due_at = self._loop.time() + delay_s
        heapq.heappush(self._later, (due_at, next(self._number), receipt))
        if self._later[0][2] is receipt:
            self._set_alarm()

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._loop.call_at(self._later[0][0], self._ring) if self._later else None

    def _ring(self) -> None:
        self._alarm = None
        self._look()
        self._set_alarm()
        self._buffer.wake()

    def _look(self) -> None:
        later = self._later
        while later and later[0][0] <= self._loop.time():
            receipt = heapq.heappop(later)[2]
            if receipt.is_current:
                self._due.setdefault(receipt.cursor, deque()).append(receipt)

    def clear(self) -> None:
        self._later.clear()
        self._due.clear()
        self._set_alarm()

    # --- Returned -------------------------------------------------------------------------
    def first(self, may_be_served: Callable[[Cursor], bool]) -> Cursor | None:
        self._look()
        used_up: list[Cursor] = []
        found: Cursor | None = None
        for cursor, receipts in self._due.items():
            while receipts and not receipts[0].is_current:
                receipts.popleft()
            if not receipts:
                used_up.append(cursor)
            elif may_be_served(cursor):
                found = cursor
                break
        for cursor in used_up:
            del self._due[cursor]
        return found

    def take(self, cursor: Cursor, most: int | None) -> list[RecordReceipt]:
        receipts = self._due.pop(cursor)
        taken: list[RecordReceipt] = []
        while receipts and (most is None or len(taken) < most):
            receipt = receipts.popleft()
            if receipt.is_current:
                taken.append(receipt)
        if receipts:
            self._due[cursor] = receipts
        return taken

    def put_back(self, cursor: Cursor, receipts: Iterable[RecordReceipt]) -> None:
        self._due[cursor] = deque([*receipts, *self._due.get(cursor, ())])

    @property
    def have_their_turn(self) -> bool:
        return self._turns_of_others <= 0

    def served(self, other_count: int) -> None:
        """Note that a read was served from them. This many partitions have their turns next."""
        self._turns_of_others = other_count

    def others_served(self, count: int) -> None:
        self._turns_of_others -= count


class Redelivery(Exception):
    """Ends a read's wait for the buffer, because it is the turn of refused records."""


class RecordReceipt:
    """Acknowledges a record. Valid while its partition's table has it.

    Attributes:
        record: Refers back to this. None once it is finished, so that no cycle is left.
        handed_out_at: Loop time of the latest read that returned it. None: it waits to be returned.
        transaction: Decides whether the record is finished. None: an acknowledgement does.
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
        """Pickle as None: another process cannot acknowledge the record."""
        return _nothing, ()

    @property
    def size_bytes(self) -> int:
        return 0  # the application bounds what it holds

    @property
    def is_current(self) -> bool:
        progress = self.cursor.progress
        is_held = progress is not None and progress.is_held_by(self.offset, self)
        return is_held and not self._acks.is_over

    @property
    def is_waiting(self) -> bool:
        return self.refusal_count > 0 and self.handed_out_at is None

    @property
    def is_finished(self) -> bool:
        return self.record is None

    @property
    def lease_ms(self) -> None:
        """None: the partition is not shared."""

    def ack(self) -> bool:
        """Finish the record, or let its open transaction do so. False: it is not current."""
        if self.transaction is not None:
            return self.is_current
        return self._acks.finish(self)

    def enlist(self, transaction: object | None) -> None:
        self.transaction = transaction

    def delivery(self) -> DeliveryToCommit:
        return self._acks.deliver(self)

    def nack(self, delay_ms: float) -> bool:
        return self._acks.refuse(self, delay_ms / 1000)

    def reject(self) -> bool:
        raise IllegalOperation(
            "only share groups reject records (AIOKafkaShareConsumer): call ack()"
        )


def _nothing() -> None: ...


def records_of(receipts: list[RecordReceipt]) -> list[Record]:
    return [receipt.record for receipt in receipts if receipt.record is not None]


class Acks(Gets, Processing):
    """Reads of records to be acknowledged. After a revocation, acknowledgements have no effect."""

    is_always_asking: Final = False
    is_paused: Final = False

    def __init__(self, core: Core, max_uncommitted: int, deliver: Deliver) -> None:
        self.ready = AckedRecords(core, self)
        super().__init__(core, self.ready)
        self._works, self._observers = core.works, core.observers
        self._most = max_uncommitted
        self._deliver = deliver
        self._refusals = Refusals(core.buffer, core.rng)
        # The stop waits for acknowledgements.
        self._is_wanted = False
        self.is_over = False
        core.works.open_processing(self)

    # --- Gets -------------------------------------------------------------------------------
    def takes(self, sink: object) -> bool:
        return isinstance(sink, (OneByOne, AckedRecords))

    def own_records(self) -> None:
        """Return None: a commit finishes all records before its offsets."""

    @override
    async def one(self, wanted: Wanted) -> Record:
        ready, look = self.ready, partial(self._look, wanted)
        limits = Limits(wanted, None, self._cached_records) if wanted else self._one_of_all
        while (record := ready.next(wanted)) is None:
            try:
                if ready.is_full:
                    self._refusals.others_served(1)
                look()
                if ready.has_rest(wanted):  # but the time slice is used up
                    await ready.go_on()
                elif not await self._buffer.take(ready, limits, look):
                    # No partition is assigned any more, or they were assigned again.
                    for tp in wanted:
                        self._state.partition(tp)
            except Redelivery:
                await self._pause_for_refused()
                ready.close()
                if (cursor := self._first_refused(wanted)) is not None:
                    ready.open(cursor, self._refusals.take(cursor, MOST_AT_A_TIME))
                    self._refusals.served(len(self._buffer.partitions))
        return record

    @override
    async def _lists(
        self, limits: Limits, raise_in_poll: Callable[[], None] | None = None
    ) -> dict[TopicPartition, list[Record]]:
        self.ready.close()
        deadline = None if limits.timeout_s is None else self._loop.time() + limits.timeout_s
        look = partial(self._look, limits.wanted, raise_in_poll)
        while True:
            found: dict[TopicPartition, list[Record]] = {}

            def accept(
                cursor: Cursor,
                records: list[Record],
                epochs: Epochs,
                found: dict[TopicPartition, list[Record]] = found,
            ) -> None:
                if receipts := self._receipts(cursor, records, epochs, self._loop.time()):
                    found.setdefault(cursor.tp, []).extend(records_of(receipts))

            try:
                if not await self._buffer.take(OneByOne(accept), limits, look):
                    return {}
                self._refusals.others_served(len(found))
            except Redelivery:
                await self._pause_for_refused()
                found = self._take_refused(limits)
            if found:
                return found
            # All of them were finished earlier, or revoked during the pause.
            if deadline is not None:
                limits = limits._replace(timeout_s=max(0.0, deadline - self._loop.time()))

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

    # --- One by one (AckedRecords) ----------------------------------------------------------
    def prepare(self, chunk: Chunk, most: int) -> tuple[int, list[RecordReceipt]]:
        """Return how many first records were finished earlier, and receipts of the next ones."""
        cursor, epochs = chunk.partition, chunk.epochs
        records = chunk.decoded[: min(most, self._most)]
        if cursor.progress is not None:
            records = records[: max(1, self._most - cursor.progress.uncommitted_count)]
        passed_over_count, end = self._works.pass_over_finished(cursor, records, epochs)
        records = records[passed_over_count:end]
        return passed_over_count, self._receipts(cursor, records, epochs, None)

    def take_back(self, receipts: list[RecordReceipt]) -> None:
        if not receipts:
            return
        cursor = receipts[0].cursor
        if cursor.progress is not None:
            cursor.progress.go_back_to(receipts[0].offset)
            self._reads.settle_progress(cursor)
            self._take_more(cursor)

    def put_back(self, receipts: list[RecordReceipt]) -> None:
        if receipts:
            self._refusals.put_back(receipts[0].cursor, receipts)

    # --- Again --------------------------------------------------------------------------------
    def _first_refused(
        self, wanted: Wanted, served: Collection[TopicPartition] = ()
    ) -> Cursor | None:
        def may_be_served(cursor: Cursor) -> bool:
            is_wanted = (not wanted or cursor.tp in wanted) and cursor.tp not in served
            return is_wanted and not cursor.is_paused and not cursor.is_withheld

        return None if self._gate.holds else self._refusals.first(may_be_served)

    def _look(self, wanted: Wanted, raise_in_poll: Callable[[], None] | None = None) -> None:
        """Raise Redelivery if it is the turn of refused records."""
        if self._first_refused(wanted) is not None and (
            self._refusals.have_their_turn or not self._buffer.can_serve(wanted)
        ):
            raise Redelivery
        if raise_in_poll is not None:
            raise_in_poll()

    async def _pause_for_refused(self) -> None:
        """Let other tasks run once: a read of refused records has no other await."""
        await self._buffer.let_others_run()
        self._gate.check()

    def _take_refused(self, limits: Limits) -> dict[TopicPartition, list[Record]]:
        now, left = self._loop.time(), limits.max_records
        found: dict[TopicPartition, list[Record]] = {}
        while left != 0 and (cursor := self._first_refused(limits.wanted, found)) is not None:
            most = min((m for m in (left, limits.max_of_each) if m is not None), default=None)
            receipts = self._refusals.take(cursor, most)
            for receipt in receipts:
                receipt.handed_out_at = now
            found[cursor.tp] = records_of(receipts)
            left = None if left is None else left - len(receipts)
        if found:
            self._refusals.served(len(self._buffer.partitions))
        return found

    # --- Acknowledging --------------------------------------------------------------------
    def finish(self, receipt: RecordReceipt) -> bool:
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
        if cursor.is_withheld or self._is_wanted:
            self._observers.acted()
        return True

    def _refuse_elsewhere(self) -> None:
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
        self._observers.acted()
        return True

    # --- As a work (assignment/work.py) -----------------------------------------------------
    @property
    def is_open(self) -> bool:
        return True

    def _returned(self, cursor: Cursor) -> Iterator[RecordReceipt]:
        progress = cursor.progress
        for holder in () if progress is None else progress.holders():
            if isinstance(holder, RecordReceipt) and holder.handed_out_at is not None:
                yield holder

    def deliver(self, receipt: RecordReceipt) -> DeliveryToCommit:
        return self._deliver(DeliveredRecords(receipts=[receipt]))

    def receipts(self) -> list[RecordReceipt]:
        cursors = self._state.assignment.values()
        return [receipt for cursor in cursors for receipt in self._returned(cursor)]

    def partitions(self) -> Set[TopicPartition]:
        cursors = self._state.assignment.values()
        return {cursor.tp for cursor in cursors if cursor.worked_by is self}

    def undone(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Range]:
        """Return the returned records except those in open batches, which have their own limits."""
        self._reads.settle()
        cursors = filter(None, map(self._state.assignment.get, partitions))
        own = (cursor for cursor in cursors if cursor.worked_by is self)
        returned = (each for cursor in own for each in self._returned(cursor))
        places = ((each.cursor, each.offset) for each in returned if each.batch is None)
        return spans_of(places, partitions)

    def is_wanted_by(self, until: float) -> None:
        """Notify of each acknowledgement from now on, because the stop waits for all partitions."""
        self._is_wanted = True

    async def end(self, until: float, deadline: float = 0.0) -> None:
        self.ready.close()
        self.is_over = True
        self._refusals.clear()

    def note_stopper(self, deadline: float) -> None:
        """Do nothing: `end` waits for no tasks."""

    # --- For operators --------------------------------------------------------------------
    def is_delaying(self, cursor: Cursor) -> bool:
        return False

    def troubles(self, now: float) -> Iterator[str]:
        self.ready.close()
        for cursor in self._state.assignment.values():
            progress = cursor.progress
            receipt = None if progress is None else progress.holder_of_first()
            since = receipt.handed_out_at if isinstance(receipt, RecordReceipt) else None
            if since is not None and cursor.has_enough:
                yield self.explain(cursor, now)

    def explain(self, cursor: Cursor, now: float) -> str:
        self.ready.close()
        progress = cursor.progress
        receipt = None if progress is None else progress.holder_of_first()
        if progress is None or not isinstance(receipt, RecordReceipt):
            return ""
        since = receipt.handed_out_at
        doing = "waits to be returned again"
        if since is not None:
            doing = f"was returned {now - since:.1f} s ago and has not been acknowledged"
        place = f"{cursor.tp.topic}/{cursor.tp.partition} offset {receipt.offset}"
        return f"{place} {doing}. {progress.what_waits()}"

    def counts(self) -> dict[str, int]:
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


class AckedBatch(Block):
    """A block of `consumer.batch()` whose records are acknowledged singly.

    Its end acknowledges the others; an exception refuses them, so they are returned again. A
    refused record leaves the batch at once.
    """

    def __init__(self, works: Works, hold_s: float | None) -> None:
        super().__init__(hold_s)
        self._works = works
        self._receipts: list[RecordReceipt] = []

    @override
    def _take(self, found: Mapping[TopicPartition, Sequence[object]]) -> None:
        for records in found.values():
            for record in records:
                receipt = getattr(record, RECEIPT)
                receipt.batch = self
                self._receipts.append(receipt)
        self._works.begun.append(self)

    @override
    def _begin_in(self, transaction: BegunTransaction) -> None:
        """Acknowledge nothing before the transaction is over: that could not be undone."""
        self.enlist(transaction)

    @override
    def _undo(self) -> None: ...

    @override
    def _end(self, *, is_done: bool) -> None:
        self._works.begun.remove(self)
        if is_done:
            self.to_commit()
        for receipt in self._left():
            receipt.nack(0)

    def _left(self) -> Iterator[RecordReceipt]:
        return (each for each in self._receipts if each.batch is self and each.is_current)

    # --- Commits in the block -------------------------------------------------------------------
    @override
    def to_commit(self) -> None:
        """Acknowledge the other records: a commit covers all acknowledged ones."""
        for receipt in self._left():
            receipt.ack()

    @override
    def require_delivered(self) -> None:
        if not self.is_open:
            raise IllegalStateError(
                "the `async with` block of the batch has ended, so a transaction can no longer "
                "commit its records: begin the transaction inside the block"
            )

    @override
    def delivery(self) -> DeliveredRecords:
        receipts = (each for each in self._receipts if each.batch is self)
        return DeliveredRecords(receipts=receipts, blocks=[self])

    @override
    def held(self) -> frozenset[TopicPartition]:
        return frozenset(each.cursor.tp for each in self._receipts if each.cursor.is_assigned)

    @override
    def lost(self) -> frozenset[TopicPartition]:
        return frozenset(
            each.cursor.tp
            for each in self._receipts
            if each.batch is self and not each.is_current and not each.is_finished
        )

    # --- As a work (assignment/work.py) -----------------------------------------------------
    def partitions(self) -> set[TopicPartition]:
        return {receipt.cursor.tp for receipt in self._receipts}

    def undone(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Range]:
        return spans_of(((each.cursor, each.offset) for each in self._left()), partitions)

    def give_up(self, partitions: Collection[TopicPartition], now: float) -> None:
        if not self.partitions().isdisjoint(partitions):
            self.is_wanted_by(now)


class AckedRecords(ReadyRecords):
    """A sink for `async for` and `getone`: records of a chunk, or refused ones, of one partition.

    Closing the open list removes records that were not returned from the unfinished ones.
    """

    def __init__(self, core: Core, acks: Acks) -> None:
        self._acks = acks
        self._clock = asyncio.get_running_loop().time
        # The partition of the open list.
        self.partition: Cursor | None = None
        self._receipts: list[RecordReceipt] = []
        # Records of the open chunk before those of the list, which were finished earlier.
        self._passed_over_count = 0
        # When the time slice began in which records are returned.
        self._began_at = 0.0
        super().__init__(core)

    # --- The open list ----------------------------------------------------------------------
    @override
    def take(self, chunk: Chunk, limit: int | None) -> Taken | None:
        """Open the decoded records of a chunk, up to the next one that was finished earlier."""
        if chunk.decoded:
            self.close()
            passed_over_count, receipts = self._acks.prepare(chunk, MOST_AT_A_TIME)
            self._chunk = chunk
            self.is_full = True
            self._passed_over_count = passed_over_count
            self.open(chunk.partition, receipts)
        return None

    def open(self, partition: Cursor, receipts: list[RecordReceipt]) -> None:
        self.partition = partition
        self._receipts = receipts
        self._began_at = self._clock()
        self.cursor.open(records_of(receipts), self._slice.begin())

    @override
    def clear(self) -> None:
        super().clear()
        self.partition = None
        self._receipts = []

    @override
    def _is_of(self, wanted: Wanted) -> bool:
        return self.partition is not None and self.partition.tp in wanted

    @override
    async def go_on(self) -> None:
        try:
            await super().go_on()
        finally:
            self._began_at = self._clock()

    # --- Progress ---------------------------------------------------------------------------
    @override
    def settle(self) -> None:
        partition, chunk = self.partition, self._chunk
        settled_count, taken_count = self._settled_count, self.cursor.taken_count
        for receipt in self._receipts[settled_count:taken_count]:
            receipt.handed_out_at = self._began_at
        self._settled_count = taken_count
        self._reads.record_count += taken_count - settled_count
        if chunk is None or partition is None:
            return
        count = self._passed_over_count + taken_count
        decoded = chunk.decoded
        # Up to the next record: the offsets between are never returned, and acknowledgements have
        # passed them over already.
        position = decoded[count].offset if count < len(decoded) else chunk.position_after()
        if count and position != partition.position:
            # Without unfinished records, all before the position was finished earlier.
            self._reads.hand_out(partition, position, position, chunk.epochs)

    @override
    def close(self) -> None:
        """Settle, and put back the records that were not returned."""
        self.settle()
        count = self._passed_over_count + self._settled_count
        if (chunk := self._put_back()) is not None:
            self._queue.give_back(chunk, count)

    def _put_back(self) -> Chunk | None:
        left, chunk = self._receipts[self._settled_count :], self._chunk
        self.clear()
        if chunk is None:
            self._acks.put_back(left)
        else:
            self._acks.take_back(left)
        return chunk

    @override
    def _discard(self, partition: Cursor) -> None:
        # Positions were settled before the partition's tag changed.
        if self.partition is partition:
            self._put_back()

    @override
    def _park_if_paused(self, partition: Cursor) -> None:
        if partition.is_paused and self.partition is partition:
            self.close()
