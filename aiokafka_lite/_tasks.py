"""TaskScope, the only place that creates tasks, and a small Event.

The first unexpected exception of a task, or a cancellation by anything but its scope, is the
scope's failure: the siblings are cancelled, and users of the scope raise it (``raise_if_failed``).

A temporary error is a degradation: of a supervised task that is being restarted, or of one that
reports it (``degrade``, ``recovered``) while it tries again.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import TypeVar

from aiokafka_lite._compat import is_being_cancelled
from aiokafka_lite._forks import notify_of_forks
from aiokafka_lite._virtual import simulation_of
from aiokafka_lite.errors import (
    IllegalArgumentError,
    IllegalStateError,
    KafkaError,
    KafkaProtocolError,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

# In a task these are mistakes of this client or of the broker: the traceback shows where.
BUGS = (IllegalStateError, IllegalArgumentError, KafkaProtocolError)

FIRST_RESTART_DELAY_S = 0.1
LAST_RESTART_DELAY_S = 1.0
# A task that ran this long before it failed starts over with the first delay.
HEALTHY_AFTER_S = 10.0


class LoopEndedError(RuntimeError):
    """Every task was cancelled, as `asyncio.run` does at its end, or a simulated host's crash."""


class TaskScope:
    """Named tasks that live and die together. Must be created inside a running loop."""

    def __init__(
        self,
        name: str,
        *,
        on_failure: Callable[[BaseException], None] | None = None,
        on_restart: Callable[[str, KafkaError], None] | None = None,
    ) -> None:
        self.name = name
        self._loop = asyncio.get_running_loop()
        self._on_failure = on_failure
        self._on_restart = on_restart
        # Running tasks, and whether a cancellation is no failure.
        self._tasks: dict[asyncio.Task[object], bool] = {}
        self.failure: BaseException | None = None
        self._degraded: dict[str, BaseException] = {}
        self._is_closed = False
        notify_of_forks(self)

    @property
    def is_ending(self) -> bool:
        """Whether all tasks are cancelled: it is closed, or one of them has failed."""
        return self._is_closed or self.failure is not None

    @property
    def degraded(self) -> Mapping[str, BaseException]:
        return self._degraded

    def degrade(self, name: str, error: BaseException) -> bool:
        """Note that a task is trying again. Return whether that is news."""
        is_news = name not in self._degraded
        self._degraded[name] = error
        return is_news

    def recovered(self, name: str) -> None:
        self._degraded.pop(name, None)

    @property
    def task_names(self) -> list[str]:
        return sorted(task.get_name() for task in self._tasks)

    def raise_if_failed(self) -> None:
        if self.failure is not None:
            # A copy: the traceback refers to the caller, and the failure is kept here.
            raise own_copy(self.failure)

    def spawn(
        self, coro: Coroutine[object, None, T], *, name: str, may_be_cancelled: bool = False
    ) -> asyncio.Task[T]:
        """Start a task. Its failure is the scope's. `may_be_cancelled`: by the application."""
        if self._is_closed or self.failure is not None:
            coro.close()
            raise RuntimeError(
                f"cannot start task {name!r}, because {self.name!r} is closed or one of its tasks "
                "has failed"
            )
        task = self._loop.create_task(coro, name=f"{self.name}:{name}")
        self._tasks[task] = may_be_cancelled
        task.add_done_callback(self._task_done)
        return task

    def cancel(self, task: asyncio.Task[T]) -> None:
        """Cancel a task of the scope, which is no failure then."""
        if not task.done():
            self._tasks[task] = True
            task.cancel()

    async def stop(self, task: asyncio.Task[T]) -> None:
        """Cancel a task of the scope and wait for its end. Its exception stays in it."""
        if not task.done():
            self.cancel(task)
            await asyncio.wait({task})

    def fail(self, error: BaseException, *, name: str) -> None:
        if self.failure is not None or self._is_closed:
            return
        self.failure = error
        self._log_failure(f"{name} failed", error)
        self._end_after_failure(error)

    def supervise(
        self,
        factory: Callable[[], Coroutine[object, None, T]],
        *,
        name: str,
        first_delay_s: float = FIRST_RESTART_DELAY_S,
        last_delay_s: float = LAST_RESTART_DELAY_S,
    ) -> asyncio.Task[T]:
        """Start a task that is restarted, with growing delays, after a retriable KafkaError."""
        return self.spawn(self._supervised(factory, name, first_delay_s, last_delay_s), name=name)

    async def _supervised(
        self,
        factory: Callable[[], Coroutine[object, None, T]],
        name: str,
        first_delay_s: float,
        last_delay_s: float,
    ) -> T:
        delay_s = first_delay_s
        try:
            while True:
                started = self._loop.time()
                recovery = None
                if name in self._degraded:
                    recovery = self._loop.call_later(HEALTHY_AFTER_S, self.recovered, name)
                try:
                    return await factory()
                except KafkaError as error:
                    if not error.retriable:
                        raise
                    self._restarted(name, error)
                finally:
                    if recovery is not None:
                        recovery.cancel()
                if self._loop.time() - started >= HEALTHY_AFTER_S:
                    delay_s = first_delay_s
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, last_delay_s)
        finally:
            self.recovered(name)

    def _restarted(self, name: str, error: KafkaError) -> None:
        if self.degrade(name, error):  # one line per change of state
            log.warning("%s: restarting task %s, because it failed: %s", self.name, name, error)
            if self._on_restart is not None:
                self._on_restart(name, error)

    def _task_done(self, task: asyncio.Task[T]) -> None:
        may_be_cancelled = self._tasks.pop(task)
        error: BaseException | None
        if not task.cancelled():
            error = task.exception()
        elif may_be_cancelled or self._is_closed:
            return
        elif self.is_loop_ending():
            error = LoopEndedError(
                f"task {task.get_name()} was cancelled because the event loop is shutting down"
            )
        else:
            error = RuntimeError(
                f"task {task.get_name()} was cancelled by code outside aiokafka_lite"
            )
        if error is None or self.failure is not None:
            return
        self.failure = error
        if isinstance(error, LoopEndedError):
            log.info("%s: %s", self.name, error)
        elif isinstance(error, (KeyboardInterrupt, SystemExit)):
            pass  # the loop raises it in its caller, which ends the program
        elif not (self._is_closed and isinstance(error, KafkaError)):
            self._log_failure(f"task {task.get_name()} failed", error)
        self._end_after_failure(error)

    def _log_failure(self, what: str, error: BaseException) -> None:
        if isinstance(error, KafkaError) and not isinstance(error, BUGS):
            log.error("%s: %s: %s", self.name, what, error)
        else:
            log.error("%s: %s", self.name, what, exc_info=error)

    def is_loop_ending(self) -> bool:
        """Whether every task of the loop, or of a simulated host's scope, is cancelled."""
        is_simulated = simulation_of(self._loop) is not None
        tasks = self._tasks if is_simulated else asyncio.all_tasks(self._loop)
        return all(map(is_being_cancelled, tasks))

    def guard(self, callback: Callable[[], object], *, name: str) -> Callable[..., None]:
        """Return a callback for the event loop whose exceptions are the scope's failure."""

        def guarded(*_: object) -> None:
            try:
                callback()
            except Exception as error:  # noqa: BLE001 -- kept, and raised by every get
                self.fail(error, name=name)

        return guarded

    def _end_after_failure(self, error: BaseException) -> None:
        for sibling in tuple(self._tasks):
            sibling.cancel()
        if self._on_failure is not None:
            self._on_failure(error)

    def cancel_all(self) -> None:
        self._is_closed = True
        for task in self._others():
            task.cancel()

    def note_fork(self) -> None:
        self._is_closed = True
        for task in tuple(self._tasks):
            task.cancel()

    def drop_all(self) -> None:
        """End every task after the loop was closed, on which a cancellation would never arrive."""
        self._is_closed = True
        for task in tuple(self._tasks):
            end_unfinished(task)

    async def close(self) -> None:
        """Cancel all tasks but the current one, and await them, unless the caller is cancelled."""
        self._is_closed = True
        while others := self._others():
            for task in others:
                task.cancel()
            await asyncio.wait(others)

    def _others(self) -> list[asyncio.Task[object]]:
        current = asyncio.current_task()
        return [task for task in self._tasks if task is not current]


