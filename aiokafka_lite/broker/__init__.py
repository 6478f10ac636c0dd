"""An embedded Kafka broker: the parts of Kafka's server that clients use, in this process."""

from __future__ import annotations

from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.direct import NewRecord
from aiokafka_lite.broker.security.listener import Listener, server_ssl_context
from aiokafka_lite.broker.server import Broker
from aiokafka_lite.broker.topics import Node, Partition, Topic

__all__ = [
    "Broker",
    "BrokerConfig",
    "Listener",
    "NewRecord",
    "Node",
    "Partition",
    "Topic",
    "server_ssl_context",
]
