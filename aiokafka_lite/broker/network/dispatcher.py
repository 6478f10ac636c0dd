"""Passes requests to handlers, and responses to connections."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import cast

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.broker.handlers.registry import Answer, Delayed
from aiokafka_lite.broker.network.work import (
    FaultPort,
    Purgatory,
    RequestChannel,
    RequestWork,
    Watch,
)
from aiokafka_lite.broker.slices import TIME_SLICE_S, run_in_slices
from aiokafka_lite.protocol.schema import Response
from aiokafka_lite.protocol.source import Steps


@dataclass(eq=False)
class Dispatcher:
    """The task that calls the handlers of a node.

    A waiting handler does not delay requests of other connections. It returns a `Delayed`, which
    the purgatory keeps, or it is a coroutine function, which runs in its own task.
    """

    channel: RequestChannel[RequestWork]
    purgatory: Purgatory
    scope: TaskScope
    faults: FaultPort

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        slice_ends = 0.0
        while True:
            if not len(self.channel):
                slice_ends = 0.0
            work = await self.channel.take()
            if self.faults.is_armed:
                self._apply_fault(work)
            else:
                self._handle(work)
            now = loop.time()
            if not slice_ends:
                slice_ends = now + TIME_SLICE_S
            elif now >= slice_ends:
                await asyncio.sleep(0)
                slice_ends = 0.0

    def _apply_fault(self, work: RequestWork) -> None:
        try:
            self.faults.handle(work, partial(self._handle, work))
        except BaseException as error:  # noqa: BLE001 — reported: the test's own functions may fail
            _fail(work, error)

    def _handle(self, work: RequestWork) -> None:
        try:
            self._take(work, work.entry.handle(work.context, work.request))
        except BaseException as error:  # noqa: BLE001 — reported; one bad handler must not stop all
            _fail(work, error)

    def _take(self, work: RequestWork, given: Answer | Awaitable[Answer] | Steps[Answer]) -> None:
        answer = _begun(given) if isinstance(given, types.GeneratorType) else given
        if isinstance(answer, Response) or answer is None:
            work.processor.answer(work, answer)
        elif isinstance(answer, Delayed):
            self._delay(work, answer)
        else:
            self._spawn(work, cast("Awaitable[Answer]", answer))

    def _spawn(self, work: RequestWork, answer: Awaitable[Answer]) -> None:
        # If the scope ends before the task's first step, nothing awaits the handler's coroutine.
        close = answer.close if isinstance(answer, Coroutine) else None
        try:
            task = self.scope.spawn(self._await(work, answer), name=work.entry.request.__name__)
        except RuntimeError:
            if close is not None:
                close()
            raise
        if close is not None:
            task.add_done_callback(lambda _: close())

    def _delay(self, work: RequestWork, delayed: Delayed) -> Watch:
        def attempt(is_due: bool) -> None:
            try:
                if is_due or delayed.is_ready():
                    watch.cancel()
                    self._take(work, delayed.response())
            except BaseException as error:  # noqa: BLE001 — reported
                watch.cancel()
                _fail(work, error)

        watch = self.purgatory.watch(delayed.keys, delayed.deadline, attempt)
        work.processor.call_when_closed(watch.cancel)
        return watch

    async def _await(self, work: RequestWork, answer: Awaitable[Answer]) -> None:
        try:
            result: object = await answer
            if isinstance(result, Awaitable):  # of a generator function
                result = await result
            if isinstance(result, Delayed):
                watch = self._delay(work, result)
                await asyncio.sleep(0)
                if not watch.is_over:  # a key may have changed before it was watched
                    watch.attempt(False)
            else:
                work.processor.answer(work, cast("Response | None", result))
        except Exception as error:  # noqa: BLE001 — reported
            work.processor.fail(work, error)


def _fail(work: RequestWork, error: BaseException) -> None:
    """Report an error, such as the one of `pytest.fail`, which is no Exception."""
    if isinstance(error, KeyboardInterrupt | SystemExit):
        raise error
    work.processor.fail(work, error)


def _begun(steps: Steps[Answer]) -> Answer | Awaitable[Answer]:
    """Take the first step, which completes a small request."""
    try:
        next(steps)
    except StopIteration as end:
        answer: Answer = end.value
        return answer
    return run_in_slices(steps)
