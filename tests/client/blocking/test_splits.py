"""However a network cuts the bytes of answers, the answers are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.client.blocking import BlockingConnection
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.config import parse_address
from aiokafka_lite.structs import TopicPartition
from tests.client.blocking.conftest import TIMEOUT_S, config_of, fetch, records_of

# Around where frames begin, where the reader's own memory ends, and where large frames do.
POSITIONS = st.one_of(st.integers(1, 70), st.integers(65_500, 65_600), st.integers(1, 400_000))


class Reading:
    """A topic's only partition, fetched over a connection of its own."""

    def __init__(self, broker: BrokerThread) -> None:
        self.broker = broker
        self.cluster = BlockingCluster(config_of(broker.bootstrap_servers))
        self.cluster.refresh(["t"])
        address = parse_address(broker.bootstrap_servers)
        self.connection = BlockingConnection.open(address, self.cluster.config)

    def fetch(self, offsets: list[int]) -> list[bytes]:
        """Fetch from these offsets, all of it sent before the first answer is waited for."""
        tp = TopicPartition("t", 0)
        exchanges = [
            self.connection.send(fetch(self.cluster, tp, offset), timeout_s=TIMEOUT_S)
            for offset in offsets
        ]
        return [records_of(self.connection.receive(exchange)) for exchange in exchanges]

    def close(self) -> None:
        self.connection.close()
        self.cluster.close()


@pytest.fixture(scope="module")
def reading() -> Iterator[Reading]:
    with BrokerThread() as broker:
        broker.create_topic("t")
        for size in (10, 300, 60_000, 70_000, 300_000):
            broker.produce("t", bytes([size % 251]) * size)
        reading = Reading(broker)
        yield reading
        reading.close()


@pytest.fixture(scope="module")
def whole(reading: Reading) -> list[bytes]:
    return reading.fetch([0, 1, 2, 3, 4, 5])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    offsets=st.lists(st.integers(0, 4), min_size=1, max_size=4),
    positions=st.lists(POSITIONS, max_size=6, unique=True),
)
def test_any_split_gives_the_same_answers(
    reading: Reading, whole: list[bytes], offsets: list[int], positions: list[int]
) -> None:
    with reading.broker.on("Fetch").split(times=None, at=sorted(positions)):
        assert reading.fetch(offsets) == [whole[offset] for offset in offsets]


def test_every_byte_alone_gives_the_same_answers(reading: Reading, whole: list[bytes]) -> None:
    with reading.broker.on("Fetch").split(times=None, piece_bytes=1):
        assert reading.fetch([5]) == [whole[5]]
    with reading.broker.on("Fetch").split(times=None, piece_bytes=997):
        assert reading.fetch([0, 4, 3]) == [whole[0], whole[4], whole[3]]


@pytest.mark.parametrize("keep", [lambda frame: frame, bytes])
def test_large_answers_that_are_looked_at_are_not_written_over(
    reading: Reading, whole: list[bytes], keep: Callable[[memoryview], bytes]
) -> None:
    tp = TopicPartition("t", 0)
    kept = []
    for _ in range(6):
        response = reading.connection.request(fetch(reading.cluster, tp, 0), timeout_s=TIMEOUT_S)
        kept.append(keep(response.responses[0].partitions[0].records))  # type: ignore[arg-type]
    assert [bytes(each) for each in kept] == [whole[0]] * 6
