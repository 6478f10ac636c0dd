"""Requests in a node: their queue, their waits, and the interfaces of connections and faults."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from aiokafka_lite.broker.context import Client, RequestContext
from aiokafka_lite.broker.handlers.registry import HandlerEntry
from aiokafka_lite.broker.network.request_log import SeenRequest
from aiokafka_lite.protocol.schema import Request, Response


@dataclass(slots=True, eq=False)
class RequestWork:
    """`refused` is the response for elements that a fault refuses, while the rest is handled."""

    processor: ServedConnection
    entry: HandlerEntry
    context: RequestContext
    correlation_id: int
    request: Request[Response]
    size_bytes: int
    seen: SeenRequest | None = None
    rule: RequestFault | None = None
    refused: Response | None = None


class BareToken(RequestWork):
    """A SASL token outside of a request. Its response is a bare token, too."""

    __slots__ = ()


class ServedConnection(Client, Protocol):
    """The methods of `Processor` that the dispatcher and faults use."""

    peer: str

    @property
    def is_open(self) -> bool: ...
    def call_when_closed(self, callback: Callable[[], None] | None) -> None: ...
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
    def answer(self, work: RequestWork, response: Response | None) -> None: ...


class FaultPort(Protocol):
    """The faults of a broker. `faults/` implements it."""

    is_armed: bool
    is_armed_for_connections: bool

    def handle(self, work: RequestWork, go_on: Callable[[], None]) -> None:
        """Apply the fault of a request, if it has one. `go_on` handles the request."""

    def connected(self, connection: ServedConnection, node_id: int) -> None:
        """Apply the fault of a new connection, if it has one."""


T = TypeVar("T")


class RequestChannel(Generic[T]):
    """The bounded queue between connections and handlers.

    A connection takes its next frame only if there is room. Waiting connections get room in turn.
    """

    def __init__(self, capacity: int, loop: asyncio.AbstractEventLoop) -> None:
        self._capacity = capacity
        self._loop = loop
        self._requests: deque[T] = deque()
        self._waiting: deque[Callable[[], None]] = deque()
        self._arrival: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def has_room(self) -> bool:
        return len(self._requests) < self._capacity

    def put(self, request: T) -> None:
        """Add a request. There must be room."""
        if not self.has_room:
            raise RuntimeError("the request channel is full")
        self._requests.append(request)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def call_when_room(self, callback: Callable[[], None]) -> None:
        """Call back once, after a request was taken. Another connection may use the room first."""
        self._waiting.append(callback)

    async def take(self) -> T:
        """Return the oldest request. Only one task may wait. Cancellation takes no request."""
        while not self._requests:
            self._arrival = self._loop.create_future()
            try:
                await self._arrival
            finally:
                self._arrival = None
        if self._waiting:
            self._loop.call_soon(self._waiting.popleft())
        return self._requests.popleft()


@dataclass(slots=True, eq=False)
class Watch:
    """A wait for a change of one of `keys`. `attempt` gets whether the deadline has passed."""

    purgatory: Purgatory
    keys: Sequence[Hashable]
    attempt: Callable[[bool], None]
    timer: asyncio.TimerHandle = field(init=False)

    @property
    def is_over(self) -> bool:
        return self.timer.cancelled()

    def cancel(self) -> None:
        """End the wait. Idempotent."""
        self.timer.cancel()
        self.purgatory.forget(self)


class Purgatory:
    """Waits for changes, by key. The name is Kafka's (DelayedOperationPurgatory)."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # Dicts instead of sets, because the order of completion must not depend on hashes.
        self._watches: dict[Hashable, dict[Watch, None]] = {}

    def __len__(self) -> int:
        return len({id(watch) for watches in self._watches.values() for watch in watches})

    def watch(
        self, keys: Sequence[Hashable], deadline: float, attempt: Callable[[bool], None]
    ) -> Watch:
        """Call `attempt` after each change of a key, and at the deadline, until `cancel`."""
        watch = Watch(self, keys, attempt)
        watch.timer = self._loop.call_at(deadline, attempt, True)
        for key in keys:
            self._watches.setdefault(key, {})[watch] = None
        return watch

    def touch(self, key: Hashable) -> None:
        waiting = self._watches.get(key, {})
        for watch in tuple(waiting):
            if watch in waiting:  # an earlier one's attempt may have cancelled it
                watch.attempt(False)

    def forget(self, watch: Watch) -> None:
        for key in watch.keys:
            waiting = self._watches.get(key, {})
            waiting.pop(watch, None)
            if not waiting:
                self._watches.pop(key, None)

    def close(self) -> None:
        while self._watches:
            waiting = next(iter(self._watches.values()))
            next(iter(waiting)).cancel()
