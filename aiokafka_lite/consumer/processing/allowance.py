"""How many records and bytes of each partition handlers may have: the bounds of memory.

While neither bound is reached, all partitions are read. When one is reached, each partition may
still have its share, so that one that stands still does not stop the others.

======================  =======================  ==============================
bound                   all partitions together  then each: a share of
======================  =======================  ==============================
uncommitted records     `most`                   `most`
bytes (serialised)      half of the byte budget  a quarter of the byte budget
======================  =======================  ==============================

Both counts are exact only while a bound is near (`is_exact`). Otherwise they include finished
records, and are corrected when a bound seems to be reached.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from aiokafka_lite._compat import override
from aiokafka_lite.consumer.assignment.cursor import Cursor, Epochs
from aiokafka_lite.consumer.buffer.buffer import Taken
from aiokafka_lite.consumer.core import Core
from aiokafka_lite.consumer.delivery.gets import Lists

if TYPE_CHECKING:
    from aiokafka_lite.consumer.buffer.chunk import Chunk, Record


class OneByOne(Lists):
    """A sink whose records become jobs or receipts in the same step in which positions move."""

    def __init__(
        self,
        accept: Callable[[Cursor, list[Record], Epochs], None],
        admit: Callable[[Cursor, list[Record]], int] | None = None,
    ) -> None:
        super().__init__()
        self._accept = accept
        # Returns how many of some records may be taken, at least one.
        self._admit = admit

    @override
    def take(self, chunk: Chunk, limit: int | None) -> Taken | None:
        if self._admit is not None and chunk.decoded and limit != 0:
            limit = self._admit(chunk.partition, chunk.decoded[:limit])
        return super().take(chunk, limit)

    @override
    def finish(self) -> None:
        taken, self.taken = self.taken, []
        for cursor, records, epochs in taken:
            self._accept(cursor, records, epochs)


# Fractions of the byte budget: for all together, for the shares, and uncounted.
ALL_PART: Final = 2
SHARED_PART: Final = 4
UNCOUNTED_PART: Final = 8

_key_bytes = attrgetter("serialized_key_size")
_value_bytes = attrgetter("serialized_value_size")
# Of a job.
_record = attrgetter("record")


class Allowance:
    """The records and bytes of one run. `is_exact`: call `finished` for each record."""

    def __init__(self, core: Core, most: int) -> None:
        self._state, self._works = core.state, core.works
        self._budget = budget = core.buffer.budget
        self._most = most
        self._most_bytes = budget.limit_bytes // ALL_PART
        self._counts: dict[Cursor, int] = {}
        self._total = 0
        self._bytes: dict[Cursor, int] = {}
        self._total_bytes = 0
        # All is counted again from this number of bytes on, which includes finished records.
        self._count_at_bytes = budget.limit_bytes // UNCOUNTED_PART
        self.is_exact = False
        #: Partitions of which no more records are to be taken.
        self.complete: Collection[Cursor] = ()
        # Partitions of delay topics whose next record is not due.
        self._withheld: set[Cursor] = set()

    def __contains__(self, cursor: Cursor) -> bool:
        return cursor in self._counts

    def __iter__(self) -> Iterator[Cursor]:
        return iter(self._counts)

    @property
    def uncommitted_count(self) -> int:
        return sum(map(_uncommitted, self._counts))

    # --- Returned records ------------------------------------------------------------------
    def admit(self, cursor: Cursor, records: list[Record]) -> int:
        """Count as many of these records as handlers may have now, at least one."""
        count = len(records)
        size_bytes = sum(map(_key_bytes, records)) + sum(map(_value_bytes, records))
        if size_bytes > (room_bytes := self._room_bytes(cursor)):
            count = size_bytes = 0
            for record in records:
                record_bytes = _size_bytes(record)
                if count and size_bytes + record_bytes > room_bytes:
                    break
                count += 1
                size_bytes += record_bytes
        self._add_bytes(cursor, size_bytes)
        return count

    def handed_out(self, cursor: Cursor) -> None:
        self._count(cursor)
        if not self._counts[cursor]:
            self._weigh(cursor)
            return
        if not self.is_exact and (
            self._total >= self._most or self._total_bytes >= self._count_at_bytes
        ):
            self._count_all()
        is_enough = self._has_enough(cursor)
        self.is_exact = self.is_exact or is_enough
        self._works.put_into_processing(cursor, is_enough=is_enough or cursor in self._withheld)
        self._budget.take_for_processing(self._total_bytes)

    def withhold(self, cursor: Cursor, is_held: bool) -> None:
        """Read no more of a partition, or read it again."""
        if is_held:
            self._withheld.add(cursor)
        elif cursor in self._withheld:
            self._withheld.remove(cursor)
            if cursor in self._counts:
                self._let_have_more(cursor)

    def _count_all(self) -> None:
        for each in self._counts:
            self._count(each)
            self._weigh(each)
        self._count_no_more()

    def _count_no_more(self) -> None:
        self._count_at_bytes = self._total_bytes + self._budget.limit_bytes // UNCOUNTED_PART
        self.is_exact = self._count_at_bytes > self._most_bytes

    # --- Finished records ------------------------------------------------------------------
    def finished(self, cursor: Cursor, record: Record) -> None:
        self._changed(cursor, -_size_bytes(record))

    def counted_anew(self, cursor: Cursor) -> None:
        self._changed(cursor, _held_bytes(cursor) - self._bytes[cursor])

    def forget_unassigned(self) -> None:
        for cursor in [each for each in self._counts if not each.is_assigned]:
            self._total -= self._counts.pop(cursor)
            self._total_bytes -= self._bytes.pop(cursor)
        self._let_all_have_more()
        self._less_is_held()

    def close(self) -> None:
        self._budget.take_for_processing(0)

    def _changed(self, cursor: Cursor, by_bytes: int) -> None:
        before = self._reached
        self._add_bytes(cursor, by_bytes)
        self._count(cursor)
        if not self._counts[cursor]:
            self._add_bytes(cursor, -self._bytes[cursor])
        if self._reached != before:
            self._let_all_have_more()
        self._less_is_held()
        self._let_have_more(cursor)

    def _less_is_held(self) -> None:
        self._budget.take_for_processing(self._total_bytes)
        if (
            self.is_exact
            and 2 * self._total < self._most
            and 2 * self._total_bytes < self._most_bytes
        ):
            self._count_no_more()

    def _let_all_have_more(self) -> None:
        for each in self._counts:
            self._let_have_more(each)

    def _let_have_more(self, cursor: Cursor) -> None:
        is_held = cursor in self._withheld or self._has_enough(cursor)
        if cursor.has_enough and not is_held:
            self._works.take_more(cursor)

    # --- The bounds ------------------------------------------------------------------------
    @property
    def _reached(self) -> tuple[bool, bool]:
        return self._total >= self._most, self._total_bytes >= self._most_bytes

    def _has_enough(self, cursor: Cursor) -> bool:
        if cursor in self.complete:
            return True
        sharing = len(self._state.assignment)
        if self._total >= self._most and self._counts[cursor] * sharing >= self._most:
            return True
        return self._total_bytes >= self._most_bytes and self._room_bytes(cursor) <= 0

    def _room_bytes(self, cursor: Cursor) -> int:
        left_bytes = self._most_bytes - self._total_bytes
        sharing = len(self._state.assignment)
        if left_bytes > 0 or not sharing:
            return left_bytes
        share_bytes = self._budget.limit_bytes // SHARED_PART // sharing
        return share_bytes - self._bytes.get(cursor, 0)

    def _count(self, cursor: Cursor) -> None:
        count = _uncommitted(cursor)
        self._total += count - self._counts.get(cursor, 0)
        self._counts[cursor] = count

    def _weigh(self, cursor: Cursor) -> None:
        self._add_bytes(cursor, _held_bytes(cursor) - self._bytes[cursor])

    def _add_bytes(self, cursor: Cursor, by_bytes: int) -> None:
        self._bytes[cursor] = self._bytes.get(cursor, 0) + by_bytes
        self._total_bytes += by_bytes


def _uncommitted(cursor: Cursor) -> int:
    progress = cursor.progress
    return 0 if progress is None else progress.uncommitted_count


def _held_bytes(cursor: Cursor) -> int:
    progress = cursor.progress
    return 0 if progress is None else sum(map(_size_bytes, map(_record, progress.holders())))


def _size_bytes(record: Record) -> int:
    return record.serialized_key_size + record.serialized_value_size
