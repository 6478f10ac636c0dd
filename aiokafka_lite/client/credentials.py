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


def plan_renewal(
    connection: Connection,
    authenticate: Authenticate,
    timeout_s: float,
    scope: TaskScope,
    rng: random.Random,
) -> None:
    """Renew a SASL session before it ends, on its connection (KIP-368), and so on."""
    if not connection.wire.session_lifetime_s:
        return

    async def renew() -> None:
        await connection.renew(authenticate, timeout_s)
        if connection.error is None:
            plan_renewal(connection, authenticate, timeout_s, scope, rng)

    def renew_soon() -> None:
        if connection.error is None and scope.failure is None:
            scope.spawn(renew(), name=f"renew session with {connection.peer}")

    at = connection.wire.renewal_at(rng)
    timer = connection.loop.call_at(at, scope.guard(renew_soon, name="renewing a session"))
    connection.closed.add_done_callback(lambda _: timer.cancel())
