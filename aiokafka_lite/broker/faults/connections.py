"""Faults of connections, independent of their requests."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from aiokafka_lite._arguments import checks_arguments
from aiokafka_lite._compat import Self
from aiokafka_lite.broker.network.work import ServedConnection

RuleT_co = TypeVar("RuleT_co", covariant=True)


class Removable(ABC):
    """A rule that ends with its `with` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.remove()

    @abstractmethod
    def remove(self) -> None:
        """End the rule. Idempotent."""


class ConnectionFault(enum.Enum):
    REFUSE = "a new connection is reset as soon as it is accepted"
    SILENCE = "a new connection stays open, but no request is ever answered"
    CLOSE_AFTER = "a connection is closed after the broker has sent a given number of bytes"


@dataclass(frozen=True)
class ConnectionMatch:
    """The connections that a rule applies to. None matches all. See `Broker.on_connect`."""

    node: int | None = None
    when: Callable[[str], bool] | None = None

    def covers(self, connection: ServedConnection, node_id: int) -> bool:
        return (self.node is None or self.node == node_id) and (
            self.when is None or self.when(connection.peer)
        )


class ConnectionRule(Removable):
    """A fault of connections. It ends after `times` connections, by `remove`, or with its `with`.

    Attributes:
        hits: The number of connections that it has applied to.
    """

    def __init__(
        self,
        faults: ConnectionFaults,
        match: ConnectionMatch,
        fault: ConnectionFault,
        times: int | None,
        after_bytes: int = 0,
    ) -> None:
        if times is not None and times < 1:
            raise ValueError(f"times must be at least 1, or None for no limit, not {times}")
        self.hits = 0
        self.fault = fault
        self.after_bytes = after_bytes
        self._faults = faults
        self.match: Final = match
        self._left = times

    @property
    def is_over(self) -> bool:
        return self not in self._faults.connection_rules

    def remove(self) -> None:
        """End the rule. Silenced connections stay silent. Idempotent."""
        self._faults.drop_for_connections(self)

    def take(self) -> None:
        self.hits += 1
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                self.remove()

    def apply(self, connection: ServedConnection) -> None:
        match self.fault:
            case ConnectionFault.REFUSE:
                connection.reset()
            case ConnectionFault.SILENCE:
                connection.mute()
            case ConnectionFault.CLOSE_AFTER:
                connection.close_after(self.after_bytes)


class ConnectionFaults:
    """All rules for connections, in order. Written only from the broker's loop."""

    def __init__(self) -> None:
        self.is_armed_for_connections = False
        self._connection_rules: list[ConnectionRule] = []

    @property
    def connection_rules(self) -> Sequence[ConnectionRule]:
        """The rules for connections that have not ended."""
        return tuple(self._connection_rules)

    def put_for_connections(self, rule: ConnectionRule) -> None:
        self._connection_rules.append(rule)
        self.is_armed_for_connections = True

    def drop_for_connections(self, rule: ConnectionRule) -> None:
        if rule in self._connection_rules:
            self._connection_rules.remove(rule)
        self.is_armed_for_connections = bool(self._connection_rules)

    def take_for_connection(
        self, connection: ServedConnection, node_id: int
    ) -> ConnectionRule | None:
        for rule in self._connection_rules:
            if rule.match.covers(connection, node_id):
                rule.take()
                return rule
        return None


@checks_arguments()
class ConnectionRuleBuilder(Generic[RuleT_co]):
    """The fault of the connections that `on_connect` matches."""

    def __init__(self, put: Callable[[ConnectionFault, int | None, int], RuleT_co]) -> None:
        self._put = put

    def refuse(self, times: int | None = 1) -> RuleT_co:
        """Reset connections as soon as they are accepted.

        To refuse connections at the port itself, stop the node (`stop_node`).
        """
        return self._put(ConnectionFault.REFUSE, times, 0)

    def silence(self, times: int | None = 1) -> RuleT_co:
        """Accept connections and send no response. They stay open until the broker stops."""
        return self._put(ConnectionFault.SILENCE, times, 0)

    def close_after(self, sent_bytes: int, times: int | None = 1) -> RuleT_co:
        """Close connections after `sent_bytes` bytes, in the middle of a response."""
        if sent_bytes < 0:
            raise ValueError(f"sent_bytes must be at least 0, not {sent_bytes}")
        return self._put(ConnectionFault.CLOSE_AFTER, times, sent_bytes)
