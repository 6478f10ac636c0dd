"""Share sessions: their epochs, partitions, and ends."""

from __future__ import annotations

import asyncio

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.structs import TopicPartition
from tests.broker.share.requests import ACCEPT, ShareGroup, acquired, answered, produce, share_group
from tests.support.cluster import KafkaHandle

UNKNOWN, INVALID_REQUEST = -1, 42
NOT_FOUND, INVALID_EPOCH, LIMIT_REACHED = 122, 123, 133


@pytest.fixture
async def started(group: ShareGroup) -> ShareGroup:
    """A group that has started, of a topic with three records."""
    await produce(group, 3)
    await group.start()
    return group


@pytest.mark.parametrize("epoch", [5, 0, -2])
async def test_wrong_epoch_is_refused_and_the_session_goes_on(
    started: ShareGroup, epoch: int
) -> None:
    async with started.member() as member:
        await member.poll()
        answer = await member.acknowledge_as_is({0: [(0, 0, ACCEPT)]}, epoch=epoch)
        assert answer.error_code == INVALID_EPOCH
        if epoch:
            assert (await member.ask(epoch=epoch)).error_code == INVALID_EPOCH
        assert await member.acknowledge((0, 0, ACCEPT)) == 0


async def test_requests_without_a_session_are_refused(started: ShareGroup) -> None:
    async with started.member() as member:
        for epoch in (1, -1):
            assert (await member.ask(epoch=epoch)).error_code == NOT_FOUND
            assert (await member.acknowledge_as_is({}, epoch=epoch)).error_code == NOT_FOUND


async def test_first_request_may_not_acknowledge(started: ShareGroup) -> None:
    async with started.member() as member:
        answer = await member.ask({0: [(0, 0, ACCEPT)]})
        assert answer.error_code == INVALID_REQUEST
        assert (await member.ask()).error_code == 0  # a session without partitions


async def test_session_that_is_opened_again_keeps_locks(started: ShareGroup) -> None:
    async with started.member() as member:
        await member.poll()
        member.epoch = 0
        assert (await member.fetch()).ranges == []
        assert await member.acknowledge((0, 2, ACCEPT)) == 0


@pytest.mark.parametrize("member_id", ["", "x" * 37])
async def test_member_ids_have_a_length(started: ShareGroup, member_id: str) -> None:
    async with started.member() as member:
        member.member_id = member_id
        assert (await member.ask(partitions=[0])).error_code == INVALID_REQUEST
        member.member_id = "any text"
        assert (await member.poll()).ranges == [(0, 2, 1)]


@pytest.mark.parametrize("by_fetch", [False, True])
async def test_last_request_acknowledges_and_releases_the_rest(
    started: ShareGroup, by_fetch: bool
) -> None:
    async with started.member() as member, started.member() as other:
        await member.poll()
        await other.fetch()
        acks = {0: [(0, 0, ACCEPT)]}
        if by_fetch:
            answer = await member.ask(acks, epoch=-1)
            assert acquired(answer).ack_error_code == 0
            assert acquired(answer).ranges == []
        else:
            closed = await member.acknowledge_as_is(acks, epoch=-1)
            assert closed.responses[0].partitions[0].error_code == 0
        assert (await other.poll()).ranges == [(1, 2, 2)]
        assert (await member.ask()).error_code == NOT_FOUND


async def test_dropped_connection_releases_with_the_delivery_count(started: ShareGroup) -> None:
    async with started.member() as other:
        await other.fetch(max_records=0)
        async with started.member() as member:
            await member.poll()
            await member.acknowledge((0, 0, ACCEPT))
        assert (await other.poll()).ranges == [(1, 2, 2)]


async def test_session_ends_with_the_connection_that_opened_it(started: ShareGroup) -> None:
    async with started.member() as member:
        await member.poll()
        async with started.member() as second:
            second.member_id, second.epoch = member.member_id, member.epoch
            assert await second.acknowledge((0, 0, ACCEPT)) == 0
        member.epoch += 1
        await asyncio.sleep(0.1)
        assert await member.acknowledge((1, 2, ACCEPT)) == 0


