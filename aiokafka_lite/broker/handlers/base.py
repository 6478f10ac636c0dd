"""The base of all handlers: the context of a request, the registry, and helpers for responses."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, TypeVar, cast

from aiokafka_lite._arguments import expected, is_int
from aiokafka_lite._settings import nearest
from aiokafka_lite.broker.cluster import ClusterNode, EmbeddedCluster
from aiokafka_lite.broker.groups.coordinator import GroupCoordinator
from aiokafka_lite.broker.log.disk import DiskQueue
from aiokafka_lite.broker.refusals import Level, copy_names, levels_of
from aiokafka_lite.broker.security.session import SaslSession
from aiokafka_lite.broker.slices import LoopSlices, run_in_slices
from aiokafka_lite.broker.topics import Node, Partition
from aiokafka_lite.broker.transactions.coordinator import TransactionCoordinator
from aiokafka_lite.errors import (
    BrokerResponseError,
    FencedLeaderEpochError,
    KafkaError,
    KafkaStorageError,
    NoError,
    NotLeaderForPartitionError,
    UnknownError,
)
from aiokafka_lite.protocol.messages.fetch import NodeEndpoint
from aiokafka_lite.protocol.registry import API_KEYS, API_NAMES
from aiokafka_lite.protocol.schema import Message, Request, Response, Struct
from aiokafka_lite.protocol.source import Steps

Refuses: TypeAlias = "Callable[[str, int], type[BrokerResponseError] | None]"
"""Takes a topic's name and a partition; returns the error that a fault has for it."""


class Client(Protocol):
    """A client's connection for handlers."""

    peer_host: str
    sasl: SaslSession | None

    @property
    def listener_name(self) -> str: ...


@dataclass(slots=True)
class RequestContext:
    """A request's context. It is not frozen, because creating it would then take 2 µs."""

    cluster: EmbeddedCluster
    # The node that got the request. It serves the partitions that it leads.
    node: ClusterNode
    api_version: int
    client_id: str | None
    connection: Client
    # Returns the error of a partition that a fault refuses, in requests of sessions only.
    refuses: Refuses | None = None

    @property
    def client_host(self) -> str:
        """The client's address as Kafka writes it: "/127.0.0.1"."""
        return self.connection.peer_host

    def address_of(self, node: ClusterNode) -> Node:
        """Return a node's address on the client's listener."""
        return node.address_on(self.connection.listener_name)

    def partition(self, topic: str | bytes, index: int) -> Partition:
        """Return a partition of a topic, by name or id. Raises also the error of a fault."""
        partition = self.cluster.catalog.partition(topic, index)
        refused = self.refuses and self.refuses(partition.topic, index)
        if refused:
            raise refused
        return partition

    @property
    def groups(self) -> GroupCoordinator:
        return self.node.groups

    @property
    def transactions(self) -> TransactionCoordinator:
        return self.node.transactions


Api: TypeAlias = type[Request[Response]] | str | int | None
"""A request's class, the API's name ("Fetch"), or its key; None is every API."""


@dataclass(slots=True, eq=False)
class Delayed:
    """A response that waits for a change, or for its deadline."""

    keys: Sequence[Hashable]  # `is_ready` is called when one of these changes (`Purgatory.touch`)
    deadline: float  # the loop's time at which the response is sent anyway
    is_ready: Callable[[], Steps[bool]]
    response: Callable[[], Steps[Response]]


Answer: TypeAlias = "Response | Delayed | None"
Handle: TypeAlias = (
    "Callable[[RequestContext, Message], Answer | Awaitable[Answer] | Steps[Answer]]"
)

RequestT = TypeVar("RequestT", bound="Request[Response]")
ResponseT = TypeVar("ResponseT", bound=Response)


@dataclass(frozen=True)
class HandlerEntry:
    """A registered handler. `advertised_min_version` is ApiVersions' (see handlers/logs.py)."""

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
def load_handlers() -> None:
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
    load_handlers()
    if key is None or key not in HANDLERS:
        given = api.__name__ if isinstance(api, type) else repr(api)
        names = sorted(API_NAMES[each] for each in HANDLERS)
        raise ValueError(
            f"{given} is not an API of this broker, so no request would ever "
            f"match{nearest(str(api), names)}. The APIs are {', '.join(names)}"
        )
    return key


