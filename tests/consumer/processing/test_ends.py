"""The end of `run`: handlers and transactions that are given up have time to end."""

from __future__ import annotations

import asyncio

import pytest

from aiokafka_lite import AIOKafkaProducer
from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker, NewRecord
from aiokafka_lite.processing import DeadLetters, Outputs, Retry
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.consumer.processing.running import PATIENCE_S, member
from tests.support.cluster import KafkaHandle
from tests.support.waiting import until

pytestmark = pytest.mark.virtual_time

Record = ConsumerRecord[bytes | None, bytes | None]


def filled(broker: Broker, partitions: int = 1, records: int = 1) -> KafkaHandle:
    broker.create_topic("t", partitions)
    broker.create_topic("dead")
    for partition in range(partitions):
        broker.produce_all("t", [NewRecord(b"x", partition=partition)] * records)
    return KafkaHandle("embedded", broker.bootstrap_servers)


async def committed(kafka: KafkaHandle, partition: int) -> int | None:
    async with member(kafka, "t", "g", enable_auto_commit=False) as reader:
        return await reader.committed(TopicPartition("t", partition))


@pytest.mark.parametrize("hold_ms", [0, 3_000])
async def test_a_handler_that_stops_the_consumer_is_not_cancelled_with_others(hold_ms: int) -> None:
    async with timeout(PATIENCE_S), Broker() as broker:
        kafka = filled(broker, 2, 3)
        consumer = member(kafka, "t", "g", rebalance_hold_ms=hold_ms, auto_commit_interval_ms=10**6)
        left: list[object] = []
        hangs = asyncio.Event()

        async def handle(record: Record) -> None:
            if record.partition == 1:
                hangs.set()
                await asyncio.sleep(100)
            elif record.offset == 2:
                await hangs.wait()
                left.append(await consumer.stop(1))
                await asyncio.sleep(0.2)
                left.append("and goes on")

        await consumer.start()
        await consumer.run(handle, concurrency=4)
        assert left == [{}, "and goes on"]
        assert [await committed(kafka, partition) for partition in (0, 1)] == [2, 0]


async def test_a_handler_that_stops_the_consumer_is_not_cancelled_by_a_rebalance() -> None:
    async with timeout(PATIENCE_S), Broker() as broker:
        kafka = filled(broker, 2)
        consumer, other = (member(kafka, "t", "g", rebalance_hold_ms=0) for _ in range(2))
        left: list[object] = []
        stopping = asyncio.Event()

        async def handle(record: Record) -> None:
            if record.partition == 0:
                await asyncio.sleep(5)
            else:
                stopping.set()
                left.append(await consumer.stop(10))

        await consumer.start()
        task = asyncio.create_task(consumer.run(handle, concurrency=2))
        await stopping.wait()
        async with other:
            await until(lambda: TopicPartition("t", 1) in other.assignment())
            assert not left
            await task
            assert left == [{}]
        assert await committed(kafka, 0) == 1


async def test_handlers_that_stop_the_consumer_do_not_wait_for_each_other() -> None:
    async with timeout(PATIENCE_S), Broker() as broker:
        consumer = member(filled(broker, 2), "t", "g", rebalance_hold_ms=0)
        left: list[object] = []

        async def handle(record: Record) -> None:
            await asyncio.sleep(record.partition)
            left.append(await consumer.stop(10))

        await consumer.start()
        began_at = asyncio.get_running_loop().time()
        await consumer.run(handle, concurrency=2)
        assert left == [{}, {}]
        assert asyncio.get_running_loop().time() - began_at < 3


async def test_the_outputs_of_a_handler_that_stops_the_consumer_cause_no_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with timeout(PATIENCE_S), Broker() as broker:
        kafka = filled(broker)
        consumer = member(kafka, "t", "g")

        async def handle(record: Record, outputs: Outputs) -> None:
            outputs.send("dead", b"x")
            await consumer.stop()

        await consumer.start()
        async with AIOKafkaProducer(
            bootstrap_servers=kafka.bootstrap_servers, transactional_id="outputs"
        ) as producer:
            await consumer.run(handle, transactions=producer)
    assert "cancel" not in caplog.text


async def test_a_handler_that_goes_on_after_it_stopped_the_consumer_is_cancelled() -> None:
    async with timeout(PATIENCE_S), Broker() as broker:
        consumer = member(filled(broker), "t", "g", rebalance_hold_ms=0)
        loop = asyncio.get_running_loop()

        async def handle(record: Record) -> None:
            await consumer.stop(1)
            await asyncio.sleep(100)

        await consumer.start()
        began_at = loop.time()
        await consumer.run(handle)
        assert 2 <= loop.time() - began_at < 3


async def test_the_clean_up_of_a_cancelled_handler_is_not_cancelled_by_the_end_of_a_stop() -> None:
    async with timeout(PATIENCE_S), Broker() as broker:
        consumer = member(filled(broker), "t", "g", rebalance_hold_ms=0)
        loop, begun, is_clean = asyncio.get_running_loop(), asyncio.Event(), False

        async def handle(record: Record) -> None:
            nonlocal is_clean
            begun.set()
            try:
                await asyncio.sleep(100)
            finally:
                await asyncio.sleep(0.8)
                is_clean = True

        await consumer.start()
        task = asyncio.create_task(consumer.run(handle))
        await begun.wait()
        stopped_at = loop.time()
        await consumer.stop(0)
        assert loop.time() - stopped_at < 0.2
        assert not is_clean
        await task
        assert is_clean


@pytest.mark.parametrize(("end", "delay_s"), [("stop", 8.5), ("cancel", 0.5)])
async def test_the_transaction_of_a_dead_letter_has_time_to_end(end: str, delay_s: float) -> None:
    async def refuse(record: Record) -> None:
        raise ValueError("bad")

    async with timeout(PATIENCE_S), Broker() as broker:
        kafka = filled(broker)
        consumer = member(kafka, "t", "g", rebalance_hold_ms=0)
        letters = DeadLetters("dead", transactional_id="letters")
        await consumer.start()
        with broker.on("TxnOffsetCommit").delay(delay_s) as late:
            task = asyncio.create_task(
                consumer.run(refuse, retry=Retry(dead=ValueError), dead_letter=letters)
            )
            await late.reached()
            if end == "stop":
                await consumer.stop(10)
            else:
                task.cancel()
            await asyncio.wait([task])
            await consumer.stop()
        assert await committed(kafka, 0) == 1
