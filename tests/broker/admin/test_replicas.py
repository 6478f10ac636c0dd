"""Elections, reassignments and log folders in a cluster of several nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import aiokafka_lite
from aiokafka_lite.broker import Broker
from aiokafka_lite.errors import (
    ElectionNotNeededError,
    InvalidReplicationFactorError,
    LeaderNotAvailableError,
    LogDirNotFound,
    PreferredLeaderNotAvailableError,
    ReplicaNotAvailableError,
)
from aiokafka_lite.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
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
    DescribeTopicPartitionsResponsePartition,
)
from aiokafka_lite.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from aiokafka_lite.structs import TopicPartition
from tests.support.cluster import KafkaHandle
from tests.support.wire import RawClient

TP = TopicPartition("t", 0)
PREFERRED, UNCLEAN = 0, 1


@pytest.fixture
async def cluster() -> AsyncIterator[Broker]:
    async with Broker(nodes=3) as broker:
        yield broker
        assert broker.failure is None


def client_of(cluster: Broker, node_id: int = 1) -> RawClient:
    return RawClient(cluster.nodes[node_id].bootstrap_servers)


async def elect(cluster: Broker, election: int, node_id: int = 1) -> int:
    """Ask a node for an election and return the code of its outcome."""
    request = ElectLeadersRequest(
        election_type=election, topic_partitions=[TopicPartitions(topic="t", partitions=[0])]
    )
    async with client_of(cluster, node_id) as client:
        answer = await client.request(request)
    return answer.replica_election_results[0].partition_result[0].error_code


async def reassign(cluster: Broker, replicas: list[int], *, may_resize: bool = True) -> int:
    """Put the partition on other nodes and return the code of the outcome."""
    moved = ReassignablePartition(partition_index=0, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(
        allow_replication_factor_change=may_resize,
        topics=[ReassignableTopic(name="t", partitions=[moved])],
    )
    async with client_of(cluster) as client:
        answer = await client.request(request)
    return answer.responses[0].partitions[0].error_code


async def described(cluster: Broker, node_id: int = 1) -> DescribeTopicPartitionsResponsePartition:
    async with client_of(cluster, node_id) as client:
        answer = await client.request(DescribeTopicPartitionsRequest())
    return answer.topics[0].partitions[0]


# --- Elections -------------------------------------------------------------------------------
async def test_the_preferred_replica_leads_again_after_an_election(cluster: Broker) -> None:
    cluster.create_topic("t")
    assert await elect(cluster, PREFERRED) == ElectionNotNeededError.errno
    cluster.move_leader(TP, 2)
    assert await elect(cluster, UNCLEAN) == ElectionNotNeededError.errno
    assert await elect(cluster, PREFERRED) == 0
    assert cluster.leader_of(TP) == 1
    assert (await described(cluster)).leader_epoch == 2


async def test_a_preferred_replica_that_is_down_or_behind_is_not_elected(cluster: Broker) -> None:
    cluster.create_topic("t")
    await cluster.stop_node(1)
    assert await elect(cluster, PREFERRED, 2) == PreferredLeaderNotAvailableError.errno
    await cluster.start_node(1)
    cluster.hold_replica(TP, 1)
    assert await elect(cluster, PREFERRED, 2) == PreferredLeaderNotAvailableError.errno
    cluster.release_replica(TP, 1)
    assert await elect(cluster, PREFERRED, 2) == 0


async def test_an_election_of_all_tells_only_what_it_changed(cluster: Broker) -> None:
    cluster.create_topic("t", partitions=2)
    cluster.move_leader(TP)
    async with client_of(cluster) as client:
        answer = await client.request(
            ElectLeadersRequest(election_type=PREFERRED, topic_partitions=None)
        )
    (result,) = answer.replica_election_results
    assert [(p.partition_id, p.error_code) for p in result.partition_result] == [(0, 0)]


# --- Reassignments ---------------------------------------------------------------------------
async def test_a_partition_moves_with_its_records_and_consumers_follow(cluster: Broker) -> None:
    cluster.create_topic("t", replication_factor=1)
    kafka = KafkaHandle("embedded", cluster.bootstrap_servers)
    await kafka.produce("t", 0, [(b"k", b"before")])
    async with aiokafka_lite.AIOKafkaConsumer(
        "t", bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest"
    ) as consumer:
        assert (await consumer.getone()).value == b"before"
        assert await reassign(cluster, [3, 2]) == 0
        partition = cluster.partition("t", 0)
        assert (partition.leader_id, partition.replicas, partition.isr) == (3, [3, 2], [3, 2])
        kafka = KafkaHandle("embedded", cluster.nodes[3].bootstrap_servers)
        await kafka.produce("t", 0, [(b"k", b"after")])
        assert (await consumer.getone()).value == b"after"


async def test_a_leader_that_keeps_a_replica_stays_the_leader(cluster: Broker) -> None:
    cluster.create_topic("t", replication_factor=2)
    assert await reassign(cluster, [3, 1]) == 0
    assert (cluster.leader_of(TP), (await described(cluster)).leader_epoch) == (1, 0)


async def test_the_number_of_replicas_can_be_kept(cluster: Broker) -> None:
    cluster.create_topic("t", replication_factor=2)
    code = await reassign(cluster, [3, 1, 2], may_resize=False)
    assert code == InvalidReplicationFactorError.errno
    assert cluster.partition("t", 0).replicas == [1, 2]


async def test_a_partition_on_nodes_that_are_down_has_a_leader_when_one_is_up(
    cluster: Broker,
) -> None:
    cluster.create_topic("t", replication_factor=1)
    await cluster.stop_node(3)
    assert await reassign(cluster, [3]) == 0
    told = await described(cluster)
    assert (told.error_code, told.leader_id) == (LeaderNotAvailableError.errno, -1)
    assert (told.isr_nodes, told.offline_replicas) == ([], [3])
    await cluster.start_node(3)
    assert (await described(cluster)).leader_id == 3


async def test_reassignments_survive_a_restart(tmp_path: Path) -> None:
    async with Broker(nodes=3, data_dir=tmp_path) as cluster:
        cluster.create_topic("t", replication_factor=1)
        assert await reassign(cluster, [2, 3]) == 0
    async with Broker(nodes=3, data_dir=tmp_path) as cluster:
        assert cluster.partition("t", 0).replicas == [2, 3]


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
