"""The asyncio consumer for Apache Kafka, with an embedded broker for tests.

Examples:
    ::

        async with AIOKafkaConsumer("flights", bootstrap_servers="localhost:9092") as consumer:
            async for message in consumer:
                print(message.topic, message.partition, message.offset, message.value)
"""

from __future__ import annotations

from aiokafka_lite._version import __version__
from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import ConsumerStoppedError, IllegalOperation
from aiokafka_lite.structs import (
    ConsumerRecord,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
)

__all__ = [
    "AIOKafkaConsumer",
    "ConsumerRebalanceListener",
    "ConsumerRecord",
    "ConsumerStoppedError",
    "IllegalOperation",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "TopicPartition",
    "__version__",
]
