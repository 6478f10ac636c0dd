"""`stop()` waits for acknowledgements and for open blocks, then commits them."""

from __future__ import annotations

import asyncio

import pytest

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite._compat import timeout
from aiokafka_lite.errors import ConsumerStoppedError
from aiokafka_lite.structs import TopicPartition
from tests.consumer.processing.acking import PATIENCE_S, Record, member, offsets, take
from tests.support.cluster import KafkaHandle, unique

MODES = ["explicit", "implicit"]


def lasting(kafka: KafkaHandle, topic: str, group: str, **settings: object) -> AIOKafkaConsumer:
    """A member whose stop may wait for long."""
    return member(kafka, topic, **{"group_id": group, "rebalance_hold_ms": 30_000, **settings})


async def committed(kafka: KafkaHandle, topic: str, group: str) -> int | None:
    """What the group has committed, as the next member finds it."""
    async with member(kafka, group_id=group, ack_mode="implicit") as reader:
        return await reader.committed(TopicPartition(topic, 0))


async def begun(consumer: AIOKafkaConsumer, timeout_s: float = 10) -> asyncio.Task[object]:
    """A stop that waits for the application."""
    stopping: asyncio.Task[object] = asyncio.create_task(consumer.stop(timeout_s))
    await asyncio.sleep(0.1)
    assert not stopping.done()
    return stopping


@pytest.mark.real_if_long
async def test_acknowledgements_that_come_during_the_stop_are_committed(
    kafka: KafkaHandle, topic: str
) -> None:
    group = unique("stop")
    async with timeout(PATIENCE_S):
        consumer = lasting(kafka, topic, group)
        await consumer.start()
        records = await take(consumer, 5)
        stopping = await begun(consumer)
        for record in records[:-1]:
            assert record.ack()
        await asyncio.sleep(0.05)
        assert not stopping.done()
        records[-1].nack()  # it is the next member's
        assert await stopping == {}
        assert await committed(kafka, topic, group) == 4


@pytest.mark.real_if_long
async def test_a_stop_waits_no_longer_than_its_time_and_what_is_late_counts_no_more(
    kafka: KafkaHandle, topic: str
) -> None:
    group = unique("stop")
    loop = asyncio.get_running_loop()
    async with timeout(PATIENCE_S):
        consumer = lasting(kafka, topic, group)
        await consumer.start()
        records = await take(consumer, 5)
        records[0].ack()
        began_at = loop.time()
        stopping = await begun(consumer, 1)
        await stopping
        assert 0.7 <= loop.time() - began_at < 2
        assert not records[1].ack()
        assert await committed(kafka, topic, group) == 1


@pytest.mark.real_if_long
async def test_a_stop_waits_as_long_as_a_rebalance_would(kafka: KafkaHandle, topic: str) -> None:
    loop = asyncio.get_running_loop()
    async with timeout(PATIENCE_S):
        consumer = lasting(kafka, topic, unique("stop"), rebalance_hold_ms=200)
        await consumer.start()
        await take(consumer, 5)
        began_at = loop.time()
        await (await begun(consumer))
        assert 0.2 <= loop.time() - began_at < 2


@pytest.mark.real_if_long
@pytest.mark.parametrize("mode", MODES)
async def test_reads_get_nothing_while_a_stop_waits(
    kafka: KafkaHandle, topic: str, mode: str
) -> None:
    async with timeout(PATIENCE_S):
        consumer = lasting(kafka, topic, unique("stop"), ack_mode=mode)
        await consumer.start()
        async with consumer.batch(max_records=3):
            waiting = asyncio.create_task(consumer.getone(TopicPartition(topic, 0)))
            if mode == "explicit":
                (await waiting).ack()
                waiting = asyncio.create_task(consumer.getone(TopicPartition(topic, 0)))
                (await waiting).ack()
            else:
                await asyncio.sleep(0.05)  # nothing more of its partition is returned
            stopping = await begun(consumer)
            with pytest.raises(ConsumerStoppedError):
                await consumer.getone()
            with pytest.raises(ConsumerStoppedError):
                await consumer.poll(0)
            with pytest.raises(ConsumerStoppedError):
                await consumer.getmany()
            assert [record async for record in consumer] == []
            if mode == "implicit":
                with pytest.raises(ConsumerStoppedError):
                    await waiting
        await stopping


