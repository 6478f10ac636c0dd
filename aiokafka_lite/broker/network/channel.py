"""The bounded queue between connections and handlers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class RequestChannel(Generic[T]):
    """Requests in the order they arrived, at most `capacity` of them.

    Nothing is ever dropped: a connection asks for room before it takes its next frame, and while
    there is none it stops reading and waits to be called back, in turn.
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
        """`put` may be called."""
        return len(self._requests) < self._capacity

    def put(self, request: T) -> None:
        """Add a request; there must be room."""
        if not self.has_room:
            raise RuntimeError("the request channel is full")
        self._requests.append(request)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def call_when_room(self, callback: Callable[[], None]) -> None:
        """Call back once, soon after a request was taken; the room may be gone again by then."""
        self._waiting.append(callback)

    async def take(self) -> T:
        """Return the oldest request, waiting for one; only one task may wait at a time.

        Cancelled while it waits, it has taken nothing.
        """
        while not self._requests:
            self._arrival = self._loop.create_future()
            try:
                await self._arrival
            finally:
                self._arrival = None
        if self._waiting:
            self._loop.call_soon(self._waiting.popleft())
        return self._requests.popleft()
