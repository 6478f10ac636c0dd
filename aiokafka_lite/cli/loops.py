"""Runs a command's coroutine on an event loop, so that Ctrl-C ends it cleanly."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import signal
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Final, TypeAlias, TypeVar

from aiokafka_lite._compat import StrEnum
from aiokafka_lite.cli.problems import Interrupted, MissingExtraError

T = TypeVar("T")

_Handler: TypeAlias = "Callable[[int, FrameType | None], object] | int | None"
_STOP_SIGNALS: Final = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM") if hasattr(signal, name)
)


class LoopKind(StrEnum):
    ASYNCIO = "asyncio"
    UVLOOP = "uvloop"


def loop_kind(text: str) -> LoopKind:
    try:
        return LoopKind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an event loop: write {' or '.join(LoopKind)}"
        ) from None


def available_loops() -> list[LoopKind]:
    return [
        kind
        for kind in LoopKind
        if kind is LoopKind.ASYNCIO or importlib.util.find_spec(kind.value) is not None
    ]


def new_event_loop(kind: LoopKind) -> asyncio.AbstractEventLoop:
    if kind is LoopKind.ASYNCIO:
        return asyncio.new_event_loop()
    if kind not in available_loops():
        raise MissingExtraError(kind.value, extra=kind.value)
    loop = importlib.import_module(kind.value).new_event_loop()
    assert isinstance(loop, asyncio.AbstractEventLoop)  # noqa: S101 - narrows a foreign type
    return loop


class StopSignals:
    """Replaces the handlers of SIGINT and SIGTERM, and restores them."""

    def __init__(self) -> None:
        self._earlier: dict[int, _Handler] = {}

    def take(self, heed: Callable[[int], object]) -> None:
        """Call `heed` with the number of each signal. Has no effect outside of the main thread."""
        for number in _STOP_SIGNALS:
            try:
                self._earlier[number] = signal.signal(number, lambda caught, _: heed(caught))
            except ValueError:
                break

    def give_back(self) -> None:
        while self._earlier:
            number, handler = self._earlier.popitem()
            # None is a handler that was not installed from Python.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def run(main: Coroutine[object, None, T], kind: LoopKind = LoopKind.ASYNCIO) -> T:
    """Run `main` to its end on a new loop.

    The first SIGINT or SIGTERM cancels `main`, which raises Interrupted after closing everything. A
    second one has its usual effect.
    """
    try:
        loop = new_event_loop(kind)
    except BaseException:
        main.close()
        raise
    received: list[int] = []
    signals = StopSignals()
    try:
        asyncio.set_event_loop(loop)
        task = loop.create_task(main, name="main")

        def cancel(number: int) -> None:
            signals.give_back()
            received.append(number)
            task.cancel()

        signals.take(lambda number: loop.call_soon_threadsafe(cancel, number))
        try:
            return loop.run_until_complete(task)
        except asyncio.CancelledError:
            if received:
                raise Interrupted(received[0]) from None
            raise
        finally:
            signals.give_back()
    finally:
        try:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            asyncio.set_event_loop(None)
            loop.close()
