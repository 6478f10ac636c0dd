"""The per-message path over decoded records; compiled in place (record_cursor.pxd)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from aiokafka_lite._compat import task_of

if TYPE_CHECKING:
    from aiokafka_lite.consumer.buffer.chunk import Record
    from aiokafka_lite.consumer.delivery.steady import SteadyGets

# Records between two looks at the clock at most; a look costs as much as four records.
LONGEST_STRIDE: Final = 64


class RecordCursor:
    """Iterates once over the records of a list, during a time slice of `slice_s` on `clock`.

    The clock is read after a stride of records, fewer if the application is slow. So a slice is
    exceeded by at most an eighth, or one record, unless records take much longer than those before.

    After a block of more than `stall_s`, by `time.monotonic`, the clock is read before the next
    record, since the group may have moved on.
    """

    def __init__(self, clock: Callable[[], float], slice_s: float, stall_s: float) -> None:
        self.taken_count = 0
        # Reads of the owner of the records, which need no coroutine.
        self.steady: SteadyGets | None = None
        self._records: list[Record] = []
        self._clock = clock
        self._slice_s = slice_s
        self._stall_s = stall_s
        self._ends_at = 0.0
        # When the clock was looked at, by it and by the system's clock.
        self.looked_at = 0.0
        self._looked_at_s = 0.0
        # Records from one look at the clock to the next, and how many are taken at the next.
        self._stride = 1
        self._next_look_at = 0

    def has_rest(self) -> bool:
        """Whether records are left, regardless of the time."""
        return self.taken_count < len(self._records)

    def open(self, records: list[Record], ends_at: float) -> None:
        """Iterate over these records until a time of the clock."""
        self._records = records
        self.taken_count = 0
        self.go_on(ends_at)

    def go_on(self, ends_at: float) -> None:
        """Continue until a time of the clock, for one record at least."""
        self._ends_at = ends_at
        self.looked_at = self._clock()
        self._looked_at_s = time.monotonic()
        self._next_look_at = self.taken_count + self._stride

    def belong_to(self, steady: SteadyGets) -> None:
        """Set the owner of the records; iterators can then wait without a coroutine."""
        self.steady = steady

    def close(self) -> None:
        """Return no more records."""
        self._records = []
        self.taken_count = 0
        self._next_look_at = 0

    def take(self) -> Record | None:
        """Return the next record; None at the end of the records or of the time."""
        taken_count = self.taken_count
        if taken_count >= len(self._records):
            return None
        if (
            taken_count == self._next_look_at
            or time.monotonic() - self._looked_at_s > self._stall_s
        ):
            # The clock may change the list.
            if not self._look() or self.taken_count >= len(self._records):
                return None
            taken_count = self.taken_count
        self.taken_count = taken_count + 1
        return self._records[taken_count]

    def take_own(self) -> Record | None:
        """Like `take`, but only for the task that is the only reader; None for others."""
        steady = self.steady
        reader = None if steady is None else steady.reads.reader
        if steady is None or reader is None or reader() is not task_of(steady.loop):
            return None
        return self.take()

    def _look(self) -> bool:
        """Look at the clock; return whether time is left. If not, the next take looks again."""
        self._next_look_at = self.taken_count
        if self.looked_at >= self._ends_at:
            return False
        now = self._clock()
        took_s = now - self.looked_at
        if took_s < self._slice_s / 16:
            self._stride = min(2 * self._stride, LONGEST_STRIDE)
        elif took_s > self._slice_s / 8:
            self._stride = max(1, int(self._stride * self._slice_s / 16 / took_s))
        self.looked_at = now
        self._looked_at_s = time.monotonic()
        if now >= self._ends_at:
            return False
        self._next_look_at = self.taken_count + self._stride
        return True
