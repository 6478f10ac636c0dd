"""Topics that hold all that a log may, of which both sources have to make the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from tests.spark.alike.topics import filled
from tests.spark.alike.writing import Writer


@pytest.fixture(scope="session")
def topics(real_kafka: str) -> Iterator[Mapping[str, str]]:
    """The names that cases give topics, and the topics they stand for."""
    with filled(real_kafka) as names:
        yield names


@pytest.fixture
def writer(real_kafka: str) -> Iterator[Writer]:
    """Creates topics on the real Kafka, and deletes them in the end."""
    with Writer(real_kafka) as writer:
        yield writer
