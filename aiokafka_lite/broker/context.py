"""What a handler is told about the request besides its fields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from aiokafka_lite.broker.security.session import SaslSession

if TYPE_CHECKING:
    from aiokafka_lite.broker.groups.coordinator import GroupCoordinator
    from aiokafka_lite.broker.node import BrokerNode
    from aiokafka_lite.broker.server import Broker
    from aiokafka_lite.broker.topics import Node
    from aiokafka_lite.broker.transactions.coordinator import TransactionCoordinator
    from aiokafka_lite.errors import BrokerResponseError

Refuses: TypeAlias = "Callable[[str, int], type[BrokerResponseError] | None]"
"""Takes a topic's name and a partition; returns the error that a fault has for it."""


class Client(Protocol):
    """A client's connection, as handlers see it."""

    peer_host: str
    sasl: SaslSession | None

    @property
    def listener_name(self) -> str:
        """The listener that the client connected to."""

    @property
    def principal(self) -> str:
        """The client's name in Kafka: "User:alice", "User:ANONYMOUS"."""


@dataclass(slots=True)
class RequestContext:
    """Where a request came from, and who answers it. Nobody writes to it; frozen, it takes 2 µs.

    Attributes:
        cluster: What the node is a part of: topics, purgatory, configuration.
        node: The node that was asked; it answers for what it leads.
        api_version: The version the request came in; handlers only need it where a version
            changed the meaning of a message and not its fields.
        client_id: As the client names itself; None when it does not.
        connection: The client's connection: its listener, its SASL session, who it is.
        refuses: Only in a Fetch that a fault is for: which partitions are not served.
    """

    cluster: Broker
    node: BrokerNode
    api_version: int
    client_id: str | None
    connection: Client
    refuses: Refuses | None = None

    @property
    def client_host(self) -> str:
        """The peer's address, written as Kafka writes it ("/127.0.0.1")."""
        return self.connection.peer_host

    @property
    def principal(self) -> str:
        """Who the client is, as Kafka names it: "User:alice", "User:ANONYMOUS"."""
        return self.connection.principal

    def address_of(self, node: BrokerNode) -> Node:
        """Where this client reaches a node: on the listener it came by, with its id and rack."""
        return node.address_on(self.connection.listener_name)

    @property
    def groups(self) -> GroupCoordinator:
        """The group coordinator of the node."""
        return self.node.groups

    @property
    def transactions(self) -> TransactionCoordinator:
        """The transaction coordinator of the node."""
        return self.node.transactions
