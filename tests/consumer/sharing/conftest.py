"""The brokers that these tests ask."""

from __future__ import annotations

import pytest

from tests.support.cluster import KafkaHandle


@pytest.fixture
def kafka(real_kafka: str) -> KafkaHandle:
    return KafkaHandle("real", real_kafka)
