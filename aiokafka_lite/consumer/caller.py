"""Checks of the caller: its loop, its process, and whether a listener's callback is around it.

Comparing the running loop, once a call and never per record, finds calls from other threads as
well. A forked child may run its parent's loop, so it is notified (_tasks.py).
"""

from __future__ import annotations

import asyncio
from asyncio import _get_running_loop, _set_running_loop
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from aiokafka_lite._tasks import notify_of_forks
from aiokafka_lite.errors import ForkedError, IllegalStateError, WrongLoopError


# --- Loop and process -------------------------------------------------------------------------
def running_loop() -> asyncio.AbstractEventLoop:
    """Return the running event loop, or raise RuntimeError in aiokafka's words."""
    loop = _get_running_loop()
    if loop is None:
        raise RuntimeError(
            "The object should be created within an async function or provide loop directly: "
            "no event loop is running"
        )
    return loop


@contextmanager
def as_if_running(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Let objects that are created in the block belong to a loop that may not run yet.

    Do not await in the block.
    """
    before = _get_running_loop()
    _set_running_loop(loop)
    try:
        yield
    finally:
        _set_running_loop(before)


class Owner:
    def __init__(self, end_gets: Callable[[], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self.is_forked = False
        # Ends reads in a child, because they do not check the owner each time.
        self._end_gets = end_gets
        notify_of_forks(self)

    def check(self) -> None:
        """Check that the loop's own code is calling, which may wait on it."""
        if _get_running_loop() is not self.loop or self.is_forked:
            raise self.refusal()

    def check_now(self) -> None:
        """Check that the loop's own code is calling, or that the loop stands still."""
        running = _get_running_loop()
        if self.is_forked or (
            running is not self.loop and (running is not None or self.loop.is_running())
        ):
            raise self.refusal()

    def refusal(self) -> ForkedError | WrongLoopError:
        if self.is_forked:
            return ForkedError(
                "this process was forked from the process that uses the consumer's sockets and "
                "group membership: create another consumer in this process"
            )
        if self.loop.is_closed():
            return WrongLoopError(
                "the event loop of the consumer is closed, so the consumer cannot be used any "
                "more: stop consumers before their loop ends"
            )
        return WrongLoopError(
            "a consumer must be used on the event loop on which it was created: from another "
            "thread, use asyncio.run_coroutine_threadsafe or loop.call_soon_threadsafe"
        )

    def note_fork(self) -> None:
        self.is_forked = True
        self._end_gets()


# --- Callbacks --------------------------------------------------------------------------------
class Callback:
    """A listener's callback, kept by the tasks that it has started."""

    def __init__(self, name: str) -> None:
        self.name = name
        # Until it has returned, or is cut off: so long the rebalance waits for it.
        self.is_running = True
        self.task: asyncio.Task[object] | None = None

    def end(self) -> None:
        self.is_running = False
        callbacks.discard(id(self))


# Running callbacks of all threads, by id, so that a closed loop keeps none alive.
callbacks: Final[set[int]] = set()
_callback: ContextVar[Callback | None] = ContextVar("_callback", default=None)


def enter(callback: Callback) -> None:
    callbacks.add(id(callback))
    callback.task = asyncio.current_task()
    _callback.set(callback)


def is_in(callback: Callback) -> bool:
    return _callback.get() is callback


def is_in_callback() -> bool:
    """Whether a rebalance may wait for the running code, which must not wait for the rebalance."""
    callback = _callback.get()
    return callback is not None and callback.is_running


def refuse_to_wait_for_records() -> None:
    """Raise IllegalStateError in a callback, whose read would wait forever.

    Tasks that the callback started may wait, because it need not wait for them.
    """
    callback = _callback.get()
    if callback is not None and callback.is_running and callback.task is asyncio.current_task():
        raise IllegalStateError(
            "a rebalance listener cannot wait for records, because records are withheld until "
            "the listener returns. Read outside of the listener, or pass a timeout to the read"
        )