def end_unfinished(task: asyncio.Task[T]) -> None:
    """End a task whose loop will not run again."""
    if task.done():
        return
    # Otherwise asyncio warns that it was destroyed.
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    try:
        task.get_coro().close()
    except RuntimeError:  # its clean-up asked for the loop
        pass


async def sleep_before(deadline: float, delay_s: float) -> bool:
    """Sleep, at most until a deadline of the loop; return whether it is still ahead."""
    left_s = deadline - asyncio.get_running_loop().time()
    await asyncio.sleep(max(0.0, min(delay_s, left_s)))
    return delay_s < left_s


def own_copy(error: BaseException) -> BaseException:
    """Return a copy to raise, or the error itself if it cannot be copied."""
    try:
        own = copy.copy(error)
    except TypeError:  # its class takes other arguments than `args`
        return error.with_traceback(None)
    own.__cause__ = error.__cause__
    return own.with_traceback(None)


# --- Events -----------------------------------------------------------------------------------
class Event:
    """As asyncio.Event, whose queue of waiters takes 600 bytes even without a waiter."""

    __slots__ = ("_is_set", "_waiters")

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: list[asyncio.Future[bool]] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        if self._waiters:
            self.pulse()

    def pulse(self) -> None:
        """Wake only the tasks that wait now."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(True)

    def clear(self) -> None:
        self._is_set = False

    async def wait(self, until: float | None = None) -> bool:
        """Wait until it is set, also if it is cleared soon. Return whether it was set in time."""
        if self._is_set:
            return True
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        timer = None if until is None else loop.call_at(until, _time_out, waiter)
        self._waiters.append(waiter)
        try:
            return await waiter
        finally:
            self._waiters.remove(waiter)
            if timer is not None:
                timer.cancel()


def _time_out(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)
