"""The brokers that these tests ask: the embedded one and Kafka, each on asyncio's loop only."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.broker.transactions.requests import Producer, await_transactions
from tests.support.cluster import KafkaHandle
from tests.support.group_requests import embedded_or_real
from tests.support.wire import RawClient


@pytest.fixture(params=["embedded", pytest.param("real", marks=pytest.mark.real_kafka)])
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[KafkaHandle]:
    async with embedded_or_real(request, await_transactions) as handle:
        yield handle


@pytest.fixture
async def client(cluster: KafkaHandle) -> AsyncIterator[RawClient]:
    async with cluster.raw() as client:
        yield client


@pytest.fixture
async def topic(cluster: KafkaHandle) -> str:
    return await cluster.create_topic(partitions=2)


@pytest.fixture
async def producer(client: RawClient) -> Producer:
    """A producer that has started."""
    return await Producer(client).init()