# Bits of org.apache.kafka.common.acl.AclOperation (KIP-430). Without an authorizer, all operations
# of a resource are allowed.
TOPIC_OPERATIONS: Final = sum(1 << bit for bit in (3, 4, 5, 6, 7, 8, 10, 11))
GROUP_OPERATIONS: Final = sum(1 << bit for bit in (3, 6, 8, 10, 11))
CLUSTER_OPERATIONS: Final = sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))
NOT_ASKED: Final = -(2**31)


def handles_each(
    request: type[Request[ResponseT]],
    *,
    then: Callable[[DiskQueue], Awaitable[None]] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register the decorated function as the `fill` of `answered`.

    The response waits for `then`, such as `DiskQueue.settled`.
    """

    def register(fill: Callable[..., None]) -> Callable[..., None]:
        def handle(ctx: RequestContext, asked: Request[ResponseT]) -> object:
            if then is None:
                return answered(ctx, asked, fill)
            return answered_after(ctx, asked, fill, then)

        handler(request)(handle)
        return fill

    return register


async def answered_after(
    ctx: RequestContext,
    request: Request[ResponseT],
    fill: Callable[..., None],
    then: Callable[[DiskQueue], Awaitable[None]],
) -> ResponseT:
    """Answer once the changes are durable. A failed write to the disk ends the request."""
    response = await run_in_slices(answered(ctx, request, fill, but=KafkaStorageError))
    await then(ctx.cluster.disk)
    return response


def answered(
    ctx: RequestContext,
    request: Request[ResponseT],
    fill: Callable[..., None],
    *,
    but: type[KafkaError] | tuple[()] = (),
) -> Steps[ResponseT]:
    """Answer each element of the request's innermost lists, such as each partition.

    `fill` takes the context, the request, the elements that lead to it, such as topic and
    partition, and the response's element, which has their names. It completes it, or raises its
    error. An error of the class `but` is raised for the whole request.
    """
    response = cast("ResponseT", request.response())
    levels = levels_of(type(request), ctx.api_version)[1:]
    yield from _answer(request, response, levels, fill, (ctx, request), LoopSlices(), but)
    return response


def _answer(
    asked: Struct,
    answer: Struct,
    levels: Sequence[Level],
    fill: Callable[..., None],
    path: tuple[object, ...],
    slices: LoopSlices,
    but: type[KafkaError] | tuple[()],
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
            yield from _answer(item, element, below, fill, (*path, item), slices, but)
        else:
            with refusing(element, but):
                fill(*path, item, element)


def answered_with(
    ctx: RequestContext, request: Request[ResponseT], errors: Iterable[type[BrokerResponseError]]
) -> Steps[ResponseT]:
    """Answer each element of the request's innermost lists with its error type, or NoError."""
    error_of_next = iter(errors)
    innermost = levels_of(type(request), ctx.api_version)[-1].error or ""

    def fill(*path: object) -> None:
        setattr(path[-1], innermost, next(error_of_next).errno)

    return answered(ctx, request, fill)


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


_MOVED: Final = (NotLeaderForPartitionError.errno, FencedLeaderEpochError.errno)


def hint_at_leaders(
    ctx: RequestContext, partitions: Iterable[tuple[tuple[str | bytes, int], Any]]
) -> list[NodeEndpoint]:
    """Add the leaders of moved partitions to the response, and return their addresses (KIP-951)."""
    leaders: dict[int, None] = {}
    for key, data in partitions:
        codes = (data.error_code, getattr(data, "acknowledge_error_code", NoError.errno))
        if not any(code in _MOVED for code in codes):
            continue
        try:
            partition = ctx.cluster.catalog.partition(*key)
        except BrokerResponseError:  # it was deleted after it was read
            continue
        if partition.leader_id in ctx.cluster.nodes:
            data.current_leader.leader_id = partition.leader_id
            data.current_leader.leader_epoch = partition.leader_epoch
            leaders[partition.leader_id] = None
    return endpoints(ctx, leaders)


def endpoints(ctx: RequestContext, node_ids: Iterable[int]) -> list[NodeEndpoint]:
    return [
        NodeEndpoint(node_id=at.id, host=at.host, port=at.port, rack=at.rack)
        for at in (ctx.address_of(ctx.cluster.nodes[each]) for each in node_ids)
    ]
