"""The transactions of one partition: those that are open, and those that were aborted (KIP-98).

Reference: org.apache.kafka.storage.internals.log.{ProducerStateManager, TransactionIndex}. Readers
of committed records get none from the first open transaction on, and a list of the aborted ones
among what they get; both are answered from memory. They are stored with the log's state, and what
that does not know is found again in the batches.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable
from typing import Final, NamedTuple

NO_OFFSET: Final = -1


class AbortedTransaction(NamedTuple):
    """A transaction whose records must not be seen.

    Attributes:
        first_offset: Of its first record.
        last_offset: Of its marker.
        last_stable_offset: Behind its marker, as it was then: no transaction that ended later
            began before it.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class LogTransactions:
    """Open and aborted transactions. Changed by what is appended to the log only."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}  # producer id -> first offset
        self._first_unstable: int | None = None  # the smallest of them
        self._aborted: list[AbortedTransaction] = []  # by last offset, as they ended
        # Markers up to here are known: whoever notes batches again need not remember that.
        self._known_to = NO_OFFSET

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of any open transaction."""
        return self._first_unstable

    @property
    def has_aborted(self) -> bool:
        """There are aborted transactions in the log."""
        return bool(self._aborted)

    def first_offset_of(self, producer_id: int) -> int | None:
        """Return where a producer's open transaction began, if it has one."""
        return self._open.get(producer_id)

    def begin(self, producer_id: int, first_offset: int) -> None:
        """Note a producer's first transactional batch."""
        self._open[producer_id] = first_offset
        unstable = self._first_unstable
        self._first_unstable = first_offset if unstable is None else min(first_offset, unstable)

    def end(self, producer_id: int, marker_offset: int, *, is_abort: bool) -> None:
        """Note a marker; one without an open transaction says nothing about any record."""
        first_offset = self._open.pop(producer_id, None)
        if first_offset is None:
            return
        if first_offset == self._first_unstable:
            self._first_unstable = min(self._open.values(), default=None)
        if marker_offset <= self._known_to:
            return
        self._known_to = marker_offset
        if is_abort:
            stable = self._first_unstable
            stable = marker_offset + 1 if stable is None else stable
            self._aborted.append(
                AbortedTransaction(producer_id, first_offset, marker_offset, stable)
            )

    def _ended_before(self, offset: int) -> int:
        """Return how many aborted transactions have their marker before an offset."""
        return bisect_left(self._aborted, offset, key=lambda each: each.last_offset)

    def aborted_within(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that have records from one offset on, before another."""
        first = self._ended_before(start_offset)
        last = bisect_left(self._aborted, end_offset, key=lambda each: each.last_stable_offset)
        return [each for each in self._aborted[first : last + 1] if each.first_offset < end_offset]

    def forget(self, producer_ids: Iterable[int]) -> None:
        """Forget the open transactions of producers, whose batches are going to be noted again."""
        for producer_id in producer_ids:
            self._open.pop(producer_id, None)
        self._first_unstable = min(self._open.values(), default=None)

    def truncate(self, end_offset: int) -> None:
        """Forget the aborted transactions whose markers lie at or after the log's new end."""
        del self._aborted[self._ended_before(end_offset) :]
        self._known_to = min(self._known_to, end_offset - 1)

    def trim_before(self, log_start_offset: int) -> None:
        """Forget the aborted transactions that ended before the log starts."""
        del self._aborted[: self._ended_before(log_start_offset)]

    def forget_markers(self, offsets: Container[int]) -> None:
        """Forget aborted transactions whose markers compaction removes, and all records before."""
        self._aborted = [each for each in self._aborted if each.last_offset not in offsets]

    def snapshot(self) -> list[AbortedTransaction]:
        """Return the aborted transactions, for a file; the open ones are their producers'."""
        return list(self._aborted)

    def restore(self, snapshot: Iterable[Iterable[int]]) -> None:
        """Take over what `snapshot` returned."""
        self._aborted += (AbortedTransaction(*row) for row in snapshot)
        if self._aborted:
            self._known_to = self._aborted[-1].last_offset
