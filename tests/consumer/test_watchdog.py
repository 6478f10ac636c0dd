"""The watchdog: a partition that nobody fetches is found and fetched, whatever forgot it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from aiokafka_lite import _compat
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.events.kinds import FetchStalled
from aiokafka_lite.consumer.events.stream import EventSubscription
from aiokafka_lite.consumer.fetching import watchdog
from aiokafka_lite.consumer.fetching.source import Source
from aiokafka_lite.consumer.fetching.sources import Sources
from aiokafka_lite.consumer.monitoring import health
from aiokafka_lite.errors import LeaderNotAvailableError, NotLeaderForPartitionError
from aiokafka_lite.structs import TopicPartition
from tests.consumer.test_consumer import reading, rows
from tests.support.cluster import KafkaHandle, unique

TIMEOUT_S = 20.0
Plant = Callable[[Sources, Source, Cursor], None]


@pytest.fixture(autouse=True)
def fast_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "TICK_S", 0.02)


def still_given_back(sources: Sources, node: Source, partition: Cursor) -> None:
    """As in kafka-python 3.0.7: the mark of a rebalance that ended long ago."""
    partition.is_revoking = True
    sources.touch(partition)


def left_out_of_the_session(sources: Sources, node: Source, partition: Cursor) -> None:
    node._session.want(partition.tp, None)
    node._targets.touched.clear()


def lost_by_its_task(sources: Sources, node: Source, partition: Cursor) -> None:
    node.remove(partition)


def lost_by_the_sources(sources: Sources, node: Source, partition: Cursor) -> None:
    sources._origins.pop(partition)
    node.remove(partition)


def asked_from_elsewhere(sources: Sources, node: Source, partition: Cursor) -> None:
    partition.tag += 1
    node._targets.touched.clear()


def backing_off_for_ever(sources: Sources, node: Source, partition: Cursor) -> None:
    node._targets.backing_off[partition] = None
    node._session.want(partition.tp, None)
    node._give_up_request()
    node._retry_at = None


def answer_that_nobody_takes(sources: Sources, node: Source, partition: Cursor) -> None:
    exchange = node._exchange
    assert exchange is not None
    exchange.abandon()
    exchange.deadline = asyncio.get_running_loop().time() - 60.0


async def until_in_a_fetch(consumer: AIOKafkaConsumer) -> Source:
    """Wait for the long poll at the end of the log."""
    assert await consumer.poll(timeout_ms=50) == {}
    (node,) = consumer._engine.running.sources._nodes.values()
    async with _compat.timeout(TIMEOUT_S):
        while node._exchange is None:
            await consumer.poll(timeout_ms=1)
    return node


async def next_stall(events: EventSubscription) -> FetchStalled:
    async for event in events:
        if isinstance(event, FetchStalled):
            return event
    raise AssertionError("the events ended")


@pytest.mark.parametrize(
    "plant",
    [
        still_given_back,
        left_out_of_the_session,
        pytest.param(lost_by_its_task, marks=pytest.mark.slow),
        pytest.param(lost_by_the_sources, marks=pytest.mark.slow),
        pytest.param(asked_from_elsewhere, marks=pytest.mark.slow),
        pytest.param(backing_off_for_ever, marks=pytest.mark.slow),
        answer_that_nobody_takes,
    ],
)
async def test_a_partition_that_was_forgotten_is_fetched_again(
    kafka: KafkaHandle, plant: Plant, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 1))
    tp = TopicPartition(topic, 0)
    async with reading(
        kafka, topic, group_id=unique("group"), fetch_max_wait_ms=20_000
    ) as consumer:
        assert (await consumer.getone()).offset == 0
        node = await until_in_a_fetch(consumer)
        running = consumer._engine.running
        with caplog.at_level(logging.WARNING), consumer.events() as events:
            plant(running.sources, node, consumer._engine.state.partition(tp))
            await kafka.produce(topic, 0, rows(1, 1))
            record = await asyncio.wait_for(consumer.getone(), TIMEOUT_S)
            assert (await asyncio.wait_for(next_stall(events), TIMEOUT_S)).tp == tp
        assert record.offset == 1
        assert consumer.metrics()["fetch_stalls_total"] == running.watchdog.stall_count >= 1
    assert sum("has not been fetched" in line for line in caplog.messages) == 1


async def test_what_waits_for_a_reason_is_left_alone() -> None:
    async with Broker() as broker:
        broker.create_topic("t", 4)
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        for partition in range(4):
            broker.produce("t", b"first", partition=partition)
        async with reading(kafka, "t", fetch_max_wait_ms=5) as consumer:
            consumer.pause(TopicPartition("t", 0))
            broker.on("Fetch", partition=1).fail(NotLeaderForPartitionError, times=5)
            broker.on("Metadata").fail(LeaderNotAvailableError, at="partition", times=3)
            broker.on("Fetch").delay(0.1, times=2)
            broker.on("Fetch").disconnect(times=2)
            looks = asyncio.get_running_loop().time() + 1.0
            while asyncio.get_running_loop().time() < looks:
                await consumer.poll(timeout_ms=20)
                await asyncio.sleep(0.03)  # what comes meanwhile waits to be taken
            running = consumer._engine.running
            assert running.watchdog.stall_count == 0
            assert running.watchdog.assigned_without_position_s == 0


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
