"""A group of KIP-848, and what it reads, in the clusters that ../conftest.py has."""

from __future__ import annotations

import pytest

from tests.broker.groups.kip848.requests import ConsumerGroupRequests, known_topic
from tests.support.cluster import KafkaHandle


@pytest.fixture
async def topic(cluster: KafkaHandle) -> str:
    """A topic of four partitions."""
    return await known_topic(cluster)


@pytest.fixture
async def group(cluster: KafkaHandle) -> ConsumerGroupRequests:
    """Requests about a group that nobody else uses."""
    group = ConsumerGroupRequests(cluster)
    if cluster.kind == "real":
        await group.assign_at_once()
    return group
