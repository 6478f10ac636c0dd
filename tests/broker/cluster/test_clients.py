"""Consumers that live through what happens to a cluster: ours, aiokafka's and librdkafka's."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

import aiokafka
import confluent_kafka
import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.records import build_batch
from aiokafka_lite.structs import TopicPartition
from tests.broker.cluster.conftest import RACKS

PARTITIONS = 6
RECORDS_A_ROUND = 20
# Clients find out about changes in different ways; some wait a second or more before they ask.
PATIENCE_S = 30.0

T = TypeVar("T")

Read: TypeAlias = "dict[int, list[int]]"


class Reader(ABC):
    """A consumer in a group that reads topic "t" from the start."""

    @abstractmethod
    async def start(self, bootstrap_servers: str) -> None: ...

    @abstractmethod
    async def some(self) -> list[tuple[int, int]]:
        """Return (partition, offset) of records that have come."""

    @abstractmethod
    async def stop(self) -> None: ...


class Ours(Reader):
    def __init__(self) -> None:
        self._consumer: AIOKafkaConsumer

    async def start(self, bootstrap_servers: str) -> None:
        self._consumer = AIOKafkaConsumer(
            "t",
            bootstrap_servers=bootstrap_servers,
            group_id="g",
            auto_offset_reset="earliest",
            heartbeat_interval_ms=200,
            fetch_max_wait_ms=100,
            client_rack="b",
        )
        await self._consumer.start()

    async def some(self) -> list[tuple[int, int]]:
        polled = await self._consumer.poll(timeout_ms=200)
        return [(r.partition, r.offset) for records in polled.values() for r in records]

    async def stop(self) -> None:
        await self._consumer.stop()


class AIOKafka(Reader):
    def __init__(self) -> None:
        self._consumer: aiokafka.AIOKafkaConsumer

    async def start(self, bootstrap_servers: str) -> None:
        self._consumer = aiokafka.AIOKafkaConsumer(
            "t",
            bootstrap_servers=bootstrap_servers,
            group_id="g",
            auto_offset_reset="earliest",
            heartbeat_interval_ms=200,
            fetch_max_wait_ms=100,
        )
        await self._consumer.start()

    async def some(self) -> list[tuple[int, int]]:
        polled = await self._consumer.getmany(timeout_ms=200)
        return [(r.partition, r.offset) for records in polled.values() for r in records]

    async def stop(self) -> None:
        # Its stop() tries to commit for ever when it knows no coordinator; commit() finds one.
        with contextlib.suppress(aiokafka.errors.KafkaError):
            await self._consumer.commit()
        # Its stop() lets out the cancellation of its own tasks.
        with contextlib.suppress(asyncio.CancelledError):
            await self._consumer.stop()


class Librdkafka(Reader):
    def __init__(self) -> None:
        self._consumer: confluent_kafka.Consumer

    async def start(self, bootstrap_servers: str) -> None:
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "g",
                "auto.offset.reset": "earliest",
                "heartbeat.interval.ms": 200,
                "fetch.wait.max.ms": 100,
                "client.rack": "b",
                "reconnect.backoff.max.ms": 200,
            }
        )
        self._consumer.subscribe(["t"])

    async def some(self) -> list[tuple[int, int]]:
        messages = await self._blocking(lambda: self._consumer.consume(100, timeout=0.2))
        return [
            (message.partition() or 0, message.offset() or 0)
            for message in messages
            if message.error() is None
        ]

    async def stop(self) -> None:
        await self._blocking(self._consumer.close)

    async def _blocking(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(None, call)


async def move_every_leader(cluster: Broker) -> None:
    for partition in range(PARTITIONS):
        cluster.move_leader(TopicPartition("t", partition))


async def move_the_coordinator(cluster: Broker) -> None:
    cluster.move_coordinator("g")


async def stop_a_node(cluster: Broker) -> None:
    await cluster.stop_node(3)


async def start_it_again(cluster: Broker) -> None:
    await cluster.start_node(3)
    cluster.move_leader(TopicPartition("t", 0), 3)


async def kill_the_coordinator(cluster: Broker) -> None:
    await cluster.stop_node(cluster.coordinator_of("g"), clean=False)


EVENTS: tuple[Callable[[Broker], Awaitable[None]], ...] = (
    move_every_leader,
    move_the_coordinator,
    stop_a_node,
    start_it_again,
    kill_the_coordinator,
)


def append(cluster: Broker, round_number: int) -> None:
    for partition in range(PARTITIONS):
        first = round_number * RECORDS_A_ROUND
        for number in range(first, first + RECORDS_A_ROUND):
            batch = build_batch([(1_000, None, b"%d" % number, ())])
            cluster.partition("t", partition).append(batch)


async def read_up_to(reader: Reader, end_offset: int, read: Read) -> None:
    async def reading() -> None:
        while any(len(read[partition]) < end_offset for partition in range(PARTITIONS)):
            for partition, offset in await reader.some():
                read[partition].append(offset)

    await asyncio.wait_for(reading(), PATIENCE_S)


@pytest.mark.parametrize("client", [Ours, AIOKafka, Librdkafka])
async def test_consumer_reads_everything_in_order_whatever_happens_to_the_cluster(
    client: type[Reader],
) -> None:
    read: Read = defaultdict(list)
    async with Broker(nodes=3, racks=RACKS) as cluster:
        cluster.create_topic("t", partitions=PARTITIONS)
        await cluster.open_internal_topic("__consumer_offsets")
        reader = client()
        await reader.start(cluster.bootstrap_servers)
        try:
            append(cluster, 0)
            await read_up_to(reader, RECORDS_A_ROUND, read)
            for number, event in enumerate(EVENTS, start=1):
                await event(cluster)
                append(cluster, number)
                await read_up_to(reader, (number + 1) * RECORDS_A_ROUND, read)
        finally:
            await reader.stop()
        assert cluster.failure is None
    expected = list(range((len(EVENTS) + 1) * RECORDS_A_ROUND))
    assert read == dict.fromkeys(range(PARTITIONS), expected)


def test_cluster_in_a_thread_is_moved_about_from_outside() -> None:
    with BrokerThread(BrokerConfig(nodes=3)) as cluster:
        cluster.create_topic("t", partitions=2)
        tp = TopicPartition("t", 0)
        assert cluster.move_leader(tp) == cluster.leader_of(tp) == 2
        cluster.stop_node(2)
        assert cluster.leader_of(tp) == 1
        cluster.start_node(2)
        assert cluster.coordinator_of("g") == -1
        opened = cluster.run(lambda broker: broker.open_internal_topic("__consumer_offsets"))
        assert opened.is_internal
        assert cluster.move_coordinator("g", 3) == cluster.coordinator_of("g") == 3
        cluster.add_partitions("t", 3)
        cluster.recreate_topic("t")
        assert cluster.topics["t"] == 3
    cluster.raise_if_failed()
