"""The tasks that read from a consumer, and the records of each, while there are several.

With one reader, its next read proves that all records returned before are finished. With several,
each proves it for its own records only. A task also finishes its records when it ends, except if it

- fails or is cancelled,
- ends with its read: then it read for another task, as the task of `wait_for(getone(), 1)` does.

The records that such a task leaves are finished when a new task begins to read. A task that is only
a read substitutes for its starter, so it finishes the starter's records. Any other task that a
reader starts may be one more worker. It does so only if it ends with its read.

A single reader hands over to a reader that it starts (`Reads.note_reader`): a main task that starts
workers may never read again.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from contextvars import ContextVar
from typing import Final, TypeAlias

from aiokafka_lite.consumer.assignment.cursor import Cursor, Range, joined

Task: TypeAlias = "asyncio.Task[object]"
TaskRef: TypeAlias = "weakref.ref[Task]"

# The reader, inherited by tasks that it starts until they read.
_reader: ContextVar[TaskRef | None] = ContextVar("_reader", default=None)

PACKAGE: Final = "aiokafka_lite."


def is_a_read(task: Task | None) -> bool:
    frame = None if task is None else getattr(task.get_coro(), "cr_frame", None)
    return frame is not None and frame.f_globals["__name__"].startswith(PACKAGE)


def read_as(task: Task | None) -> Task | None:
    """Note that the current task reads. Return the reader that started it, if any."""
    starter = None if (ref := _reader.get()) is None else ref()
    if starter is not task:
        _reader.set(None if task is None else weakref.ref(task))
    return starter


# Of a reassigned partition: its offsets may mean other records by now.
UNKNOWN: Final = Range(-1, -1)


class Hand:
    """The unfinished records of one task, by partition. `is_awaited`: rebalances wait for them."""

    def __init__(self, task: Task | None) -> None:
        self._task = task
        # Of the reader that has started the task, with its unfinished records at that time.
        self.starter: Hand | None = None
        self.before: dict[Cursor, Range] = {}
        self.ranges: dict[Cursor, Range] = {}
        self.iterates = False  # by `async for`, which takes records without a look here
        self.is_awaited = True
        # Whether the task has done anything since its latest read.
        self.has_gone_on = True
        self._is_looked_after = False

    def _look(self) -> None:
        self.has_gone_on = self._task is None or not self._task.done()
        self._is_looked_after = False

    def take(self, cursor: Cursor, offsets: Range) -> None:
        self.has_gone_on = False
        if not self._is_looked_after:
            self._is_looked_after = True
            asyncio.get_running_loop().call_soon(self._look)
        self.ranges[cursor] = joined(self.ranges.get(cursor), offsets)

    def release(self) -> Collection[Cursor]:
        ranges, self.ranges = self.ranges, {}
        return ranges.keys()

    def finish_before(self, cursor: Cursor, offset: int) -> None:
        offsets = self.ranges.get(cursor)
        if offsets is None:
            return
        if offsets.end <= offset:
            del self.ranges[cursor]
        else:
            self.ranges[cursor] = Range(max(offsets.first, offset), offsets.end)


class Readers:
    """The tasks that read; `on_end` is called with partitions that an ended task has finished."""

    def __init__(self, on_end: Callable[[Iterable[Cursor]], None]) -> None:
        self._hands: dict[Task | None, Hand] = {}
        # Of tasks that have ended.
        self._left: list[Hand] = []
        self._on_end = on_end

    def hand_of(self, task: Task | None) -> Hand:
        hand = self._hands.get(task)
        if hand is None:
            hand = self._hands[task] = Hand(task)
            if task is not None:
                task.add_done_callback(self._ended)
        return hand

    def stand_in(self, task: Task | None, starter: Task | None) -> list[Cursor]:
        """Finish the records for which a new task substitutes. Return the partitions."""
        if task in self._hands:
            return []
        left, self._left = self._left, []
        if starter in self._hands and starter is not task:
            hand, around = self.hand_of(task), self._hands[starter]
            hand.starter, hand.before = around, dict(around.ranges)
            if is_a_read(task):
                left.append(around)
        self.hand_of(task)
        return [cursor for hand in left for cursor in hand.release()]

    def is_alone(self, task: Task | None) -> bool:
        return not self._left and not any(
            hand.ranges or hand.iterates for each, hand in self._hands.items() if each is not task
        )

    def _ended(self, task: Task) -> None:
        hand = self._hands.pop(task, None)
        if hand is None or not hand.ranges:
            return
        if task.cancelled() or task.exception() is not None:
            hand.is_awaited = False
        elif hand.has_gone_on:
            self._on_end(hand.release())
            return
        elif (starter := hand.starter) in self._hands.values() and starter is not None:
            for cursor, (_, end) in hand.before.items():
                starter.finish_before(cursor, end)
            for cursor, offsets in hand.ranges.items():  # it was read for that one
                starter.ranges[cursor] = joined(starter.ranges.get(cursor), offsets)
            self._on_end(hand.before)
            return
        self._left.append(hand)
        self._on_end(())

    def close(self) -> None:
        for task in self._hands:
            if task is not None:
                task.remove_done_callback(self._ended)
        self._hands.clear()

    # --- What they have ---------------------------------------------------------------------
    def _all(self) -> Iterator[Hand]:
        yield from self._hands.values()
        yield from self._left

    def first_of(self, cursor: Cursor) -> int | None:
        """Return the first unfinished offset, if any; -1: not known."""
        firsts = (hand.ranges[cursor].first for hand in self._all() if cursor in hand.ranges)
        return min(firsts, default=None)

    def awaited(self, cursor: Cursor) -> Range | None:
        found: Range | None = None
        for hand in self._all():
            offsets = hand.ranges.get(cursor, UNKNOWN)
            if offsets is not UNKNOWN and hand.is_awaited:
                found = joined(found, offsets)
        return found

    # --- What happens to partitions ---------------------------------------------------------
    def finish_before(self, cursor: Cursor, offset: int) -> None:
        for hand in self._all():
            hand.finish_before(cursor, offset)

    def replace(self, old: Cursor, new: Cursor | None) -> None:
        """Note a revocation. A reassigned partition has a new cursor."""
        for hand in self._all():
            if hand.ranges.pop(old, None) is not None and new is not None:
                hand.ranges[new] = UNKNOWN
