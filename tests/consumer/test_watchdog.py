"""The watchdog: how long there is no position, and brokers that nobody needs."""

from __future__ import annotations

import asyncio

import pytest

from aiokafka_lite import _compat
from aiokafka_lite.broker import Broker
from aiokafka_lite.errors import NotLeaderForPartitionError
from aiokafka_lite.structs import TopicPartition
from tests.support import inside, tuning
from tests.support.cluster import KafkaHandle
from tests.support.reading import reading

TIMEOUT_S = 20.0


@pytest.fixture(autouse=True)
def fast_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    tuning.watch_often(monkeypatch)


async def test_how_long_there_is_no_position_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Broker() as broker:
        broker.create_topic("t", 1)
        broker.produce("t", b"first")
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        refusal = broker.on("ListOffsets").fail(NotLeaderForPartitionError, times=None)
        async with reading(kafka, "t", retry_backoff_ms=10) as consumer:
            looker = inside.watchdog(consumer)
            async with _compat.timeout(TIMEOUT_S):
                while looker.assigned_without_position_s < 0.05:
                    await consumer.poll(timeout_ms=10)
            waited_s = consumer.metrics()["assigned_without_position_seconds"]
            assert isinstance(waited_s, float)
            assert waited_s >= 0.05
            tuning.miss_positions_soon(monkeypatch)
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
            await inside.until_in_flight(consumer)
            with consumer.events() as events:
                await broker.stop_node(unneeded, clean=False)
                assert (await anext(events)).name == "broker_down"
                await broker.start_node(unneeded)
                assert (await anext(events)).name == "broker_up"
            assert consumer.health().is_ok
