"""How long the event loop is held: the CPU time of its longest turn.

CPU time, not time on the clock: other processes, and other threads of this one, do not count. Nor
do the passes of the garbage collector, which come when they like and go over the whole heap. A
machine that is slow at that hour does not count either: what a fixed piece of work takes beside the
measured one says by how much.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Mapping
from types import TracebackType

from aiokafka_lite._compat import Self

# What the fixed piece of work takes on the machine that the tests' bounds were set on.
FIXED_WORK_MS = 7.0


def slowness() -> float:
    """Return how many times longer work takes now than where the bounds were set; at least 1."""
    began = time.thread_time()
    work = {str(number): [number] for number in range(20_000)}
    del work
    return max((time.thread_time() - began) * 1000 / FIXED_WORK_MS, 1.0)


class Holds:
    """Measures the turns of the loop while it is entered.

    Attributes:
        longest_ms: The longest that the others in the loop had to wait, as far as is known; from
            the end on by the clock of the machine that the bounds were set on.
        turns: How often the loop went round.
    """

    def __init__(self) -> None:
        self.longest_ms = 0.0
        self.turns = 0
        self._collecting_s = 0.0
        self._collection_began = 0.0
        self._slowness = 1.0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        gc.collect()
        self._slowness = slowness()
        gc.callbacks.append(self._on_collection)
        self._task = asyncio.create_task(self._probe())
        await asyncio.sleep(0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        gc.callbacks.remove(self._on_collection)
        try:
            await self._task
        except asyncio.CancelledError:
            pass
        self.longest_ms /= max(self._slowness, slowness())

    def _on_collection(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            self._collection_began = time.thread_time()
        else:
            self._collecting_s += time.thread_time() - self._collection_began

    async def _probe(self) -> None:
        while True:
            began = time.thread_time() - self._collecting_s
            await asyncio.sleep(0)
            held_ms = (time.thread_time() - self._collecting_s - began) * 1000
            self.longest_ms = max(self.longest_ms, held_ms)
            self.turns += 1
