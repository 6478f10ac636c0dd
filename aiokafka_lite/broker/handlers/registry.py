"""The registry of handlers: the function and the versions of each API."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar, cast

from aiokafka_lite._arguments import expected, is_int
from aiokafka_lite._settings import nearest
from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.protocol.registry import API_KEYS, API_NAMES
from aiokafka_lite.protocol.schema import Message, Request, Response
from aiokafka_lite.protocol.source import Steps

Api: TypeAlias = type[Request[Response]] | str | int | None
"""A request's class, the API's name ("Fetch"), or its key; None is every API."""


@dataclass(slots=True, eq=False)
class Delayed:
    """A response that waits for a change, or for its deadline.

    Attributes:
        keys: `is_ready` is called when one of these changes (`Purgatory.touch`).
        deadline: The loop's time at which the response is sent anyway.
    """

    keys: Sequence[Hashable]
    deadline: float
    is_ready: Callable[[], bool]
    response: Callable[[], Steps[Response]]


Answer: TypeAlias = "Response | Delayed | None"
Handle: TypeAlias = (
    "Callable[[RequestContext, Message], Answer | Awaitable[Answer] | Steps[Answer]]"
)

RequestT = TypeVar("RequestT", bound="Request[Response]")
ResponseT = TypeVar("ResponseT", bound=Response)


@dataclass(frozen=True)
class HandlerEntry:
    """A registered handler. `advertised_min_version` is ApiVersions' (see handlers/produce.py)."""

    request: type[Request[Response]]
    handle: Handle
    advertised_min_version: int


HANDLERS: dict[int, HandlerEntry] = {}


def handler(
    request: type[Request[ResponseT]],
    *,
    advertised_min_version: int | None = None,
) -> Callable[[Callable[[RequestContext, RequestT], object]], Callable[..., object]]:
    """Register the decorated function as the handler of `request`, in all stable versions.

    The function takes (context, request). It is plain, a coroutine function, or a generator
    function that yields where other work of the loop may run. It returns the response, a `Delayed`,
    or None if the client expects no response (acks=0).
    """

    def register(
        function: Callable[[RequestContext, RequestT], object],
    ) -> Callable[[RequestContext, RequestT], object]:
        if request.api_key in HANDLERS:
            raise ValueError(f"{request.__name__} already has a handler")
        HANDLERS[request.api_key] = HandlerEntry(
            request=cast("type[Request[Response]]", request),
            handle=cast("Handle", function),
            advertised_min_version=(
                request.min_version if advertised_min_version is None else advertised_min_version
            ),
        )
        return function

    return register


@functools.cache
def load() -> None:
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        importlib.import_module(f"{__package__}.{module.name}")


def api_key_of(api: Api) -> int | None:
    """Return the key of an API that the broker has, or None for all APIs."""
    if api is None:
        return None
    if not isinstance(api, type | str) and not is_int(api):
        raise TypeError(expected("api", "a request class, an API name or an API key", api))
    if isinstance(api, type):
        key: int | None = getattr(api, "api_key", None)
    else:
        key = API_KEYS.get(api.removesuffix("Request")) if isinstance(api, str) else api
    load()
    if key is None or key not in HANDLERS:
        given = api.__name__ if isinstance(api, type) else repr(api)
        names = sorted(API_NAMES[each] for each in HANDLERS)
        raise ValueError(
            f"{given} is not an API of this broker, so no request would ever "
            f"match{nearest(str(api), names)}. The APIs are {', '.join(names)}"
        )
    return key
