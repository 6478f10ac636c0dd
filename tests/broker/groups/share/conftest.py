"""A share group, and what it reads, in the clusters that ../conftest.py has."""

from __future__ import annotations

import pytest

from tests.broker.groups.share.requests import ShareGroupRequests, known_topic
from tests.support.cluster import KafkaHandle


@pytest.fixture
async def topic(cluster: KafkaHandle) -> str:
    """A topic of four partitions."""
    return await known_topic(cluster)


@pytest.fixture
async def group(cluster: KafkaHandle) -> ShareGroupRequests:
    """Requests about a group that nobody else uses."""
    group = ShareGroupRequests(cluster)
    if cluster.kind == "real":
        await group.assign_at_once()
    return group
