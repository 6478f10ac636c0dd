"""A simulated cluster of three nodes in three racks, and requests to one of its nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from aiokafka_lite.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from aiokafka_lite.records import RecordSet, build_batch
from aiokafka_lite.structs import TopicPartition
from tests.support.cluster import KafkaHandle
from tests.support.wire import RawClient

RACKS = ("a", "b", "c")
TP = TopicPartition("t", 0)
BY_NAME = 12


@pytest.fixture
async def cluster() -> AsyncIterator[Broker]:
    async with Broker(nodes=3, racks=RACKS, group_min_session_timeout_ms=100) as broker:
        yield broker
        assert broker.failure is None


@pytest.fixture
def kafka(cluster: Broker) -> KafkaHandle:
    return KafkaHandle("embedded", cluster.bootstrap_servers)


def node_client(cluster: Broker, node_id: int) -> RawClient:
    """A connection to one node."""
    return RawClient(cluster.nodes[node_id].bootstrap_servers)


async def put(client: RawClient, *values: bytes, version: int = BY_NAME) -> ProduceResponse:
    """Produce one batch to `TP`, once, with acks=all."""
    batch = build_batch([(1_000, None, value, ()) for value in values])
    data = TopicProduceData(
        name=TP.topic, partition_data=[PartitionProduceData(index=TP.partition, records=batch)]
    )
    request = ProduceRequest(acks=-1, timeout_ms=20_000, topic_data=[data])
    return await client.request(request, version)


async def get(
    client: RawClient,
    topic_id: bytes,
    offset: int = 0,
    *,
    epoch: int = -1,
    last_epoch: int = -1,
    rack: str = "",
    max_wait_ms: int = 0,
) -> FetchResponse:
    """Fetch `TP` once."""
    wanted = FetchPartition(
        partition=TP.partition,
        fetch_offset=offset,
        current_leader_epoch=epoch,
        last_fetched_epoch=last_epoch,
        partition_max_bytes=1 << 20,
    )
    request = FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        session_epoch=-1,
        rack_id=rack,
        topics=[FetchTopic(topic_id=topic_id, partitions=[wanted])],
    )
    return await client.request(request)


def only(answer: FetchResponse) -> PartitionData:
    """The one partition of an answer."""
    ((data,),) = (topic.partitions for topic in answer.responses)
    return data


def values_in(data: PartitionData) -> list[bytes | None]:
    """What the records of a partition hold."""
    if not data.records:
        return []
    record_set = RecordSet(TP.topic, TP.partition, memoryview(data.records), fetch_offset=0)
    return [record.value for record in record_set.take(1_000)]
