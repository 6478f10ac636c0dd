"""The brokers that these tests ask: the embedded one and Kafka, each on asyncio's loop only.

What is asked here does not depend on the loop, and there is much of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.cluster import KafkaHandle
from tests.support.group_requests import GroupRequests, embedded_or_real


@pytest.fixture(params=["embedded", pytest.param("real", marks=pytest.mark.real_kafka)])
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[KafkaHandle]:
    async with embedded_or_real(request) as handle:
        yield handle


@pytest.fixture
def group(cluster: KafkaHandle) -> GroupRequests:
    """Requests about a group that nobody else uses."""
    return GroupRequests(cluster)
