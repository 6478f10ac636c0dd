"""Consumers that are started, and what they read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.structs import TopicPartition
from tests.support.cluster import KafkaHandle


@asynccontextmanager
async def reading(
    kafka: KafkaHandle,
    *topics: str,
    consumer_class: type[AIOKafkaConsumer] = AIOKafkaConsumer,
    **arguments: object,
) -> AsyncIterator[AIOKafkaConsumer]:
    """A started consumer that reads from the beginning, unless told otherwise."""
    settings: dict[str, object] = {
        "bootstrap_servers": kafka.bootstrap_servers,
        "auto_offset_reset": "earliest",
        **arguments,
    }
    consumer = consumer_class(*topics, **settings)  # type: ignore[arg-type]
    async with consumer:
        yield consumer


async def offsets_read(consumer: AIOKafkaConsumer, count: int) -> dict[int, list[int]]:
    """The offsets of the next `count` records, by partition."""
    found: dict[int, list[int]] = {}
    total = 0
    while total < count:
        batches = await consumer.poll(timeout_ms=10_000)
        assert batches, f"only {total} of {count} records came"
        for tp, batch in batches.items():
            found.setdefault(tp.partition, []).extend(record.offset for record in batch)
            total += len(batch)
    return found


async def values(consumer: AIOKafkaConsumer, count: int) -> list[bytes | None]:
    """The values of the next `count` records; they come within ten seconds."""

    async def read() -> list[bytes | None]:
        return [(await consumer.getone()).value for _ in range(count)]

    return await asyncio.wait_for(read(), 10)


async def committed(kafka: KafkaHandle, group: str, tp: TopicPartition) -> int | None:
    """The group's committed offset, asked by a consumer that commits nothing."""
    async with reading(kafka, group_id=group, enable_auto_commit=False) as observer:
        observer.assign([tp])
        return await observer.committed(tp)


def consumer_of(broker: Broker, *topics: str, **settings: object) -> AIOKafkaConsumer:
    """A consumer that is not started, of the embedded broker."""
    arguments: dict[str, object] = {
        "bootstrap_servers": broker.bootstrap_servers,
        "auto_offset_reset": "earliest",
        "retry_backoff_ms": 10,
        **settings,
    }
    return AIOKafkaConsumer(*topics, **arguments)  # type: ignore[arg-type]
