"""Share partitions after a restart of the broker, and at a new leader."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.structs import TopicPartition
from tests.broker.share.requests import (
    ACCEPT,
    REJECT,
    RELEASE,
    ShareGroup,
    acquired,
    answered,
    produce,
    share_group,
)
from tests.support.cluster import KafkaHandle
from tests.support.group_requests import await_coordinator

UNKNOWN_PARTITION, NOT_LEADER, NOT_FOUND = 3, 6, 122


async def settled(broker: Broker) -> KafkaHandle:
    kafka = KafkaHandle("embedded", broker.bootstrap_servers)
    await await_coordinator(kafka)
    return kafka


@pytest.mark.parametrize("is_on_disk", [True, False])
async def test_restart_keeps_finished_records_and_delivery_counts(
    tmp_path: Path, is_on_disk: bool
) -> None:
    broker = Broker(data_dir=tmp_path if is_on_disk else None)
    async with broker:
        group = await share_group(await settled(broker))
        await produce(group, 8)
        await group.start()
        async with group.member() as member:
            await member.fetch()
            acks = ((0, 1, ACCEPT), (2, 2, RELEASE), (4, 4, REJECT), (5, 5, RELEASE))
            assert await member.acknowledge(*acks) == 0
            assert (await member.fetch()).ranges == [(2, 2, 2), (5, 5, 2)]
            await broker.stop()  # with locks on 2, 3, and 5 to 7
    if is_on_disk:
        broker = Broker(data_dir=tmp_path)
    async with broker:
        restored = ShareGroup(await settled(broker), group.topic, group.topic_id)
        restored.group_id = group.group_id
        async with restored.member() as member:
            # Locks are not stored, and neither are the deliveries that they are of.
            ranges = (await member.fetch()).ranges
            assert ranges == [(2, 2, 2), (3, 3, 1), (5, 5, 2), (6, 7, 1)]
            assert await member.acknowledge((2, 3, ACCEPT), (5, 7, ACCEPT)) == 0
            assert (await member.fetch()).ranges == []


async def test_deleted_group_and_topic_are_gone_after_a_restart(tmp_path: Path) -> None:
    async with Broker(data_dir=tmp_path) as broker:
        groups = [await share_group(await settled(broker)) for _ in range(3)]
        for group in groups:
            await group.start()
        broker.share_partitions.forget(group_id=groups[0].group_id)
        await groups[1].kafka.delete_topic(groups[1].topic)
    async with Broker(data_dir=tmp_path) as broker:
        shares = broker.share_partitions
        kept = [shares.is_started(group.group_id, group.topic_id, 0) for group in groups]
        assert kept == [False, False, True]


async def test_recreated_topic_is_another_one() -> None:
    async with Broker() as broker:
        group = await share_group(await settled(broker))
        await group.start()
        broker.recreate_topic(group.topic)
        topic = broker.known_topic(group.topic)
        assert not broker.share_partitions.is_started(group.group_id, topic.topic_id, 0)


@pytest.fixture
async def cluster() -> AsyncIterator[Broker]:
    async with Broker(nodes=2) as broker:
        yield broker
        assert broker.failure is None


@pytest.fixture
async def group(cluster: Broker) -> ShareGroup:
    """A group that has started, of a topic with four records."""
    group = await share_group(KafkaHandle("embedded", cluster.bootstrap_servers))
    await produce(group, 4)
    cluster.share_partitions.start(group.group_id, group.topic_id, 0, start_offset=0)
    return group


async def test_moved_leader_is_named_and_knows_finished_records(
    cluster: Broker, group: ShareGroup
) -> None:
    tp = TopicPartition(group.topic, 0)
    old = cluster.leader_of(tp)
    async with group.member(cluster.nodes[old].bootstrap_servers) as member:
        assert (await member.poll()).ranges == [(0, 3, 1)]
        await member.acknowledge((0, 0, ACCEPT), (1, 1, RELEASE))
        new = cluster.move_leader(tp)
        assert await member.acknowledge((2, 2, ACCEPT)) == UNKNOWN_PARTITION
        fetched = await member.ask({0: [(2, 2, ACCEPT)]}, max_wait_ms=10_000)
        assert acquired(fetched).error_code == NOT_LEADER
        assert acquired(fetched).ack_error_code == UNKNOWN_PARTITION
        leader = answered(fetched)[0].current_leader
        assert (leader.leader_id, leader.leader_epoch) == (new, 1)
        (endpoint,) = fetched.node_endpoints
        assert f"{endpoint.host}:{endpoint.port}" == cluster.nodes[new].bootstrap_servers
    async with group.member(cluster.nodes[new].bootstrap_servers) as member:
        assert (await member.poll()).ranges == [(1, 1, 2), (2, 3, 1)]
        cluster.move_leader(tp, old)
        cluster.move_leader(tp, new)
        # This leader has begun anew, too.
        assert await member.acknowledge((2, 2, ACCEPT)) == UNKNOWN_PARTITION
        assert (await member.poll()).ranges == [(1, 1, 2), (2, 3, 1)]


async def test_killed_node_loses_sessions_and_locks_but_no_states(
    cluster: Broker, group: ShareGroup
) -> None:
    old = cluster.leader_of(TopicPartition(group.topic, 0))
    async with group.member(cluster.nodes[old].bootstrap_servers) as member:
        await member.poll()
        await member.acknowledge((0, 0, ACCEPT))
        await cluster.stop_node(old, clean=False)
    new = cluster.leader_of(TopicPartition(group.topic, 0))
    async with group.member(cluster.nodes[new].bootstrap_servers) as member:
        assert (await member.ask(epoch=2)).error_code == NOT_FOUND
        assert (await member.poll()).ranges == [(1, 3, 1)]


async def test_node_that_has_sent_no_records_refuses_acknowledgements(
    cluster: Broker, group: ShareGroup
) -> None:
    for node in cluster.nodes.values():
        async with group.member(node.bootstrap_servers) as member:
            await member.ask()
            assert await member.acknowledge((0, 0, ACCEPT)) == UNKNOWN_PARTITION
