"""Private attributes of aiokafka's consumer that programs in the wild have come to use.

All of it is compatibility, and no way to reach more of this package. Most of the attributes are
views over its parts that answer what is asked of aiokafka's.

==============================================  ====================================================
attribute                                       asked by
==============================================  ====================================================
``_group_id``                                   everybody; a plain attribute of the consumer
``_closed``                                     everybody; some set it, so that nobody is warned
``_subscription.topics``                        FastStream's log of assignments
``_coordinator.member_id``                      FastStream's log of assignments
``_coordinator._rejoin_needed_fut.done()``      health checks: is a rebalance due or under way
``_client._bootstrap_servers``, ``_client_id``  OpenTelemetry's instrumentation
``_client.ready(_client.get_random_node())``    health checks: is a broker reachable
``_client.cluster``                             health checks: which brokers, topics and partitions
``_client.force_metadata_update()``             programs that wait for a topic they have created
==============================================  ====================================================
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from aiokafka_lite.consumer.assignors.abstract import TopicsOfCluster
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.life import Engine
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.protocol.messages.metadata import MetadataRequest
from aiokafka_lite.structs import BrokerMetadata


class SubscriptionNames:
    """What is asked of ``consumer._subscription``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def topics(self) -> frozenset[str]:
        """The topics subscribed to, or those of the partitions assigned by hand."""
        state = self._engine.state
        return state.subscription or frozenset(tp.topic for tp in state.assignment)


class CoordinatorNames:
    """What is asked of ``consumer._coordinator``."""

    def __init__(self, engine: Engine) -> None:
        self._membership = engine.running.membership

    @property
    def member_id(self) -> str:
        """The id that the group's coordinator gave; empty while there is none."""
        return self._membership.member_id

    @property
    def generation(self) -> int:
        """The group's generation that the assignment is of; -1 while there is none."""
        return self._membership.generation

    @property
    def coordinator_id(self) -> int | None:
        """The node that coordinates the group; None while it is not known."""
        return self._membership.coordinator_id

    @property
    def _rejoin_needed_fut(self) -> asyncio.Future[None]:
        """A future that is done when the member has to join again, or is about to."""
        future = asyncio.get_running_loop().create_future()
        if not self._membership.is_settled:
            future.set_result(None)
        return future


class ClientNames:
    """What is asked of ``consumer._client``."""

    def __init__(self, engine: Engine, config: ConsumerConfig[object, object]) -> None:
        self._engine = engine
        self._client_id = config.client_id
        self._bootstrap_servers: str | Sequence[str] = config.bootstrap_servers

    @property
    def cluster(self) -> ClusterNames:
        """What metadata says at the moment.

        Raises:
            ConsumerStoppedError: The consumer is stopped.
            IllegalStateError: It was not started.
        """
        return ClusterNames(self._engine.running.cluster.view)

    def get_random_node(self) -> int | None:
        """Return the id of one of the brokers; None when none is known."""
        nodes = sorted(self._engine.running.cluster.view.nodes)
        return random.choice(nodes) if nodes else None

    async def ready(self, node_id: int | None, *, group: object = None) -> bool:
        """Return whether a broker answers, within request_timeout_ms.

        aiokafka only looks whether there is a connection, or can be: a broker that hangs seems
        ready to it.
        """
        if node_id is None or self._engine.current is None:
            return False
        try:
            await self._engine.running.cluster.request(node_id, MetadataRequest(topics=[]))
        except KafkaError:
            return False
        return True

    async def force_metadata_update(self) -> bool:
        """Fetch metadata now; return whether that worked."""
        try:
            await self._engine.running.cluster.refresh()
        except KafkaError:
            return False
        return True


class ClusterNames(TopicsOfCluster):
    """What is asked of ``consumer._client.cluster``."""

    def brokers(self) -> set[BrokerMetadata]:
        """Return the brokers of the cluster."""
        return {BrokerMetadata(*node) for node in self._view.nodes.values()}
