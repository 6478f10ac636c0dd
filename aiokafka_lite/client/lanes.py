"""A pool's state of each node: a connection per lane, and one backoff. Only the pool writes it."""

from __future__ import annotations

import asyncio
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
        """The versions of an open connection. A broker may return with another release."""
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
