"""The per-message path of `async for` in plain Python: fallback and model of the compiled one."""

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
    """Iterates once over the records of a list, during a time slice of `slice_s` on `clock`.

    The clock is read after a stride of records, fewer if the application is slow. So a slice is
    exceeded by at most an eighth, or one record, unless records take much longer than those before.

    After a block of more than `stall_s`, by `monotonic`, the clock is read before the next record,
    since the group may have moved on.
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
        return self.taken_count < len(self._records)

    def open(self, records: list[Record], ends_at: float) -> None:
        self._records = records
        self.taken_count = 0
        self.go_on(ends_at)

    def go_on(self, ends_at: float) -> None:
        """Continue until a time on the clock, by at least one record."""
        self._ends_at = ends_at
        self._looked_at = self._clock()
        self._looked_at_s = monotonic()
        self._next_look_at = self.taken_count + self._stride

    def belong_to(self, reads: Reads, gate: object, buffer: object, ready: object) -> None:
        self._reads, self._loop = reads, get_running_loop()

    def close(self) -> None:
        self._records = []
        self.taken_count = 0
        self._next_look_at = 0

    def take(self) -> Record | None:
        """Return the next record, or None at the end or if the time is up."""
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
        """As `take`, but only for the task that reads alone."""
        reader = self._reads.reader
        if reader is None or reader() is not task_of(self._loop):
            return None
        return self.take()

    def _look(self) -> bool:
        """Whether there is time left. If not, the next take looks again."""
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
    """Feeds `async for` from a cursor, and otherwise from `await _next_record()`."""

    _cursor: RecordCursor

    def _iterate_over(self, cursor: RecordCursor) -> None:
        self._cursor = cursor

    async def _next_record(self) -> Record:
        raise NotImplementedError

    async def __anext__(self) -> Record:
        record = self._cursor.take()
        return await self._next_record() if record is None else record
