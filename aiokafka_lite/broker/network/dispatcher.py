"""From the request channel to the handlers, and their answers back to the connections."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Final, TypeVar

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.broker.faults import Faults
from aiokafka_lite.broker.handlers.registry import Answer
from aiokafka_lite.broker.network.channel import RequestChannel
from aiokafka_lite.broker.network.purgatory import Delayed, Purgatory
from aiokafka_lite.broker.network.quotas import ClientQuotas
from aiokafka_lite.broker.network.work import Work
from aiokafka_lite.errors import KafkaProtocolError, KafkaStorageError
from aiokafka_lite.protocol.schema import Response

# How long requests are handled before other work of the loop gets its turn.
TIME_SLICE_S: Final = 0.001

T = TypeVar("T")


class Dispatcher:
    """The task that takes requests from the channel and calls their handlers.

    A plain handler answers on the spot. One that has to wait returns a `Delayed`, which the
    purgatory keeps, or is a coroutine function, whose coroutine gets a task of its own. Either
    way the next request is taken: waiting holds up its own connection only.

    Args:
        faults: What is to happen to requests instead, if anything.
        quotas: Whether anybody wants to know how long handlers take.
        on_bug: Told of an exception that a handler should not have let out; the connection is
            closed, since there is no answer.
    """

    def __init__(
        self,
        channel: RequestChannel[Work],
        purgatory: Purgatory[Response],
        scope: TaskScope,
        faults: Faults,
        quotas: ClientQuotas,
        on_bug: Callable[[str, BaseException], None],
    ) -> None:
        self._channel = channel
        self._purgatory = purgatory
        self._scope = scope
        self._faults = faults
        self._quotas = quotas
        self._on_bug = on_bug

    async def run(self) -> None:
        """Handle requests until cancelled."""
        loop = asyncio.get_running_loop()
        slice_ends = 0.0
        while True:
            if not len(self._channel):
                slice_ends = 0.0
            work = await self._channel.take()
            if self._faults.is_armed:
                self._suffer(work)
            else:
                self._handle(work)
            now = loop.time()
            if not slice_ends:
                slice_ends = now + TIME_SLICE_S
            elif now >= slice_ends:
                await asyncio.sleep(0)
                slice_ends = 0.0

    def _suffer(self, work: Work) -> None:
        """Handle a request, or let the rule for it do what it does."""
        try:
            work.rule = rule = self._faults.take(work)
            if rule is not None:
                rule.handle(work, partial(self._handle, work))
        except Exception as error:  # noqa: BLE001 — reported: the test's own functions may fail
            self._failed(work, error)
            return
        if rule is None:
            self._handle(work)

    def _handle(self, work: Work) -> None:
        if self._quotas.is_timing:
            work.started_at = asyncio.get_running_loop().time()
        try:
            answer = work.entry.handle(work.context, work.request)
            if isinstance(answer, Response) or answer is None:
                work.processor.answer(work, answer)
            elif isinstance(answer, Delayed):
                self._delay(work, answer)
            else:
                self._scope.spawn(self._await(work, answer), name=work.entry.request.__name__)
        except Exception as error:  # noqa: BLE001 — reported; one bad handler must not stop all
            self._failed(work, error)

    def _delay(self, work: Work, delayed: Delayed[Response]) -> None:
        watch = self._purgatory.watch(delayed, partial(self._complete, work))
        work.processor.call_when_gone(watch.cancel)

    def _complete(self, work: Work, answer: Callable[[], Response]) -> None:
        if self._quotas.is_timing:
            work.started_at = asyncio.get_running_loop().time()
        try:
            work.processor.answer(work, answer())
        except Exception as error:  # noqa: BLE001 — reported
            self._failed(work, error)

    async def _await(self, work: Work, answer: Awaitable[Answer]) -> None:
        try:
            if work.started_at is None:
                result = await answer
            else:
                now_s = asyncio.get_running_loop().time
                result, spent_s = await _timed(answer, now_s)
                # As if it had worked all the time since then: waiting is not work.
                work.started_at = now_s() - spent_s
            if isinstance(result, Delayed):
                self._delay(work, result)
            else:
                work.processor.answer(work, result)
        except Exception as error:  # noqa: BLE001 — reported
            self._failed(work, error)

    def _failed(self, work: Work, error: Exception) -> None:
        # Hanging up is the handler's way out, and all that is left where the disk has failed: to
        # answer would be to promise what a restart forgets.
        if isinstance(error, KafkaProtocolError | KafkaStorageError):
            work.processor.refuse(error)
            return
        context = work.context
        self._on_bug(
            f"{work.entry.request.__name__} v{context.api_version} from {work.processor.peer} "
            f"(client id {context.client_id!r}) could not be handled",
            error,
        )
        work.processor.abort()


@types.coroutine
def _timed(
    awaitable: Awaitable[T], now_s: Callable[[], float]
) -> Generator[object, object, tuple[T, float]]:
    """Await something; return its result, and how long it ran itself, without its waiting."""
    steps = awaitable.__await__()
    spent_s = 0.0
    resume: Callable[[], object] = partial(next, steps)
    while True:
        began_s = now_s()
        try:
            waited_for = resume()
        except StopIteration as end:
            return end.value, spent_s + now_s() - began_s
        spent_s += now_s() - began_s
        try:
            yield waited_for
        except BaseException as error:  # noqa: BLE001 — passed on, cancellation too
            resume = partial(_throw, steps, error)
        else:
            resume = partial(next, steps)


def _throw(steps: Generator[object, object, object], error: BaseException) -> object:
    return steps.throw(error)
