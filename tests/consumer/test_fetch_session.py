"""Fetch sessions (KIP-227) that end in the middle, on the embedded broker and on a real Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.fetching.session import FINAL_EPOCH
from aiokafka_lite.errors import FetchSessionIdNotFound
from aiokafka_lite.protocol.messages.fetch import FetchRequest
from aiokafka_lite.structs import TopicPartition
from tests.support import inside
from tests.support.cluster import KafkaHandle
from tests.support.reading import offsets_read, reading
from tests.support.rows import rows
from tests.support.waiting import until


async def fetch_code(kafka: KafkaHandle, session_id: int, epoch: int) -> int:
    """What a broker answers to an empty request of a session."""
    async with kafka.raw() as client:
        request = FetchRequest(session_id=session_id, session_epoch=epoch)
        return (await client.request(request)).error_code


async def test_an_evicted_session_is_followed_by_another_without_loss(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=2)
    for partition in range(2):
        await kafka.produce(topic, partition, rows(0, 3))
    async with reading(kafka, topic, fetch_max_wait_ms=50) as consumer:
        found = await offsets_read(consumer, 6)
        session = inside.session(consumer)
        await until(lambda: session.epoch > 1)
        evicted = session.id
        await fetch_code(kafka, evicted, FINAL_EPOCH)
        await kafka.produce(topic, 0, rows(3, 3))
        assert await offsets_read(consumer, 3) == {0: [3, 4, 5]}
        await until(lambda: session.id not in (0, evicted))
        await kafka.produce(topic, 1, rows(3, 1))
        assert await offsets_read(consumer, 1) == {1: [3]}
    assert found == {0: [0, 1, 2], 1: [0, 1, 2]}


async def test_a_session_out_of_step_is_replaced_without_loss(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 3))
    async with reading(kafka, topic, fetch_max_wait_ms=50) as consumer:
        await offsets_read(consumer, 3)
        session = inside.session(consumer)
        await until(lambda: session.epoch > 1)
        disturbed = session.id
        while session.id == disturbed:
            # Somebody else's request: the broker counts on, and this client does not know.
            await fetch_code(kafka, disturbed, session.epoch + 1)
            await asyncio.sleep(0)
        await until(lambda: session.id != 0 and session.epoch > 1)
        await kafka.produce(topic, 0, rows(3, 3))
        assert await offsets_read(consumer, 3) == {0: [3, 4, 5]}


async def test_a_broker_without_room_for_sessions_is_read_all_the_same() -> None:
    async with Broker(max_fetch_sessions=0) as broker:
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        topic = await kafka.create_topic(partitions=2)
        async with reading(kafka, topic, fetch_max_wait_ms=20) as consumer:
            for first in range(0, 6, 2):
                for partition in range(2):
                    await kafka.produce(topic, partition, rows(first, 2))
                found = await offsets_read(consumer, 4)
                assert found == {0: [first, first + 1], 1: [first, first + 1]}
            assert (inside.session(consumer).id, inside.session(consumer).epoch) == (0, 0)


async def test_a_paused_partition_leaves_the_session_and_comes_back(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=2)
    tps = [TopicPartition(topic, partition) for partition in range(2)]
    async with reading(kafka, topic, fetch_max_wait_ms=20) as consumer:
        await until(lambda: inside.session(consumer).epoch > 1)
        consumer.pause(tps[0])
        await until(lambda: len(inside.session(consumer)) == 1)
        for partition in range(2):
            await kafka.produce(topic, partition, rows(0, 2))
        assert await offsets_read(consumer, 2) == {1: [0, 1]}
        assert await consumer.getmany(timeout_ms=100) == {}
        consumer.resume(tps[0])
        assert await offsets_read(consumer, 2) == {0: [0, 1]}
        assert inside.session(consumer).epoch


@pytest.mark.parametrize("is_polling", [True, False], ids=["in a long poll", "idle"])
async def test_a_stopped_consumer_leaves_no_session_behind(
    kafka: KafkaHandle, is_polling: bool
) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 3))
    async with reading(kafka, topic) as consumer:
        await offsets_read(consumer, 3)
        session = inside.session(consumer)
        await until(lambda: session.id != 0)
        if not is_polling:  # nothing more is asked for before what has come is taken
            await kafka.produce(topic, 0, rows(3, 1))
            await until(lambda: inside.has_untaken(consumer))
        session_id = session.id
    code = 0
    for _ in range(200):  # nobody waited for the broker's answer
        code = await fetch_code(kafka, session_id, 1_000_000)
        if code == FetchSessionIdNotFound.errno:
            break
        await asyncio.sleep(0.01)
    assert code == FetchSessionIdNotFound.errno


async def test_a_stop_does_not_wait_for_a_broker_that_is_gone() -> None:
    loop = asyncio.get_running_loop()
    async with Broker() as broker:
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        topic = await kafka.create_topic()
        consumer = AIOKafkaConsumer(topic, bootstrap_servers=kafka.bootstrap_servers)
        await consumer.start()
        await until(lambda: inside.session(consumer).id != 0)
    began = loop.time()
    await consumer.stop()
    assert loop.time() - began < 5.0  # of the 10 s that a stop may take


@asynccontextmanager
async def reading_assigned(kafka: KafkaHandle, *topics: str) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer of the partitions 0: an assignment made by hand outlives its topics."""
    async with reading(kafka, fetch_max_wait_ms=50, retry_backoff_ms=10) as consumer:
        consumer.assign([TopicPartition(topic, 0) for topic in topics])
        yield consumer


async def make_anew(kafka: KafkaHandle, topic: str) -> None:
    """Delete a topic and create it again."""
    await kafka.delete_topic(topic)
    await kafka.create_topic(topic)


async def test_a_topic_made_anew_is_read_by_the_reset_policy(kafka: KafkaHandle) -> None:
    topic, other = [await kafka.create_topic() for _ in range(2)]
    await kafka.produce(topic, 0, rows(0, 5))
    await kafka.produce(other, 0, rows(0, 1))
    async with reading_assigned(kafka, topic, other) as consumer:
        await offsets_read(consumer, 6)
        cluster = inside.cluster(consumer)
        old_id = cluster.view.topic_id(topic)
        await make_anew(kafka, topic)
        await kafka.produce(topic, 0, rows(100, 2))
        records = [await consumer.getone() for _ in range(2)]
        assert [(r.topic, r.offset, r.key) for r in records] == [
            (topic, 0, b"100"),
            (topic, 1, b"101"),
        ]
        assert cluster.view.topic_id(topic) not in (None, old_id)
        # The other topic, in the same session, goes on.
        await kafka.produce(other, 0, rows(1, 1))
        await kafka.produce(topic, 0, rows(102, 1))
        records = [await consumer.getone() for _ in range(2)]
        assert {(r.topic, r.offset) for r in records} == {(topic, 2), (other, 1)}
