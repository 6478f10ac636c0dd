"""Requests on their way through a node, and the ports of the network: connections and faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from aiokafka_lite.broker.context import Client, RequestContext
from aiokafka_lite.broker.handlers.registry import HandlerEntry
from aiokafka_lite.broker.network.request_log import SeenRequest
from aiokafka_lite.protocol.schema import Request, Response


class RequestWork:
    """A request on its way through a node.

    Attributes:
        seen: Its entry in the log of requests, if there is a log.
        rule: The fault that it was chosen for, if any.
        refused: What the fault has refused of it, while the rest is being handled.
        is_large: It has so many elements that it was decoded in slices.
    """

    __slots__ = (
        "context",
        "correlation_id",
        "entry",
        "is_large",
        "processor",
        "refused",
        "request",
        "rule",
        "seen",
        "size_bytes",
    )

    def __init__(
        self,
        processor: ServedConnection,
        entry: HandlerEntry,
        context: RequestContext,
        correlation_id: int,
        request: Request[Response],
        size_bytes: int,
    ) -> None:
        self.processor = processor
        self.entry = entry
        self.context = context
        self.correlation_id = correlation_id
        self.request = request
        self.size_bytes = size_bytes
        self.is_large = False
        self.seen: SeenRequest | None = None
        self.rule: RequestFault | None = None
        self.refused: Response | None = None


class BareToken(RequestWork):
    """A SASL token that came without a request around it, and is answered likewise."""

    __slots__ = ()


class ServedConnection(Client, Protocol):
    """A connection, as the dispatcher and faults use it. `Processor` documents the methods."""

    peer: str

    @property
    def is_open(self) -> bool: ...
    def call_when_gone(self, callback: Callable[[], None] | None) -> None: ...
    def answer(self, work: RequestWork, response: Response | None) -> None: ...
    def fail(self, work: RequestWork, error: BaseException) -> None: ...
    def send(self, work: RequestWork, response: Response | None) -> None: ...
    def encode(self, work: RequestWork, response: Response) -> bytes: ...
    def write_now(self, piece: bytes) -> None: ...
    def write_rest(self, work: RequestWork, response: Response, rest: bytes) -> None: ...
    def mute(self) -> None: ...
    def mute_for(self, throttle_s: float) -> None: ...
    def close_after(self, sent_bytes: int) -> None: ...
    def close(self) -> None: ...
    def reset(self) -> None: ...


class RequestFault(Protocol):
    """A fault that was chosen for a request."""

    def handle(self, work: RequestWork, go_on: Callable[[], None]) -> None:
        """Apply to the request, before `go_on` handles it."""

    def answer(self, work: RequestWork, response: Response | None) -> None:
        """Apply to the response."""


class AppliedFault(Protocol):
    """A fault that was chosen for a connection."""

    def apply(self, connection: ServedConnection) -> None: ...


class FaultPort(Protocol):
    """The faults of a broker. `faults/` implements it."""

    is_armed: bool
    is_armed_for_connections: bool

    def take(self, work: RequestWork) -> RequestFault | None:
        """Return the fault of a request, if a rule matches the request."""

    def take_for_connection(
        self, connection: ServedConnection, node_id: int
    ) -> AppliedFault | None:
        """Return the fault of a new connection, if a rule matches the connection."""
