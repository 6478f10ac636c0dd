"""What a broker does on its own, now and then: delete, compact, let offsets expire.

Each job runs at its own interval in one task, so that no two meet. A job that may take long goes
in slices of the loop's time: requests are served in between, from the same loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from aiokafka_lite.broker.slices import run_in_slices
from aiokafka_lite.protocol.source import Steps

# Kafka waits so long after its start before it looks at its logs (log.initial.task.delay.ms).
FIRST_DELAY_S: Final = 30.0


@dataclass(frozen=True)
class Chore:
    """Something to do again and again.

    Attributes:
        interval_s: From its end to its next start.
        steps: Begins it anew each time.
    """

    interval_s: float
    steps: Callable[[], Steps[None]]


class Maintenance:
    """Runs jobs when they are due, or all of them at once when asked. One at a time."""

    def __init__(self, jobs: Iterable[Chore]) -> None:
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
