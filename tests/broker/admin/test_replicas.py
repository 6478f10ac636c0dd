"""Pages of descriptions and the quorum in a cluster of several nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.protocol.messages.describe_quorum import DescribeQuorumRequest
from aiokafka_lite.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
)
from aiokafka_lite.structs import TopicPartition
from tests.support.wire import RawClient

TP = TopicPartition("t", 0)


@pytest.fixture
async def cluster() -> AsyncIterator[Broker]:
    async with Broker(nodes=3) as broker:
        yield broker
        assert broker.failure is None


def client_of(cluster: Broker, node_id: int = 1) -> RawClient:
    return RawClient(cluster.nodes[node_id].bootstrap_servers)


# --- Descriptions ----------------------------------------------------------------------------
async def test_pages_end_where_the_next_ones_begin(cluster: Broker) -> None:
    for name, partitions in (("b", 3), ("a", 2), ("c", 1)):
        cluster.create_topic(name, partitions)
    request = DescribeTopicPartitionsRequest(response_partition_limit=2)
    seen, cursors = [], []
    async with client_of(cluster) as client:
        while True:
            answer = await client.request(request)
            seen += [
                (topic.name, partition.partition_index)
                for topic in answer.topics
                for partition in topic.partitions
            ]
            if answer.next_cursor is None:
                break
            cursors.append(answer.next_cursor)
            request.cursor = answer.next_cursor
    assert seen == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2), ("c", 0)]
    assert cursors == [
        Cursor(topic_name="b", partition_index=0), Cursor(topic_name="b", partition_index=2),
    ]  # fmt: skip


@pytest.mark.parametrize("version", range(3))
async def test_the_controller_is_the_only_voter(cluster: Broker, version: int) -> None:
    asked = DescribeQuorumRequest.TopicData
    log = asked(
        topic_name="__cluster_metadata", partitions=[asked.PartitionData(partition_index=0)]
    )
    await cluster.stop_node(1)
    async with client_of(cluster, 3) as client:
        answer = await client.request(DescribeQuorumRequest(topics=[log]), version)
    (partition,) = answer.topics[0].partitions
    assert (partition.leader_id, [v.replica_id for v in partition.current_voters]) == (2, [2])
    assert [node.node_id for node in answer.nodes] == ([2] if version == 2 else [])
