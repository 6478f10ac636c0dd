"""TaskScope: the only place where tasks are made.

A scope owns named tasks that belong together. The first unexpected exception of one of them is
the scope's failure: it is kept, the siblings are cancelled, and whoever uses the scope raises it
(``raise_if_failed``) until the scope is closed. Nothing dies silently, nothing is only logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import TypeVar

from aiokafka_lite.errors import KafkaError

log = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_RESTART_DELAY_S = 0.1
LAST_RESTART_DELAY_S = 1.0
# A task that ran this long before it failed starts over with the first delay.
HEALTHY_AFTER_S = 10.0


class TaskScope:
    """Named tasks that live and die together.

    Must be made inside a running loop. One writer: the scope itself writes all its fields.
    """

    def __init__(
        self, name: str, *, on_failure: Callable[[BaseException], None] | None = None
    ) -> None:
        self.name = name
        self._loop = asyncio.get_running_loop()
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[object]] = set()
        self._failure: BaseException | None = None
        self._degraded: dict[str, BaseException] = {}
        self._is_closed = False

    @property
    def failure(self) -> BaseException | None:
        """The first unexpected exception of a task, or None."""
        return self._failure

    @property
    def degraded(self) -> Mapping[str, BaseException]:
        """Supervised tasks that are waiting to be restarted or have not recovered yet."""
        return self._degraded

    @property
    def task_names(self) -> list[str]:
        """Names of the tasks that are running, sorted."""
        return sorted(task.get_name() for task in self._tasks)

    def raise_if_failed(self) -> None:
        """Raise the scope's failure, a fresh traceback each time.

        Raises:
            BaseException: What the first failed task raised.
        """
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    def spawn(self, coro: Coroutine[object, None, T], *, name: str) -> asyncio.Task[T]:
        """Start a task; an exception other than CancelledError becomes the scope's failure."""
        if self._is_closed or self._failure is not None:
            coro.close()
            raise RuntimeError(f"task scope {self.name!r} is closed: {name!r} cannot start")
        task = self._loop.create_task(coro, name=f"{self.name}:{name}")
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def supervise(
        self,
        factory: Callable[[], Coroutine[object, None, None]],
        *,
        name: str,
        first_delay_s: float = FIRST_RESTART_DELAY_S,
        last_delay_s: float = LAST_RESTART_DELAY_S,
    ) -> asyncio.Task[None]:
        """Start a task that is restarted, with growing delays, after a retriable KafkaError.

        Any other exception is the scope's failure; returning ends the task.
        """
        return self.spawn(self._supervised(factory, name, first_delay_s, last_delay_s), name=name)

    async def _supervised(
        self,
        factory: Callable[[], Coroutine[object, None, None]],
        name: str,
        first_delay_s: float,
        last_delay_s: float,
    ) -> None:
        delay_s = first_delay_s
        while True:
            started = self._loop.time()
            recovery = self._loop.call_later(HEALTHY_AFTER_S, self._degraded.pop, name, None)
            try:
                await factory()
            except KafkaError as error:
                if not error.retriable:
                    raise
                if name not in self._degraded:  # one line per change of state
                    log.warning("%s: %s failed and is restarted: %s", self.name, name, error)
                self._degraded[name] = error
            else:
                self._degraded.pop(name, None)
                return
            finally:
                recovery.cancel()
            if self._loop.time() - started >= HEALTHY_AFTER_S:
                delay_s = first_delay_s
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, last_delay_s)

    def _task_done(self, task: asyncio.Task[T]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None or self._failure is not None:
            return
        self._failure = error
        if not self._is_closed:
            log.error("%s: task %s died", self.name, task.get_name(), exc_info=error)
        for sibling in tuple(self._tasks):
            sibling.cancel()
        if self._on_failure is not None:
            self._on_failure(error)

    async def close(self) -> None:
        """Cancel every task and wait until all have ended; idempotent.

        A task that calls this on its own scope is not cancelled or awaited. When the caller is
        cancelled meanwhile, the tasks are cancelled all the same, only not awaited.
        """
        self._is_closed = True
        current = asyncio.current_task()
        while others := [task for task in self._tasks if task is not current]:
            for task in others:
                task.cancel()
            await asyncio.wait(others)
