"""Runs a command's coroutine on an event loop, so that Ctrl-C ends it cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
from collections.abc import Coroutine
from typing import TypeVar

from aiokafka_lite._compat import StrEnum
from aiokafka_lite._signals import StopSignals
from aiokafka_lite.cli.problems import Interrupted, MissingExtraError

T = TypeVar("T")


class LoopKind(StrEnum):
    ASYNCIO = "asyncio"
    UVLOOP = "uvloop"


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


def run(
    main: Coroutine[object, None, T],
    kind: LoopKind = LoopKind.ASYNCIO,
    *,
    handles_signals: bool = True,
) -> T:
    """Run `main` to its end on a new loop.

    With `handles_signals`, the first SIGINT or SIGTERM cancels `main`, which raises Interrupted
    after closing everything. A second one has its usual effect.
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
            signals.give_back()  # here, because `main` may block the loop
            received.append(number)
            loop.call_soon_threadsafe(task.cancel)

        if handles_signals:
            signals.take(cancel)
        try:
            return loop.run_until_complete(task)
        except asyncio.CancelledError:
            if received:
                raise Interrupted(received[0]) from None
            raise
        except KeyboardInterrupt:  # without a handler, as before `consumer.run`
            if not received and task.cancel():
                with contextlib.suppress(asyncio.CancelledError):
                    loop.run_until_complete(task)
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
