"""What a member may see of one partition in one assignment, and which offsets are finished."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

from tests.model.ledger import Sought


class Intervals:
    """A set of offsets, as disjoint ranges in order."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []

    def add(self, first: int, end: int) -> None:
        """Add [first, end)."""
        if first >= end:
            return
        low = bisect.bisect_left(self._ends, first)
        high = bisect.bisect_right(self._firsts, end)
        if low < high:
            first = min(first, self._firsts[low])
            end = max(end, self._ends[high - 1])
        self._firsts[low:high] = [first]
        self._ends[low:high] = [end]

    def first_missing(self, end: int) -> int | None:
        """Return the first offset below `end` that is not in it, None if there is none."""
        covered = self._ends[0] if self._firsts and self._firsts[0] <= 0 else 0
        return None if covered >= end else covered


@dataclass
class Track:
    """One partition in one assignment of one member.

    Attributes:
        epoch: Which of the member's assignments it is.
        assigned_at: When it began.
        next: The offset to come next; None: where the group has committed, or a seek has led.
        start: The lowest offset that it may have been handed.
        seeks: Those in this assignment.
        is_at_end: It sought the end, and nothing has come since.
        end_from: Where it was before.
        end_left_at: When another seek followed; what came before it may be seen after it.
        carried: The seek in the rebalance before, which has to count still.
        maybe_carried: The last seek before that, when the rebalance may have begun already.
    """

    epoch: int
    assigned_at: float
    next: int | None = None
    start: int | None = None
    seeks: list[Sought] = field(default_factory=list)
    is_at_end: bool = False
    end_from: int = 0
    end_left_at: float = float("-inf")
    carried: Sought | None = None
    maybe_carried: Sought | None = None

    def may_go_back_to(self, offset: int) -> bool:
        """Whether a seek explains a commit of an offset that is lower than the one before."""
        carried = [seek for seek in (self.carried, self.maybe_carried) if seek is not None]
        seeks = self.seeks + carried
        return any(seek.target is None or seek.target <= offset for seek in seeks)
