"""Handlers of the signals that stop a program: when to install them, and how to restore others.

`signal.signal` works on Windows and on every event loop, also on a simulated one. In contrast to
`loop.add_signal_handler`, it returns the earlier handler.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterable
from functools import partial
from types import FrameType
from typing import Any, Final, TypeAlias

Handler: TypeAlias = "Callable[[int, FrameType | None], Any] | int"
STOP_SIGNALS: Final = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM") if hasattr(signal, name)
)


def name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def can_be_handled(number: int) -> bool:
    return number in signal.valid_signals() and name_of(number) not in ("SIGKILL", "SIGSTOP")


class StopSignals:
    """Replaces the handlers of signals, and restores them."""

    def __init__(self) -> None:
        self._earlier: dict[int, Handler] = {}
        self._own: Handler | None = None

    def take(self, heed: Callable[[int], object], numbers: Iterable[int] = STOP_SIGNALS) -> bool:
        """Call `heed` with the number of each signal. Return False outside of the main thread."""

        def handle(number: int, _: FrameType | None) -> None:
            if self._own is handle and os.getpid() == pid:
                heed(number)
            else:  # restored by another object that was to be given back first, or in a fork
                signal.signal(number, earlier[number])
                signal.raise_signal(number)

        pid, earlier = os.getpid(), self._earlier
        self._own = handle
        for number in numbers:
            try:
                replaced: Handler | None = signal.signal(number, handle)
            except ValueError:
                return False
            # None is a handler that was not installed from Python.
            earlier[number] = signal.SIG_DFL if replaced is None else replaced
        return True

    def earlier(self, number: int) -> Callable[[int, None], object] | None:
        """Return the function that handled a signal before `take`, if there was one."""
        handler = self._earlier.get(number)
        return handler if callable(handler) else None

    def give_back(self) -> None:
        """Restore the earlier handlers, unless the program has installed others meanwhile."""
        own, self._own = self._own, None
        for number, earlier in self._earlier.items():
            if own is not None and signal.getsignal(number) is own:
                signal.signal(number, earlier)

    def raise_earlier(self, number: int) -> None:
        """Restore the earlier handlers, and let one of them handle a signal."""
        self.give_back()
        signal.raise_signal(number)


def free_signals(task: asyncio.Task[Any]) -> tuple[int, ...]:
    """Return the stop signals that have no handler, if a task is the main one of its program.

    If the program handles one of them itself, none is returned. The handler that `asyncio.run`
    installs for SIGINT does not count. An ignored signal stays ignored.
    """
    if threading.current_thread() is not threading.main_thread() or not _is_main(task):
        return ()
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    free = [number for number, handler in handlers.items() if _is_default(handler)]
    others = [each for number, each in handlers.items() if number not in free]
    return tuple(free) if all(each is signal.SIG_IGN for each in others) else ()


def _is_main(task: asyncio.Task[Any]) -> bool:
    """Whether `run_until_complete` of a loop waits for a task, as `asyncio.run` lets it do."""
    callbacks = getattr(task, "_callbacks", None) or ()
    return any(
        "run_until_complete" in getattr(callback, "__qualname__", "") for callback, *_ in callbacks
    )


def _is_default(handler: Handler | None) -> bool:
    if isinstance(handler, partial):  # asyncio.Runner's, since Python 3.11
        kind = getattr(asyncio, "Runner", None)
        return kind is not None and isinstance(getattr(handler.func, "__self__", None), kind)
    return handler is signal.SIG_DFL or handler is signal.default_int_handler
