"""Leader epochs of a log (KIP-101, KIP-320). Kafka: LeaderEpochFileCache."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple

UNDEFINED_EPOCH: Final = -1
UNDEFINED_OFFSET: Final = -1


class OffsetAndEpoch(NamedTuple):
    epoch: int
    end_offset: int


UNDEFINED_END: Final = OffsetAndEpoch(UNDEFINED_EPOCH, UNDEFINED_OFFSET)


class LeaderEpochs:
    __slots__ = ("_epochs", "_starts")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        for epoch, start_offset in entries:
            self.begin(epoch, start_offset)

    @property
    def entries(self) -> list[tuple[int, int]]:
        """(epoch, start offset) pairs, oldest first."""
        return list(zip(self._epochs, self._starts, strict=True))

    @property
    def latest(self) -> int:
        """The newest epoch, -1 before any."""
        return self._epochs[-1] if self._epochs else UNDEFINED_EPOCH

    def begin(self, epoch: int, start_offset: int) -> None:
        """Start an epoch at an offset. No effect if the epoch is not newer."""
        if epoch <= self.latest:
            return
        while self._starts and self._starts[-1] >= start_offset:  # wrote nothing
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)

    def epoch_of(self, offset: int) -> int:
        row = bisect_right(self._starts, offset) - 1
        return self._epochs[row] if row >= 0 else UNDEFINED_EPOCH

    def end_of(self, epoch: int, log_end_offset: int) -> OffsetAndEpoch:
        """Return the largest epoch up to `epoch`, and its end offset."""
        if epoch == UNDEFINED_EPOCH:
            return UNDEFINED_END
        if epoch == self.latest:
            return OffsetAndEpoch(epoch, log_end_offset)
        above = bisect_right(self._epochs, epoch)
        if above == len(self._epochs):
            return UNDEFINED_END
        floor = self._epochs[above - 1] if above else epoch
        return OffsetAndEpoch(floor, self._starts[above])

    def trim_before(self, log_start_offset: int) -> None:
        """Remove epochs that ended before the log starts. The oldest one starts with the log."""
        gone = bisect_right(self._starts, log_start_offset) - 1
        if gone >= 0:
            del self._epochs[:gone], self._starts[:gone]
            self._starts[0] = max(self._starts[0], log_start_offset)

    def truncate(self, end_offset: int) -> None:
        keep = bisect_left(self._starts, end_offset)
        del self._epochs[keep:], self._starts[keep:]
