"""The progress in a partition whose records are finished singly.

    returned     5  6  7  8  9     12 13     (10 and 11 are gaps: never returned)
    finished     x  x     x  x        x
    end                7                     the offset to commit: all before it is finished
    finished behind it: 8 to 9, 13           kept in the metadata (finished.py)

Offsets are compared, never counted: compaction and transactions leave gaps. Only its holder can
finish a record. After a seek back the same offset has another holder, after a revocation none.

Records that an earlier assignment finished lie *ahead* (by the commit's metadata), and are passed
over. After a seek forward, ranges before the new position stay in commits while a record before
them is unfinished.

Compiled in place (progress.pxd).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Set
from heapq import merge
from itertools import chain, dropwhile

from aiokafka_lite.consumer.assignment.cursor import NO_EPOCH, NO_OFFSET, Epochs, Holder, Range
from aiokafka_lite.errors import IllegalStateError


class Progress:
    """The returned and finished records of one partition, and the ranges finished earlier.

    Attributes:
        held_bytes: The sum of the holders' `size_bytes`.
    """

    def __init__(self, ahead: Iterable[Range] = (), ahead_epoch: int = NO_EPOCH) -> None:
        # In offset order, from the first that is not finished.
        self._handed_out: deque[int] = deque()
        # By offset, the holder.
        self._unfinished: dict[int, Holder] = {}
        self.held_bytes = 0
        self._ahead = deque(ahead)
        # Ranges that lay ahead, before a position that was sought. They count while a record
        # before them is unfinished.
        self._sought_over: deque[Range] = deque()
        self.ahead_epoch = ahead_epoch
        # The newest leader epoch whose log is known to have the ranges ahead.
        self._verified_epoch = NO_EPOCH

    def __repr__(self) -> str:
        first = self._handed_out[0] if self._handed_out else None
        return f"<Progress: first unfinished {first}, {self.finished_count} finished behind it>"

    # --- What is known --------------------------------------------------------------------
    @property
    def first_unfinished(self) -> int | None:
        """The offset to commit, if any returned record is unfinished."""
        return self._handed_out[0] if self._handed_out else None

    @property
    def uncommitted_count(self) -> int:
        return len(self._handed_out)

    @property
    def finished_count(self) -> int:
        """How many finished records wait for one before them."""
        return len(self._handed_out) - len(self._unfinished)

    @property
    def last_finished(self) -> int | None:
        if not self.finished_count:
            return None
        return next(
            offset for offset in reversed(self._handed_out) if offset not in self._unfinished
        )

    @property
    def has_ahead(self) -> bool:
        return bool(self._ahead)

    @property
    def has_finished_before(self) -> bool:
        return bool(self._ahead or self._sought_over)

    @property
    def is_verified(self) -> bool:
        """Whether a leader's log has the ranges finished before."""
        return self._verified_epoch != NO_EPOCH

    @property
    def first_ahead(self) -> int | None:
        return self._ahead[0].first if self._ahead else None

    def holder_of_first(self) -> Holder | None:
        return self._unfinished[self._handed_out[0]] if self._handed_out else None

    def holders(self) -> Iterable[Holder]:
        """Return the holders of unfinished records, in returned order."""
        return self._unfinished.values()

    def is_held_by(self, offset: int, holder: object) -> bool:
        return self._unfinished.get(offset) is holder

    def what_waits(self) -> str:
        """Describe the wait for the first unfinished record, for operators."""
        return (
            f"The partition's commit waits for this record ({self.finished_count} later records "
            f"are finished, {len(self._unfinished)} records are unfinished)"
        )

    # --- What happens ---------------------------------------------------------------------
    def hand_out(self, offsets: Sequence[int], holders: Sequence[Holder]) -> None:
        """Note returned records, which must lie behind the earlier ones."""
        handed_out = self._handed_out
        if handed_out and offsets and offsets[0] <= handed_out[-1]:
            raise IllegalStateError(
                f"offset {offsets[0]} is not greater than offset {handed_out[-1]}, which was "
                "already returned"
            )
        handed_out.extend(offsets)
        self._unfinished.update(zip(offsets, holders, strict=True))
        for holder in holders:
            self.held_bytes += holder.size_bytes

    def passes_over(self, offset: int) -> bool:
        """Whether the next record was finished before. If so, count it as returned."""
        ahead = self._ahead
        while ahead and ahead[0].end <= offset:
            ahead.popleft()
        if not ahead or offset < ahead[0].first:
            return False
        if self._handed_out:
            self._handed_out.append(offset)
        return True

    def finish(self, offset: int, holder: Holder) -> bool | None:
        """Finish a record. Return whether more may be committed, None if it has another holder."""
        handed_out, unfinished = self._handed_out, self._unfinished
        if unfinished.get(offset) is not holder:
            return None
        del unfinished[offset]
        self.held_bytes -= holder.size_bytes
        if offset != handed_out[0]:
            return False
        handed_out.popleft()
        while handed_out and handed_out[0] not in unfinished:
            handed_out.popleft()
        return True

    def finish_before(self, offset: int) -> None:
        handed_out = self._handed_out
        while handed_out and (handed_out[0] < offset or handed_out[0] not in self._unfinished):
            self._forget(handed_out.popleft())

    def _forget(self, offset: int) -> None:
        if (holder := self._unfinished.pop(offset, None)) is not None:
            self.held_bytes -= holder.size_bytes

    def go_back_to(self, offset: int) -> None:
        """Forget the records from an offset on: they are returned again."""
        handed_out = self._handed_out
        while handed_out and handed_out[-1] >= offset:
            self._forget(handed_out.pop())
        while handed_out and handed_out[0] not in self._unfinished:
            handed_out.popleft()
        self._sought_over = _before(offset, self._sought_over)

    def return_from(self, offset: int) -> None:
        """Pass over no record from a sought offset on."""
        self.go_back_to(offset)
        if not self._handed_out:
            self.forget_ahead()
            return
        self._sought_over += _before(offset, self._ahead_from(self._handed_out[-1] + 1))
        self._ahead.clear()
        if not self._sought_over:
            self.forget_ahead()

    def look_ahead(self, ahead: Iterable[Range], leader_epoch: int) -> None:
        self.forget_ahead()
        self._ahead.extend(ahead)
        self.ahead_epoch = leader_epoch

    def verify_ahead(self, epoch_end: int | None, leader_epoch: int) -> None:
        """Keep ranges ahead up to the end of the newest known epoch in a leader's log, if any."""
        if epoch_end is None:
            self.forget_ahead()
            return
        self._cut_ahead(epoch_end)
        self._verified_epoch = leader_epoch

    def keep_ahead_in(self, epochs: Epochs, epoch_before: int) -> bool:
        """Keep the ranges ahead that the batches' log may have. Return whether any are left.

        A leader epoch newer than the known ones means a truncation: from there on, other records
        have the same offsets. `epoch_before` is that of the record before the batches, if known.
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
        self._ahead.clear()
        self._sought_over.clear()
        self.ahead_epoch = self._verified_epoch = NO_EPOCH

    def interrupt(self, leader_epoch: int) -> None:
        """Take unfinished records from their holders. Finished ones now lie ahead."""
        self._ahead = deque(self.finished_ranges())
        self.ahead_epoch = max(self.ahead_epoch, leader_epoch)
        self._handed_out.clear()
        self._sought_over.clear()
        self._unfinished.clear()
        self.held_bytes = 0

    # --- What goes into a commit ----------------------------------------------------------
    def if_finished(self, offsets: Set[int]) -> Progress:
        supposed = Progress(self._ahead, self.ahead_epoch)
        unfinished = {o: holder for o, holder in self._unfinished.items() if o not in offsets}
        supposed._unfinished.update(unfinished)
        supposed._handed_out.extend(dropwhile(lambda o: o not in unfinished, self._handed_out))
        supposed._sought_over.extend(self._sought_over)
        return supposed

    def if_gone_back_to(self, offset: int) -> Progress:
        supposed = self.if_finished(frozenset())
        supposed.go_back_to(offset)
        return supposed

    def finished_ranges(self, position: int = 0) -> Iterator[Range]:
        """Yield the ranges finished behind the first unfinished record, or else from `position`."""
        begin = self._handed_out[-1] + 1 if self._handed_out else position
        before = self._finished_of_handed_out()
        if self._sought_over:
            before = _without_inner(merge(before, filter(self._is_behind_first, self._sought_over)))
        return chain(before, self._ahead_from(begin))

    def _ahead_from(self, begin: int) -> Iterator[Range]:
        return (Range(max(first, begin), end) for first, end in self._ahead if end > begin)

    def _is_behind_first(self, finished: Range) -> bool:
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
