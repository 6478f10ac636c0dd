"""Requests on their way through a node, and what a connection needs of its endpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.faults import Faults, Rule
from aiokafka_lite.broker.handlers.registry import HandlerEntry
from aiokafka_lite.broker.network.channel import RequestChannel
from aiokafka_lite.broker.network.request_log import RequestLog, SeenRequest
from aiokafka_lite.broker.security.session import SaslSession
from aiokafka_lite.protocol.schema import Request, Response

if TYPE_CHECKING:
    from aiokafka_lite.broker.network.processor import Processor


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
        processor: Processor,
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
        self.rule: Rule | None = None
        self.refused: Response | None = None


class BareToken(RequestWork):
    """A SASL token that came without a request around it, and is answered likewise."""

    __slots__ = ()


class Acceptor(Protocol):
    """What a connection needs of its endpoint."""

    @property
    def name(self) -> str:
        """The listener's name."""

    @property
    def channel(self) -> RequestChannel[RequestWork]: ...

    @property
    def max_frame_bytes(self) -> int: ...

    @property
    def faults(self) -> Faults: ...

    @property
    def requests(self) -> RequestLog: ...

    @property
    def id(self) -> int: ...

    @property
    def scope(self) -> TaskScope:
        """Where a connection starts tasks."""

    @property
    def on_bug(self) -> Callable[[str, BaseException], None]:
        """Told of an exception that a handler should not have let out: there is no answer."""

    def admit(self, processor: Processor) -> bool:
        """Count a new connection in, unless there are too many."""

    def dismiss(self, processor: Processor) -> None:
        """Count a connection out."""

    def new_session(self) -> SaslSession | None:
        """Begin the authentication of a new connection; None where there is none."""

    def context(self, processor: Processor, version: int, client_id: str | None) -> RequestContext:
        """Return what a handler is told about a request of this connection."""
