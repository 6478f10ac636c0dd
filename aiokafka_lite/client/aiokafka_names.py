"""What programs in the wild ask of the client inside aiokafka's consumer and producer.

All of it is compatibility, and no way to reach more of this package: views that answer what is
asked of ``consumer._client`` and ``producer.client``.

======================================  ============================================================
attribute                               asked by
======================================  ============================================================
``_bootstrap_servers``, ``_client_id``  OpenTelemetry's instrumentation
``ready(get_random_node())``            health checks: is a broker reachable
``cluster``                             health checks: which brokers, topics and partitions
``force_metadata_update()``             programs that wait for a topic they have created
======================================  ============================================================
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from aiokafka_lite.client.arguments import ClientArguments
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.client.view import TopicsOfCluster
from aiokafka_lite.errors import ConsumerStoppedError, KafkaError
from aiokafka_lite.protocol.messages.metadata import MetadataRequest
from aiokafka_lite.structs import BrokerMetadata

# ConsumerStoppedError is no KafkaError, as in aiokafka.
NOT_THERE: Final = (KafkaError, ConsumerStoppedError)


class ClientNames:
    """What is asked of a client.

    Args:
        running: Returns the cluster; raises one of NOT_THERE where there is none.
        arguments: Of the consumer or producer.
    """

    def __init__(self, running: Callable[[], Cluster], arguments: ClientArguments) -> None:
        self._running = running
        self._client_id = arguments.client_id
        self._bootstrap_servers: str | Sequence[str] = arguments.bootstrap_servers

    @property
    def cluster(self) -> ClusterNames:
        """What metadata says at the moment.

        Raises:
            KafkaError, ConsumerStoppedError: It was not started, or is stopped.
        """
        return ClusterNames(self._running().view)

    def get_random_node(self) -> int | None:
        """Return the id of one of the brokers; None when none is known."""
        nodes = sorted(self._running().view.nodes)
        return random.choice(nodes) if nodes else None

    async def ready(self, node_id: int | None, *, group: object = None) -> bool:
        """Return whether a broker answers, within request_timeout_ms.

        aiokafka only looks whether there is a connection, or can be: a broker that hangs seems
        ready to it.
        """
        if node_id is None:
            return False
        try:
            await self._running().request(node_id, MetadataRequest(topics=[]))
        except NOT_THERE:
            return False
        return True

    async def force_metadata_update(self) -> bool:
        """Fetch metadata now; return whether that worked."""
        try:
            await self._running().refresh()
        except NOT_THERE:
            return False
        return True


class ClusterNames(TopicsOfCluster):
    """What is asked of a client's ``cluster``."""

    def brokers(self) -> set[BrokerMetadata]:
        """Return the brokers of the cluster."""
        return {BrokerMetadata(*node) for node in self._view.nodes.values()}
