"""Reads that wait for records; compiled in place (waiter.pxd)."""

from __future__ import annotations

from asyncio import AbstractEventLoop, CancelledError, Future, InvalidStateError, current_task
from collections.abc import Callable, Collection
from contextvars import Context

from aiokafka_lite.structs import TopicPartition


class RecordWaiter:
    """The future for which the task of a steady read waits, and which can resume it at once.

    It has only those methods of a future that tasks need. `wake` runs the task within its own
    call. If a task is running already, the event loop does it, as after `set_result` and `cancel`.
    """

    # `asyncio.isfuture` looks for the field in the class, where plain Python has only slots.
    __slots__ = ("__dict__", "_asyncio_future_blocking")

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


class Waiters:
    """The reads that wait, the oldest first, with their partitions (empty: all).

    Attributes:
        sought: The only partitions to fetch (empty: all): memory is short, and reads wait for them.
    """

    def __init__(self) -> None:
        self._wanted: dict[Future[None] | RecordWaiter, Collection[TopicPartition]] = {}
        self.sought: frozenset[TopicPartition] = frozenset()

    def __len__(self) -> int:
        return len(self._wanted)

    def add(self, waiter: Future[None] | RecordWaiter, wanted: Collection[TopicPartition]) -> None:
        self._wanted[waiter] = wanted

    def remove(self, waiter: Future[None] | RecordWaiter) -> None:
        del self._wanted[waiter]

    def want_all(self) -> bool:
        """Whether reads wait, and each of them for all partitions."""
        for wanted in self._wanted.values():
            if wanted:
                return False
        return bool(self._wanted)

    def awaited(self) -> list[TopicPartition]:
        """Return the partitions that reads wait for; empty if one waits for all."""
        if not all(self._wanted.values()):
            return []
        return [tp for wanted in self._wanted.values() for tp in wanted]

    def seek(self, partitions: frozenset[TopicPartition]) -> bool:
        """Fetch only these partitions; return whether that is a change."""
        is_changed = partitions != self.sought
        self.sought = partitions
        return is_changed

    def wake(self) -> None:
        """Let all reads continue in the loop's next iteration."""
        for waiter in self._wanted:
            if not waiter.done():
                waiter.set_result(None)

    def wake_others(self) -> RecordWaiter | None:
        """Wake all reads, but return a steady one: it can continue in the caller's callback."""
        steady = None
        for waiter in self._wanted:
            if isinstance(waiter, RecordWaiter):
                steady = waiter
            elif not waiter.done():
                waiter.set_result(None)
        return None if steady is None or steady.is_done else steady
