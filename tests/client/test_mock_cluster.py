"""librdkafka's mock cluster, which tests of other programs run: written to, read, and looked at."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from aiokafka_lite import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.config import ClientConfig

TIMEOUT_S = 10.0


@pytest.fixture
def mock_cluster() -> Iterator[str]:
    owner = Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 3, "log_level": 0})
    nodes = owner.list_topics(timeout=TIMEOUT_S).brokers.values()
    yield ",".join(f"{node.host}:{node.port}" for node in nodes)
    owner.flush()


async def test_mock_cluster_is_written_to_and_read(mock_cluster: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=mock_cluster, transactional_id="tx") as producer:
        async with producer.transaction() as tx:
            written = [await tx.send("t", b"%d" % number, partition=1) for number in range(9)]
        assert [(await future).offset for future in written] == [*range(9)]
    tp = TopicPartition("t", 1)
    consumer = AIOKafkaConsumer(bootstrap_servers=mock_cluster, auto_offset_reset="earliest")
    consumer.assign([tp])
    async with consumer:
        for number in range(9):
            record = await asyncio.wait_for(consumer.getone(), TIMEOUT_S)
            assert (record.offset, record.value) == (number, b"%d" % number)


def test_mock_cluster_is_looked_at_without_an_event_loop(mock_cluster: str) -> None:
    cluster = BlockingCluster(ClientConfig(bootstrap_servers=mock_cluster))
    try:
        assert len(cluster.refresh(["t"]).nodes) == 3
    finally:
        cluster.close()
