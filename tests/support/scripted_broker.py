"""A broker that does what a test tells it: a real TCP server, answering with our own framing."""

from __future__ import annotations

import asyncio
import enum
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import cast

from aiokafka_lite._compat import Self
from aiokafka_lite.broker.node import close_server
from aiokafka_lite.protocol import framing, registry
from aiokafka_lite.protocol.messages.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from aiokafka_lite.protocol.schema import Request, Response
from tests.support.frames import request_in


class Do(enum.Enum):
    """What to do instead of answering."""

    NOTHING = "leave the request unanswered"
    CLOSE = "close the connection"
    RESET = "reset the connection"


@dataclass(frozen=True)
class Asked:
    """A request as it arrived, and the connection it arrived on."""

    request: Request[Response]
    version: int
    correlation_id: int
    client_id: str | None
    peer: ServerConnection

    def encode(self, response: Response) -> bytes:
        """Return the answer's bytes, its size first, as a broker would send them."""
        return framing.encode_response(response, self.version, self.correlation_id)


#: A message to answer with, raw bytes to send instead, or something to do.
Answer = Response | bytes | Do
Script = Callable[[Asked], Answer]


class ServerConnection(asyncio.Protocol):
    """The server's end of one connection."""

    transport: asyncio.Transport

    def __init__(self, broker: ScriptedBroker) -> None:
        self._broker = broker
        self._unparsed = bytearray()
        self.is_closed = False
        self.lost_by: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is not a subclass
        self._broker.connections.append(self)
        if self._broker.greeting is not None:
            self.transport.write(self._broker.greeting)

    def data_received(self, data: bytes) -> None:
        if self._broker.is_hanging_up:
            self.transport.abort()
            return
        self._unparsed += data
        while len(self._unparsed) >= 4 and not self.transport.is_closing():
            size = int.from_bytes(self._unparsed[:4], "big")
            if len(self._unparsed) < 4 + size:
                return
            frame = bytes(self._unparsed[4 : 4 + size])
            del self._unparsed[: 4 + size]
            self._answer(frame)

    def _answer(self, frame: bytes) -> None:
        parsed = framing.decode_request(memoryview(frame))
        asked = Asked(
            request_in(parsed), parsed.version, parsed.correlation_id, parsed.client_id, self
        )
        self._broker.note(asked)
        match self._broker.scripts[type(asked.request)](asked):
            case bytes() as raw:
                self.transport.write(raw)
            case Do.CLOSE:
                self.transport.close()
            case Do.RESET:
                self.transport.abort()
            case Do.NOTHING:
                pass
            case Response() as response:
                self.transport.write(asked.encode(response))

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed, self.lost_by = True, exc
        self._broker.changed()


class ScriptedBroker:
    """A node of a cluster; answers ApiVersions and Metadata unless told otherwise.

    Attributes:
        scripts: By request class, what to answer.
        asked: Every request that arrived, in order.
        connections: Every connection accepted, in order.
        greeting: Sent to each connection at once, to be something else than a broker.
        is_hanging_up: Whether each connection is reset at its first bytes.
        brokers: What Metadata answers as nodes; this one by default.
        topics: What Metadata answers for topics; others are unknown.
        cluster_id: Of the cluster that it says it is of.
    """

    def __init__(self, node_id: int = 1, ssl_context: ssl.SSLContext | None = None) -> None:
        self.node_id = node_id
        self._ssl_context = ssl_context
        self.scripts: dict[type[Request[Response]], Script] = {
            ApiVersionsRequest: lambda _: all_versions(),
            MetadataRequest: self.metadata,
        }
        self.asked: list[Asked] = []
        self.connections: list[ServerConnection] = []
        self.greeting: bytes | None = None
        self.is_hanging_up = False
        self.brokers: list[MetadataResponseBroker] | None = None
        self.topics: dict[str, MetadataResponseTopic] = {}
        self.cluster_id = "scripted"
        self.host, self.port = "127.0.0.1", 0
        self._server: asyncio.Server | None = None
        self._changed = asyncio.Event()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def as_broker(self) -> MetadataResponseBroker:
        return MetadataResponseBroker(node_id=self.node_id, host=self.host, port=self.port)

    async def start(self) -> None:
        """Listen, on the port of the time before when there was one."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: ServerConnection(self),
            self.host,
            self.port,
            reuse_address=True,
            ssl=self._ssl_context,
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and cut every connection."""
        server, self._server = self._server, None
        if server is not None:
            await close_server(server)
        for connection in self.connections:
            connection.transport.abort()
        await self.until(lambda: all(connection.is_closed for connection in self.connections))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    def note(self, asked: Asked) -> None:
        self.asked.append(asked)
        self.changed()

    def changed(self) -> None:
        self._changed.set()

    def count(self, request_class: type[Request[Response]]) -> int:
        return sum(isinstance(asked.request, request_class) for asked in self.asked)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; looked at whenever something arrives or closes."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def until_asked(self, request_class: type[Request[Response]], times: int = 1) -> None:
        await self.until(lambda: self.count(request_class) >= times)

    def metadata(self, asked: Asked) -> MetadataResponse:
        """Answer Metadata from ``brokers`` and ``topics``."""
        assert isinstance(asked.request, MetadataRequest)
        wanted = asked.request.topics
        names = list(self.topics) if wanted is None else [topic.name or "" for topic in wanted]
        return MetadataResponse(
            brokers=[self.as_broker] if self.brokers is None else self.brokers,
            cluster_id=self.cluster_id,
            controller_id=self.node_id,
            topics=[
                self.topics.get(name, MetadataResponseTopic(error_code=3, name=name))
                for name in names
            ],
        )


def always(answer: Answer) -> Script:
    """Return the script that gives every request this answer."""
    return lambda _: answer


def all_versions() -> ApiVersionsResponse:
    return offered(
        {key: (cls.min_version, cls.max_version) for key, cls in registry.REQUESTS.items()}
    )


def offered(ranges: dict[int, tuple[int, int]], error_code: int = 0) -> ApiVersionsResponse:
    return ApiVersionsResponse(
        error_code=error_code,
        api_keys=[
            ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in ranges.items()
        ],
    )


def topic(
    name: str,
    leaders: Iterable[int],
    *,
    leader_epoch: int = -1,
    topic_id: bytes = bytes(16),
    error_code: int = 0,
) -> MetadataResponseTopic:
    """Return a topic with one partition for each leader."""
    return MetadataResponseTopic(
        error_code=error_code,
        name=name,
        topic_id=topic_id,
        partitions=[
            MetadataResponsePartition(
                partition_index=index,
                leader_id=leader,
                leader_epoch=leader_epoch,
                replica_nodes=[leader],
                isr_nodes=[leader],
                error_code=0 if leader >= 0 else 5,
            )
            for index, leader in enumerate(leaders)
        ],
    )


def silence(*brokers: ScriptedBroker) -> None:
    """Let brokers answer nothing, not even the first request."""
    for broker in brokers:
        broker.scripts[ApiVersionsRequest] = lambda _: Do.NOTHING
