"""Run a command's coroutine on the loop of the user's choice, so that Ctrl-C ends it cleanly."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import signal
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Final, TypeAlias, TypeVar

from aiokafka_lite._compat import StrEnum
from aiokafka_lite.cli.problems import MissingExtraError

T = TypeVar("T")
_Handler: TypeAlias = "Callable[[int, FrameType | None], object] | int | None"

_STOP_SIGNALS: Final = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM") if hasattr(signal, name)
)


class LoopKind(StrEnum):
    """Event loops that a command can run on."""

    ASYNCIO = "asyncio"
    UVLOOP = "uvloop"


class Interrupted(Exception):
    """The user, or the system, asked the program to end."""

    def __init__(self, signal_number: int) -> None:
        self.signal_number = signal_number
        super().__init__(f"ended by {signal.Signals(signal_number).name}")

    @property
    def exit_code(self) -> int:
        """What a shell reports for a program that this signal ended."""
        return 128 + self.signal_number


def available_loops() -> list[LoopKind]:
    """Return the loops that are installed."""
    return [
        kind
        for kind in LoopKind
        if kind is LoopKind.ASYNCIO or importlib.util.find_spec(kind.value) is not None
    ]


def new_event_loop(kind: LoopKind) -> asyncio.AbstractEventLoop:
    """Make an event loop.

    Raises:
        MissingExtraError: The loop's package is not installed.
    """
    if kind is LoopKind.ASYNCIO:
        return asyncio.new_event_loop()
    if kind not in available_loops():
        raise MissingExtraError(kind.value, extra=kind.value)
    loop = importlib.import_module(kind.value).new_event_loop()
    assert isinstance(loop, asyncio.AbstractEventLoop)  # noqa: S101 - narrows a foreign type
    return loop


def run(main: Coroutine[object, None, T], kind: LoopKind = LoopKind.ASYNCIO) -> T:
    """Run `main` to its end on a new loop.

    The first SIGINT or SIGTERM cancels `main`, so that everything it opened is closed in order. A
    second one is not waited for: it has its usual effect.

    Raises:
        Interrupted: A signal ended `main`.
        MissingExtraError: The loop's package is not installed.
    """
    try:
        loop = new_event_loop(kind)
    except BaseException:
        main.close()
        raise
    received: list[int] = []
    try:
        asyncio.set_event_loop(loop)
        task = loop.create_task(main, name="main")
        restore = _cancel_on_signal(loop, task, received)
        try:
            return loop.run_until_complete(task)
        except asyncio.CancelledError:
            if received:
                raise Interrupted(received[0]) from None
            raise
        finally:
            restore()
    finally:
        try:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            asyncio.set_event_loop(None)
            loop.close()


def _cancel_on_signal(
    loop: asyncio.AbstractEventLoop, task: asyncio.Task[T], received: list[int]
) -> _Restore:
    """Make stop signals cancel `task`; returns what puts the earlier handlers back."""
    restore = _Restore()

    def cancel(number: int) -> None:
        restore()
        received.append(number)
        task.cancel()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(cancel, number)

    for number in _STOP_SIGNALS:
        try:
            restore.handlers[number] = signal.signal(number, on_signal)
        except ValueError:  # not the main thread: signals are somebody else's business
            break
    return restore


class _Restore:
    """Puts signal handlers back, once."""

    def __init__(self) -> None:
        self.handlers: dict[int, _Handler] = {}

    def __call__(self) -> None:
        while self.handlers:
            number, handler = self.handlers.popitem()
            # None stands for a handler that was not installed from Python.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
