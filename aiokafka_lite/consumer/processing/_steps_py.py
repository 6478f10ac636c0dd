"""The steps of every record of `run`, in plain Python: the fallback, and the C one's model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from aiokafka_lite.consumer.assignment.assignment import Assignment
from aiokafka_lite.consumer.processing.lanes import Job, Lanes

new_job = Job


class Steps:
    """Queues, begins and finishes records that nothing stands in the way of.

    Args:
        state: Whose records these are.
        lanes: Has those that may begin.
    """

    __slots__ = ("_lanes", "_state")

    def __init__(self, state: Assignment, lanes: Lanes) -> None:
        self._state: Final = state
        self._lanes: Final = lanes

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
        if cursor.is_revoking or cursor.is_paused or job.is_dead or not job.is_current:
            return None
        ready.popleft()
        job.began_at = now
        if job.error is None:
            job.success_count = success_count
        return job

    def finish(self, job: Job) -> None:
        """Count a record as finished, if it is still this one's, and let its lane go on."""
        self._state.finish(job.cursor, job.record.offset, job)
        self._lanes.leave(job)
