"""Partitions that are paused at odd times: before the first read, at the end, by a listener."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.structs import TopicPartition
from tests.support.listeners import Acting
from tests.support.protocols import WAYS, in_both_protocols
from tests.support.reading import consumer_of, values

TP, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as broker:
        broker.create_topic("t", 2)
        fill(broker, 0, 5)
        yield broker
    assert broker.failure is None


def fill(broker: Broker, first: int, count: int, partition: int = 0) -> None:
    for number in range(first, first + count):
        broker.produce("t", b"%d" % number, partition=partition)


async def test_a_pause_before_the_first_read_keeps_a_seek(broker: Broker) -> None:
    async with consumer_of(broker, auto_offset_reset="latest") as consumer:
        consumer.assign([TP])
        await consumer.seek_to_beginning(TP)
        consumer.pause(TP)
        consumer.resume(TP)
        assert await values(consumer, 5) == [b"0", b"1", b"2", b"3", b"4"]


async def test_records_that_come_during_a_pause_before_the_first_read_are_read(
    broker: Broker,
) -> None:
    async with consumer_of(broker, auto_offset_reset="latest") as consumer:
        consumer.assign([TP])
        consumer.pause(TP)
        assert await consumer.position(TP) == 5
        fill(broker, 5, 2)
        consumer.resume(TP)
        assert await values(consumer, 2) == [b"5", b"6"]


@in_both_protocols
async def test_a_pause_at_the_end_goes_on_behind_the_committed_offset(
    broker: Broker, protocol: str
) -> None:
    async with consumer_of(broker, "t", group_id="g", group_protocol=protocol) as consumer:
        await values(consumer, 5)
    async with consumer_of(broker, "t", group_id="g", group_protocol=protocol) as consumer:
        assert await consumer.position(TP) == 5
        consumer.pause(TP)
        assert await consumer.getmany(timeout_ms=10) == {}
        consumer.resume(TP)
        fill(broker, 5, 1)
        assert await values(consumer, 1) == [b"5"]


async def test_partitions_paused_after_their_first_records_go_on_behind_these(
    broker: Broker,
) -> None:
    fill(broker, 5, 95)
    fill(broker, 0, 100, partition=1)
    seen: dict[TopicPartition, list[int]] = {TP: [], OTHER: []}

    async def read(consumer: AIOKafkaConsumer) -> set[TopicPartition]:
        got = await consumer.getmany(timeout_ms=1_000, max_records=10)
        for tp, records in got.items():
            seen[tp] += [record.offset for record in records]
        return set(got)

    async with consumer_of(broker, "t") as consumer:
        while len(consumer.paused()) < 2:
            consumer.pause(*await read(consumer))
        consumer.resume(TP)
        assert await read(consumer) == {TP}
        consumer.resume(OTHER)
        while sum(map(len, seen.values())) < 200:
            await read(consumer)
    assert seen == {TP: list(range(100)), OTHER: list(range(100))}


async def test_after_a_pause_and_an_error_in_a_loop_nothing_comes_until_the_resume(
    broker: Broker,
) -> None:
    async def fail_at_the_first(consumer: AIOKafkaConsumer) -> None:
        async for record in consumer:
            consumer.pause(TP)
            raise RuntimeError(f"cannot handle {record.offset}")

    async with consumer_of(broker, "t", group_id="g") as consumer:
        with pytest.raises(RuntimeError, match="cannot handle 0"):
            await fail_at_the_first(consumer)
        assert await consumer.getmany(timeout_ms=100) == {}
        consumer.resume(TP)
        assert await values(consumer, 4) == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("way", WAYS)
async def test_a_listener_may_seek_and_pause_what_it_takes(broker: Broker, way: str) -> None:
    async def seek_and_pause(consumer: AIOKafkaConsumer, taken: set[TopicPartition]) -> None:
        consumer.seek(TP, 3)
        consumer.pause(*taken)

    listener = Acting(assigned=seek_and_pause)
    consumer = listener.consumer = consumer_of(broker, group_id="g", **WAYS[way])
    consumer.subscribe(["t"], listener=listener)
    async with consumer:
        assert await consumer.getmany(timeout_ms=50) == {}
        consumer.resume(*consumer.assignment())
        assert await values(consumer, 2) == [b"3", b"4"]
