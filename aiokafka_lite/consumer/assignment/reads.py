"""Notes the waiting reads, the time without a read, and the records of the latest reads.

A read finishes the records of earlier reads, or with several reading tasks those of its own task
(readers.py). While `consumer.run` or acknowledging reads are active, all records belong to
`Reads.processing`. `delivery/steady.py` accesses the fields by name.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Collection, Iterable

from aiokafka_lite._transaction import LATEST
from aiokafka_lite.consumer.assignment.cursor import Cursor, Epochs, Range
from aiokafka_lite.consumer.assignment.observers import Observers
from aiokafka_lite.consumer.assignment.readers import UNKNOWN, Readers, Task, TaskRef, read_as
from aiokafka_lite.consumer.assignment.work import Processing
from aiokafka_lite.consumer.caller import callbacks, is_in_callback

_around = LATEST.get


def _nothing() -> None: ...


class Reads:
    def __init__(self, observers: Observers) -> None:
        self._observers = observers
        self._acted = observers.acted.observers
        # For max_poll_interval, which counts only the time between gets.
        self.in_progress = 0
        self._idle_since = 0.0
        self._hand_out_count = 0
        self._seen_hand_out_count = 0
        # The partitions of the latest read. All other returned records are processed or in works.
        self.latest: dict[Cursor, None] = {}
        self._latest_hand_out: Cursor | None = None
        # Records and rows returned since the start.
        self.record_count = 0
        # Set by Works.
        self.processing: Processing | None = None
        # The last task to read, while it is the only reader, and the readers of several.
        self.reader: TaskRef | None = None
        self._reader_iterates = False
        self.readers: Readers | None = None
        self._settle: Callable[[], None] = _nothing
        self.close_reader: Callable[[], None] = _nothing
        # The text of the last error of a read, and `hand_out_count` then.
        self._raised: tuple[str, int] = ("", -1)

    def set_settler(self, settle: Callable[[], None], close: Callable[[], None] = _nothing) -> None:
        """Set the hooks that bring positions up to date, and that end the per-message path."""
        self._settle = settle
        self.close_reader = close

    def settle(self) -> None:
        self._settle()

    # --- Whether the application reads ------------------------------------------------------
    def note_raised(self, error: BaseException) -> None:
        """Note a read's error, as text: the error would keep the caller's frames alive."""
        self._raised = str(error), self.hand_out_count

    @property
    def latest_raised(self) -> str:
        """The error text of a read, unless records were returned since."""
        text, hand_out_count = self._raised
        return text if hand_out_count == self.hand_out_count else ""

    def enter_get(self) -> None:
        """Note that a read begins. `leave_get` matches each call."""
        if not callbacks or not is_in_callback():  # from which the application is not back for more
            self.note_reader()
            self.begin_get()
        self.resume_get()

    def resume_get(self) -> None:
        """Note that a read continues after the application's own work."""
        self.in_progress += 1
        for observer in self._acted:
            observer()

    @property
    def is_in_get(self) -> bool:
        return self.in_progress > 0

    def leave_get(self, now: float) -> None:
        self.in_progress -= 1
        if not callbacks or not is_in_callback():
            self._idle_since = now

    def idle_s(self, now: float) -> float:
        """Return how long the application has not read, 0 during a read.

        Records returned singly are noticed only here: the answer may be too small, never too large.
        """
        self._settle()
        processing = self.processing
        if self.in_progress or (processing is not None and processing.is_always_asking):
            return 0.0
        if self._hand_out_count != self._seen_hand_out_count:
            self._seen_hand_out_count = self._hand_out_count
            self._idle_since = now
        return now - self._idle_since

    def restart_idle(self, now: float) -> None:
        self._idle_since = now

    # --- What was handed out ----------------------------------------------------------------
    @property
    def hand_out_count(self) -> int:
        self._settle()
        return self._hand_out_count

    @property
    def latest_hand_out(self) -> Cursor | None:
        partition = self._latest_hand_out
        return partition if partition is not None and partition.is_assigned else None

    def hand_out(
        self, partition: Cursor, first_offset: int, next_position: int, epochs: Epochs
    ) -> None:
        """Note that the current read returns the records of [first, next)."""
        if partition.worked_by is None and partition not in self.latest:
            self.latest[partition] = None
            partition.process_to(first_offset)
        if self.readers is not None and partition.worked_by is None:
            hand = self.readers.hand_of(asyncio.current_task())
            hand.take(partition, Range(first_offset, next_position))
        partition.advance(next_position, epochs)
        self._hand_out_count += 1
        self._latest_hand_out = partition

    def pass_over(self, partition: Cursor, next_position: int, epochs: Epochs = ()) -> None:
        """Move the position over control batches, gaps and aborted records."""
        if partition not in self.latest and partition.worked_by is None:
            partition.process_to(next_position)
        partition.advance(next_position, epochs)

    def begin_get(self) -> None:
        """Count earlier records as processed: with several readers, the current task's."""
        if (readers := self.readers) is None:
            _note_transaction(self.latest)
            for cursor in self.latest:
                cursor.process_to(cursor.returned_to())
            self.latest.clear()
            return
        finished = readers.hand_of(asyncio.current_task()).release()
        _note_transaction(finished)
        self.release(finished)

    def release(self, cursors: Iterable[Cursor]) -> None:
        for cursor in cursors:
            first = None if self.readers is None else self.readers.first_of(cursor)
            if first is None:
                self.latest.pop(cursor, None)
            if cursor.worked_by is None:
                cursor.process_to(_before(first, cursor.returned_to()))

    def settle_progress(self, cursor: Cursor) -> None:
        progress, processing = cursor.progress, self.processing
        if progress is None or processing is None or cursor.worked_by is not processing:
            return
        first = progress.first_unfinished
        if first is not None:
            cursor.process_to(first)
            return
        self._settle()  # while it is in work, and not of the latest get
        had_enough = cursor.has_enough
        cursor.leave_work()
        if cursor.is_assigned and cursor.returned_to() is not None:
            cursor.process_to(cursor.returned_to())
        if had_enough:
            self._observers.partition_changed(cursor)

    # --- What becomes of partitions ---------------------------------------------------------
    def is_in_hand(self, cursor: Cursor) -> bool:
        return cursor in self.latest or cursor.worked_by is not None

    def keep_latest(self, is_kept: Callable[[Cursor], bool]) -> None:
        self.latest = {cursor: None for cursor in self.latest if is_kept(cursor)}

    def replace(self, old: Cursor, new: Cursor) -> None:
        """Note a reassignment: the next read finishes the earlier records, until then none are."""
        self.latest[new] = None
        if self.readers is not None:
            self.readers.replace(old, new)

    def forget(self, gone: Iterable[Cursor]) -> None:
        if self.readers is not None:
            for cursor in gone:
                self.readers.replace(cursor, None)
        self.keep_latest(lambda cursor: cursor.is_assigned)

    # --- Who reads --------------------------------------------------------------------------
    def note_reader(self, *, iterates: bool = False) -> None:
        """Note that the current task reads. By `async for` it takes records without a look here."""
        if self.processing is not None:
            return  # all records are its
        task = asyncio.current_task()
        if self.reader is not None and self.reader() is task and not iterates:
            return
        starter = read_as(task)
        if self.readers is None:
            former = None if self.reader is None else self.reader()
            hands_over = former is starter and not self._reader_iterates
            if former is None or former is task or former.done() or hands_over:
                iterated = former is task and self._reader_iterates
                self._read_alone(task, iterates=iterates or iterated)
                return
            if callbacks and is_in_callback():
                return  # a rebalance listener reads: the application is not back for more
            self.close_reader()
            self.readers = self._readers_with(former)
        self.release(self.readers.stand_in(task, starter))
        if iterates:
            self.readers.hand_of(task).iterates = True

    def _read_alone(self, task: Task | None, *, iterates: bool) -> None:
        self.reader = None if task is None else weakref.ref(task)
        self._reader_iterates = iterates

    def _readers_with(self, former: Task) -> Readers:
        readers = Readers(self._reader_ended)
        hand = readers.hand_of(former)
        hand.iterates = self._reader_iterates
        for cursor in self.latest:
            first, end = cursor.processed, cursor.returned_to()
            hand.take(cursor, UNKNOWN if first is None or end is None else Range(first, end))
        self.reader = None
        return readers

    def are_several_reading(self) -> bool:
        if (readers := self.readers) is None:
            return False
        task = asyncio.current_task()
        if self.in_progress or not readers.is_alone(task):
            return True
        self._read_alone(task, iterates=readers.hand_of(task).iterates)
        self.forget_readers()
        return False

    def _reader_ended(self, finished: Iterable[Cursor]) -> None:
        self.release(finished)
        self._observers.acted()  # a rebalance may wait for it

    def forget_readers(self) -> None:
        if self.readers is not None:
            self.readers.close()
            self.readers = None


def _note_transaction(finished: Collection[Cursor]) -> None:
    if finished and (transaction := _around(None)) is not None and not transaction.is_over:
        for cursor in finished:
            cursor.note_transaction(transaction)


def _before(first: int | None, end: int | None) -> int | None:
    """Return the processed offset, given the first unprocessed one. None: not known."""
    if first is None or end is None:
        return end
    return min(first, end) if first >= 0 else None
