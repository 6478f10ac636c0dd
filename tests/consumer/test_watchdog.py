"""The watchdog: how long there is no position, and brokers that nobody needs."""

from __future__ import annotations

import asyncio

import pytest

from aiokafka_lite import _compat
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.fetching.source import Source
from aiokafka_lite.consumer.monitoring import health
from aiokafka_lite.consumer.positions import watchdog
from aiokafka_lite.errors import NotLeaderForPartitionError
from aiokafka_lite.structs import TopicPartition
from tests.support.cluster import KafkaHandle
from tests.support.reading import reading

TIMEOUT_S = 20.0


@pytest.fixture(autouse=True)
def fast_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "TICK_S", 0.02)


async def until_in_a_fetch(consumer: AIOKafkaConsumer) -> Source:
    """Wait for the long poll at the end of the log."""
    assert await consumer.poll(timeout_ms=50) == {}
    (node,) = consumer._engine.running.sources._sources.values()
    async with _compat.timeout(TIMEOUT_S):
        while node._exchange is None:
            await consumer.poll(timeout_ms=1)
    return node


async def test_how_long_there_is_no_position_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Broker() as broker:
        broker.create_topic("t", 1)
        broker.produce("t", b"first")
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        refusal = broker.on("ListOffsets").fail(NotLeaderForPartitionError, times=None)
        async with reading(kafka, "t", retry_backoff_ms=10) as consumer:
            looker = consumer._engine.running.watchdog
            async with _compat.timeout(TIMEOUT_S):
                while looker.assigned_without_position_s < 0.05:
                    await consumer.poll(timeout_ms=10)
            waited_s = consumer.metrics()["assigned_without_position_seconds"]
            assert isinstance(waited_s, float)
            assert waited_s >= 0.05
            monkeypatch.setattr(health, "LONG_WITHOUT_POSITION_S", 0.05)
            assert "no position for" in " ".join(consumer.health().reasons)
            refusal.remove()
            assert (await asyncio.wait_for(consumer.getone(), TIMEOUT_S)).value == b"first"
            async with _compat.timeout(TIMEOUT_S):
                while looker.assigned_without_position_s:
                    await consumer.poll(timeout_ms=10)


async def test_a_broker_that_nobody_needs_is_known_to_be_back() -> None:
    async with Broker(nodes=2) as broker:
        broker.create_topic("t", replication_factor=1)
        leader = broker.partition("t", 0).leader_id
        addresses = broker.bootstrap_servers.split(",")
        (unneeded,) = {1, 2} - {leader}
        handle = KafkaHandle("embedded", addresses[unneeded - 1])
        async with reading(handle, retry_backoff_ms=10) as consumer, _compat.timeout(TIMEOUT_S):
            consumer.assign([TopicPartition("t", 0)])
            await until_in_a_fetch(consumer)
            with consumer.events() as events:
                await broker.stop_node(unneeded, clean=False)
                assert (await anext(events)).name == "broker_down"
                await broker.start_node(unneeded)
                assert (await anext(events)).name == "broker_up"
            assert consumer.health().is_ok
