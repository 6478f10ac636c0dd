"""Whether the code that runs is a callback that a rebalance waits for: it must not wait back."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

from aiokafka_lite.errors import IllegalStateError


class Callback:
    """A callback that runs, or did: tasks that it started keep a reference after its end."""

    def __init__(self, name: str) -> None:
        self.name = name
        # Until it has returned, or is cut off: so long the rebalance waits for it.
        self.is_running = True
        self.task: asyncio.Task[object] | None = None


_callback: ContextVar[Callback | None] = ContextVar("_callback", default=None)


def enter(callback: Callback) -> None:
    """Note that the current task runs a callback, for it and for the tasks that it starts."""
    callback.task = asyncio.current_task()
    _callback.set(callback)


def is_in(callback: Callback) -> bool:
    """Whether the running code belongs to this callback."""
    return _callback.get() is callback


def is_in_callback() -> bool:
    """Whether a rebalance may wait for the running code, which must not wait for the rebalance."""
    callback = _callback.get()
    return callback is not None and callback.is_running


def refuse_to_wait_for_records() -> None:
    """Refuse a get that would wait for ever: none returns before the callback that asks has.

    Tasks that the callback started may wait; it need not wait for them.

    Raises:
        IllegalStateError: The current task runs a callback.
    """
    callback = _callback.get()
    if callback is not None and callback.is_running and callback.task is asyncio.current_task():
        raise IllegalStateError(
            "a rebalance listener cannot wait for records: none are handed out before it has "
            "returned. Get them outside of it, or with a timeout"
        )
