"""Leaders that move, nodes that stop, and what the other nodes say meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.node import close_server
from aiokafka_lite.errors import (
    BrokerNotAvailableError,
    FencedLeaderEpochError,
    InvalidReplicationFactorError,
    KafkaConnectionError,
    LeaderNotAvailableError,
    NoError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    OffsetOutOfRangeError,
    UnknownLeaderEpochError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.messages.fetch import EpochEndOffset, PartitionData
from aiokafka_lite.protocol.messages.metadata import MetadataRequest
from aiokafka_lite.protocol.messages.produce import PartitionProduceResponse, ProduceResponse
from aiokafka_lite.structs import TopicPartition
from tests.broker.cluster.conftest import TP, get, node_client, only, put, values_in
from tests.broker.wire import (
    answered,
    eventually,
    fetch_partition,
    fetch_request,
    topic_metadata,
)
from tests.support.wire import RawClient


def answer_of(response: ProduceResponse) -> PartitionProduceResponse:
    ((result,),) = (topic.partition_responses for topic in response.responses)
    return result


async def test_leaders_and_replicas_are_spread_over_the_nodes(cluster: Broker) -> None:
    topic = cluster.create_topic("t", partitions=6)
    assert [partition.leader_id for partition in topic.partitions] == [1, 2, 3, 1, 2, 3]
    assert all(sorted(partition.replicas) == [1, 2, 3] for partition in topic.partitions)
    single = cluster.create_topic("single", partitions=3, replication_factor=1)
    assert [partition.replicas for partition in single.partitions] == [[1], [2], [3]]
    with pytest.raises(InvalidReplicationFactorError, match="4 time"):
        cluster.create_topic("four", replication_factor=4)


async def test_a_new_topic_is_led_by_nodes_that_are_up(cluster: Broker) -> None:
    await cluster.stop_node(1)
    topic = cluster.create_topic("t", partitions=4, replication_factor=2)
    assert {partition.leader_id for partition in topic.partitions} == {2, 3}
    assert all(sorted(partition.replicas) == [2, 3] for partition in topic.partitions)
    whole = cluster.create_topic("whole", partitions=3)
    assert {partition.leader_id for partition in whole.partitions} == {2, 3}
    assert all(sorted(partition.replicas) == [1, 2, 3] for partition in whole.partitions)


async def test_every_node_describes_the_whole_cluster(cluster: Broker) -> None:
    for node in cluster.nodes.values():
        async with node_client(cluster, node.id) as client:
            answer = await client.request(MetadataRequest(topics=[]))
        assert [(b.node_id, b.port, b.rack) for b in answer.brokers] == [
            (n.id, n.address.port, n.address.rack) for n in cluster.nodes.values()
        ]
        assert answer.controller_id == 1


async def test_only_the_leader_takes_records_and_others_say_who_it_is(cluster: Broker) -> None:
    cluster.create_topic("t")
    async with node_client(cluster, 1) as first, node_client(cluster, 2) as second:
        assert answer_of(await put(first, b"a")).error_code == NoError.errno
        assert cluster.move_leader(TP, 2) == 2
        for version, hint, ports in (
            (9, (-1, -1), []),
            (10, (2, 1), [cluster.nodes[2].address.port]),
        ):
            response = await put(first, b"b", version=version)
            refused = answer_of(response)
            assert refused.error_code == NotLeaderForPartitionError.errno
            leader = refused.current_leader
            assert (leader.leader_id, leader.leader_epoch) == hint
            assert [node.port for node in response.node_endpoints] == ports
        assert answer_of(await put(second, b"b")).base_offset == 1


async def test_long_poll_ends_with_a_hint_when_the_leader_moves(cluster: Broker) -> None:
    topic = cluster.create_topic("t", replication_factor=1)
    async with node_client(cluster, 1) as client:
        parked = asyncio.ensure_future(get(client, topic.topic_id, max_wait_ms=60_000))
        await eventually(lambda: len(cluster.purgatory) == 1)
        cluster.move_leader(TP, 3)
        answer = await parked
    moved = only(answer)
    assert moved.error_code == NotLeaderForPartitionError.errno
    assert (moved.current_leader.leader_id, moved.current_leader.leader_epoch) == (3, 1)
    (endpoint,) = answer.node_endpoints
    assert (endpoint.node_id, endpoint.port) == (3, cluster.nodes[3].address.port)


async def test_epochs_that_are_not_the_leaders_are_told_apart(cluster: Broker) -> None:
    topic = cluster.create_topic("t")
    cluster.move_leader(TP, 2)
    async with node_client(cluster, 2) as client:
        fenced = only(await get(client, topic.topic_id, epoch=0))
        unknown = only(await get(client, topic.topic_id, epoch=2))
        current = only(await get(client, topic.topic_id, epoch=1))
    assert fenced.error_code == FencedLeaderEpochError.errno
    assert (fenced.current_leader.leader_id, fenced.current_leader.leader_epoch) == (2, 1)
    assert unknown.error_code == UnknownLeaderEpochError.errno
    assert current.error_code == NoError.errno


async def test_leader_moves_to_the_next_replica_by_default_and_only_to_nodes_that_are_up(
    cluster: Broker,
) -> None:
    cluster.create_topic("t")
    assert [cluster.move_leader(TP) for _ in range(3)] == [2, 1, 2]
    await cluster.stop_node(3)
    with pytest.raises(BrokerNotAvailableError, match="node 3"):
        cluster.move_leader(TP, 3)
    with pytest.raises(BrokerNotAvailableError, match="node 9"):
        cluster.move_leader(TP, 9)
    with pytest.raises(UnknownTopicOrPartitionError):
        cluster.move_leader(TopicPartition("t", 1))
    assert cluster.move_leader(TP, 2) == 2  # it leads already: no new epoch
    assert cluster.partition(*TP).leader_epoch == 3


async def test_others_lead_what_a_stopped_node_led(cluster: Broker) -> None:
    topic = cluster.create_topic("t")
    async with node_client(cluster, 1) as client:
        await put(client, b"kept")
        await cluster.stop_node(1, clean=False)
        assert cluster.nodes[1].connections == ()
    with pytest.raises(ConnectionError):
        async with node_client(cluster, 1):
            pass
    async with node_client(cluster, 2) as client:
        (described,) = (await topic_metadata(client, "t")).partitions
        brokers = (await client.request(MetadataRequest(topics=[]))).brokers
        assert [broker.node_id for broker in brokers] == [2, 3]
        assert (described.leader_id, described.leader_epoch) == (2, 1)
        assert (described.isr_nodes, described.offline_replicas) == ([2, 3], [1])
        assert values_in(only(await get(client, topic.topic_id, epoch=1))) == [b"kept"]
    new = cluster.create_topic("new").partitions[0]
    assert (sorted(new.replicas), sorted(new.isr)) == ([1, 2, 3], [2, 3])
    await cluster.start_node(1)
    assert sorted(new.isr) == [1, 2, 3]
    async with node_client(cluster, 1) as client:
        (described,) = (await topic_metadata(client, "t")).partitions
    assert (described.leader_id, described.isr_nodes) == (2, [2, 3, 1])
    assert described.offline_replicas == []


async def test_partition_without_replicas_that_are_up_has_no_leader(cluster: Broker) -> None:
    cluster.create_topic("t", replication_factor=1)
    await cluster.stop_node(1)
    assert cluster.leader_of(TP) == -1
    async with node_client(cluster, 2) as client:
        (described,) = (await topic_metadata(client, "t")).partitions
    assert described.error_code == LeaderNotAvailableError.errno
    assert (described.leader_id, described.isr_nodes) == (-1, [])
    await cluster.start_node(1)
    assert cluster.leader_of(TP) == 1
    assert cluster.partition(*TP).leader_epoch == 2
    async with node_client(cluster, 1) as client:
        assert answer_of(await put(client, b"a")).error_code == NoError.errno


async def test_node_keeps_its_port_and_says_so_when_it_is_taken(cluster: Broker) -> None:
    port = cluster.nodes[2].address.port
    async with node_client(cluster, 2) as client:
        await client.request(MetadataRequest(topics=[]))
        await cluster.stop_node(2)
        assert cluster.nodes[2].connection_count == 0
    await cluster.stop_node(2)  # again: nothing to do
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", port)
    try:
        with pytest.raises(KafkaConnectionError, match=str(port)):
            await cluster.start_node(2)
    finally:
        await close_server(server)
    await cluster.start_node(2)
    await cluster.start_node(2)  # again: nothing to do
    assert cluster.nodes[2].address.port == port
    with pytest.raises(BrokerNotAvailableError, match="no node 7"):
        await cluster.start_node(7)


async def test_too_few_replicas_in_sync_refuse_records_with_acks_all(cluster: Broker) -> None:
    cluster.create_topic("t", configs={"min.insync.replicas": "2"})
    await cluster.stop_node(3)
    async with node_client(cluster, 1) as client:
        assert answer_of(await put(client, b"a")).error_code == NoError.errno
        await cluster.stop_node(2)
        assert answer_of(await put(client, b"b")).error_code == NotEnoughReplicasError.errno


async def test_followers_serve_and_the_leader_names_the_one_in_the_readers_rack(
    cluster: Broker,
) -> None:
    topic = cluster.create_topic("t")
    async with node_client(cluster, 1) as leader, node_client(cluster, 3) as follower:
        await put(leader, b"a")
        hinted = only(await get(leader, topic.topic_id, rack="c", max_wait_ms=60_000))
        assert (hinted.preferred_read_replica, hinted.records) == (3, b"")
        near = only(await get(follower, topic.topic_id, rack="c"))
        assert (near.preferred_read_replica, values_in(near)) == (-1, [b"a"])
        for rack in ("", "a", "elsewhere"):
            here = only(await get(leader, topic.topic_id, rack=rack))
            assert (here.preferred_read_replica, values_in(here)) == (-1, [b"a"])
        await cluster.stop_node(3)
        here = only(await get(leader, topic.topic_id, rack="c"))
        assert (here.preferred_read_replica, values_in(here)) == (-1, [b"a"])
    await cluster.start_node(3)
    async with node_client(cluster, 2) as follower:
        here = only(await get(follower, topic.topic_id, rack="c"))
        assert (here.preferred_read_replica, values_in(here)) == (-1, [b"a"])
        old = await client_that_reads_leaders_only(follower)
        assert old.error_code == NotLeaderForPartitionError.errno


async def client_that_reads_leaders_only(client: RawClient) -> PartitionData:
    request = fetch_request({TP.topic: [fetch_partition()]})
    return answered(await client.request(request, 10))[TP.topic, 0]


async def test_nodes_without_a_replica_serve_nothing(cluster: Broker) -> None:
    topic = cluster.create_topic("t", replication_factor=1)
    async with node_client(cluster, 2) as client:
        refused = only(await get(client, topic.topic_id))
    assert refused.error_code == NotLeaderForPartitionError.errno
    assert refused.current_leader.leader_id == 1


async def test_follower_that_is_held_serves_what_it_had(cluster: Broker) -> None:
    topic = cluster.create_topic("t")
    async with node_client(cluster, 1) as leader, node_client(cluster, 2) as follower:
        await put(leader, b"a")
        cluster.hold_replica(TP, 2)
        await put(leader, b"b")
        data = only(await get(follower, topic.topic_id))
        assert (values_in(data), data.high_watermark) == ([b"a"], 1)
        at_its_end = only(await get(follower, topic.topic_id, offset=1))
        assert (at_its_end.error_code, at_its_end.records) == (NoError.errno, b"")
        behind = only(await get(follower, topic.topic_id, offset=2))
        assert behind.error_code == OffsetOutOfRangeError.errno
        (described,) = (await topic_metadata(leader, "t")).partitions
        assert described.isr_nodes == [1, 3]
        assert only(await get(leader, topic.topic_id, rack="b")).preferred_read_replica == -1
        with pytest.raises(BrokerNotAvailableError, match="node 1 is not a follower"):
            cluster.hold_replica(TP, 1)
        cluster.release_replica(TP, 2)
        assert values_in(only(await get(follower, topic.topic_id))) == [b"a", b"b"]
        assert only(await get(leader, topic.topic_id, rack="b")).preferred_read_replica == 2


async def test_truncation_is_told_to_those_who_read_further(cluster: Broker) -> None:
    topic = cluster.create_topic("t")
    async with node_client(cluster, 1) as first, node_client(cluster, 2) as second:
        for value in (b"a", b"b", b"c"):
            await put(first, value)
        assert cluster.truncate(TP, 1) == 1
        assert cluster.leader_of(TP) == 2
        await put(second, b"other")
        diverged = only(await get(second, topic.topic_id, offset=3, epoch=1, last_epoch=0))
        assert diverged.diverging_epoch == EpochEndOffset(epoch=0, end_offset=1)
        behind = only(await get(second, topic.topic_id, offset=3, epoch=1))
        assert behind.error_code == OffsetOutOfRangeError.errno
        assert values_in(only(await get(second, topic.topic_id))) == [b"a"]
        assert values_in(only(await get(second, topic.topic_id, offset=1))) == [b"other"]


async def test_topic_made_anew_has_another_id_and_nothing_of_the_old(cluster: Broker) -> None:
    old = cluster.create_topic("t", partitions=2, configs={"retention.ms": "5000"})
    async with node_client(cluster, 1) as client:
        await put(client, b"a")
        new = cluster.recreate_topic("t")
        assert (new.partition_count, new.config.overrides) == (2, {"retention.ms": "5000"})
        assert only(await get(client, old.topic_id)).error_code == UnknownTopicIdError.errno
    async with node_client(cluster, cluster.leader_of(TP)) as client:
        assert values_in(only(await get(client, new.topic_id))) == []
    with pytest.raises(UnknownTopicOrPartitionError):
        cluster.recreate_topic("none")


async def test_partitions_are_added_with_as_many_replicas(cluster: Broker) -> None:
    topic = cluster.create_topic("t", replication_factor=2)
    cluster.add_partitions("t", 4)
    assert [len(partition.replicas) for partition in topic.partitions] == [2, 2, 2, 2]
    assert len({partition.leader_id for partition in topic.partitions}) == 3


async def test_leaders_are_kept_when_nodes_have_stopped_and_started(tmp_path: Path) -> None:
    configs = {"min.insync.replicas": "2"}
    async with Broker(nodes=2, data_dir=tmp_path) as cluster:
        cluster.create_topic("t", configs=configs)
        for node_id in (1, 2):
            await cluster.stop_node(node_id)
    async with Broker(nodes=2, data_dir=tmp_path) as cluster:
        assert cluster.partition(*TP).leader_epoch == 3  # none led
        await cluster.stop_node(1)
    async with Broker(nodes=2, data_dir=tmp_path) as cluster:
        assert (cluster.leader_of(TP), cluster.partition(*TP).leader_epoch) == (2, 4)
        for node_id in (1, 2):
            await cluster.stop_node(node_id)
        await cluster.start_node(2)
    async with Broker(nodes=2, data_dir=tmp_path) as cluster:
        assert (cluster.leader_of(TP), cluster.partition(*TP).leader_epoch) == (2, 6)


async def test_leaders_are_kept_across_restarts(tmp_path: Path) -> None:
    async with Broker(nodes=3, data_dir=tmp_path) as cluster:
        cluster.create_topic("t", partitions=3)
        cluster.move_leader(TP, 3)
    async with Broker(nodes=3, data_dir=tmp_path) as cluster:
        assert (cluster.leader_of(TP), cluster.partition(*TP).leader_epoch) == (3, 1)
    async with Broker(nodes=2, data_dir=tmp_path) as cluster:  # node 3 is no more
        assert [cluster.leader_of(TopicPartition("t", n)) for n in range(3)] == [1, 2, 1]
        assert cluster.partition(*TP).replicas == [1, 2]
        assert cluster.partition(*TP).leader_epoch == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"nodes": 0},
        {"nodes": 2, "racks": ("a",)},
        {"nodes": 2, "port": 65_535},
        {"nodes": 2, "default_replication_factor": 3},
    ],
)
def test_clusters_that_cannot_be_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"nodes|racks|port|replication"):
        Broker(**wrong)  # type: ignore[arg-type]
