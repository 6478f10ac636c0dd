"""One cluster seen from one event loop: connections, metadata, requests."""

from __future__ import annotations

from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.client.config import Address, ClientConfig
from aiokafka_lite.client.connection import Connection
from aiokafka_lite.client.exchange import Exchange
from aiokafka_lite.client.pool import Lane, Pool
from aiokafka_lite.client.view import ClusterView, Node, PartitionView, TopicView

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
