"""What the tests of blocking clients share; the embedded broker runs on a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.config import ClientConfig
from aiokafka_lite.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from aiokafka_lite.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from aiokafka_lite.structs import TopicPartition

#: Everything that waits in these tests waits this long at most.
TIMEOUT_S = 10.0
LATEST = -1


def config_of(servers: str, **changes: object) -> ClientConfig:
    """Return a config with short delays."""
    settings: dict[str, object] = {
        "client_id": "tests",
        "request_timeout_s": TIMEOUT_S,
        "connect_timeout_s": TIMEOUT_S,
        "retry_backoff_s": 0.01,
        "retry_backoff_max_s": 0.1,
        "reconnect_backoff_s": 0.01,
        "reconnect_backoff_max_s": 0.1,
    }
    return ClientConfig(bootstrap_servers=servers, **{**settings, **changes})  # type: ignore[arg-type]


def fetch(
    cluster: BlockingCluster, tp: TopicPartition, offset: int = 0, *, max_bytes: int = 8 << 20
) -> FetchRequest:
    """Ask for records that are there, or for those to come within a moment."""
    partition = FetchPartition(
        partition=tp.partition, fetch_offset=offset, partition_max_bytes=max_bytes
    )
    topic_id = cluster.view.topic_id(tp.topic)
    assert topic_id is not None
    topic = FetchTopic(topic_id=topic_id, partitions=[partition])
    return FetchRequest(max_wait_ms=200, min_bytes=1, max_bytes=64 << 20, topics=[topic])


def records_of(response: FetchResponse) -> bytes:
    """Return the record set of the only partition."""
    ((partition,),) = (topic.partitions for topic in response.responses)
    assert not partition.error_code
    return bytes(partition.records or b"")


def end_offset_request(tp: TopicPartition) -> ListOffsetsRequest:
    partition = ListOffsetsPartition(partition_index=tp.partition, timestamp=LATEST)
    topic = ListOffsetsTopic(name=tp.topic, partitions=[partition])
    return ListOffsetsRequest(topics=[topic])


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    with BrokerThread() as broker:
        yield broker


@pytest.fixture
def new_cluster() -> Iterator[Callable[..., BlockingCluster]]:
    """Make clusters that are closed when the test is over."""
    clusters: list[BlockingCluster] = []

    def make(config: ClientConfig, **arguments: object) -> BlockingCluster:
        clusters.append(BlockingCluster(config, **arguments))  # type: ignore[arg-type]
        return clusters[-1]

    yield make
    for cluster in clusters:
        cluster.close()
