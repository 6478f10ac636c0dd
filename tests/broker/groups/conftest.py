"""The brokers that these tests ask: the embedded one and Kafka, each on asyncio's loop only.

What is asked here does not depend on the loop, and there is much of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from aiokafka_lite.broker import Broker
from tests.support.cluster import KafkaHandle
from tests.support.group_requests import GroupRequests, await_coordinator


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
def group(cluster: KafkaHandle) -> GroupRequests:
    """Requests about a group that nobody else uses."""
    return GroupRequests(cluster)
