"""A rebalance waits for handlers that take a minute, with all settings as they are by default."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer.config import ConsumerConfig
from tests.consumer.processing.acking import Record
from tests.support.cluster import KafkaHandle, unique
from tests.support.rows import rows

pytestmark = pytest.mark.virtual_time
LONG_S = 60.0


class Member:
    """Runs with a handler that takes a minute for the record at offset 0 of each partition."""

    def __init__(self, kafka: KafkaHandle, topic: str, **settings: Any) -> None:
        self.consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=kafka.bootstrap_servers,
            auto_offset_reset="earliest",
            **settings,
        )
        self.begun: list[tuple[int, int]] = []
        self.done: list[tuple[int, int]] = []
        self.cut: list[tuple[int, int]] = []
        self.task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.consumer.start()
        self.task = asyncio.create_task(self.consumer.run(self.handle))

    async def stop(self) -> None:
        await self.consumer.stop()
        if self.task is not None:
            await self.task

    async def handle(self, record: Record) -> None:
        place = record.partition, record.offset
        self.begun.append(place)
        try:
            await asyncio.sleep(LONG_S if record.offset == 0 else 0)
        except asyncio.CancelledError:
            self.cut.append(place)
            raise
        self.done.append(place)


async def passed(seconds: float) -> None:
    """Wait some virtual seconds, in small steps: there are sockets."""
    for _ in range(int(seconds * 10)):
        await asyncio.sleep(0.1)


@pytest.mark.few_rows(2)
@pytest.mark.parametrize("protocol", ["classic", "consumer", "auto"])
async def test_a_handler_of_a_minute_is_waited_for_by_default(protocol: str) -> None:
    async with Broker() as broker:
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        topic = await kafka.create_topic(partitions=2)
        for partition in range(2):
            await kafka.produce(topic, partition, rows(0, 3))
        settings = {"group_id": unique("long"), "group_protocol": protocol}
        first, second = Member(kafka, topic, **settings), Member(kafka, topic, **settings)
        await first.start()
        await passed(5)
        assert {(0, 0), (1, 0)} <= set(first.begun)
        joining = asyncio.create_task(second.start())
        await passed(LONG_S + 30)
        assert joining.done()
        assert len(second.consumer.assignment()) == 1
        assert not first.cut
        assert sorted(first.done + second.done) == [(p, o) for p in range(2) for o in range(3)]
        assert not second.begun
        await first.stop()
        await second.stop()


@pytest.mark.few_rows(3)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("setting", [{"rebalance_hold_ms": 5000}, {"rebalance_timeout_ms": 10_000}])
async def test_a_time_that_is_set_holds_for_handlers_too(
    protocol: str, setting: dict[str, int]
) -> None:
    async with Broker() as broker:
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        topic = await kafka.create_topic(partitions=2)
        for partition in range(2):
            await kafka.produce(topic, partition, rows(0, 1))
        settings = {"group_id": unique("long"), "group_protocol": protocol, **setting}
        first, second = Member(kafka, topic, **settings), Member(kafka, topic, **settings)
        await first.start()
        await passed(3)
        joining = asyncio.create_task(second.start())
        await passed(20)
        assert joining.done()
        assert first.cut
        await first.stop()
        await second.stop()


async def test_what_gets_returned_is_waited_for_as_long_as_ever() -> None:
    config = ConsumerConfig()
    assert config.rebalance_hold_s == 5.0
    assert config.handler_hold_s == 0.8 * 300 - 3
    assert config.group_timeout_s == 300
    assert ConsumerConfig(max_poll_interval_ms=5000).group_timeout_s == 10
    named = ConsumerConfig(rebalance_timeout_ms=60_000)
    assert named.group_timeout_s == 60
    assert named.rebalance_hold_s == named.handler_hold_s == 45
    assert ConsumerConfig(rebalance_hold_ms=0).handler_hold_s == 0
