"""aiokafka's admin and group consumer, on the embedded broker and on Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import aiokafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from tests.support.cluster import unique

COUNT = 50


@pytest.fixture
async def admin(address: str, topic: str) -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(bootstrap_servers=address)
    await client.start()
    await client.create_topics([NewTopic(topic, num_partitions=2, replication_factor=1)])

    async def is_there() -> bool:
        return topic in await client.list_topics()

    await soon(is_there)
    yield client
    await client.delete_topics([topic])
    await client.close()


async def produce(address: str, topic: str) -> None:
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=address) as producer:
        for number in range(COUNT):
            await producer.send(topic, b"value %d" % number, partition=0)


async def soon(condition: Callable[[], Awaitable[bool]]) -> None:
    """Ask until it is so: Kafka's brokers hear of changes a moment after the controller."""
    deadline = asyncio.get_running_loop().time() + 10
    while not await condition():
        assert asyncio.get_running_loop().time() < deadline, "it never came true"


async def config_value(admin: AIOKafkaAdminClient, topic: str, name: str) -> str:
    """Return what DescribeConfigs says of one setting."""
    (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    ((error_code, _, _, _, entries),) = answer.resources
    assert error_code == 0
    return str({entry[0]: entry[1] for entry in entries}[name])


async def test_topics_and_configs_are_administered(admin: AIOKafkaAdminClient, topic: str) -> None:
    await admin.create_partitions({topic: NewPartitions(3)})

    async def has_grown() -> bool:
        (described,) = await admin.describe_topics([topic])
        return len(described["partitions"]) == 3

    await soon(has_grown)
    assert topic in await admin.list_topics()
    assert await config_value(admin, topic, "retention.ms") == "604800000"
    change = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "5000"})
    await admin.alter_configs([change])

    async def has_changed() -> bool:
        return await config_value(admin, topic, "retention.ms") == "5000"

    await soon(has_changed)


async def test_a_group_commits_and_is_described(
    admin: AIOKafkaAdminClient, address: str, topic: str
) -> None:
    await produce(address, topic)
    group = unique("group")
    consumer = aiokafka.AIOKafkaConsumer(
        topic, bootstrap_servers=address, group_id=group, client_id="reader",
        auto_offset_reset="earliest", enable_auto_commit=False,
    )  # fmt: skip
    async with consumer:
        values = [(await consumer.getone()).value for _ in range(COUNT)]
        assert values == [b"value %d" % number for number in range(COUNT)]
        await consumer.commit()
        (answer,) = await admin.describe_consumer_groups([group])
        (described,) = answer.groups
        assert described[2] == "Stable"
    tp = aiokafka.TopicPartition(topic, 0)
    assert (await admin.list_consumer_group_offsets(group))[tp].offset == COUNT
    assert group in [listed[0] for listed in await admin.list_consumer_groups()]


async def test_records_are_deleted(admin: AIOKafkaAdminClient, address: str, topic: str) -> None:
    await produce(address, topic)
    tp = aiokafka.TopicPartition(topic, 0)
    assert await admin.delete_records({tp: RecordsToDelete(before_offset=10)}) == {tp: 10}
