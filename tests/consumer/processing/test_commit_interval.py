"""How often what is finished record by record is committed: soon, or as often as is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.direct import NewRecord
from aiokafka_lite.protocol.messages.offsets import OffsetCommitRequest
from aiokafka_lite.structs import TopicPartition
from tests.consumer.processing.acking import PATIENCE_S
from tests.support.waiting import eventually

A = TopicPartition("t", 0)
COUNT = 40


@asynccontextmanager
async def reading(**settings: object) -> AsyncIterator[tuple[Broker, AIOKafkaConsumer]]:
    async with Broker() as broker, timeout(PATIENCE_S):
        broker.create_topic("t", partitions=1)
        broker.produce_all("t", [NewRecord(b"%d" % number) for number in range(COUNT)])
        arguments: dict[str, object] = {
            "bootstrap_servers": broker.bootstrap_servers,
            "group_id": "g",
            "auto_offset_reset": "earliest",
            "ack_mode": "explicit",
            **settings,
        }
        async with AIOKafkaConsumer("t", **arguments) as consumer:  # type: ignore[arg-type]
            yield broker, consumer


def commits(broker: Broker) -> int:
    return sum(isinstance(seen.request, OffsetCommitRequest) for seen in broker.requests)


@pytest.mark.virtual_time
async def test_without_an_interval_what_is_finished_is_committed_soon() -> None:
    loop = asyncio.get_running_loop()
    async with reading() as (_, consumer):
        for count in (1, 2, 3):
            (await consumer.getone()).ack()
            acknowledged_at = loop.time()
            await eventually(lambda: consumer.committed(A), count)
            assert loop.time() - acknowledged_at < 1


@pytest.mark.parametrize("interval_ms", [5_000, 60_000])
async def test_no_commit_comes_sooner_than_an_interval_that_is_given(interval_ms: int) -> None:
    async with reading(auto_commit_interval_ms=interval_ms) as (broker, consumer):
        for _ in range(COUNT):
            (await consumer.getone()).ack()
            await asyncio.sleep(0.01)
        assert commits(broker) == 0
        await consumer.stop()
        assert commits(broker) == 1


async def test_an_interval_that_is_given_is_kept_between_commits() -> None:
    async with reading(auto_commit_interval_ms=200) as (broker, consumer):
        began = asyncio.get_running_loop().time()
        for _ in range(COUNT):
            (await consumer.getone()).ack()
            await asyncio.sleep(0.01)
        await eventually(lambda: consumer.committed(A), COUNT)
        took_s = asyncio.get_running_loop().time() - began
        assert 1 <= commits(broker) <= 1 + took_s / 0.2


@pytest.mark.virtual_time
async def test_read_records_are_committed_once_an_interval() -> None:
    async with reading(ack_mode="implicit") as (broker, consumer):
        for _ in range(COUNT):
            await consumer.getone()
            await asyncio.sleep(0.1)
        assert commits(broker) == 0
        await asyncio.sleep(2.0)
        assert commits(broker) == 1


@pytest.mark.virtual_time
async def test_after_run_what_is_read_is_committed_once_an_interval_again() -> None:
    async with reading(ack_mode="implicit") as (broker, consumer):

        async def handle(record: object) -> None:
            """Finish a record."""

        task = asyncio.create_task(consumer.run(handle))
        await eventually(lambda: consumer.committed(A), COUNT)
        task.cancel()
        await asyncio.wait([task])
        broker.produce_all("t", [NewRecord(b"%d" % number) for number in range(COUNT)])
        before = commits(broker)
        for _ in range(COUNT):
            await consumer.getone()
            await asyncio.sleep(0.1)
        assert commits(broker) - before <= 1


async def test_a_default_is_the_number_that_the_documentation_says() -> None:
    consumer = AIOKafkaConsumer()
    given = AIOKafkaConsumer(auto_commit_interval_ms=5_000)
    assert repr(consumer) == repr(given)
    await consumer.stop()
    await given.stop()


async def test_a_commit_that_waited_says_what_was_finished_meanwhile() -> None:
    async with reading(auto_commit_interval_ms=60_000) as (broker, consumer):
        records = [await consumer.getone() for _ in range(COUNT)]
        records[0].ack()
        with broker.on("OffsetCommit").hold() as held:
            first = asyncio.create_task(consumer.commit())
            await held.reached()
            records[1].ack()
            second = asyncio.create_task(consumer.commit())
            await asyncio.sleep(0)
            for record in records[3:]:
                record.ack()
        await first
        await second
        committed = await consumer.committed(A, metadata=True)
        assert committed is not None
        assert committed.offset == 2
        assert committed.metadata
        records[2].ack()
