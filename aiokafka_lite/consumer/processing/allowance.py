"""How many records and bytes of each partition handlers may have: the bounds of memory.

While neither bound is reached, all partitions are read. When one is reached, each partition may
still have its share, so that one that stands still does not stop the others.

======================  =======================  ==============================
bound                   all partitions together  then each: a share of
======================  =======================  ==============================
uncommitted records     `most`                   `most`
bytes (serialised)      half of the byte budget  a quarter of the byte budget
======================  =======================  ==============================

A record counts until all before it are finished, its bytes until itself is. Compiled in place
(allowance.pxd).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final

from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.core import Core

if TYPE_CHECKING:
    from aiokafka_lite.consumer.buffer.chunk import Record


# Fractions of the byte budget: for all together, and for the shares.
ALL_PART: Final = 2
SHARED_PART: Final = 4


class Counted:
    """The latest count of a partition: uncommitted records, bytes of unfinished ones."""

    def __init__(self) -> None:
        self.count = self.size_bytes = 0


class Allowance:
    """The records and bytes of one run."""

    def __init__(self, core: Core, most: int) -> None:
        self._cursors, self._works = core.state.assignment, core.works
        self._budget = budget = core.buffer.budget
        self._most = most
        self._most_bytes = budget.limit_bytes // ALL_PART
        self._counted: dict[Cursor, Counted] = {}
        self._total = self._total_bytes = 0
        #: Partitions of which no more records are to be taken.
        self.complete: Collection[Cursor] = ()
        # Partitions of delay topics whose next record is not due.
        self._withheld: set[Cursor] = set()

    def __contains__(self, cursor: Cursor) -> bool:
        return cursor in self._counted

    def __iter__(self) -> Iterator[Cursor]:
        return iter(self._counted)

    @property
    def uncommitted_count(self) -> int:
        return self._total

    # --- Returned records ------------------------------------------------------------------
    def admit(self, cursor: Cursor, records: list[Record]) -> int:
        """Count as many of these records as handlers may have now, at least one."""
        room_bytes = self._room_bytes(cursor)
        count = size_bytes = 0
        for record in records:
            record_bytes = record.serialized_key_size + record.serialized_value_size
            if count and size_bytes + record_bytes > room_bytes:
                break
            count += 1
            size_bytes += record_bytes
        counted = self._of(cursor)
        counted.size_bytes += size_bytes
        self._total_bytes += size_bytes
        return count

    def handed_out(self, cursor: Cursor) -> None:
        counted = self._of(cursor)
        self.count(cursor)
        if counted.count:
            is_enough = cursor in self._withheld or self._has_enough(cursor)
            self._works.put_into_processing(cursor, is_enough=is_enough)

    def withhold(self, cursor: Cursor, is_held: bool) -> None:
        """Read no more of a partition, or read it again."""
        if is_held:
            self._withheld.add(cursor)
        elif cursor in self._withheld:
            self._withheld.remove(cursor)
            if cursor in self._counted:
                self._let_have_more(cursor)

    # --- Finished records ------------------------------------------------------------------
    def count(self, cursor: Cursor) -> None:
        """Count a partition again, after records of it were finished or are no longer to be."""
        if (counted := self._counted.get(cursor)) is None:
            return
        count = size_bytes = 0
        if (progress := cursor.progress) is not None:
            count, size_bytes = progress.uncommitted_count, progress.held_bytes
        had_most, had_most_bytes = self._has_most(), self._has_most_bytes()
        self._total += count - counted.count
        self._total_bytes += size_bytes - counted.size_bytes
        counted.count, counted.size_bytes = count, size_bytes
        self._budget.take_for_processing(self._total_bytes)
        if had_most != self._has_most() or had_most_bytes != self._has_most_bytes():
            self._let_all_have_more()
        else:
            self._let_have_more(cursor)

    def forget_unassigned(self) -> None:
        for cursor in [each for each in self._counted if not each.is_assigned]:
            counted = self._counted.pop(cursor)
            self._total -= counted.count
            self._total_bytes -= counted.size_bytes
        self._budget.take_for_processing(self._total_bytes)
        self._let_all_have_more()

    def close(self) -> None:
        self._budget.take_for_processing(0)

    def _let_all_have_more(self) -> None:
        for each in self._counted:
            self._let_have_more(each)

    def _let_have_more(self, cursor: Cursor) -> None:
        if cursor.has_enough and not (cursor in self._withheld or self._has_enough(cursor)):
            self._works.take_more(cursor)

    # --- The bounds ------------------------------------------------------------------------
    def _of(self, cursor: Cursor) -> Counted:
        if (counted := self._counted.get(cursor)) is None:
            counted = self._counted[cursor] = Counted()
        return counted

    def _has_most(self) -> bool:
        return self._total >= self._most

    def _has_most_bytes(self) -> bool:
        return self._total_bytes >= self._most_bytes

    def _has_enough(self, cursor: Cursor) -> bool:
        if cursor in self.complete:
            return True
        if self._has_most():
            sharing = len(self._cursors)
            if self._of(cursor).count * sharing >= self._most:
                return True
        return self._has_most_bytes() and self._room_bytes(cursor) <= 0

    def _room_bytes(self, cursor: Cursor) -> int:
        left_bytes = self._most_bytes - self._total_bytes
        sharing = len(self._cursors)
        if left_bytes > 0 or not sharing:
            return left_bytes
        share_bytes = self._budget.limit_bytes // SHARED_PART // sharing
        return share_bytes - self._of(cursor).size_bytes
