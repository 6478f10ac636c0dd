"""Handlers that are plain functions: each call runs in a thread of the run's own.

A thread cannot be cancelled. So a call that is cancelled, by a time limit or a rebalance, waits for
its thread, and its worker begins no other record meanwhile: there are never more calls than
threads, and the records of a lane stay in order. Only the end of `run` leaves threads behind.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING

from aiokafka_lite._threads import OwnThreads
from aiokafka_lite.consumer.processing.outbox import Outputs
from aiokafka_lite.errors import NoHandlerError

if TYPE_CHECKING:
    from aiokafka_lite.consumer.processing.handlers import Call, Handler

log = logging.getLogger(__name__)


class HandlerThreads:
    """The threads of one run. `is_over`: it waits no longer for those that are cancelled."""

    def __init__(self, is_over: Callable[[], bool]) -> None:
        self._threads = OwnThreads("handler")
        self._is_over = is_over

    def call_of(self, handler: Handler) -> Call:
        """Return a coroutine function that calls a plain function."""

        async def call(*given: object) -> None:
            # Outputs of its own: those of a call that is not waited for are dropped.
            sent = {each: each.of_a_thread() for each in given if isinstance(each, Outputs)}
            arguments = [sent[each] if isinstance(each, Outputs) else each for each in given]
            try:
                await self._end_of(partial(copy_context().run, in_thread, handler, *arguments))
                for outputs, own in sent.items():
                    outputs.take(own)
            finally:
                for own in sent.values():
                    own.close()

        return call

    async def _end_of(self, call: Callable[[], None]) -> None:
        work = self._threads.run(call)
        while True:
            try:
                await asyncio.wait([work])
                break
            except asyncio.CancelledError:
                if self._is_over():
                    raise
        try:
            work.result()
        finally:
            del work  # the traceback of its error has this frame

    def close(self) -> None:
        """End the threads. Those that are running a call end with it."""
        if running_count := self._threads.close():
            log.warning(
                "run() has ended, and %d threads are still running handlers: their records are not "
                "finished",
                running_count,
            )


def in_thread(handler: Handler, *arguments: object) -> None:
    try:
        result = handler(*arguments)
    except StopIteration as error:  # a future cannot have it
        raise RuntimeError("the handler raised StopIteration") from error
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise NoHandlerError(
            f"the handler {handler!r} is a plain function, but returned {result!r}, which was not "
            "awaited: make it an async def function"
        )
