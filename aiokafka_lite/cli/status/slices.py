"""Work on the event loop in slices, so that the broker answers its clients in between."""

from __future__ import annotations

import asyncio
from typing import Final

SLICE_S: Final = 0.001


class MeasuredSlices:
    """Yields to the loop when a slice is used up, and measures the time worked."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._began = loop.time()
        self._worked_s = 0.0

    @property
    def worked_s(self) -> float:
        """Seconds worked so far, without the time that others had."""
        return self._worked_s + self._loop.time() - self._began

    def count(self, seconds: float) -> None:
        """Count time that somebody else worked for this."""
        self._worked_s += seconds

    async def maybe_rest(self) -> None:
        """Yield to the event loop if the slice is used up; call it after each piece of work."""
        now = self._loop.time()
        if now - self._began < SLICE_S:
            return
        self._worked_s += now - self._began
        await asyncio.sleep(0)
        self._began = self._loop.time()
