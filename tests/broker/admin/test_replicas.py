"""Log folders, pages of descriptions and the quorum in a cluster of several nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.errors import (
    LogDirNotFound,
    ReplicaNotAvailableError,
)
from aiokafka_lite.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from aiokafka_lite.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from aiokafka_lite.protocol.messages.describe_quorum import DescribeQuorumRequest
from aiokafka_lite.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
)
from aiokafka_lite.structs import TopicPartition
from tests.support.cluster import KafkaHandle
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


async def test_each_node_has_the_replicas_that_are_its_own(tmp_path: Path) -> None:
    async with Broker(nodes=2, data_dir=tmp_path) as cluster:
        cluster.create_topic("t", 2, replication_factor=1)
        await KafkaHandle("embedded", cluster.bootstrap_servers).produce("t", 0, [(b"k", b"v")])
        for node_id in (1, 2):
            async with client_of(cluster, node_id) as client:
                (folder,) = (await client.request(DescribeLogDirsRequest(topics=None))).results
            assert folder.log_dir == str(tmp_path)
            assert folder.total_bytes >= folder.usable_bytes > 0
            (topic,) = folder.topics
            (replica,) = topic.partitions
            assert replica.partition_index == node_id - 1
            assert bool(replica.partition_size) is (node_id == 1)


async def test_a_follower_that_is_held_lags(cluster: Broker) -> None:
    cluster.create_topic("t")
    cluster.hold_replica(TP, 2)
    kafka = KafkaHandle("embedded", cluster.bootstrap_servers)
    await kafka.produce("t", 0, [(b"k", b"v")] * 3)
    async with client_of(cluster, 2) as client:
        (folder,) = (await client.request(DescribeLogDirsRequest(topics=None))).results
    assert folder.topics[0].partitions[0].offset_lag == 3


async def test_replicas_stay_in_the_one_folder(cluster: Broker) -> None:
    cluster.create_topic("t", replication_factor=1)
    folders = [
        AlterReplicaLogDir(
            path=path, topics=[AlterReplicaLogDirTopic(name=name, partitions=[partition])]
        )
        for path, name, partition in (("memory", "t", 0), ("memory", "t", 1), ("/else", "u", 0))
    ]
    async with client_of(cluster) as client:
        answer = await client.request(AlterReplicaLogDirsRequest(dirs=folders))
    codes = {
        (topic.topic_name, partition.partition_index): partition.error_code
        for topic in answer.results
        for partition in topic.partitions
    }
    assert codes == {
        ("t", 0): 0, ("t", 1): ReplicaNotAvailableError.errno, ("u", 0): LogDirNotFound.errno,
    }  # fmt: skip


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
