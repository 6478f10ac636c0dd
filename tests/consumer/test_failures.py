"""What happens to a consumer when its surroundings fail."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aiokafka_lite import AIOKafkaProducer, records
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import ConsumerStoppedError
from aiokafka_lite.protocol.messages.metadata import ApiVersionsResponse, MetadataResponse
from aiokafka_lite.protocol.schema import Response
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition
from tests.support import inside
from tests.support.cluster import KafkaHandle, unique
from tests.support.reading import consumer_of, offsets_read, reading
from tests.support.rows import rows
from tests.support.waiting import until


@pytest.mark.virtual_time
async def test_stop_returns_in_time_without_a_broker_and_says_what_is_lost() -> None:
    loop = asyncio.get_running_loop()
    async with Broker() as broker:
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        topic = await kafka.create_topic()
        await kafka.produce(topic, 0, rows(0, 5))
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=kafka.bootstrap_servers,
            group_id=unique("group"),
            auto_offset_reset="earliest",
        )
        await consumer.start()
        assert await offsets_read(consumer, 5) == {0: [0, 1, 2, 3, 4]}
    began = loop.time()
    left = await consumer.stop(timeout=1.0)
    assert loop.time() - began < 2.0
    assert left == {TopicPartition(topic, 0): OffsetAndMetadata(5, "")}


async def test_a_broker_that_comes_back_is_read_on(unused_tcp_port: int, tmp_path: Path) -> None:
    async with Broker(port=unused_tcp_port, data_dir=tmp_path) as broker:
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        await kafka.create_topic("again")
        await kafka.produce("again", 0, rows(0, 3))
        consumer = AIOKafkaConsumer(
            "again",
            bootstrap_servers=kafka.bootstrap_servers,
            auto_offset_reset="earliest",
            retry_backoff_ms=10,
        )
        await consumer.start()
        assert await offsets_read(consumer, 3) == {0: [0, 1, 2]}
    assert await consumer.poll(timeout_ms=100) == {}
    async with Broker(port=unused_tcp_port, data_dir=tmp_path):
        await kafka.produce("again", 0, rows(3, 2))
        assert await offsets_read(consumer, 2) == {0: [3, 4]}
        await consumer.stop()


@pytest.mark.real_if_long
async def test_a_task_that_died_is_raised_by_every_get_until_the_stop(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 5))
    async with reading(kafka, topic) as consumer:
        assert (await consumer.getone()).offset == 0
        inside.let_a_task_die(consumer, "fetch")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for get in (consumer.getone, consumer.getmany, consumer.poll, consumer.__anext__):
            with pytest.raises(ZeroDivisionError, match="a bug"):
                await get()
        await consumer.stop()
        with pytest.raises(ConsumerStoppedError):
            await consumer.getone()


@pytest.mark.real_if_long
async def test_a_waiting_get_hears_of_a_task_that_died(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    async with reading(kafka, topic) as consumer:
        polling = asyncio.ensure_future(consumer.poll())
        await asyncio.sleep(0.01)
        inside.let_a_task_die(consumer, "positions")
        with pytest.raises(ZeroDivisionError, match="a bug"):
            await asyncio.wait_for(polling, 1)


@pytest.mark.real_if_long
async def test_a_consuming_loop_lets_others_run(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    batch = records.build_batch([(1, None, b"x" * 20, ()) for _ in range(20_000)], codec="lz4")
    for _ in range(10):
        await kafka.produce_batch(topic, 0, batch)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with reading(kafka, topic) as consumer:
        counting = asyncio.ensure_future(count())
        read = 0
        async for _ in consumer:
            read += 1
            if read == 200_000:
                break
        counting.cancel()
    assert turns >= 10  # about one a millisecond


@pytest.mark.parametrize("error_code", [-1, 1, 31, 35, 32_000])
@pytest.mark.parametrize("api", ["Metadata", "ApiVersions"])
async def test_answer_that_is_an_error_ends_neither_consumer_nor_producer(
    api: str, error_code: int
) -> None:
    """As a broker answers in whose handler something fails."""
    async with Broker() as broker:
        broker.create_topic("t")
        async with (
            consumer_of(broker, "t", metadata_max_age_ms=20) as consumer,
            AIOKafkaProducer(
                bootstrap_servers=broker.bootstrap_servers, metadata_max_age_ms=20
            ) as producer,
        ):
            await producer.send_and_wait("t", b"before")
            assert (await consumer.getone()).value == b"before"
            if api == "Metadata":
                refusal: Response = MetadataResponse(error_code=error_code)
            else:
                refusal = ApiVersionsResponse(error_code=error_code)
                broker.on("Metadata").disconnect(times=2)
            rule = broker.on(api).answer(refusal, times=2)
            await until(lambda: rule.hits == 2)
            await producer.send_and_wait("t", b"after")
            assert (await asyncio.wait_for(consumer.getone(), 10)).value == b"after"
