"""Access to one cluster, from an event loop or from blocking threads, which need no asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiokafka_lite._aiokafka import lend

if TYPE_CHECKING:
    from aiokafka.client import AIOKafkaClient as AIOKafkaClient

    from aiokafka_lite.client.blocking import BlockingConnection
    from aiokafka_lite.client.blocking_cluster import BlockingCluster
    from aiokafka_lite.client.cluster import Cluster
    from aiokafka_lite.client.config import Address, ClientConfig
    from aiokafka_lite.client.connection import Connection, Exchange
    from aiokafka_lite.client.lanes import Lane
    from aiokafka_lite.client.pool import Pool
    from aiokafka_lite.client.view import (
        ClusterView,
        Node,
        PartitionView,
        TopicsOfCluster,
        TopicView,
    )
    from aiokafka_lite.client.wire import Pending

__all__ = [
    "Address",
    "BlockingCluster",
    "BlockingConnection",
    "ClientConfig",
    "Cluster",
    "ClusterView",
    "Connection",
    "Exchange",
    "Lane",
    "Node",
    "PartitionView",
    "Pending",
    "Pool",
    "TopicView",
    "TopicsOfCluster",
]

_HOMES = {
    "Address": "config",
    "BlockingCluster": "blocking_cluster",
    "BlockingConnection": "blocking",
    "ClientConfig": "config",
    "Cluster": "cluster",
    "ClusterView": "view",
    "Connection": "connection",
    "Exchange": "connection",
    "Lane": "lanes",
    "Node": "view",
    "PartitionView": "view",
    "Pending": "wire",
    "Pool": "pool",
    "TopicView": "view",
    "TopicsOfCluster": "view",
}
# aiokafka's own low-level client, if aiokafka is installed.
_lent = lend(__name__, ("AIOKafkaClient", "ConnectionGroup", "CoordinationType"))


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        return _lent(name)
    from importlib import import_module

    value: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
