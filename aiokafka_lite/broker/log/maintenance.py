"""What a broker does on its own, now and then: delete, compact, let offsets expire.

Each job runs at its own interval in one task, so that no two meet. A job that may take long goes
in slices of the loop's time: requests are served in between, from the same loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Final, TypeAlias

TIME_SLICE_S: Final = 0.001
# Kafka waits so long after its start before it looks at its logs (log.initial.task.delay.ms).
FIRST_DELAY_S: Final = 30.0

# Work in pieces: where it yields others may run, or it may be ended for good.
Steps: TypeAlias = Generator[None, None, None]


@dataclass(frozen=True)
class Job:
    """Something to do again and again.

    Attributes:
        interval_s: From its end to its next start.
        steps: Begins it anew each time.
    """

    interval_s: float
    steps: Callable[[], Steps]


class Maintenance:
    """Runs jobs when they are due, or all of them at once when asked. One at a time."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._jobs = tuple(jobs)
        self._running = asyncio.Lock()

    async def run(self) -> None:
        """Run each job at its interval until cancelled, which may be between any two steps."""
        loop = asyncio.get_running_loop()
        due = {job: loop.time() + min(job.interval_s, FIRST_DELAY_S) for job in self._jobs}
        while due:
            job = min(due, key=lambda job: due[job])
            await asyncio.sleep(due[job] - loop.time())
            async with self._running:
                await run_in_slices(job.steps())
            due[job] = loop.time() + job.interval_s

    async def run_once(self) -> None:
        """Run every job once, now, after what is running."""
        async with self._running:
            for job in self._jobs:
                await run_in_slices(job.steps())


async def run_in_slices(steps: Steps) -> None:
    """Take steps; let the loop run after each time slice."""
    loop = asyncio.get_running_loop()
    with closing(steps):
        slice_ends = loop.time() + TIME_SLICE_S
        for _ in steps:
            if loop.time() >= slice_ends:
                await asyncio.sleep(0)
                slice_ends = loop.time() + TIME_SLICE_S
