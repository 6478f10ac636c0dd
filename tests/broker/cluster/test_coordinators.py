"""Groups whose coordinator moves or stops, and members whose sessions are ended."""

from __future__ import annotations

import asyncio

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.errors import (
    CoordinatorNotAvailableError,
    GroupIdNotFound,
    KafkaStorageError,
    NoError,
    NotCoordinatorError,
    UnknownMemberIdError,
)
from aiokafka_lite.protocol.messages.group_members import HeartbeatRequest
from aiokafka_lite.protocol.messages.metadata import (
    Coordinator,
    FindCoordinatorRequest,
)
from tests.broker.cluster.conftest import node_client
from tests.support.cluster import KafkaHandle
from tests.support.group_requests import GroupRequests


async def coordinator_seen_by(cluster: Broker, node_id: int, group_id: str) -> Coordinator:
    async with node_client(cluster, node_id) as client:
        answer = await client.request(FindCoordinatorRequest(coordinator_keys=[group_id]))
    return answer.coordinators[0]


async def heartbeat(cluster: Broker, node_id: int, group_id: str, member_id: str) -> int:
    request = HeartbeatRequest(group_id=group_id, generation_id=1, member_id=member_id)
    async with node_client(cluster, node_id) as client:
        return (await client.request(request)).error_code


async def test_every_node_names_the_same_coordinator_and_only_that_one_answers(
    cluster: Broker,
) -> None:
    for group_id in ("g", "h", "another"):
        seen = [await coordinator_seen_by(cluster, n, group_id) for n in cluster.nodes]
        assert seen[0] == seen[1] == seen[2]
        assert seen[0].node_id == cluster.coordinator_of(group_id)
        for node_id in cluster.nodes:
            expected = UnknownMemberIdError if node_id == seen[0].node_id else NotCoordinatorError
            assert await heartbeat(cluster, node_id, group_id, "m") == expected.errno
    assert len({cluster.coordinator_of(f"group-{n}") for n in range(30)}) == 3


async def test_offsets_and_members_follow_the_coordinator(
    cluster: Broker, kafka: KafkaHandle
) -> None:
    await kafka.create_topic("t")
    await cluster.open_internal_topic("__consumer_offsets")
    here = cluster.coordinator_of("g")
    at_here = KafkaHandle("embedded", cluster.nodes[here].bootstrap_servers)
    member = await GroupRequests(at_here, "g").member()
    assert await GroupRequests(at_here, "g").commit("t", 7, member=member) == NoError.errno
    there = cluster.move_coordinator("g")
    assert there != here
    await cluster.nodes[there].groups.until_loaded()
    assert await heartbeat(cluster, here, "g", member.member_id) == NotCoordinatorError.errno
    assert await heartbeat(cluster, there, "g", member.member_id) == NoError.errno
    at_there = KafkaHandle("embedded", cluster.nodes[there].bootstrap_servers)
    assert (await GroupRequests(at_there, "g").fetch("t")).committed_offset == 7


async def test_group_goes_on_when_its_coordinator_is_killed(
    cluster: Broker, kafka: KafkaHandle
) -> None:
    await kafka.create_topic("t")
    await cluster.open_internal_topic("__consumer_offsets")
    here = cluster.coordinator_of("g")
    at_here = KafkaHandle("embedded", cluster.nodes[here].bootstrap_servers)
    assert await GroupRequests(at_here, "g").commit("t", 3) == NoError.errno
    await cluster.stop_node(here, clean=False)
    there = cluster.coordinator_of("g")
    assert there not in (-1, here)
    await cluster.nodes[there].groups.until_loaded()
    at_there = KafkaHandle("embedded", cluster.nodes[there].bootstrap_servers)
    assert (await GroupRequests(at_there, "g").fetch("t")).committed_offset == 3


async def test_session_ends_when_told_to(cluster: Broker, kafka: KafkaHandle) -> None:
    await kafka.create_topic("t")
    with pytest.raises(CoordinatorNotAvailableError):
        cluster.expire_session("g", "m")
    await cluster.open_internal_topic("__consumer_offsets")
    with pytest.raises(GroupIdNotFound):
        cluster.expire_session("g", "m")
    here = cluster.coordinator_of("g")
    at_here = KafkaHandle("embedded", cluster.nodes[here].bootstrap_servers)
    member = await GroupRequests(at_here, "g").member()
    with pytest.raises(UnknownMemberIdError):
        cluster.expire_session("g", "somebody")
    cluster.expire_session("g", member.member_id)
    assert await heartbeat(cluster, here, "g", member.member_id) == UnknownMemberIdError.errno


async def test_nobody_coordinates_until_the_disk_has_the_topic(
    cluster: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> None:
        raise KafkaStorageError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(cluster.disk, "settled", fail)
        seen = await coordinator_seen_by(cluster, 1, "g")
        assert seen.error_code == CoordinatorNotAvailableError.errno
        for node_id in cluster.nodes:
            assert await heartbeat(cluster, node_id, "g", "m") == NotCoordinatorError.errno
    assert (await coordinator_seen_by(cluster, 1, "g")).error_code == NoError.errno


@pytest.mark.parametrize("change", ["moves", "stops"])
async def test_join_that_is_parked_is_told_when_the_coordinator_moves_or_stops(
    cluster: Broker, change: str
) -> None:
    await cluster.open_internal_topic("__consumer_offsets")
    here = cluster.coordinator_of("g")
    at_here = KafkaHandle("embedded", cluster.nodes[here].bootstrap_servers)
    requests = GroupRequests(at_here, "g")
    await requests.member()
    parked = asyncio.ensure_future(requests.join_with_id())  # waits for the first to rejoin
    for _ in range(50):
        await asyncio.sleep(0.001)
    assert not parked.done()
    if change == "moves":
        cluster.move_coordinator("g")
    else:
        await cluster.stop()
    assert (await parked).error_code == NotCoordinatorError.errno


@pytest.mark.parametrize("nodes", [1, 3])
async def test_groups_begin_anew_when_their_topic_is_deleted(nodes: int) -> None:
    async with Broker(nodes=nodes, offsets_topic_partitions=7) as broker:
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        await kafka.create_topic("t")
        await broker.open_internal_topic("__consumer_offsets")
        for _ in range(2):
            at = broker.coordinator_of("g")
            group = GroupRequests(KafkaHandle("embedded", broker.nodes[at].bootstrap_servers), "g")
            assert (await group.fetch("t")).committed_offset == -1
            member = await group.member()
            assert await group.commit("t", 7, member=member) == NoError.errno
            broker.delete_topic("__consumer_offsets")
            assert await group.heartbeat(member) == NotCoordinatorError.errno
            found = await coordinator_seen_by(broker, at, "g")
            assert (found.error_code, found.node_id) == (0, broker.coordinator_of("g"))
        assert broker.failure is None
