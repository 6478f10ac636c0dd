"""The application as the consumer's caller: its loop, its running callbacks, and its objects."""

from __future__ import annotations

import asyncio
import weakref
from asyncio import _get_running_loop, _set_running_loop
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TypeVar, cast

from aiokafka_lite.errors import IllegalStateError

T = TypeVar("T")


# --- Its loop ---------------------------------------------------------------------------------
def running_loop() -> asyncio.AbstractEventLoop:
    loop = _get_running_loop()
    if loop is None:
        raise RuntimeError(
            "The object should be created within an async function or provide loop directly: "
            "no event loop is running"
        )
    return loop


@contextmanager
def as_if_running(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Let objects of the block, which must not await, belong to a loop that may not run yet."""
    before = _get_running_loop()
    _set_running_loop(loop)
    try:
        yield
    finally:
        _set_running_loop(before)


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
    callback = _callback.get()
    if callback is not None and callback.is_running and callback.task is asyncio.current_task():
        raise IllegalStateError(
            "a rebalance listener cannot wait for records, because records are withheld until "
            "the listener returns. Read outside of the listener, or pass a timeout to the read"
        )


# --- Its objects ------------------------------------------------------------------------------
class _Lent:
    def __init__(self, lent: object, otherwise: object) -> None:
        self._lent = weakref.ref(lent)
        self._otherwise = otherwise

    def __getattribute__(self, name: str) -> object:
        # Not __getattr__, before which a lookup fails, and creates an error.
        own = object.__getattribute__
        lent = own(self, "_lent")()
        return getattr(own(self, "_otherwise") if lent is None else lent, name)


def lend(lent: T, otherwise: T) -> T:
    """Return a stand-in with the attributes of `lent`, or of `otherwise` once that is collected.

    Such objects often refer to the consumer: background tasks must not keep it alive.
    """
    return cast("T", _Lent(lent, otherwise))
