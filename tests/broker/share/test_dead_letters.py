"""Dead letters that the broker writes for a share group (KIP-1191), as Kafka 4.4 does."""

from __future__ import annotations

import asyncio

import pytest

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite.protocol.messages.metadata import ApiVersionsRequest
from aiokafka_lite.structs import TopicPartition
from tests.broker.share.requests import (
    ACCEPT,
    GAP,
    NO_ERROR,
    REJECT,
    RELEASE,
    ShareGroup,
    produce,
    share_group,
)
from tests.support.cluster import KafkaHandle, unique

FIRST_WITH_DEAD_LETTERS = 2
TOPIC_NAME = "errors.deadletterqueue.topic.name"
COPY = "errors.deadletterqueue.copy.record.enable"
ENABLED = {"errors.deadletterqueue.group.enable": "true"}
REJECTED = b"Offset rejected by client."
DELIVERED_TOO_OFTEN = b"Offset delivery count exceeded the threshold."
INVALID_CONFIG = 40


@pytest.fixture
async def group(cluster: KafkaHandle) -> ShareGroup:
    """A group of a topic with three partitions, with five records in the last one."""
    request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    async with cluster.raw() as client:
        answer = await client.request(request, 4)
    levels = {each.name: each.max_version_level for each in answer.finalized_features}
    if levels["share.version"] < FIRST_WITH_DEAD_LETTERS:
        pytest.skip("Kafka writes dead letters since 4.4: set KAFKA_VERSION")
    group = await share_group(cluster, 3)
    await produce(group, 5, partition=2)
    return group


async def dead_letters(group: ShareGroup, topic: str, count: int) -> list[tuple[object, ...]]:
    """Return value, offset, deliveries and reason of each, from the first of two partitions."""
    found: list[tuple[object, ...]] = []
    async with AIOKafkaConsumer(bootstrap_servers=group.kafka.bootstrap_servers) as consumer:
        tp = TopicPartition(topic, 0)
        consumer.assign([tp])
        await consumer.seek_to_beginning(tp)
        while len(found) < count:
            record = await asyncio.wait_for(consumer.getone(), 20)
            headers = {name.removeprefix("__dlq.errors."): text for name, text in record.headers}
            assert len(headers) == len(record.headers) == 6
            assert (headers["topic"], headers["group"], headers["partition"]) == (
                group.topic.encode(),
                group.group_id.encode(),
                b"2",
            )
            offset, deliveries = int(headers["offset"]), int(headers["delivery.count"])
            found.append((record.value, offset, deliveries, headers["message"]))
    return found


async def test_rejected_and_exhausted_records_become_dead_letters(group: ShareGroup) -> None:
    topic = await group.kafka.create_topic(unique("dlq.letters"), 2, ENABLED)
    assert await group.alter({TOPIC_NAME: topic}) == NO_ERROR
    await group.start(delivery_count_limit=2)
    async with group.member() as member:
        assert (await member.poll(partition=2)).ranges == [(0, 4, 1)]
        await member.fetch(
            [(0, 0, REJECT), (1, 1, GAP), (2, 2, ACCEPT), (3, 4, RELEASE)], partition=2
        )
        first = (None, 0, 1, REJECTED)
        assert await dead_letters(group, topic, 1) == [first]
        assert await group.alter({COPY: "true"}) == NO_ERROR
        got = await member.poll(partition=2)
        while got.ranges:
            releases = [(first, last, RELEASE) for first, last, _ in got.ranges]
            got = await member.fetch(releases, partition=2)
    assert await dead_letters(group, topic, 3) == [
        first,
        (b"3", 3, 2, DELIVERED_TOO_OFTEN),
        (b"4", 4, 2, DELIVERED_TOO_OFTEN),
    ]


@pytest.mark.parametrize(
    ("prefix", "configs"), [("dlq.", {}), ("letters.", ENABLED), ("dlq.", None)]
)
async def test_records_are_archived_also_without_a_topic_for_dead_letters(
    group: ShareGroup, prefix: str, configs: dict[str, str] | None
) -> None:
    topic = unique(prefix)
    if configs is not None:
        await group.kafka.create_topic(topic, 1, configs)
    assert await group.alter({TOPIC_NAME: topic}) == NO_ERROR
    await group.start()
    async with group.member() as member:
        await member.poll(partition=2)
        await member.fetch([(0, 3, REJECT), (4, 4, RELEASE)], partition=2)
        assert (await member.poll(partition=2)).ranges in ([(4, 4, 2)], [])
    if configs is not None:
        async with AIOKafkaConsumer(bootstrap_servers=group.kafka.bootstrap_servers) as consumer:
            tp = TopicPartition(topic, 0)
            assert await consumer.end_offsets([tp]) == {tp: 0}


async def test_internal_topic_is_refused_for_dead_letters(group: ShareGroup) -> None:
    assert await group.alter({TOPIC_NAME: "__consumer_offsets"}) == INVALID_CONFIG
    assert await group.alter({COPY: "maybe"}) == INVALID_CONFIG
