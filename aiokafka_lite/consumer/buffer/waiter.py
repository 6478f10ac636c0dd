"""The future of a read without a coroutine of its own; compiled in place (waiter.pxd)."""

from __future__ import annotations

from asyncio import AbstractEventLoop, CancelledError, InvalidStateError, current_task
from collections.abc import Callable
from contextvars import Context


class RecordWaiter:
    """The future for which the task of a steady read waits, and which can resume it at once.

    It has only those methods of a future that tasks need. `wake` runs the task within its own
    call. If a task is running already, the event loop does it, as after `set_result` and `cancel`.
    """

    __slots__ = (
        "_asyncio_future_blocking",
        "_context",
        "_is_cancelled",
        "_loop",
        "_message",
        "_resume",
        "is_done",
    )

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._asyncio_future_blocking = True
        self._resume: Callable[[RecordWaiter], None] | None = None
        self._context: Context | None = None
        self._is_cancelled = False
        self._message: object = None
        self.is_done = False

    def get_loop(self) -> AbstractEventLoop:
        return self._loop

    def add_done_callback(
        self, callback: Callable[[RecordWaiter], None], *, context: Context | None = None
    ) -> None:
        if self._resume is not None:
            raise RuntimeError("only one task can wait for a record like this")
        self._resume = callback
        self._context = context
        if self.is_done:
            self._schedule()

    def remove_done_callback(self, callback: Callable[[RecordWaiter], None]) -> int:
        if self._resume is None or self._resume != callback:
            return 0
        self._resume = self._context = None
        return 1

    def done(self) -> bool:
        return self.is_done

    def cancelled(self) -> bool:
        return self._is_cancelled

    def result(self) -> None:
        if self._is_cancelled:
            raise CancelledError() if self._message is None else CancelledError(self._message)
        if not self.is_done:
            raise InvalidStateError("nothing has come yet")

    def exception(self) -> None:
        self.result()

    def set_result(self, result: object) -> None:
        """Let the task continue in the loop's next iteration."""
        self.is_done = True
        self._schedule()

    def cancel(self, msg: object = None) -> bool:
        if self.is_done:
            return False
        self.is_done = self._is_cancelled = True
        self._message = msg  # anyio recognises its own cancellations by it
        self._schedule()
        return True

    def _schedule(self) -> None:
        callback, self._resume = self._resume, None
        if callback is not None:
            self._loop.call_soon(callback, self, context=self._context)

    def wake(self) -> None:
        """Let the task continue now."""
        self.is_done = True
        callback, context = self._resume, self._context
        if callback is None or context is None or current_task(self._loop) is not None:
            self._schedule()
            return
        self._resume = None
        context.run(callback, self)