@pytest.mark.real_if_long
async def test_a_loop_that_acknowledges_each_record_ends_with_the_stop_and_repeats_none(
    kafka: KafkaHandle, topic: str
) -> None:
    group = unique("stop")
    done: list[int] = []
    async with timeout(PATIENCE_S):
        consumer = lasting(kafka, topic, group)
        stopping: asyncio.Task[object] | None = None
        async with consumer:
            async for record in consumer:
                if len(done) == 3:
                    stopping = await begun(consumer)
                assert record.ack()
                done.append(record.offset)
        assert stopping is not None
        assert await stopping == {}
        assert done == [0, 1, 2, 3]
        assert await committed(kafka, topic, group) == 4


@pytest.mark.parametrize("mode", MODES)
async def test_a_stop_waits_for_the_end_of_a_block_and_commits_it(
    kafka: KafkaHandle, topic: str, mode: str
) -> None:
    group = unique("stop")
    async with timeout(PATIENCE_S):
        consumer = lasting(kafka, topic, group, ack_mode=mode)
        await consumer.start()
        async with consumer.batch(max_records=5) as batch:
            stopping = await begun(consumer)
            await batch.revoking
            assert batch.revoking.left_s > 2
        async with timeout(4):
            assert await stopping == {}
        assert await committed(kafka, topic, group) == 5


@pytest.mark.real_if_long
@pytest.mark.parametrize("mode", MODES)
async def test_a_commit_in_a_block_succeeds_while_a_stop_waits(
    kafka: KafkaHandle, topic: str, mode: str
) -> None:
    group = unique("stop")
    async with timeout(PATIENCE_S):
        consumer = lasting(kafka, topic, group, ack_mode=mode, enable_auto_commit=False)
        await consumer.start()
        async with consumer.batch(max_records=5) as batch:
            stopping = await begun(consumer)
            await batch.commit()
        async with timeout(4):
            assert await stopping == {}
        assert await committed(kafka, topic, group) == 5


@pytest.mark.real_if_long
@pytest.mark.parametrize("mode", MODES)
async def test_a_stop_waits_for_a_block_as_long_as_that_says(
    kafka: KafkaHandle, topic: str, mode: str
) -> None:
    group = unique("stop")
    loop = asyncio.get_running_loop()
    async with timeout(PATIENCE_S):
        consumer = lasting(kafka, topic, group, ack_mode=mode)
        await consumer.start()
        async with consumer.batch(max_records=5, max_hold_ms=200):
            began_at = loop.time()
            await (await begun(consumer))
            assert 0.2 <= loop.time() - began_at < 2
        assert await committed(kafka, topic, group) in (None, 0)


@pytest.mark.real_if_long
@pytest.mark.parametrize("mode", MODES)
async def test_a_stop_from_within_a_block_does_not_wait_for_it(
    kafka: KafkaHandle, topic: str, mode: str
) -> None:
    loop = asyncio.get_running_loop()
    async with timeout(PATIENCE_S):
        consumer = lasting(kafka, topic, unique("stop"), ack_mode=mode)
        await consumer.start()
        async with consumer.batch(max_records=5):
            began_at = loop.time()
            await consumer.stop()
            assert loop.time() - began_at < 2


@pytest.mark.real_if_long
async def test_left_by_an_exception_a_consumer_waits_for_no_acknowledgement(
    kafka: KafkaHandle, topic: str
) -> None:
    group = unique("stop")
    loop = asyncio.get_running_loop()
    records: list[Record] = []

    async def fail() -> None:
        async with lasting(kafka, topic, group) as consumer:
            records.extend(await take(consumer, 5))
            records[0].ack()
            raise ZeroDivisionError

    async with timeout(PATIENCE_S):
        began_at = loop.time()
        with pytest.raises(ZeroDivisionError):
            await fail()
        assert loop.time() - began_at < 8
        assert offsets(records) == [0, 1, 2, 3, 4]
        assert not records[1].ack()
        assert await committed(kafka, topic, group) == 1
