"""The brokers that these tests ask: the embedded one and Kafka, each on asyncio's loop only."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from aiokafka_lite.broker import Broker
from tests.broker.share.requests import ShareGroup, share_group
from tests.support.cluster import KafkaHandle
from tests.support.group_requests import await_coordinator


@pytest.fixture(params=["embedded", pytest.param("real", marks=pytest.mark.real_kafka)])
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[KafkaHandle]:
    """A fresh embedded broker, or the run's real Kafka."""
    if request.param == "real":
        handle = KafkaHandle("real", request.getfixturevalue("real_kafka"))
        await await_coordinator(handle)
        yield handle
        return
    async with Broker() as broker:
        handle = KafkaHandle("embedded", broker.bootstrap_servers)
        await await_coordinator(handle)
        yield handle
    assert broker.failure is None


@pytest.fixture
async def group(cluster: KafkaHandle) -> ShareGroup:
    """A group of a new topic with one partition. It is not started."""
    return await share_group(cluster)
