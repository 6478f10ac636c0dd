"""Gateways that reset connections on versions that they do not know, or name wrong addresses."""

from __future__ import annotations

import asyncio

import pytest

from aiokafka_lite import AIOKafkaProducer
from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.config import ClientConfig
from aiokafka_lite.protocol.messages.metadata import Coordinator, FindCoordinatorResponse
from tests.support.reading import consumer_of


@pytest.mark.parametrize("newest", [3, 2, 0])
async def test_gateway_that_resets_newer_versions_is_read_and_written(newest: int) -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        resets = broker.on("ApiVersions", version=range(newest + 1, 100)).disconnect(
            times=None, reset=True
        )
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
            await producer.send_and_wait("t", b"v")
        async with consumer_of(broker, "t", group_id="g") as consumer:
            assert (await asyncio.wait_for(consumer.getone(), 5)).value == b"v"
            await consumer.commit()
            assert consumer.health().is_ok
        assert resets.hits == (0 if newest >= 3 else 2)  # once for each client


async def test_coordinator_at_a_port_that_is_none_is_looked_for_again() -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        broker.produce("t", "v")
        nowhere = Coordinator(key="g", node_id=1, host="127.0.0.1", port=-1)
        rule = broker.on("FindCoordinator").answer(FindCoordinatorResponse(coordinators=[nowhere]))
        async with consumer_of(broker, "t", group_id="g") as consumer:
            assert (await asyncio.wait_for(consumer.getone(), 5)).value == b"v"
        assert rule.hits == 1


def test_gateway_that_resets_newer_versions_is_found_without_an_event_loop() -> None:
    """As Spark's readers do."""
    with BrokerThread() as broker:
        broker.create_topic("t")
        resets = broker.on("ApiVersions", version=range(1, 100)).disconnect(times=None, reset=True)
        cluster = BlockingCluster(ClientConfig(bootstrap_servers=broker.bootstrap_servers))
        try:
            assert cluster.refresh(["t"]).partitions_for_topic("t") == {0}
        finally:
            cluster.close()
        # Two addresses: that of the bootstrap server, and the node's if it is another.
        assert resets.hits == 1
