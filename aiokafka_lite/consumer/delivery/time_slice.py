"""How long the gets may hold the event loop before others run."""

from __future__ import annotations

import asyncio
from typing import Final

# What becomes ready meanwhile waits for the rest of the slice, a timer for most of the next one
# too; a round of asyncio's loop costs some 15 us, so that shorter slices would cost more than 3 %.
TIME_SLICE_S: Final = 0.0005


class TimeSlice:
    """The time that the gets of one consumer, and a loop over its records, have until a pause."""

    def __init__(self) -> None:
        self.length_s = TIME_SLICE_S
        self._loop = asyncio.get_running_loop()
        # None: the loop has just run; the slice begins with the next decoding.
        self._ends_at: float | None = None
        # Loop time of the latest look at the clock.
        self.looked_at = 0.0

    def begin(self) -> float:
        """Return when the slice ends; it begins now if the loop has just run."""
        if self._ends_at is None:
            self._ends_at = self._loop.time() + self.length_s
        return self._ends_at

    def renew(self) -> None:
        """Note that the loop has run: the next slice begins when it is asked for."""
        self._ends_at = None

    def is_used_up(self) -> bool:
        """Look at the clock, and say whether the loop has to run; begins a slice if it has run."""
        now = self.looked_at = self._loop.time()
        if self._ends_at is None:
            self._ends_at = now + self.length_s
            return False
        return now >= self._ends_at

    def look(self) -> None:
        """Look at the clock, as after a pause, which is no part of the run that follows."""
        self.looked_at = self._loop.time()

    def end_if_half_used(self) -> None:
        """Have the loop run next, if half of the slice was used up at the latest look."""
        if self._ends_at is not None and self.looked_at > self._ends_at - self.length_s / 2:
            self._ends_at = 0.0

    async def let_others_run(self) -> None:
        """Go once round the loop, after which the next slice begins."""
        try:
            await asyncio.sleep(0)
        finally:  # the loop has run also when this was cancelled
            self._ends_at = None
