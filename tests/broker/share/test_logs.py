"""Transactions, deleted records and topics, as share groups see them."""

from __future__ import annotations

import asyncio

import pytest

from aiokafka_lite import AIOKafkaProducer
from tests.broker.share.requests import ACCEPT, GAP, ShareGroup, produce

UNKNOWN, UNKNOWN_TOPIC_ID = -1, 100


async def transaction(producer: AIOKafkaProducer, topic: str, count: int) -> None:
    await producer.begin_transaction()
    for number in range(count):
        await producer.send(topic, b"%d" % number, partition=0)
    await producer.flush()


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
async def test_aborted_records_are_archived_for_read_committed(
    group: ShareGroup, isolation: str
) -> None:
    async with AIOKafkaProducer(
        bootstrap_servers=group.kafka.bootstrap_servers, transactional_id=group.group_id
    ) as producer:
        await transaction(producer, group.topic, 3)
        await producer.commit_transaction()  # 0 to 2, and the marker 3
        await transaction(producer, group.topic, 2)
        await producer.abort_transaction()  # 4 and 5, and the marker 6
        await transaction(producer, group.topic, 2)  # 7 and 8 are open
        await produce(group, 1)  # 9
        await group.start(isolation_level=isolation)
        is_committed = isolation == "read_committed"
        async with group.member() as member:
            first = (await member.poll()).ranges
            assert first == ([(0, 3, 1), (6, 6, 1)] if is_committed else [(0, 9, 1)])
            await producer.abort_transaction()  # the marker 10
            second = (await member.poll()).ranges
            assert second == ([(9, 10, 1)] if is_committed else [(10, 10, 1)])
            # Markers are acknowledged as gaps.
            assert await member.acknowledge((3, 3, GAP), (6, 6, GAP), (10, 10, GAP)) == 0


async def test_deleted_records_are_passed(group: ShareGroup) -> None:
    await produce(group, 5)
    await group.start()
    async with group.member() as member:
        assert (await member.poll(max_records=1, mode=1)).ranges == [(0, 0, 1)]
        await group.kafka.delete_records(group.topic, 0, 3)
        assert (await member.poll()).ranges == [(3, 4, 1)]
        assert await member.acknowledge((0, 0, ACCEPT)) == 0
        assert await member.acknowledge((3, 4, ACCEPT)) == 0


async def test_deleted_topic_fails_the_session(group: ShareGroup) -> None:
    await produce(group, 1)
    await group.start()
    async with group.member() as member:
        await member.poll()
        await group.kafka.delete_topic(group.topic)
        for _ in range(100):
            answer = await member.acknowledge_as_is({0: [(0, 0, ACCEPT)]})
            code = answer.responses[0].partitions[0].error_code
            if code == UNKNOWN_TOPIC_ID:
                break
            await asyncio.sleep(0.02)  # a real broker takes a while to delete it
        assert code == UNKNOWN_TOPIC_ID
        assert (await member.ask(max_wait_ms=100)).error_code == UNKNOWN
