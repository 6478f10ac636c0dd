"""A subscription in place of another: what the old one only had is not handed out any more."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

import pytest

from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.structs import TopicPartition
from tests.support.cluster import KafkaHandle, unique
from tests.support.reading import reading
from tests.support.rows import rows
from tests.support.waiting import PATIENCE_S, until

Get = Callable[[AIOKafkaConsumer], Awaitable[set[str]]]


async def by_getone(consumer: AIOKafkaConsumer) -> set[str]:
    return {(await consumer.getone()).topic}


async def by_iteration(consumer: AIOKafkaConsumer) -> set[str]:
    return {(await anext(consumer)).topic}


async def by_poll(consumer: AIOKafkaConsumer) -> set[str]:
    return {tp.topic for tp in await consumer.poll(max_records=1)}


async def by_getmany(consumer: AIOKafkaConsumer) -> set[str]:
    return {tp.topic for tp in await consumer.getmany(timeout_ms=10_000, max_records=1)}


async def by_arrow(consumer: AIOKafkaConsumer) -> set[str]:
    return set((await consumer.poll_arrow(max_rows=1)).column("topic").to_pylist())


async def buffered(consumer: AIOKafkaConsumer, *topics: str) -> None:
    """Wait until there is something to hand out of each topic's partition."""
    for topic in topics:
        await until(lambda t=topic: "buffered" in consumer.explain(TopicPartition(t, 0)))  # type: ignore[misc]


@pytest.mark.parametrize(
    "get",
    [by_getone, by_iteration, by_poll, by_getmany, by_arrow],
    ids=lambda get: get.__name__.removeprefix("by_"),
)
async def test_nothing_of_the_old_topics_is_handed_out_after_the_call(
    kafka: KafkaHandle, get: Get
) -> None:
    old, both, new = [await kafka.create_topic() for _ in range(3)]
    await kafka.produce(old, 0, rows(0, 20))
    await kafka.produce(new, 0, rows(0, 20))
    async with reading(kafka, old, both, group_id=unique("g"), fetch_max_wait_ms=50) as consumer:
        # What an earlier get has begun is ready, or decoded, beside what is buffered.
        assert [await get(consumer) for _ in range(4)] == [{old}] * 4
        await kafka.produce(both, 0, rows(0, 20))
        await buffered(consumer, old, both)
        consumer.subscribe([both, new])
        # At once: of what was subscribed before and still is.
        assert await get(consumer) == {both}
        found = [await asyncio.wait_for(get(consumer), PATIENCE_S) for _ in range(30)]
        assert {old} not in found
        assert {new} in found
        # What was handed out before the call was committed when the partition was given back.
        assert await consumer.committed(TopicPartition(old, 0)) == 4


@pytest.mark.real_if_long
async def test_a_new_pattern_lets_go_of_what_it_does_not_match(kafka: KafkaHandle) -> None:
    prefix = unique("p")
    old, both, new = [await kafka.create_topic(f"{prefix}-{name}") for name in ("a", "ab", "b")]
    await kafka.produce(old, 0, rows(0, 20))
    await kafka.produce(new, 0, rows(0, 20))
    async with reading(kafka, group_id=unique("g"), fetch_max_wait_ms=50) as consumer:
        consumer.subscribe(pattern=f"{re.escape(prefix)}-a")
        assert await by_getone(consumer) == {old}
        await kafka.produce(both, 0, rows(0, 20))
        await buffered(consumer, old, both)
        consumer.subscribe(pattern=f"{re.escape(prefix)}-a?b")
        assert await by_getone(consumer) == {both}
        found = [await asyncio.wait_for(by_getone(consumer), PATIENCE_S) for _ in range(30)]
        assert {old} not in found
        assert {new} in found


@pytest.mark.real_if_long
async def test_there_and_back_again_loses_and_skips_nothing(kafka: KafkaHandle) -> None:
    topic, other = await kafka.create_topic(), await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 30))
    async with reading(kafka, topic, group_id=unique("g")) as consumer:
        offsets = []
        for _ in range(3):
            offsets += [(await consumer.getone()).offset for _ in range(5)]
            consumer.subscribe([other])
            consumer.subscribe([topic])
            assert await consumer.getmany(timeout_ms=0) == {}
    assert offsets == list(range(15))


@pytest.mark.real_if_long
async def test_without_a_group_the_old_topics_go_at_the_call(kafka: KafkaHandle) -> None:
    old, both, new = [await kafka.create_topic() for _ in range(3)]
    for topic in (old, both, new):
        await kafka.produce(topic, 0, rows(0, 20))
    async with reading(kafka, old, both) as consumer:
        await buffered(consumer, old, both)
        consumer.subscribe([both, new])
        found = [await asyncio.wait_for(by_getone(consumer), PATIENCE_S) for _ in range(40)]
        assert {old} not in found
        assert found.count({both}) == found.count({new}) == 20
