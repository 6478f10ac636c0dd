"""How much of each partition handlers may have, and be behind with: what bounds memory.

While there are fewer uncommitted records than `most` in all, whoever has some gets more. When there
are as many, each partition may still have its share: one that stands still must not keep the
others from being read.

Records are counted exactly only while some partition has enough. Otherwise what was finished since
a partition's latest get still counts, until that makes it look as if there were too much.
"""

from __future__ import annotations

from collections.abc import Iterator

from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.assignment.subscription import SubscriptionState


class Allowance:
    """The uncommitted records of one run.

    Args:
        state: Whose partitions these are.
        most: How many records may be uncommitted in all.

    Attributes:
        is_tight: A partition may have enough: `finished` has to be told of each record.
    """

    def __init__(self, state: SubscriptionState, most: int) -> None:
        self._state = state
        self._most = most
        self._counts: dict[Cursor, int] = {}
        self._total = 0
        self.is_tight = False

    def __contains__(self, cursor: Cursor) -> bool:
        return cursor in self._counts

    def __iter__(self) -> Iterator[Cursor]:
        """Yield the partitions of which records were handed out."""
        return iter(self._counts)

    @property
    def uncommitted_count(self) -> int:
        """How many records are uncommitted."""
        return sum(map(_uncommitted, self._counts))

    def handed_out(self, cursor: Cursor) -> None:
        """Note that records of a partition were handed out, or passed over."""
        self._count(cursor)
        if not self._counts[cursor]:
            return
        if self._total >= self._most and not self.is_tight:
            for each in self._counts:
                self._count(each)
        is_enough = self._has_enough(cursor)
        self.is_tight = self.is_tight or is_enough
        self._state.put_into_processing(cursor, is_enough=is_enough)

    def finished(self, cursor: Cursor) -> None:
        """Let partitions have more again, as some of one is finished, or was given up."""
        was_full = self._total >= self._most
        self._count(cursor)
        if was_full and self._total < self._most:
            for each in self._counts:
                self._let_have_more(each)
            self.is_tight = any(each.has_enough for each in self._counts)
        else:
            self._let_have_more(cursor)

    def forget_unassigned(self) -> None:
        """Forget the partitions that are assigned no more."""
        for cursor in [each for each in self._counts if not each.is_assigned]:
            self._total -= self._counts.pop(cursor)

    def _count(self, cursor: Cursor) -> None:
        count = _uncommitted(cursor)
        self._total += count - self._counts.get(cursor, 0)
        self._counts[cursor] = count

    def _let_have_more(self, cursor: Cursor) -> None:
        if cursor.has_enough and not self._has_enough(cursor):
            self._state.take_more(cursor)

    def _has_enough(self, cursor: Cursor) -> bool:
        count = self._counts[cursor]
        if self._total < self._most:
            return count >= self._most
        return count * max(1, len(self._state.assignment)) >= self._most


def _uncommitted(cursor: Cursor) -> int:
    progress = cursor.progress
    return 0 if progress is None else progress.uncommitted_count
