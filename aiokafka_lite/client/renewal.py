"""Renews SASL sessions before they end, on their connections (KIP-368)."""

from __future__ import annotations

import asyncio
import random

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client.connection import Authenticate, Connection


class Renewals:
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
