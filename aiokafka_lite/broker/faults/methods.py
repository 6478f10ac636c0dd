"""The methods of `Broker` and `BrokerThread` that add faults, for tests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping
from typing import Final, Generic, TypeVar

from aiokafka_lite._arguments import PLAIN_FUNCTION, Kind, checks_arguments, is_int
from aiokafka_lite.broker.faults.builder import Leaders, RuleBuilder
from aiokafka_lite.broker.faults.connections import (
    ConnectionFault,
    ConnectionMatch,
    ConnectionRuleBuilder,
)
from aiokafka_lite.broker.faults.rules import Action, Match, When
from aiokafka_lite.broker.handlers.registry import Api, api_key_of

RuleT = TypeVar("RuleT")
ConnectionRuleT = TypeVar("ConnectionRuleT")


_KINDS: Final[Mapping[str, Kind]] = {
    "When": PLAIN_FUNCTION,
    "int | Container[int]": Kind(
        "an int, or a list or range of ints",
        lambda given: (
            is_int(given) or (isinstance(given, Container) and not isinstance(given, str | bytes))
        ),
    ),
    "str | Container[str]": Kind(
        "a str, or a list of str",
        lambda given: isinstance(given, Container) and not isinstance(given, bytes),
    ),
}


@checks_arguments(_KINDS)
class FaultMethods(ABC, Generic[RuleT, ConnectionRuleT]):
    """Choose the requests and connections of faults."""

    def on(
        self,
        api: Api = None,
        *,
        node: int | None = None,
        client_id: str | Container[str] | None = None,
        peer: str | None = None,
        version: int | Container[int] | None = None,
        topic: str | Container[str] | None = None,
        partition: int | Container[int] | None = None,
        when: When | None = None,
    ) -> RuleBuilder[RuleT]:
        """Match requests. The methods of the returned builder add a fault for them.

        ::

            broker.on("Fetch", topic="t").fail(NotLeaderForPartitionError, times=2)
            with broker.on(HeartbeatRequest, client_id="slow").silence():
                ...

        The broker tries rules in the order in which they were added, and applies at most one to a
        request.

        Args:
            api: A request's class, the API's name or its key. None is all.
            node: The id of the node that gets the request.
            client_id: A client id, or a container of several.
            peer: The client's address: "127.0.0.1:50123".
            version: A version, or a container of several: `range(13, 19)`.
            topic: A topic, or a container of several, in the request or in its fetch session.
            partition: The same for partitions. With `topic`, of these topics only.
            when: A function of (context, request) that returns whether the request matches.

        Raises:
            ValueError: No request can match: the broker has no such API or version, or requests of
                the API name no topics.
        """
        match = Match(api_key_of(api), node, client_id, peer, version, topic, partition, when)
        match.check()
        return RuleBuilder(
            lambda action, times: self.put_rule(match, action, times), self.leaders_now
        )

    def on_connect(
        self, *, node: int | None = None, when: Callable[[str], bool] | None = None
    ) -> ConnectionRuleBuilder[ConnectionRuleT]:
        """Match new connections. The methods of the returned builder add a fault for them.

        Args:
            node: The id of the node that the client connects to.
            when: A function of the client's address, "host:port", that returns whether it matches.
        """
        match = ConnectionMatch(node, when)
        return ConnectionRuleBuilder(
            lambda fault, times, after_bytes: self.put_connection_rule(
                match, fault, times, after_bytes
            )
        )

    @abstractmethod
    def put_rule(self, match: Match, action: Action, times: int | None) -> RuleT:
        """Add a rule after the existing ones."""

    @abstractmethod
    def put_connection_rule(
        self, match: ConnectionMatch, fault: ConnectionFault, times: int | None, after_bytes: int
    ) -> ConnectionRuleT:
        """Add a rule for connections after the existing ones."""

    @abstractmethod
    def leaders_now(self) -> Leaders:
        """Return the leader ids and leader epochs by (topic, partition)."""
