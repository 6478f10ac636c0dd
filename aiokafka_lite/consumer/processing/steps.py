"""The step from one record of `run` to the next, in the common case (_calls.pyx).

Compiled in place (steps.pxd).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiokafka_lite.consumer.assignment.works import Works
from aiokafka_lite.consumer.gate import Gate
from aiokafka_lite.consumer.processing.allowance import Allowance
from aiokafka_lite.consumer.processing.attempts import Attempts
from aiokafka_lite.consumer.processing.job import DEAD, Job
from aiokafka_lite.consumer.processing.lanes import Lanes

if TYPE_CHECKING:
    from aiokafka_lite.consumer.processing.run import Run


class Steps:
    """What the workers of a run share.

    Attributes:
        is_finishing: No further record begins.
        isolates: Each call needs a copy of the context, because one has changed its worker's.
        slice_ends_at: Until when handlers may continue in this turn of the loop. None: not begun.
        feed_below: The feeder waits until fewer records are ready. 0: it does not wait.
    """

    def __init__(
        self,
        works: Works,
        gate: Gate,
        lanes: Lanes,
        attempts: Attempts[Job],
        allowance: Allowance,
        run: Run,
    ) -> None:
        self._works = works
        self._gate = gate
        self._lanes = lanes
        self._attempts = attempts
        self._breaker = attempts.breaker
        self._allowance = allowance
        self._run = run
        self.is_finishing = self.isolates = False
        self.slice_ends_at: float | None = None
        self.feed_below = 0

    def finish_and_begin(self, job: Job, now: float) -> Job | None:
        """Finish a handled record and begin the first ready one. None: `Run` has to do it."""
        cursor, ready = job.cursor, self._lanes.ready
        if (
            self.is_finishing
            or (self.feed_below and len(ready) <= self.feed_below)
            or cursor.is_withheld
            or not cursor.is_assigned
            or (self._breaker is not None and not self._breaker.is_closed)
        ):
            return None
        if self.slice_ends_at is None:
            self._run.begin_slice(now)
        if self.slice_ends_at is None or now >= self.slice_ends_at or self._gate.holds:
            return None
        following = ready[0] if ready else job.follower
        if following is None:
            return None
        cursor = following.cursor
        progress = cursor.progress
        if (
            cursor.is_withheld
            or cursor.is_paused
            or following.state is DEAD
            or progress is None
            or not progress.is_held_by(following.offset, following)
        ):
            return None
        self._lanes.leave(job)
        ready.popleft()
        self._attempts.success_count = success_count = self._attempts.success_count + 1
        following.begin(now, success_count)
        self._works.finish(job.cursor, job.offset, job)
        self._allowance.count(job.cursor)
        self._works.totals["finished_total"] += 1
        return following
