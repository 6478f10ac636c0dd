"""The steps of every record of `run`, in plain Python: the fallback, and the C one's model."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextvars import Context
from typing import Any, Final

from aiokafka_lite.consumer.assignment.works import Works
from aiokafka_lite.consumer.processing.allowance import Allowance
from aiokafka_lite.consumer.processing.attempts import Attempts
from aiokafka_lite.consumer.processing.lanes import DEAD, Job, Lanes

new_job = Job


class Steps:
    """Queues, begins and finishes records that nothing stands in the way of.

    Args:
        works: Of the consumer whose records these are.
        reads: Of the same consumer.
        gate: Says whether they may begin.
        observers: Told of those that are finished.
        lanes: Has those that may begin.
        attempts: Counts calls that succeed, and knows whether the breaker is closed.
        allowance: Knows whether it has to be told of each record.
        begin_slice: Sets `slice_ends_at`, for this turn of the loop.

    Attributes:
        is_finishing: Nothing more begins.
        isolates: Each call needs a copy of the context, as one has changed its worker's variables.
        slice_ends_at: Until when handlers may go on in this turn of the loop; None: none has begun
            in it.
        feed_below: The feeder waits until fewer are ready; 0: it does not wait.
    """

    __slots__ = ("_lanes", "_works", "feed_below", "is_finishing", "isolates", "slice_ends_at")

    def __init__(
        self,
        works: Works,
        reads: object,
        gate: object,
        observers: object,
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
        """Add records that were handed out; each may begin at once if its lane is empty.

        Raises:
            TypeError: The key of one cannot be told from others.
        """
        self._lanes.put(jobs)

    def begin(self, now: float, success_count: int) -> Job | None:
        """Take the first ready record, whose attempt begins now.

        Returns:
            None: there is none, or more is to be done before it may begin. Nothing is changed then.
        """
        ready = self._lanes.ready
        if not ready:
            return None
        job = ready[0]
        cursor = job.cursor
        if cursor.is_revoking or cursor.is_paused or job.state is DEAD or not job.is_current:
            return None
        ready.popleft()
        job.began_at = now
        if job.error is None:
            job.success_count = success_count
        return job

    def finish(self, job: Job) -> None:
        """Count a record as finished, if it is still this one's, and let its lane go on."""
        self._works.finish(job.cursor, job.record.offset, job)
        self._lanes.leave(job)


class Calls:
    """The calls of one worker.

    Args:
        steps: Of its run.
        task: The worker.
        handler: Is called for each record.
        flights: Who works on what just now.
        context: In which handlers are called.
        is_alone: The worker itself finishes each record.

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
        flights: dict[Job, asyncio.Task[None]],
        context: Context,
        *,
        is_alone: bool,
    ) -> None:
        pass

    def of(self, call: Awaitable[Any]) -> Awaitable[Any]:
        """Return what awaits the call for `job`.

        It may go on with other records, each of which is `job` then, as long as the worker would do
        nothing but finish the one and begin the next.
        """
        return call
