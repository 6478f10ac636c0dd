"""Actions on requests, before they are handled or instead."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from aiokafka_lite._arguments import expected, is_int, plain
from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.faults.rules import Error, RequestAction, topic_names
from aiokafka_lite.broker.network.work import RequestWork
from aiokafka_lite.broker.refusals import Place, Refusal, RefusalReason, is_error_class
from aiokafka_lite.errors import BrokerResponseError, for_code
from aiokafka_lite.protocol.messages.fetch import FetchRequest
from aiokafka_lite.protocol.schema import Request, Response

Replacement: TypeAlias = "Response | Callable[[RequestContext, Request[Response]], Response | None]"
"""An answer, or a plain function that makes one; after None the request is handled as usual."""

# Errors of fetch sessions. Kafka puts them into the response itself, not into partitions.
_ABOUT_THE_SESSION = frozenset({70, 71, 106})


class Fail(RequestAction):
    def __init__(self, error: Error, at: Place | None) -> None:
        self._code, self._text = _code_and_text(error)
        self._at = at

    def __repr__(self) -> str:
        return f"fail with {for_code(self._code).message} ({self._code})"

    def covers(self, work: RequestWork) -> bool:
        is_fetch = isinstance(work.request, FetchRequest)  # its session has more partitions
        return is_fetch or not self._refusal(work).is_empty(work.request)

    def handle(self, work: RequestWork, go_on: Callable[[], None]) -> None:
        request, context = work.request, work.context
        if isinstance(request, FetchRequest) and self._is_for_partitions:
            # The partitions depend on the session, so the handler decides.
            impatient = copy.copy(request)
            impatient.max_wait_ms = 0
            work.request = impatient
            concerns, error = self.rule.match.concerns, for_code(self._code)
            work.context = replace(
                context,
                refuses=lambda topic, index: error if concerns(topic, index) else None,
            )
            go_on()
            return
        refusal = self._refusal(work)
        if not refusal.is_listed(request):
            go_on()  # the request is for everything, which only the response lists
            return
        refused, rest = refusal.split(request, self._refused(work))
        if rest is not None:
            work.refused = refused
            work.request = rest
            go_on()
        elif request.expects_response:
            work.processor.answer(work, refused)
        else:
            work.processor.close()  # acks=0: Kafka, too, reports errors this way

    def answer(self, work: RequestWork, response: Response | None) -> bool:
        if response is not None:
            self._complete(work, response)
        work.processor.send(work, response)
        return True

    def _complete(self, work: RequestWork, response: Response) -> None:
        refusal, request = self._refusal(work), work.request
        if work.refused is not None:
            refusal.merge(response, work.refused)
            return
        if isinstance(request, FetchRequest) and self._is_for_partitions:
            needs_marks = self._code not in BrokerResponseError.by_code
        else:
            needs_marks = not refusal.is_listed(request)
        if needs_marks:
            refusal.mark(response, self._refused(work))

    def _refused(self, work: RequestWork) -> RefusalReason:
        concerns = self.rule.match.concerns
        return RefusalReason(self._code, self._text, concerns, topic_names(work.context))

    @property
    def _is_for_partitions(self) -> bool:
        return self._at != "answer" and self._code not in _ABOUT_THE_SESSION

    def _refusal(self, work: RequestWork) -> Refusal:
        at = self._at
        if isinstance(work.request, FetchRequest) and not self._is_for_partitions:
            at = "answer"
        of_topics = self.rule.match.is_about_partitions
        return Refusal(type(work.request), work.context.api_version, at, of_topics=of_topics)


def _code_and_text(error: Error) -> tuple[int, str]:
    if not (is_int(error) or is_error_class(error) or isinstance(error, BrokerResponseError)):
        wanted = "a Kafka error, such as NotLeaderForPartitionError, or its error code"
        raise TypeError(expected("error", wanted, error))
    if isinstance(error, int) and not -(2**15) <= error < 2**15:
        raise ValueError(expected("error", "an error code from -32768 to 32767", error))
    if isinstance(error, int):
        return error, for_code(error).description
    code = error.errno
    text = str(error.args[0]) if isinstance(error, BrokerResponseError) and error.args else ""
    return code, text or error.description


@dataclass(eq=False)
class Silence(RequestAction):
    """Stops requests before they are handled, or their responses."""

    is_handled: bool

    def handle(self, work: RequestWork, go_on: Callable[[], None]) -> None:
        if self.is_handled:
            go_on()
        else:
            self._stop(work, go_on)

    def answer(self, work: RequestWork, response: Response | None) -> bool:
        def send() -> None:
            if work.processor.is_open:
                work.processor.send(work, response)

        if self.is_handled:
            self._stop(work, send)
        else:
            send()
        return True

    def _stop(self, work: RequestWork, go_on: Callable[[], None]) -> None:
        pass


@dataclass(eq=False)
class Delay(Silence):
    delay_s: float

    def _stop(self, work: RequestWork, go_on: Callable[[], None]) -> None:
        self.rule.faults.call_later(self.delay_s, go_on)


@dataclass(eq=False)
class Disconnect(Silence):
    is_reset: bool
    after_bytes: int | None

    def answer(self, work: RequestWork, response: Response | None) -> bool:
        if self.after_bytes is not None and response is not None:
            frame = work.processor.encode(work, response)
            work.processor.write_now(frame[: self.after_bytes])
        return super().answer(work, response)

    def _stop(self, work: RequestWork, go_on: Callable[[], None]) -> None:
        if self.is_reset:
            work.processor.reset()
        else:
            work.processor.close()


@dataclass(eq=False)
class TakeOver(RequestAction):
    """Sends the response of the test."""

    replacement: Replacement

    def handle(self, work: RequestWork, go_on: Callable[[], None]) -> None:
        replacement = self.replacement
        if isinstance(replacement, Response):
            answer: Response | None = replacement
        else:
            result: object = replacement(work.context, work.request)
            if result is not None and not isinstance(result, Response):
                plain("answer() takes a plain function, not a coroutine function", result)
                wanted = "a Response or None"
                raise TypeError(expected("the result of answer()'s function", wanted, result))
            answer = result
        if answer is None:
            go_on()
        else:
            work.processor.answer(work, answer)