async def test_member_that_leaves_the_group_keeps_its_locks(group: ShareGroup) -> None:
    """The coordinator and the leaders of partitions do not know each other's members."""
    await produce(group, 3)
    member_id = await group.start()
    async with group.member() as member, group.member() as other:
        member.member_id = member_id
        await member.poll()
        await group.leave(member_id)
        assert (await other.fetch(max_wait_ms=100)).ranges == []
        assert await member.acknowledge((0, 2, ACCEPT)) == 0


async def test_partitions_stay_in_the_session_until_they_are_forgotten(
    cluster: KafkaHandle,
) -> None:
    group = await share_group(cluster, 2)
    await group.start()
    async with group.member() as member:
        for partition in (0, 1):
            await produce(group, 1, partition=partition)
            await member.poll(partition=partition)
        # An acknowledgement of a partition adds it to the session, too.
        await member.ask({1: [(0, 0, ACCEPT)]})
        await member.ask(forget=[0])
        await produce(group, 1)
        await produce(group, 1, partition=1)
        answer = await member.ask(max_wait_ms=1_000)
        assert [index for index, data in answered(answer).items() if data.acquired_records] == [1]
        # A record of the other one may still be acknowledged.
        assert await member.acknowledge((0, 0, ACCEPT)) == 0


async def test_topic_that_does_not_exist_fails_the_fetch(started: ShareGroup) -> None:
    async with started.member() as member:
        await member.poll()
        answer = await member.ask(partitions=[0], topic_id=b"0" * 16, max_wait_ms=100)
        assert answer.error_code == UNKNOWN


async def test_unknown_acquire_mode_is_refused(started: ShareGroup) -> None:
    async with started.member() as member:
        await member.poll()
        assert (await member.ask(mode=7)).error_code == UNKNOWN


async def test_first_stable_version_has_no_acquire_mode(started: ShareGroup) -> None:
    async with started.member() as member:
        got = acquired(await member.ask(partitions=[0], version=1, max_wait_ms=500))
        assert got.ranges == [(0, 2, 1)]
        answer = await member.acknowledge_as_is({0: [(0, 2, ACCEPT)]}, version=1)
        assert answer.responses[0].partitions[0].error_code == 0


async def test_sessions_of_a_node_are_limited() -> None:
    async with Broker(group_share_max_share_sessions=1) as broker:
        group = await share_group(KafkaHandle("embedded", broker.bootstrap_servers))
        async with group.member() as member, group.member() as other:
            assert (await member.ask(partitions=[0])).error_code == 0
            assert (await other.ask(partitions=[0])).error_code == LIMIT_REACHED
            member.epoch = 0
            assert (await member.ask(partitions=[0])).error_code == 0
            await member.close()
            assert (await other.ask(partitions=[0])).error_code == 0


@pytest.mark.parametrize("by_connection", [False, True])
async def test_end_of_a_session_keeps_the_locks_of_other_nodes(by_connection: bool) -> None:
    async with Broker(nodes=2) as broker:
        group = await share_group(KafkaHandle("embedded", broker.bootstrap_servers), 2)
        members = []
        for number, node_id in enumerate(sorted(broker.nodes)):
            tp = TopicPartition(group.topic, number)
            broker.move_leader(tp, min(broker.nodes))
            await produce(group, 1, partition=number)
            broker.share_partitions.start(group.group_id, group.topic_id, number, start_offset=0)
            broker.move_leader(tp, node_id)
            members.append(group.member(broker.nodes[node_id].bootstrap_servers))
        first, second = members
        second.member_id = first.member_id
        async with second:
            async with first:
                for number, member in enumerate(members):
                    assert (await member.poll(partition=number)).ranges == [(0, 0, 1)]
                if not by_connection:
                    await first.close()
            answer = await second.acknowledge_as_is({1: [(0, 0, ACCEPT)]})
            assert answer.responses[0].partitions[0].error_code == 0
