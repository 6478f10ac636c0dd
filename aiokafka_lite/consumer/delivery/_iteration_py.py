"""The per-message path of `async for` in plain Python: the fallback, and the C one's model."""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeAlias

from aiokafka_lite._compat import task_of
from aiokafka_lite.structs import ConsumerRecord

if TYPE_CHECKING:
    from aiokafka_lite.consumer.assignment.reads import Reads

Record: TypeAlias = ConsumerRecord

# Records between two looks at the clock, at most.
LONGEST_STRIDE: Final = 64


class RecordCursor:
    """Goes once through the records of a list, as long as a time slice lasts.

    `clock` returns seconds; a slice has `slice_s` of them. The clock is looked at after a stride
    of records: fewer when they take the application long, so that a slice is exceeded by no more
    than an eighth, or by one record, unless records take much longer than those before them.

    When the application has blocked for longer than `stall_s` since the latest look, the clock is
    looked at before the next record: the group may have moved on meanwhile. Only the system's
    clock can tell that for next to nothing; what it tells is no more than when to look.
    """

    __slots__ = (
        "_clock",
        "_ends_at",
        "_looked_at",
        "_looked_at_s",
        "_loop",
        "_next_look_at",
        "_reads",
        "_records",
        "_slice_s",
        "_stall_s",
        "_stride",
        "taken_count",
    )

    def __init__(self, clock: Callable[[], float], slice_s: float, stall_s: float) -> None:
        self.taken_count = 0
        self._records: list[Record] = []
        self._clock = clock
        self._slice_s = slice_s
        self._stall_s = stall_s
        self._ends_at = 0.0
        self._looked_at = 0.0
        # On the system's clock: when this one was looked at.
        self._looked_at_s = 0.0
        # Records from one look at the clock to the next, and how many are taken at the next.
        self._stride = 1
        self._next_look_at = 0

    @property
    def has_rest(self) -> bool:
        """Whether records are left, though perhaps no time."""
        return self.taken_count < len(self._records)

    def open(self, records: list[Record], ends_at: float) -> None:
        """Go through these records until a time on the clock."""
        self._records = records
        self.taken_count = 0
        self.go_on(ends_at)

    def go_on(self, ends_at: float) -> None:
        """Go on until a time on the clock, by one record at least."""
        self._ends_at = ends_at
        self._looked_at = self._clock()
        self._looked_at_s = monotonic()
        self._next_look_at = self.taken_count + self._stride

    def belong_to(self, reads: Reads, gate: object, buffer: object, ready: object) -> None:
        """Set whose records these are; here iterators always wait for more by a coroutine."""
        self._reads, self._loop = reads, get_running_loop()

    def close(self) -> None:
        """Hand out no more records."""
        self._records = []
        self.taken_count = 0
        self._next_look_at = 0

    def take(self) -> Record | None:
        """Return the next record; None if there is none, or if the time is up."""
        has_to_look = (
            self.taken_count == self._next_look_at
            or monotonic() - self._looked_at_s > self._stall_s
        )
        if has_to_look and not (self.has_rest and self._look()):
            return None
        taken_count = self.taken_count
        if taken_count >= len(self._records):
            return None
        self.taken_count = taken_count + 1
        return self._records[taken_count]

    def take_own(self) -> Record | None:
        """As `take`, but for the task that reads alone; None for every other one."""
        reader = self._reads.reader
        if reader is None or reader() is not task_of(self._loop):
            return None
        return self.take()

    def _look(self) -> bool:
        """Look at the clock: whether there is time left; if not, the next take looks again."""
        self._next_look_at = self.taken_count
        if self._looked_at >= self._ends_at:
            return False
        now = self._clock()
        took_s = now - self._looked_at
        if took_s < self._slice_s / 16:
            self._stride = min(2 * self._stride, LONGEST_STRIDE)
        elif took_s > self._slice_s / 8:
            self._stride = max(1, int(self._stride * self._slice_s / 16 / took_s))
        self._looked_at = now
        self._looked_at_s = monotonic()
        if now >= self._ends_at:
            return False
        self._next_look_at = self.taken_count + self._stride
        return True


class RecordIterator:
    """Hands a cursor's records to `async for`, and `await _next_record()` when it gives none."""

    _cursor: RecordCursor

    def _iterate_over(self, cursor: RecordCursor) -> None:
        """Hand out the records of this cursor from now on."""
        self._cursor = cursor

    async def _next_record(self) -> Record:
        """Wait for the next record and return it."""
        raise NotImplementedError

    async def __anext__(self) -> Record:
        record = self._cursor.take()
        return await self._next_record() if record is None else record
