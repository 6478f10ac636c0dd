"""The brokers that these tests ask: the embedded one and Kafka, each on asyncio's loop only."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.broker.share.requests import ShareGroup, share_group
from tests.support.cluster import KafkaHandle
from tests.support.group_requests import embedded_or_real


@pytest.fixture(params=["embedded", pytest.param("real", marks=pytest.mark.real_kafka)])
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[KafkaHandle]:
    async with embedded_or_real(request) as handle:
        yield handle


@pytest.fixture
async def group(cluster: KafkaHandle) -> ShareGroup:
    """A group of a new topic with one partition. It is not started."""
    return await share_group(cluster)
