"""What tests of records that are acknowledged one by one begin with."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite._compat import timeout
from tests.consumer.processing.acking import PATIENCE_S, filled, member
from tests.support.cluster import KafkaHandle


@pytest.fixture
async def topic(kafka: KafkaHandle) -> str:
    """A topic of one partition with ten records."""
    return await filled(kafka)


@pytest.fixture
async def consumer(kafka: KafkaHandle, topic: str) -> AsyncIterator[AIOKafkaConsumer]:
    """Reads it, in a group of its own."""
    async with timeout(PATIENCE_S), member(kafka, topic) as consumer:
        yield consumer
