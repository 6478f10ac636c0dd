"""Responses: one element for each of the request, error codes, authorized operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar, cast

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.refusals import Level, copy_names, levels_of
from aiokafka_lite.broker.slices import LoopSlices
from aiokafka_lite.errors import BrokerResponseError, KafkaError, UnknownError
from aiokafka_lite.protocol.schema import Request, Response, Struct
from aiokafka_lite.protocol.source import Steps

# Bits of org.apache.kafka.common.acl.AclOperation (KIP-430). Without an authorizer, all operations
# of a resource are allowed.
TOPIC_OPERATIONS: Final = sum(1 << bit for bit in (3, 4, 5, 6, 7, 8, 10, 11))
GROUP_OPERATIONS: Final = sum(1 << bit for bit in (3, 6, 8, 10, 11))
CLUSTER_OPERATIONS: Final = sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))
NOT_ASKED: Final = -(2**31)

ResponseT = TypeVar("ResponseT", bound=Response)


def answered(
    ctx: RequestContext, request: Request[ResponseT], fill: Callable[..., None]
) -> Steps[ResponseT]:
    """Answer each element of the request's innermost lists, such as each partition.

    `fill` takes the context, the elements that lead to it, such as topic and partition, and the
    response's element, which has their names. It completes it, or raises its error.
    """
    response = cast("ResponseT", request.response())
    levels = levels_of(type(request), ctx.api_version)[1:]
    yield from _answer(request, response, levels, fill, (ctx,), LoopSlices())
    return response


def answered_with(
    ctx: RequestContext, request: Request[ResponseT], errors: Iterable[type[BrokerResponseError]]
) -> Steps[ResponseT]:
    """Answer each element of the request's innermost lists with its error type, or NoError."""
    error_of_next = iter(errors)
    innermost = levels_of(type(request), ctx.api_version)[-1].error or ""

    def fill(*path: object) -> None:
        setattr(path[-1], innermost, next(error_of_next).errno)

    return answered(ctx, request, fill)


def _answer(
    asked: Struct,
    answer: Struct,
    levels: Sequence[Level],
    fill: Callable[..., None],
    path: tuple[object, ...],
    slices: LoopSlices,
) -> Steps[None]:
    level, below = levels[0], levels[1:]
    elements: list[Struct] = []
    setattr(answer, level.answered_in or "", elements)
    for item in getattr(asked, level.asked_in or ""):
        if slices.is_over:
            yield from slices.pause()
        element = level.struct()
        elements.append(element)
        copy_names(item, element)
        if below:
            yield from _answer(item, element, below, fill, (*path, item), slices)
        else:
            with refusing(element):
                fill(*path, item, element)


class refusing:  # noqa: N801 -- it reads like a function: with refusing(element):
    """Puts an error that is raised in the block, except one of `but`, into a response's element."""

    __slots__ = ("_but", "_element")

    def __init__(self, element: Struct, but: type[KafkaError] | tuple[()] = ()) -> None:
        self._element = element
        self._but = but

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, traceback: object) -> bool:
        if not isinstance(error, KafkaError) or isinstance(error, self._but):
            return False
        setattr(self._element, "error_code", code_of(error))  # noqa: B010 — of any struct
        if hasattr(self._element, "error_message"):
            setattr(self._element, "error_message", text_of(error))  # noqa: B010
        return True


def code_of(error: KafkaError) -> int:
    return error.errno if isinstance(error, BrokerResponseError) else UnknownError.errno


def text_of(error: KafkaError) -> str:
    """Return the error's message, without its name and number."""
    if error.args:
        return str(error.args[0])
    return error.description if isinstance(error, BrokerResponseError) else str(error)
