"""How far the application has got with a partition whose records it finishes one by one.

    handed out   5  6  7  8  9     12 13     (10 and 11 are gaps: never handed out)
    finished     x  x     x  x        x
    end                7                     what may be committed: all before it is finished
    finished behind it: 8 to 9, 13           kept beside the commit (finished_ranges.py)

Offsets are looked at as they were handed out, never counted on: compaction and transactions leave
gaps. Each unfinished record has a holder, who works on it. A record counts as finished only if its
holder says so: after a seek back the same offset has another one, and after a revocation none.

What an earlier assignment has finished is known from the commit's metadata. It lies *ahead*: such
a record is passed over when it is handed out. After a seek forward the ranges before that position
stay in commits while a record before them is unfinished.

Plain data changed synchronously on the event loop; nothing waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from heapq import merge
from itertools import chain, dropwhile
from typing import Final

from aiokafka_lite.consumer.assignment.cursor import NO_EPOCH, NO_OFFSET, Epochs, Range
from aiokafka_lite.errors import IllegalStateError


class Progress:
    """Which records of one assigned partition are handed out, and which of them are finished.

    Args:
        ahead: What was finished before, in offset order.
        ahead_epoch: The newest leader epoch of which these may be.

    Attributes:
        holder_at: Returns who works on the record at an offset; None: it is not unfinished.
    """

    __slots__ = (
        "_ahead",
        "_handed_out",
        "_sought_over",
        "_unfinished",
        "_verified_epoch",
        "ahead_epoch",
        "holder_at",
    )

    def __init__(self, ahead: Iterable[Range] = (), ahead_epoch: int = NO_EPOCH) -> None:
        # In offset order, from the first that is not finished.
        self._handed_out: deque[int] = deque()
        # Who works on them.
        self._unfinished: dict[int, object] = {}
        self.holder_at: Final[Callable[[int], object | None]] = self._unfinished.get
        self._ahead = deque(ahead)
        # Ranges that lay ahead, before a position that was sought. They count while a record
        # before them is unfinished.
        self._sought_over: deque[Range] = deque()
        self.ahead_epoch = ahead_epoch
        # The newest leader epoch whose log is known to have what lies ahead.
        self._verified_epoch = NO_EPOCH

    def __repr__(self) -> str:
        first = self._handed_out[0] if self._handed_out else None
        return f"<Progress: first unfinished {first}, {self.finished_count} finished behind it>"

    # --- What is known --------------------------------------------------------------------
    @property
    def first_unfinished(self) -> int | None:
        """The offset to commit; None: all is finished that was handed out."""
        return self._handed_out[0] if self._handed_out else None

    @property
    def uncommitted_count(self) -> int:
        """How many records are unfinished, or wait for one before them that is."""
        return len(self._handed_out)

    @property
    def finished_count(self) -> int:
        """How many finished records wait for one before them."""
        return len(self._handed_out) - len(self._unfinished)

    @property
    def last_finished(self) -> int | None:
        """The last finished record that waits for one before it; None: there is none."""
        if not self.finished_count:
            return None
        return next(
            offset for offset in reversed(self._handed_out) if offset not in self._unfinished
        )

    @property
    def has_ahead(self) -> bool:
        """Whether records may come that were finished before."""
        return bool(self._ahead)

    @property
    def has_finished_before(self) -> bool:
        """Whether it keeps what was finished before, ahead or before a position that was sought."""
        return bool(self._ahead or self._sought_over)

    @property
    def is_verified(self) -> bool:
        """Whether a leader's log was found to have what was finished before."""
        return self._verified_epoch != NO_EPOCH

    @property
    def first_ahead(self) -> int | None:
        """The first offset ahead that was finished before."""
        return self._ahead[0].first if self._ahead else None

    def holder_of_first(self) -> object | None:
        """Return who works on the record that holds the commit back; None: there is none."""
        return self._unfinished[self._handed_out[0]] if self._handed_out else None

    def holders(self) -> Iterable[object]:
        """Return who works on what is not finished, in the order of its handing out."""
        return self._unfinished.values()

    def is_held_by(self, offset: int, holder: object) -> bool:
        """Whether a record is unfinished, and this one's to finish."""
        return self._unfinished.get(offset) is holder

    # --- What happens ---------------------------------------------------------------------
    def hand_out(self, offsets: Sequence[int], holders: Iterable[object]) -> None:
        """Note that records are handed out, in offset order, and who works on each.

        Raises:
            IllegalStateError: They do not lie behind those that are handed out.
        """
        handed_out = self._handed_out
        if handed_out and offsets and offsets[0] <= handed_out[-1]:
            raise IllegalStateError(
                f"offset {offsets[0]} is not greater than offset {handed_out[-1]}, which was "
                "already returned"
            )
        handed_out.extend(offsets)
        self._unfinished.update(zip(offsets, holders, strict=True))

    def passes_over(self, offset: int) -> bool:
        """Whether a record that comes next was finished before; then it counts as handed out."""
        ahead = self._ahead
        while ahead and ahead[0].end <= offset:
            ahead.popleft()
        if not ahead or offset < ahead[0].first:
            return False
        if self._handed_out:
            self._handed_out.append(offset)
        return True

    def finish(self, offset: int, holder: object) -> bool | None:
        """Note that a record is finished; nothing happens if it is not this one's any more.

        Returns:
            Whether more may be committed now; None: nothing has happened.
        """
        handed_out, unfinished = self._handed_out, self._unfinished
        if unfinished.get(offset) is not holder:
            return None
        del unfinished[offset]
        if offset != handed_out[0]:
            return False
        handed_out.popleft()
        while handed_out and handed_out[0] not in unfinished:
            handed_out.popleft()
        return True

    def finish_before(self, offset: int) -> None:
        """Note that all is finished before an offset: nobody holds it any more."""
        handed_out = self._handed_out
        while handed_out and (handed_out[0] < offset or handed_out[0] not in self._unfinished):
            self._unfinished.pop(handed_out.popleft(), None)

    def go_back_to(self, offset: int) -> None:
        """Forget what was handed out from an offset on: it is handed out again."""
        handed_out = self._handed_out
        while handed_out and handed_out[-1] >= offset:
            self._unfinished.pop(handed_out.pop(), None)
        while handed_out and handed_out[0] not in self._unfinished:
            handed_out.popleft()
        self._sought_over = _before(offset, self._sought_over)

    def return_from(self, offset: int) -> None:
        """Pass over nothing from an offset on: the application seeks it.

        What was finished before it stays in commits.
        """
        self.go_back_to(offset)
        if not self._handed_out:
            self.forget_ahead()
            return
        self._sought_over += _before(offset, self._ahead_from(self._handed_out[-1] + 1))
        self._ahead.clear()
        if not self._sought_over:
            self.forget_ahead()

    def look_ahead(self, ahead: Iterable[Range], leader_epoch: int) -> None:
        """Pass over what a commit says was finished behind the position, and nothing else."""
        self.forget_ahead()
        self._ahead.extend(ahead)
        self.ahead_epoch = leader_epoch

    def verify_ahead(self, epoch_end: int | None, leader_epoch: int) -> None:
        """Keep what lies ahead as far as a leader's log has it.

        Args:
            epoch_end: Where the newest known epoch ends in that log; None: it has none of it.
            leader_epoch: Of that leader.
        """
        if epoch_end is None:
            self.forget_ahead()
            return
        self._cut_ahead(epoch_end)
        self._verified_epoch = leader_epoch

    def keep_ahead_in(self, epochs: Epochs, epoch_before: int) -> bool:
        """Keep what was finished before as far as batches read from the log may have it.

        From a newer leader epoch on than is known of it, the log was truncated, and other records
        have the same offsets.

        Args:
            epochs: Of the batches.
            epoch_before: Of the record before them; -1: not known, as after a seek.

        Returns:
            Whether anything lies ahead.
        """
        if not self.has_finished_before:
            return False
        known = max(self.ahead_epoch, self._verified_epoch)
        newer = next((n for n, (_, epoch) in enumerate(epochs) if epoch > known), None)
        if newer == 0 and epoch_before == NO_EPOCH:  # it may have begun before the position
            self.forget_ahead()
        elif newer is not None:
            self._cut_ahead(epochs[newer][0])
        while self._sought_over and not self._is_behind_first(self._sought_over[0]):
            self._sought_over.popleft()
        if not (self._ahead or self._sought_over):
            self.forget_ahead()
        return self.has_ahead

    def _cut_ahead(self, end: int) -> None:
        self._ahead = _before(end, self._ahead)
        self._sought_over = _before(end, self._sought_over)

    def forget_ahead(self) -> None:
        """Pass over nothing more that was finished before."""
        self._ahead.clear()
        self._sought_over.clear()
        self.ahead_epoch = self._verified_epoch = NO_EPOCH

    def interrupt(self, leader_epoch: int) -> None:
        """Take unfinished records from their holders; what is finished behind them lies ahead.

        Args:
            leader_epoch: Of the last of the finished ones.
        """
        self._ahead = deque(self.finished_ranges())
        self.ahead_epoch = max(self.ahead_epoch, leader_epoch)
        self._handed_out.clear()
        self._sought_over.clear()
        self._unfinished.clear()

    # --- What goes into a commit ----------------------------------------------------------
    def if_finished(self, offsets: Set[int]) -> Progress:
        """Return what this would be if these records were finished, too."""
        supposed = Progress(self._ahead, self.ahead_epoch)
        unfinished = {o: holder for o, holder in self._unfinished.items() if o not in offsets}
        supposed._unfinished.update(unfinished)
        supposed._handed_out.extend(dropwhile(lambda o: o not in unfinished, self._handed_out))
        supposed._sought_over.extend(self._sought_over)
        return supposed

    def if_gone_back_to(self, offset: int) -> Progress:
        """Return what this would be after `go_back_to`."""
        supposed = self.if_finished(frozenset())
        supposed.go_back_to(offset)
        return supposed

    def finished_ranges(self, position: int = 0) -> Iterator[Range]:
        """Yield what is finished behind the first unfinished record, in offset order.

        Offsets within a range that were not handed out are gaps, and stay so.

        Args:
            position: Where nothing is unfinished, from here on.
        """
        begin = self._handed_out[-1] + 1 if self._handed_out else position
        before = self._finished_of_handed_out()
        if self._sought_over:
            before = _without_inner(merge(before, filter(self._is_behind_first, self._sought_over)))
        return chain(before, self._ahead_from(begin))

    def _ahead_from(self, begin: int) -> Iterator[Range]:
        return (Range(max(first, begin), end) for first, end in self._ahead if end > begin)

    def _is_behind_first(self, finished: Range) -> bool:
        """Whether a range lies behind a record that is unfinished."""
        return bool(self._handed_out) and self._handed_out[0] < finished.first

    def _finished_of_handed_out(self) -> Iterator[Range]:
        unfinished = self._unfinished
        left = self.finished_count
        first: int | None = None
        last = NO_OFFSET
        for offset in self._handed_out:
            if offset not in unfinished:
                if first is None:
                    first = offset
                last = offset
                left -= 1
            elif first is not None:
                yield Range(first, last + 1)
                first = None
            if first is None and not left:
                return
        if first is not None:
            yield Range(first, last + 1)


def _before(offset: int, ranges: Iterable[Range]) -> deque[Range]:
    return deque(Range(first, min(end, offset)) for first, end in ranges if first < offset)


def _without_inner(ranges: Iterable[Range]) -> Iterator[Range]:
    """Leave out ranges that lie within one before them."""
    end_before = NO_OFFSET
    for each in ranges:
        if each.end > end_before:
            yield each
            end_before = each.end
