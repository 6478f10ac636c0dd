"""Gets that name partitions and wait, when these partitions are taken away meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import IllegalStateError
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.support.cluster import KafkaHandle, unique
from tests.support.reading import reading
from tests.support.rows import rows
from tests.support.waiting import PATIENCE_S, until

HOUR_MS = 3_600_000
T = TypeVar("T")
Batches = dict[TopicPartition, list[ConsumerRecord]]


@asynccontextmanager
async def member_of(group: str, kafka: KafkaHandle, topic: str) -> AsyncIterator[AIOKafkaConsumer]:
    """A member that hears of rebalances soon."""
    async with reading(
        kafka, topic, group_id=group, heartbeat_interval_ms=100, fetch_max_wait_ms=50
    ) as consumer:
        yield consumer


async def ended(get: asyncio.Future[T]) -> T:
    return await asyncio.wait_for(get, PATIENCE_S)


async def many(consumer: AIOKafkaConsumer, *wanted: TopicPartition) -> asyncio.Future[Batches]:
    """A `getmany` that waits."""
    get = asyncio.ensure_future(consumer.getmany(*wanted, timeout_ms=HOUR_MS))
    await asyncio.sleep(0)
    return get


async def one(
    consumer: AIOKafkaConsumer, *wanted: TopicPartition
) -> asyncio.Future[ConsumerRecord]:
    """A `getone` that waits."""
    get = asyncio.ensure_future(consumer.getone(*wanted))
    await asyncio.sleep(0)
    return get


async def test_getmany_ends_when_its_partition_went_to_another_member(kafka: KafkaHandle) -> None:
    topic, group = await kafka.create_topic(partitions=2), unique("g")
    both = {TopicPartition(topic, 0), TopicPartition(topic, 1)}
    async with member_of(group, kafka, topic) as consumer:
        gets = {tp: await many(consumer, tp) for tp in both}
        of_both = await many(consumer, *both)
        async with member_of(group, kafka, topic) as second:
            await until(lambda: len(consumer.assignment()) == len(second.assignment()) == 1)
            (lost,), (kept,) = second.assignment(), consumer.assignment()
            assert await ended(gets[lost]) == {}
        # The other one was taken away and came back, twice by now: its gets wait on.
        await until(lambda: consumer.assignment() == both)
        assert not gets[kept].done()
        assert not of_both.done()
        of_both.cancel()
        await kafka.produce(topic, kept.partition, rows(0, 1))
        assert [record.offset for record in (await ended(gets[kept]))[kept]] == [0]
        # What was lost and is back is served by new gets.
        get = await many(consumer, lost)
        await kafka.produce(topic, lost.partition, rows(0, 1))
        assert [record.offset for record in (await ended(get))[lost]] == [0]


@pytest.mark.real_if_long
async def test_getone_raises_when_its_partition_went_to_another_member(kafka: KafkaHandle) -> None:
    topic, group = await kafka.create_topic(partitions=2), unique("g")
    both = {TopicPartition(topic, 0), TopicPartition(topic, 1)}
    async with member_of(group, kafka, topic) as consumer:
        gets = {tp: await one(consumer, tp) for tp in both}
        async with member_of(group, kafka, topic) as second:
            await until(lambda: len(consumer.assignment()) == len(second.assignment()) == 1)
            (lost,), (kept,) = second.assignment(), consumer.assignment()
            with pytest.raises(IllegalStateError, match="not assigned"):
                await ended(gets[lost])
            assert not gets[kept].done()
            await kafka.produce(topic, kept.partition, rows(0, 1))
            assert (await ended(gets[kept])).partition == kept.partition


@pytest.mark.real_if_long
@pytest.mark.parametrize("wait", [many, one], ids=["getmany", "getone"])
async def test_a_get_of_several_partitions_goes_on_with_what_is_left(
    kafka: KafkaHandle, wait: Callable[..., Awaitable[asyncio.Future[Any]]]
) -> None:
    topic, group = await kafka.create_topic(partitions=2), unique("g")
    async with member_of(group, kafka, topic) as consumer:
        get = await wait(consumer, TopicPartition(topic, 0), TopicPartition(topic, 1))
        async with member_of(group, kafka, topic) as second:
            await until(lambda: len(consumer.assignment()) == len(second.assignment()) == 1)
            (kept,) = consumer.assignment()
            await kafka.produce(topic, kept.partition, rows(0, 1))
            found = await ended(get)
        assert (found[kept][0] if wait is many else found).partition == kept.partition


@pytest.mark.real_if_long
async def test_gets_end_when_the_application_takes_their_partitions_away(
    kafka: KafkaHandle,
) -> None:
    topic, other = await kafka.create_topic(partitions=2), await kafka.create_topic()
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with reading(kafka, fetch_max_wait_ms=50) as consumer:
        calls: list[Callable[[], None]] = [
            lambda: consumer.assign([second]),
            lambda: consumer.incremental_unassign([first]),
            consumer.unsubscribe,
        ]
        for take_away in calls:
            consumer.assign([first, second])
            gets = await many(consumer, first), await one(consumer, first)
            goes_on = await many(consumer, first, second)
            take_away()
            assert await ended(gets[0]) == {}
            with pytest.raises(IllegalStateError, match="not assigned"):
                await ended(gets[1])
            if second in consumer.assignment():
                await kafka.produce(topic, 1, rows(0, 1))
                assert (await ended(goes_on)).keys() == {second}
            else:
                assert await ended(goes_on) == {}
        consumer.subscribe([topic])
        await until(lambda: consumer.assignment() == {first, second})
        gets = await many(consumer, first), await one(consumer, first, second)
        consumer.subscribe([other])
        assert await ended(gets[0]) == {}
        with pytest.raises(IllegalStateError, match="not assigned"):
            await ended(gets[1])


@pytest.mark.real_if_long
async def test_gets_end_when_another_subscription_takes_their_partitions_away(
    kafka: KafkaHandle,
) -> None:
    topic, other = await kafka.create_topic(), await kafka.create_topic()
    tp = TopicPartition(topic, 0)
    async with member_of(unique("g"), kafka, topic) as consumer:
        gets = await many(consumer, tp), await one(consumer, tp)
        consumer.subscribe([topic, other])
        await until(lambda: len(consumer.assignment()) == 2)
        assert not any(get.done() for get in gets)
        consumer.subscribe([other])
        assert await ended(gets[0]) == {}
        with pytest.raises(IllegalStateError, match="not assigned"):
            await ended(gets[1])
