"""When a pool sends credentials: one at a time, and again before a session ends."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client.connection import Authenticate, Connection
from aiokafka_lite.client.wire import own_copy
from aiokafka_lite.errors import KafkaError


class Turns:
    """Lets one bootstrap server at a time receive credentials, because wrong ones lock accounts."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._refusal: KafkaError | None = None
        self._refusal_count = 0

    def ticket(self) -> Callable[[], AbstractAsyncContextManager[None]]:
        """Return a context for an attempt that begins now to send credentials.

        Entering it raises if credentials were refused since the ticket.
        """
        return partial(self._turn, self._refusal_count)

    @asynccontextmanager
    async def _turn(self, seen_count: int) -> AsyncIterator[None]:
        async with self._lock:
            if self._refusal is not None and self._refusal_count != seen_count:
                raise own_copy(self._refusal)
            try:
                yield
            except KafkaError as error:
                if not error.retriable:
                    self._refusal = error
                    self._refusal_count += 1
                raise


class Renewals:
    """Renews SASL sessions before they end, on their connections (KIP-368)."""

    def __init__(
        self,
        scope: TaskScope,
        rng: random.Random,
        authenticate: Authenticate | None,
        timeout_s: float,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._scope = scope
        self._rng = rng
        self._authenticate = authenticate
        self._timeout_s = timeout_s

    def plan(self, connection: Connection) -> None:
        if connection.wire.session_lifetime_s:
            renew = self._scope.guard(
                lambda: self._renew_soon(connection), name="renewing a session"
            )
            timer = self._loop.call_at(connection.wire.renewal_at(self._rng), renew)
            connection.closed.add_done_callback(lambda _: timer.cancel())

    def _renew_soon(self, connection: Connection) -> None:
        if connection.error is None and self._scope.failure is None:
            self._scope.spawn(self._renew(connection), name=f"renew session with {connection.peer}")

    async def _renew(self, connection: Connection) -> None:
        if self._authenticate is None:
            raise AssertionError("a SASL session needs renewal, but the client has no credentials")
        await connection.renew(self._authenticate, self._timeout_s)
        if connection.error is None:
            self.plan(connection)
