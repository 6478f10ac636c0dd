"""Closes unused connections, with one timer for a pool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from aiokafka_lite.client.connection import Connection
from aiokafka_lite.client.lanes import Slot


class Guard(Protocol):
    """`TaskScope.guard`: a callback's exception fails the scope."""

    def __call__(self, callback: Callable[[], object], *, name: str) -> Callable[..., None]: ...


class IdleTimer:
    """Fires when the connection with the oldest use may be due."""

    def __init__(
        self,
        max_idle_s: float | None,
        connected: Callable[[], Iterable[tuple[Slot, Connection]]],
        let_go: Callable[[Slot, Connection], None],
        guard: Guard,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._max_idle_s = max_idle_s
        self._connected = connected
        self._let_go = let_go
        self._guard = guard
        self._timer: asyncio.TimerHandle | None = None

    def arm(self) -> None:
        """Set the timer, if it is not set, because a connection was opened."""
        if self._max_idle_s is not None and self._timer is None:
            self._set(self._loop.time() + self._max_idle_s, self._max_idle_s)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, when: float, max_idle_s: float) -> None:
        close = self._guard(lambda: self._close_idle(max_idle_s), name="closing idle connections")
        self._timer = self._loop.call_at(when, close)

    def _close_idle(self, max_idle_s: float) -> None:
        self._timer = None
        now = self._loop.time()
        next_due = None
        for slot, connection in list(self._connected()):
            due = connection.last_used + max_idle_s
            if connection.in_flight_count:
                due = now + max_idle_s
            elif due <= now:
                self._let_go(slot, connection)
                continue
            next_due = due if next_due is None else min(next_due, due)
        if next_due is not None:
            self._set(next_due, max_idle_s)
