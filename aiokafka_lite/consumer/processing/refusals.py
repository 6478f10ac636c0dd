"""Refused records, from their refusal until they are returned again.

They are one more partition in the buffer's turns (buffer/buffer.py). The first refusal without a
delay returns the record at once. After that its delay grows, so that a record that is always
refused does not keep the processor busy.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from aiokafka_lite.client.backoff import delay_after
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.buffer.buffer import Buffer

if TYPE_CHECKING:
    from aiokafka_lite.consumer.processing.acks import RecordReceipt

# Of a record that is refused again without a delay, as in `Retry`.
FIRST_DELAY_S: Final = 0.1
LAST_DELAY_S: Final = 30.0


class Refusals:
    """The refused records of one consumer, with the partitions in the order of their turns."""

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
