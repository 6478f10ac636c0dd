"""A pool's state of each node: a connection per lane, and one backoff. Only the pool writes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import ClassVar

from aiokafka_lite.client.backoff import Backoff
from aiokafka_lite.client.config import Address
from aiokafka_lite.client.connection import Connection
from aiokafka_lite.client.versions import ApiVersions
from aiokafka_lite.client.view import Node
from aiokafka_lite.errors import KafkaError


class Lane:
    """The purpose of a connection. Consumers create more FETCH lanes if they need them.

    `waits_for_throttled`: requests wait while a broker throttles (KIP-219).
    """

    FETCH: ClassVar[Lane]  # long polls wait in the broker for records
    QUICK: ClassVar[Lane]  # fetches that do not wait, during a long poll
    PRODUCE: ClassVar[Lane]  # acks=all waits in the broker for replicas
    GROUP: ClassVar[Lane]  # JoinGroup and SyncGroup wait in the broker for other members
    GENERAL: ClassVar[Lane]  # requests that are answered at once, such as heartbeats

    __slots__ = ("name", "waits_for_throttled")

    def __init__(self, name: str, *, waits_for_throttled: bool = False) -> None:
        self.name = name
        self.waits_for_throttled = waits_for_throttled

    def __repr__(self) -> str:
        return f"<lane {self.name}>"


# Other lanes ignore throttling, because a late heartbeat would end the membership.
Lane.FETCH = Lane("fetch", waits_for_throttled=True)
Lane.QUICK = Lane("quick", waits_for_throttled=True)
Lane.PRODUCE = Lane("produce", waits_for_throttled=True)
Lane.GROUP = Lane("group")
Lane.GENERAL = Lane("general")


class Slot:
    """One lane of a node. Its `muted_until` outlasts a lost connection (KIP-219)."""

    __slots__ = ("connecting", "connection", "lane", "muted_until", "opened_at")

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.connection: Connection | None = None
        self.connecting: asyncio.Task[KafkaError | None] | None = None
        self.opened_at = 0.0
        self.muted_until = 0.0


class Slots(dict[Lane, Slot]):
    def __missing__(self, lane: Lane) -> Slot:
        slot = self[lane] = Slot(lane)
        return slot


class NodeState:
    """A node at one endpoint. A new endpoint has a new state."""

    __slots__ = ("backoff", "last_error", "lost_at", "next_attempt_at", "node", "slots")

    def __init__(self, node: Node, backoff: Backoff) -> None:
        self.node = node
        self.backoff = backoff
        self.next_attempt_at = 0.0
        self.last_error: KafkaError | None = None
        # Loop time of the first such error.
        self.lost_at = 0.0
        self.slots = Slots()

    @property
    def api_versions(self) -> ApiVersions | None:
        """The broker's versions, known while one of its connections is open.

        After all are lost, the broker may return with another release.
        """
        for slot in self.slots.values():
            if slot.connection is not None and slot.connection.error is None:
                return slot.connection.api_versions
        return None

    def name_node(self, node: Node) -> None:
        self.node = node
        for slot in self.slots.values():
            if slot.connection is not None:
                slot.connection.wire.name_node(node.id)

    @property
    def in_flight_count(self) -> int:
        return sum(
            slot.connection.in_flight_count for slot in self.slots.values() if slot.connection
        )

    def __str__(self) -> str:
        address = Address(self.node.host, self.node.port)
        return (
            f"bootstrap server {address}"
            if self.node.id < 0
            else f"node {self.node.id} at {address}"
        )


class IdleTimer:
    """Fires when the connection with the oldest use may be due."""

    def __init__(
        self,
        max_idle_s: float | None,
        connected: Callable[[], Iterable[tuple[Slot, Connection]]],
        let_go: Callable[[Slot, Connection], None],
        guard: Callable[..., Callable[..., None]],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._max_idle_s = max_idle_s
        self._connected = connected
        self._let_go = let_go
        self._guard = guard
        self._timer: asyncio.TimerHandle | None = None

    def arm(self) -> None:
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
