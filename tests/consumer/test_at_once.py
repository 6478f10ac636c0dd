"""A long poll in flight holds nobody's first record back, on either broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.protocol.messages.fetch import FetchRequest
from aiokafka_lite.structs import TopicPartition
from tests.support.cluster import KafkaHandle
from tests.support.reading import offsets_read, reading
from tests.support.rows import rows

LONG_POLL_MS = 20_000
# Far below that, and no question of how fast the machine is.
AT_ONCE_S = 5.0


@asynccontextmanager
async def beside_a_long_poll(
    kafka: KafkaHandle, count: int
) -> AsyncIterator[tuple[AIOKafkaConsumer, list[TopicPartition]]]:
    """A consumer that has read two partitions to their ends: its broker holds a request back."""
    topic = await kafka.create_topic(partitions=count)
    for number in range(count):
        await kafka.produce(topic, number, rows(0, 4))
    partitions = [TopicPartition(topic, number) for number in range(count)]
    async with reading(kafka, fetch_max_wait_ms=LONG_POLL_MS) as consumer:
        consumer.assign(partitions[:2])
        await offsets_read(consumer, 8)
        assert not await consumer.getmany(timeout_ms=300)
        yield consumer, partitions


async def test_the_first_record_after_a_seek_comes_at_once(kafka: KafkaHandle) -> None:
    async with beside_a_long_poll(kafka, 2) as (consumer, (first, second)):
        for offset in (0, 3, 1):
            consumer.seek(first, offset)
            record = await asyncio.wait_for(consumer.getone(first), AT_ONCE_S)
            assert record.offset == offset
        await consumer.seek_to_beginning(second)
        assert (await asyncio.wait_for(consumer.getone(second), AT_ONCE_S)).offset == 0


@pytest.mark.real_if_long
async def test_the_first_record_after_a_resume_comes_at_once(kafka: KafkaHandle) -> None:
    async with beside_a_long_poll(kafka, 2) as (consumer, (first, second)):
        consumer.pause(first)
        await kafka.produce(second.topic, second.partition, rows(4, 1))
        assert (await asyncio.wait_for(consumer.getone(), AT_ONCE_S)).partition == 1
        await kafka.produce(first.topic, first.partition, rows(4, 1))
        assert not await consumer.getmany(timeout_ms=300)
        consumer.resume(first)
        assert (await asyncio.wait_for(consumer.getone(first), AT_ONCE_S)).offset == 4


@pytest.mark.real_if_long
async def test_the_first_record_of_a_new_assignment_comes_at_once(kafka: KafkaHandle) -> None:
    async with beside_a_long_poll(kafka, 3) as (consumer, (first, second, third)):
        consumer.assign([first, second, third])
        assert (await asyncio.wait_for(consumer.getone(), AT_ONCE_S)).partition == 2


async def test_what_is_produced_after_a_seek_to_the_end_comes_before_the_long_poll_is_over(
    kafka: KafkaHandle,
) -> None:
    async with beside_a_long_poll(kafka, 2) as (consumer, (first, _)):
        consumer.seek(first, 2)
        await asyncio.wait_for(consumer.getone(first), AT_ONCE_S)
        await consumer.seek_to_end(first)
        await asyncio.sleep(0.3)  # asked for by now, in vain
        await kafka.produce(first.topic, first.partition, rows(4, 1))
        assert (await asyncio.wait_for(consumer.getone(first), AT_ONCE_S)).offset == 4


async def test_a_quick_request_is_in_no_fetch_session_and_waits_for_nothing() -> None:
    async with Broker() as broker:
        async with beside_a_long_poll(KafkaHandle("embedded", broker.bootstrap_servers), 2) as (
            consumer,
            (first, _),
        ):
            consumer.seek(first, 1)
            await asyncio.wait_for(consumer.getone(first), AT_ONCE_S)
        fetches = [each.request for each in broker.requests.of("Fetch")]
        quick = [
            (fetch.session_id, fetch.session_epoch)
            for fetch in fetches
            if isinstance(fetch, FetchRequest) and fetch.topics and fetch.max_wait_ms == 0
        ]
        assert set(quick) == {(0, -1)}
    assert broker.failure is None
