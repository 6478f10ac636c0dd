"""The time limit of a handler call: `timeout_s` of `run`.

One timer per run cancels the calls that take too long. It looks at the calls in the order in which
they began, and sleeps until the oldest one is late, so a call needs no timer.

A call that was cancelled has failed, even if it returns after that. A call that does not end is
cancelled again each time the limit has passed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from typing import Final, Generic

from aiokafka_lite.consumer.processing.attempts import Handled, HandledT
from aiokafka_lite.consumer.processing.calls import forget
from aiokafka_lite.consumer.processing.job import DEAD

# Part of the limit after which `health()` names a call.
LONG_PART: Final = 0.8


class TimeLimit(Generic[HandledT]):
    """Cancels the workers of calls that take longer than `limit_s`, except those in `spared`.

    `running` has the records that are being handled, in the order in which their calls began.
    """

    def __init__(
        self,
        limit_s: float,
        running: Mapping[HandledT, asyncio.Task[None]],
        spared: Collection[asyncio.Task[None]],
    ) -> None:
        self._limit_s = limit_s
        self._running = running
        self._spared = spared
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        # The workers of calls that were cancelled and have not ended, and when they are again.
        self._late: dict[asyncio.Task[None], float] = {}

    def open(self) -> None:
        self._look()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        look_at = now + self._limit_s
        for job, task in self._running.items():
            if job.state is DEAD or task in self._spared:
                continue
            cancel_at = self._late.get(task)
            if cancel_at is None:
                cancel_at = _began_at(job) + self._limit_s
                if cancel_at > now:  # later calls have more time left
                    look_at = min(look_at, cancel_at)
                    break
            if cancel_at <= now:
                task.cancel()
                cancel_at = self._late[task] = now + self._limit_s
            look_at = min(look_at, cancel_at)
        self._timer = self._loop.call_at(look_at, self._look)

    def is_late(self, task: asyncio.Task[None]) -> bool:
        return task in self._late

    def error_of(self, task: asyncio.Task[None], error: BaseException) -> BaseException:
        """Return the error of a failed call: TimeoutError if the call was cancelled here."""
        if task not in self._late:
            return error
        forget(task)  # a handler may have raised its own error instead of the CancelledError
        late = TimeoutError(
            "the handler was cancelled, because it had not returned within timeout_s="
            f"{self._limit_s:g}"
        )
        late.__cause__ = error
        return late

    def ended(self, task: asyncio.Task[None]) -> None:
        self._late.pop(task, None)

    # --- For operators --------------------------------------------------------------------
    def state_of(self, task: asyncio.Task[None]) -> str:
        if task in self._late:
            return f"was cancelled after {self._limit_s:g} s (timeout_s), and has not ended"
        return f"is cancelled after {self._limit_s:g} s (timeout_s)"

    def troubles(self, now: float) -> Iterator[str]:
        """Yield a text that names the oldest call, if it has used most of its time."""
        long: dict[asyncio.Task[None], HandledT] = {}
        for job, task in self._running.items():
            if job.state is not DEAD and now - _began_at(job) >= LONG_PART * self._limit_s:
                long.setdefault(task, job)
        if long:
            task, job = next(iter(long.items()))
            others = f", and {len(long) - 1} other calls take long, too" if len(long) > 1 else ""
            yield (
                f"the handler of {job.place} has been running for {now - _began_at(job):.1f} s"
                f"{others}. The call {self.state_of(task)}"
            )


def _began_at(job: Handled) -> float:
    assert job.began_at is not None  # noqa: S101 -- it is being handled
    return job.began_at
