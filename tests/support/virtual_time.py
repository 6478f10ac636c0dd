"""An event loop whose time passes when nothing else is left to do: an hour costs nothing.

For tests without a network and without threads, whose events time cannot skip over. They are
marked `virtual_time`.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Mapping


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """asyncio's loop with a clock that starts at 0 and jumps from timer to timer."""

    def __init__(self) -> None:
        self._selector_of_time = _Selector()
        super().__init__(self._selector_of_time)

    def time(self) -> float:
        return self._selector_of_time.now

    def pass_time(self, duration_s: float) -> None:
        """Have time pass while nothing else runs, as when a callback takes that long."""
        self._selector_of_time.now += duration_s


class _Selector(selectors.SelectSelector):
    """Says at once that nothing has happened, after as long as it was asked to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found:
            if timeout is None:
                raise RuntimeError("nothing is ready, and nothing is going to happen")
            self.now += max(0.0, timeout)
        return found


VIRTUAL_TIME: Mapping[str, type[asyncio.AbstractEventLoop]] = {"virtual": VirtualTimeLoop}
