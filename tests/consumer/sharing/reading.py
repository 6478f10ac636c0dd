"""Share consumers, and groups with settings of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiokafka_lite import AIOKafkaShareConsumer, ConsumerRecord
from aiokafka_lite._compat import timeout
from aiokafka_lite.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.support.cluster import KafkaHandle, unique
from tests.support.rows import rows

Record = ConsumerRecord[bytes | None, bytes | None]
Member = AIOKafkaShareConsumer[bytes | None, bytes | None]
PATIENCE_S = 30.0
GROUP_RESOURCE = 32
# The least that Kafka 4.3 accepts.
LEAST_LOCK_MS = 15_000


async def new_group(kafka: KafkaHandle, **settings: str | int) -> str:
    """Return a group that begins at the earliest offset: record_lock_duration_ms=… sets more."""
    group_id = unique("share")
    given = {"auto_offset_reset": "earliest", **settings}
    configs = [
        AlterableConfig(
            name=f"share.{name.replace('_', '.')}", config_operation=0, value=str(value)
        )
        for name, value in given.items()
    ]
    resource = AlterConfigsResource(
        resource_type=GROUP_RESOURCE, resource_name=group_id, configs=configs
    )
    async with kafka.raw() as client:
        answer = await client.request(IncrementalAlterConfigsRequest(resources=[resource]))
    (result,) = answer.responses
    assert result.error_code == 0, result.error_message
    return group_id


def member(kafka: KafkaHandle, topic: str, group_id: str, **settings: object) -> Member:
    arguments: dict[str, object] = {
        "bootstrap_servers": kafka.bootstrap_servers,
        "group_id": group_id,
        "fetch_max_wait_ms": 100,
        **settings,
    }
    return AIOKafkaShareConsumer(topic, **arguments)  # type: ignore[arg-type]


async def filled(kafka: KafkaHandle, count: int = 5, partitions: int = 1) -> str:
    """Create a topic with so many records in each partition, and return its name."""
    topic = await kafka.create_topic(partitions=partitions)
    for partition in range(partitions):
        await kafka.produce(topic, partition, rows(0, count))
    return topic


async def take(consumer: Member, count: int) -> list[Record]:
    """Return so many records, which are read in lists."""
    found: list[Record] = []
    while len(found) < count:
        lists = await consumer.getmany(max_records=count - len(found), timeout_ms=1_000)
        found += [record for records in lists.values() for record in records]
    return found


def offsets(records: list[Record]) -> list[int]:
    return [record.offset for record in records]


@asynccontextmanager
async def running(
    consumer: Member, *args: object, **kwargs: object
) -> AsyncIterator[asyncio.Task[None]]:
    """A consumer that is started, and runs; at the end it is stopped, and `run` has returned."""
    async with timeout(2 * PATIENCE_S):
        await consumer.start()
        task = asyncio.create_task(consumer.run(*args, **kwargs))  # type: ignore[arg-type]
        try:
            yield task
        finally:
            await consumer.stop()
            await asyncio.wait([task])
    if not task.cancelled() and task.exception() is None:
        task.result()
