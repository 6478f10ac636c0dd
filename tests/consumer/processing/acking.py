"""Consumers whose records are acknowledged one by one."""

from __future__ import annotations

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite.structs import ConsumerRecord
from tests.support.cluster import KafkaHandle, unique
from tests.support.rows import rows

Record = ConsumerRecord[bytes | None, bytes | None]
PATIENCE_S = 20.0


def member(kafka: KafkaHandle, *topics: str, **settings: object) -> AIOKafkaConsumer:
    arguments: dict[str, object] = {
        "bootstrap_servers": kafka.bootstrap_servers,
        "group_id": unique("acks"),
        "auto_offset_reset": "earliest",
        "fetch_max_wait_ms": 50,
        "heartbeat_interval_ms": 100,
        "ack_mode": "explicit",
        # Most tests leave records that are not acknowledged.
        "rebalance_hold_ms": 300,
        **settings,
    }
    return AIOKafkaConsumer(*topics, **arguments)  # type: ignore[arg-type]


async def take(consumer: AIOKafkaConsumer, count: int) -> list[Record]:
    """The next records, by `poll`."""
    found: list[Record] = []
    while len(found) < count:
        polled = await consumer.poll(1000, max_records=count - len(found))
        found += [record for records in polled.values() for record in records]
    return found


def offsets(records: list[Record]) -> list[int]:
    return [record.offset for record in records]


async def filled(kafka: KafkaHandle, partitions: int = 1, count: int = 10) -> str:
    """Create a topic with so many records in each partition, and return its name."""
    topic = await kafka.create_topic(partitions=partitions)
    for partition in range(partitions):
        await kafka.produce(topic, partition, rows(0, count))
    return topic
