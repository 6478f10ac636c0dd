"""The steps of every record of `run` in plain Python: fallback and model of _steps.pyx."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextvars import Context
from typing import Any, Final

from aiokafka_lite.consumer.assignment.works import Works
from aiokafka_lite.consumer.processing.allowance import Allowance
from aiokafka_lite.consumer.processing.attempts import Attempts
from aiokafka_lite.consumer.processing.job import DEAD, Job
from aiokafka_lite.consumer.processing.lanes import Lanes


class Steps:
    """Queues, begins and finishes records in the common case.

    Attributes:
        is_finishing: No further record begins.
        isolates: Each call needs a copy of the context, because one has changed its worker's.
        slice_ends_at: Until when handlers may continue in this turn of the loop. None: none has
            begun.
        feed_below: The feeder waits until fewer records are ready. 0: it does not wait.
    """

    __slots__ = ("_lanes", "_works", "feed_below", "is_finishing", "isolates", "slice_ends_at")

    def __init__(
        self,
        works: Works,
        gate: object,
        lanes: Lanes,
        attempts: Attempts,
        allowance: Allowance,
        begin_slice: Callable[[float], None],
    ) -> None:
        self._works: Final = works
        self._lanes: Final = lanes
        self.is_finishing = self.isolates = False
        self.slice_ends_at: float | None = None
        self.feed_below = 0

    def put(self, jobs: Iterable[Job]) -> None:
        self._lanes.put(jobs)

    def begin(self, now: float, success_count: int) -> Job | None:
        """Take the first ready record, whose attempt begins now.

        None, without a change, if no record is ready, or its start is not the common case.
        """
        ready = self._lanes.ready
        if not ready:
            return None
        job = ready[0]
        cursor = job.cursor
        if cursor.is_revoking or cursor.is_paused or job.state is DEAD or not job.is_current:
            return None
        ready.popleft()
        job.begin(now, success_count)
        return job

    def finish(self, job: Job) -> None:
        """Count a record as finished, unless it has another holder, and continue with its lane."""
        self._works.finish(job.cursor, job.record.offset, job)
        self._lanes.leave(job)


class Calls:
    """The calls of one worker.

    Attributes:
        job: The record that is being handled.
    """

    __slots__ = ("job",)

    job: Job

    def __init__(
        self,
        steps: Steps,
        task: asyncio.Task[Any],
        handler: Callable[..., Awaitable[Any]],
        running: dict[Job, asyncio.Task[None]],
        context: Context,
        *,
        is_alone: bool,
    ) -> None:
        pass

    def of(self, call: Awaitable[Any]) -> Awaitable[Any]:
        """Return an awaitable of the call for `job`.

        It may handle further records, each of which is `job` then, as long as the worker would only
        finish one and begin the next.
        """
        return call
