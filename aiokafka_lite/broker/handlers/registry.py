"""Which function answers which API, and in which versions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar, cast

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.protocol.schema import Message, Request, Response
from aiokafka_lite.protocol.source import Steps

R = TypeVar("R")


@dataclass(frozen=True)
class Delayed(Generic[R]):
    """An answer that cannot be given yet.

    Attributes:
        keys: The purgatory calls `try_complete` when one of these changes (`Purgatory.touch`).
        deadline: The loop's time at which `expire` returns the answer.
        try_complete: Returns the answer, or None, without effects, to wait longer.
        expire: Returns the answer at the deadline.
    """

    keys: Sequence[Hashable]
    deadline: float
    try_complete: Callable[[], R | None]
    expire: Callable[[], R]


Late: TypeAlias = "Delayed[Response | Steps[Response]]"
Answer: TypeAlias = "Response | Late | None"
Handle: TypeAlias = (
    "Callable[[RequestContext, Message], Answer | Awaitable[Answer] | Steps[Answer]]"
)

RequestT = TypeVar("RequestT", bound="Request[Response]")
ResponseT = TypeVar("ResponseT", bound=Response)


@dataclass(frozen=True)
class HandlerEntry:
    """One API as this broker serves it, versions inclusive.

    Attributes:
        advertised_min_version: What ApiVersions says; differs from `min_version` for Produce only.
        is_by_element: Each element of its lists is answered on its own.
    """

    request: type[Request[Response]]
    handle: Handle
    min_version: int
    max_version: int
    advertised_min_version: int
    is_by_element: bool


HANDLERS: dict[int, HandlerEntry] = {}


def handler(
    request: type[Request[ResponseT]],
    *,
    advertised_min_version: int | None = None,
    is_by_element: bool = False,
) -> Callable[[Callable[[RequestContext, RequestT], object]], Callable[..., object]]:
    """Register the decorated function as the one that answers `request`.

    The function takes (context, request) and may be plain, a coroutine function, or a generator
    function that yields where other work of the loop may have its turn. It returns the response;
    or a `Delayed` that will; or None when the client expects no response (acks=0).
    Versions are all stable ones that the protocol layer declares. With `is_by_element` each element
    of the request's lists is answered on its own, whatever else is asked for: a large request is
    handled as many small ones, with other work of the loop in between.
    """
    lowest = request.min_version

    def register(
        function: Callable[[RequestContext, RequestT], object],
    ) -> Callable[[RequestContext, RequestT], object]:
        if request.api_key in HANDLERS:
            raise ValueError(f"{request.__name__} already has a handler")
        HANDLERS[request.api_key] = HandlerEntry(
            request=cast("type[Request[Response]]", request),
            handle=cast("Handle", function),
            min_version=lowest,
            max_version=request.max_version,
            advertised_min_version=(
                lowest if advertised_min_version is None else advertised_min_version
            ),
            is_by_element=is_by_element,
        )
        return function

    return register
