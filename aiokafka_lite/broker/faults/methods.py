"""Methods that make a broker fail, for tests; the same on `Broker` and `BrokerThread`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container
from typing import Generic, TypeVar

from aiokafka_lite.broker.faults.builder import Leaders, RuleBuilder
from aiokafka_lite.broker.faults.connections import (
    ConnectionFault,
    ConnectionMatch,
    ConnectionRuleBuilder,
)
from aiokafka_lite.broker.faults.rules import Action, Api, Match, When, api_key_of

RuleT = TypeVar("RuleT")
ConnectionRuleT = TypeVar("ConnectionRuleT")


class FaultMethods(ABC, Generic[RuleT, ConnectionRuleT]):
    """Chooses the requests and connections that faults apply to."""

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
        """Choose requests; the methods of the returned builder say what happens to them.

        ::

            broker.on("Fetch", topic="t").fail(NotLeaderForPartitionError, times=2)
            with broker.on(HeartbeatRequest, client_id="slow").silence():
                ...

        Rules are tried in the order they were made, and at most one applies to a request.

        Args:
            api: A request's class, the API's name, its key, or None for all.
            node: The id of the node that is asked.
            client_id: One client, or a container of some.
            peer: The connection, by the client's address: "127.0.0.1:50123".
            version: One version, or a container: `range(13, 19)`.
            topic: Requests that name such a topic; also of a fetch session that has it.
            partition: Requests that name such a partition, of one of these topics.
            when: A function of (context, request) that decides.

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
        """Choose new connections; the methods of the returned builder say what happens to them.

        Args:
            node: The id of the node that is connected to.
            when: Told the client's address, "host:port", decides.
        """
        match = ConnectionMatch(node, when)
        return ConnectionRuleBuilder(
            lambda fault, times, after_bytes: self.put_connection_rule(
                match, fault, times, after_bytes
            )
        )

    @abstractmethod
    def put_rule(self, match: Match, action: Action, times: int | None) -> RuleT:
        """Make a rule, after those there are."""

    @abstractmethod
    def put_connection_rule(
        self, match: ConnectionMatch, fault: ConnectionFault, times: int | None, after_bytes: int
    ) -> ConnectionRuleT:
        """Make a rule for connections, after those there are."""

    @abstractmethod
    def leaders_now(self) -> Leaders:
        """Return who leads, and in which epoch, by (topic, partition)."""
