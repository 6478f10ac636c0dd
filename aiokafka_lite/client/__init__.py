"""One cluster seen from one event loop: connections, metadata, requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiokafka_lite._aiokafka import lend
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.client.config import Address, ClientConfig
from aiokafka_lite.client.connection import Connection
from aiokafka_lite.client.exchange import Exchange
from aiokafka_lite.client.lanes import Lane
from aiokafka_lite.client.pool import Pool
from aiokafka_lite.client.view import ClusterView, Node, PartitionView, TopicView

if TYPE_CHECKING:
    from aiokafka.client import AIOKafkaClient as AIOKafkaClient

__all__ = [
    "Address",
    "ClientConfig",
    "Cluster",
    "ClusterView",
    "Connection",
    "Exchange",
    "Lane",
    "Node",
    "PartitionView",
    "Pool",
    "TopicView",
]

# aiokafka's module path for its own low-level client: not in __all__, as it has to be installed.
__getattr__ = lend(__name__, ("AIOKafkaClient", "ConnectionGroup", "CoordinationType"))
