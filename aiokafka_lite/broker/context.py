"""A request's context: the node that got it, the node's cluster, and the client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from aiokafka_lite.broker.cluster import ClusterNode, EmbeddedCluster
from aiokafka_lite.broker.groups.coordinator import GroupCoordinator
from aiokafka_lite.broker.security.session import SaslSession
from aiokafka_lite.broker.topics import Node
from aiokafka_lite.broker.transactions.coordinator import TransactionCoordinator
from aiokafka_lite.errors import BrokerResponseError

Refuses: TypeAlias = "Callable[[str, int], type[BrokerResponseError] | None]"
"""Takes a topic's name and a partition; returns the error that a fault has for it."""


class Client(Protocol):
    """A client's connection for handlers."""

    peer_host: str
    sasl: SaslSession | None

    @property
    def listener_name(self) -> str: ...


@dataclass(slots=True)
class RequestContext:
    """A request's context. It is not frozen, because creating it would then take 2 µs.

    Attributes:
        node: The node that got the request. It serves the partitions that it leads.
        refuses: Returns the error of a partition that a fault refuses, in a Fetch request only.
    """

    cluster: EmbeddedCluster
    node: ClusterNode
    api_version: int
    client_id: str | None
    connection: Client
    refuses: Refuses | None = None

    @property
    def client_host(self) -> str:
        """The client's address as Kafka writes it: "/127.0.0.1"."""
        return self.connection.peer_host

    def address_of(self, node: ClusterNode) -> Node:
        """Return a node's address on the client's listener."""
        return node.address_on(self.connection.listener_name)

    @property
    def groups(self) -> GroupCoordinator:
        return self.node.groups

    @property
    def transactions(self) -> TransactionCoordinator:
        return self.node.transactions
