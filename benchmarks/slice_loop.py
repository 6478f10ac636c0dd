"""asyncio's event loop, which notes the longest time it had for nobody else."""

from __future__ import annotations

import asyncio
import time


class SliceLoop(asyncio.SelectorEventLoop):
    """Keeps the longest CPU time that the loop's thread used in one round of the loop.

    What becomes ready during a round has to wait for its end, and a timer for most of the next one
    too, as timers come last. Waiting for input is part of a round, but takes no CPU time.
    """

    longest_slice_ns = 0

    def _run_once(self) -> None:
        began_ns = time.thread_time_ns()
        super()._run_once()  # type: ignore[misc]
        slice_ns = time.thread_time_ns() - began_ns
        if slice_ns > self.longest_slice_ns:
            self.longest_slice_ns = slice_ns


def new_event_loop() -> SliceLoop:
    return SliceLoop()
