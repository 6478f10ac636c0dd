"""The asyncio consumer for Apache Kafka, with an embedded broker for tests.

::

    async with AIOKafkaConsumer("flights", bootstrap_servers="localhost:9092") as consumer:
        async for message in consumer:
            print(message.topic, message.partition, message.offset, message.value)

Names are imported on first use. aiokafka's module paths are here, too. AIOKafkaClient and the admin
client are aiokafka's own, which has to be installed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from aiokafka_lite import _implementation
from aiokafka_lite._version import __version__

_implementation.choose(os.environ.get(_implementation.SETTING, ""))

if TYPE_CHECKING:
    from aiokafka.client import AIOKafkaClient as AIOKafkaClient

    from aiokafka_lite.abc import ConsumerRebalanceListener
    from aiokafka_lite.confluent import confluent_settings
    from aiokafka_lite.consumer import AIOKafkaConsumer
    from aiokafka_lite.consumer.assignors.cooperative_sticky import (
        CooperativeStickyPartitionAssignor,
    )
    from aiokafka_lite.consumer.delivery.batch import Batch
    from aiokafka_lite.consumer.sharing.consumer import AIOKafkaShareConsumer
    from aiokafka_lite.errors import ConsumerStoppedError, IllegalOperation
    from aiokafka_lite.producing import AIOKafkaProducer
    from aiokafka_lite.structs import (
        ConsumerRecord,
        OffsetAndMetadata,
        OffsetAndTimestamp,
        TopicPartition,
    )

__all__ = [
    "AIOKafkaConsumer",
    "AIOKafkaProducer",
    "AIOKafkaShareConsumer",
    "Batch",
    "ConsumerRebalanceListener",
    "ConsumerRecord",
    "ConsumerStoppedError",
    "CooperativeStickyPartitionAssignor",
    "IllegalOperation",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "TopicPartition",
    "__version__",
    "confluent_settings",
]

_HOMES = {
    "AIOKafkaClient": "client",
    "AIOKafkaConsumer": "consumer",
    "AIOKafkaProducer": "producing",
    "AIOKafkaShareConsumer": "consumer.sharing.consumer",
    "Batch": "consumer.delivery.batch",
    "ConsumerRebalanceListener": "abc",
    "ConsumerRecord": "structs",
    "ConsumerStoppedError": "errors",
    "CooperativeStickyPartitionAssignor": "consumer.assignors.cooperative_sticky",
    "IllegalOperation": "errors",
    "OffsetAndMetadata": "structs",
    "OffsetAndTimestamp": "structs",
    "TopicPartition": "structs",
    "confluent_settings": "confluent",
}
# Programs written for aiokafka reach these as attributes: aiokafka.errors.KafkaError.
_MODULES = frozenset(
    {
        "abc", "admin", "client", "cluster", "consumer", "coordinator", "errors", "events",
        "helpers", "partitioner", "producer", "record", "structs", "util",
    }
)  # fmt: skip


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
