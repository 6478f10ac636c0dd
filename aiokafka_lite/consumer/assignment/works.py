"""Opens and closes the works of the application (work.py), and finishes records of them singly.

Compiled in place (works.pxd).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from aiokafka_lite._transaction import BegunTransaction
from aiokafka_lite.consumer.assignment.assignment import SubscriptionState
from aiokafka_lite.consumer.assignment.cursor import Cursor, Epochs, Holder, Range
from aiokafka_lite.consumer.assignment.observers import Observers
from aiokafka_lite.consumer.assignment.progress import Progress
from aiokafka_lite.consumer.assignment.reads import Reads
from aiokafka_lite.consumer.assignment.work import Processing, Work
from aiokafka_lite.errors import IllegalStateError
from aiokafka_lite.structs import ConsumerRecord, TopicPartition

HolderT = TypeVar("HolderT", bound=Holder)

PROCESSING_TOTALS: Final = (
    "finished_total",
    "failed_total",
    "dead_total",
    "delayed_total",
    "dropped_total",
    "passed_over_total",
)


class Works:
    """The works of one consumer: `begun` have not ended, `totals` count single records."""

    def __init__(self, assignment: SubscriptionState, reads: Reads, observers: Observers) -> None:
        self._assignment = assignment
        self._cursors = assignment.assignment
        self._reads = reads
        self._observers = observers
        self._progressed = observers.progressed
        self.begun: list[Work] = []
        self.totals = dict.fromkeys(PROCESSING_TOTALS, 0)
        # The text of the error that ended the latest run, and `hand_out_count` then.
        self._run_failure: tuple[str, int] = ("", -1)

    # --- Works ----------------------------------------------------------------------------
    def begin(self, work: Work, partitions: Iterable[TopicPartition]) -> dict[Cursor, Range]:
        """Give a work the records of a read, in the same step of the loop. Return their offsets."""
        readers = self._reads.readers
        hand = None if readers is None else readers.hand_of(asyncio.current_task())
        spans: dict[Cursor, Range] = {}
        for tp in partitions:
            cursor = self._cursors[tp]
            assert cursor.position is not None  # noqa: S101 -- the read has just moved it
            first = cursor.processed
            if hand is not None and cursor in hand.ranges:  # others may have some before
                first = hand.ranges.pop(cursor).first
            spans[cursor] = Range(cursor.position if first is None else first, cursor.position)
            cursor.enter_work(work, is_enough=True)
        self.begun.append(work)
        self._reads.keep_latest(lambda cursor: cursor.worked_by is None)
        return spans

    def end(
        self,
        work: Work,
        spans: Mapping[Cursor, Range],
        *,
        is_done: bool,
        moved: Collection[Cursor] = (),
    ) -> None:
        """Count the records of `begin` as processed, or, if not `moved`, return them again."""
        self.begun.remove(work)
        reads = self._reads
        for cursor, (first, end) in spans.items():
            cursor.leave_work()
            if self._assignment.lost_in_hand.get(cursor.tp) is cursor:
                del self._assignment.lost_in_hand[cursor.tp]
            if not cursor.is_assigned:
                continue
            if reads.readers is not None and reads.readers.first_of(cursor) is not None:
                reads.latest[cursor] = None
            if is_done:
                reads.release([cursor])
            elif (
                cursor.position == end
                and cursor not in moved
                and cursor.processed not in (None, end)
            ):
                self._assignment.return_to(cursor, max(first, cursor.processed))
            self._observers.partition_changed(cursor)
        self._observers.acted()

    def present(self, tp: TopicPartition) -> Cursor | None:
        return self._cursors.get(tp)

    def decided(self) -> None:
        """Note that a transaction has decided on a work: a rebalance may wait for it."""
        self._observers.acted()

    def return_again(self, cursor: Cursor, first: int, end: int) -> None:
        """Return processed records again, and all behind them, unless committed."""
        committed = cursor.committed
        if not cursor.has_uncommitted(end):
            return
        if cursor.worked_by is not None:
            cursor.worked_by.give_up([cursor.tp], asyncio.get_running_loop().time())
        self._assignment.return_to(
            cursor, first if committed is None else max(first, committed.offset)
        )

    def give_up(self, partitions: Collection[TopicPartition], now: float) -> None:
        for work in self.begun:
            work.give_up(partitions, now)

    def is_ending(self, partitions: Collection[TopicPartition]) -> bool:
        return any(work.is_ending(partitions) for work in self.begun)

    # --- Records that are finished one by one ---------------------------------------------
    def open_processing(self, processing: Processing) -> None:
        """Let `processing` have all records, until `close_processing`."""
        reads = self._reads
        if reads.processing is not None:
            raise IllegalStateError(
                "consumer.run() is already active: only one run() at a time is allowed"
            )
        if reads.is_in_get:
            raise IllegalStateError(
                "run() cannot start while a read is waiting for records: cancel the read, or wait "
                "for its result"
            )
        reads.forget_readers()
        reads.begin_get()
        self._run_failure = ("", -1)
        reads.processing = processing
        self.begun.append(processing)

    @property
    def run_failure(self) -> str:
        """The error that ended `run`, until records are returned or a read waits."""
        text, hand_out_count = self._run_failure
        reads = self._reads
        return "" if reads.is_in_get or reads.hand_out_count != hand_out_count else text

    def close_processing(
        self, processing: Processing, failure: BaseException | None = None
    ) -> None:
        """Let reads return records again, from the first unfinished one on."""
        self._reads.processing = None
        # As text: the error would keep the caller's frames alive, and so the consumer.
        text = "" if failure is None else repr(failure)
        self._run_failure = text, self._reads.hand_out_count
        self.begun.remove(processing)
        for cursor in self._cursors.values():
            progress = cursor.progress
            if progress is None:
                continue
            first = progress.first_unfinished
            progress.interrupt(cursor.finished_epoch(progress))
            cursor.leave_work()
            if first is not None and cursor.position is not None:
                self._assignment.return_to(cursor, first)
            self._observers.partition_changed(cursor)
        self._observers.acted()

    def hand_out_each(
        self,
        cursor: Cursor,
        records: Sequence[ConsumerRecord],
        epochs: Epochs,
        holder_of: Callable[[ConsumerRecord], HolderT],
    ) -> list[HolderT]:
        """Return the holders of records that are finished singly, without those finished before."""
        progress = cursor.progress
        if progress is None:
            progress = Progress()
            cursor.track(progress)
        if not progress.keep_ahead_in(epochs, cursor.leader_epoch):
            holders = [holder_of(record) for record in records]
            progress.hand_out([record.offset for record in records], holders)
            return holders
        holders = []
        for record in records:
            if progress.passes_over(record.offset):
                self.totals["passed_over_total"] += 1
            else:
                holders.append(holder_of(record))
                progress.hand_out([record.offset], holders[-1:])
        return holders

    def pass_over_finished(
        self, cursor: Cursor, records: Sequence[ConsumerRecord], epochs: Epochs
    ) -> tuple[int, int]:
        """Pass over the first finished records. Return how many, and the end of the next run."""
        progress, count = cursor.progress, len(records)
        if progress is None or not progress.keep_ahead_in(epochs, cursor.leader_epoch):
            return 0, count
        first = next(
            (n for n in range(count) if not progress.passes_over(records[n].offset)), count
        )
        self.totals["passed_over_total"] += first
        ahead = progress.first_ahead
        if ahead is None:
            return first, count
        return first, next((n for n in range(first, count) if records[n].offset >= ahead), count)

    def put_into_processing(self, cursor: Cursor, *, is_enough: bool) -> None:
        reads = self._reads
        if reads.processing is not None:
            cursor.enter_work(reads.processing, is_enough=is_enough)
            reads.latest.pop(cursor, None)  # it was sought while it was revoked (_carry_over)
            reads.settle_progress(cursor)

    def finish(self, cursor: Cursor, offset: int, holder: Holder) -> None:
        progress = cursor.progress
        if progress is None or (is_first := progress.finish(offset, holder)) is None:
            return
        if is_first:
            first = progress.first_unfinished
            if first is not None and cursor.worked_by is self._reads.processing is not None:
                cursor.process_to(first)  # as settle_progress, without its call
            else:
                self._reads.settle_progress(cursor)
        if self._progressed.observers:
            self._progressed.notify_once()

    def take_more(self, cursor: Cursor) -> None:
        if cursor.worked_by is not None and cursor.has_enough:
            cursor.enter_work(cursor.worked_by, is_enough=False)
            self._observers.partition_changed(cursor)

    # --- What is not finished -------------------------------------------------------------
    def being_processed(self) -> dict[TopicPartition, Range]:
        self._reads.settle()
        found = {
            partition.tp: Range(partition.processed, partition.position)
            for partition in self._reads.latest
            if partition.processed is not None and partition.position is not None
        }
        for work in self.begun:
            found |= work.undone(self._cursors)
        return found

    def unfinished(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Range]:
        """Return the unfinished offsets of partitions: of reads, works and open transactions."""
        self._reads.settle()
        wanted = frozenset(partitions)
        found = self.undecided(wanted)
        for work in self.begun:
            found |= work.undone(wanted)
        for tp in sorted(wanted - found.keys()):
            cursor = self._cursors.get(tp)
            if cursor is None or cursor.position is None or cursor.worked_by is not None:
                continue
            if self._reads.readers is not None:
                if (at_work := self._reads.readers.awaited(cursor)) is not None:
                    found[tp] = at_work
                continue
            done = cursor.processed if cursor in self._reads.latest else None
            if done is not None and done < cursor.position:
                found[tp] = Range(done, cursor.position)
        return found

    def undecided(
        self,
        partitions: Iterable[TopicPartition],
        besides: BegunTransaction | None = None,
    ) -> dict[TopicPartition, Range]:
        found: dict[TopicPartition, Range] = {}
        for tp in partitions:
            cursor = self._cursors.get(tp)
            if cursor is not None and cursor.undecided and cursor.position is not None:
                decided = cursor.decided_to(cursor.position, besides)
                if decided < cursor.position:
                    found[tp] = Range(decided, cursor.position)
        return found
