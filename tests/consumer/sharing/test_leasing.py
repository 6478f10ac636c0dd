"""A member leases records, settles them, and loses them, against brokers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager

import pytest

from aiokafka_lite import AIOKafkaProducer
from aiokafka_lite.client.lanes import Lane
from aiokafka_lite.consumer.sharing.leases import (
    HELD,
    LOST,
    SETTLED,
    AckType,
    LeaseState,
    RecordLease,
)
from aiokafka_lite.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from aiokafka_lite.protocol.messages.share import ShareGroupHeartbeatRequest
from tests.consumer.sharing.members import Member, member
from tests.support.cluster import KafkaHandle, unique
from tests.support.waiting import until

GROUP_RESOURCE = 32
ACCEPT = AckType.ACCEPT


class Group:
    """A group that begins at the start of a topic."""

    def __init__(self, kafka: KafkaHandle, topic: str) -> None:
        self.kafka, self.topic = kafka, topic
        self.group_id = unique("group")

    async def set(self, **configs: str) -> None:
        request = IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=GROUP_RESOURCE,
                    resource_name=self.group_id,
                    configs=[
                        AlterableConfig(
                            name=name.replace("_", "."), config_operation=0, value=value
                        )
                        for name, value in configs.items()
                    ],
                )
            ]
        )
        async with self.kafka.raw() as client:
            answer = await client.request(request)
        assert [each.error_code for each in answer.responses] == [0]

    def member(self, free: int = 100) -> AbstractAsyncContextManager[Member]:
        return member(self.kafka, self.group_id, self.topic, free=free)

    async def produce(self, count: int, partition: int = 0) -> None:
        await self.kafka.produce(self.topic, partition, [(None, b"%d" % n) for n in range(count)])


async def new_group(kafka: KafkaHandle) -> Group:
    made = Group(kafka, await kafka.create_topic())
    await made.set(share_auto_offset_reset="earliest")
    return made


@pytest.fixture
async def group(kafka: KafkaHandle) -> Group:
    return await new_group(kafka)


def offsets(leases: Iterable[RecordLease]) -> list[int]:
    return [lease.offset for lease in leases]


async def take(member: Member, count: int) -> list[RecordLease]:
    """Take so many records."""
    taken: list[RecordLease] = []
    while len(taken) < count and (more := await member.take(count - len(taken), 20.0)):
        taken += more
    return taken


def accept(member: Member, leases: Iterable[RecordLease]) -> None:
    for lease in leases:
        assert member.leasing.settle(lease, ACCEPT)


async def flush(member: Member) -> None:
    """Wait until the broker has answered every acknowledgement."""
    leases, nodes = member.leasing.leases, member.cluster.view.nodes
    await until(
        lambda: (
            not any(
                each.states.strip(HELD + SETTLED + LOST)
                for node_id in nodes
                for each in leases.ranges(node_id)
            )
        )
    )


async def test_first_record_does_not_wait_for_the_brokers_interval(group: Group) -> None:
    await group.produce(1)
    began = time.monotonic()
    async with group.member() as first:
        assert offsets(await first.take()) == [0]
        new_s = time.monotonic() - began
        await asyncio.sleep(1.2)  # the coordinator computes one assignment a second
        began = time.monotonic()
        async with group.member() as second:
            await until(lambda: bool(second.leasing.assignment))
            joined_s = time.monotonic() - began
    print(f"new {new_s:.3f} s, joined {joined_s:.3f} s")
    assert new_s < 4.5
    assert joined_s < 1.0


async def test_settled_records_are_not_delivered_again(group: Group) -> None:
    await group.produce(10)
    async with group.member() as first:
        leases = await take(first, 10)
        accept(first, leases[:6])
        await flush(first)
        assert {lease.state for lease in leases[:6]} == {LeaseState.SETTLED}
        assert first.leasing.leases.counts.accepted == 6
    async with group.member() as second:
        again = await take(second, 4)
        assert [(lease.offset, lease.range.delivery_count) for lease in again] == [
            (6, 2), (7, 2), (8, 2), (9, 2),
        ]  # fmt: skip
        assert not second.lost


async def test_close_sends_acknowledgements_and_releases_the_rest_at_once(group: Group) -> None:
    await group.produce(10)
    async with group.member() as first, group.member() as second:
        second.free = 0
        leases = await take(first, 10)
        accept(first, leases[:9])
        await first.leasing.close(asyncio.get_running_loop().time() + 10)
        began = time.monotonic()
        second.free = 100
        second.leasing.wanted()
        assert offsets(await second.take()) == [9]
        assert time.monotonic() - began < 2.0
        assert not first.lost


async def test_no_more_records_are_locked_than_wanted(group: Group) -> None:
    await group.produce(100)
    async with group.member(free=1) as first:
        (lease,) = await take(first, 1)
        first.free = 0
        async with group.member() as second:
            assert len(await take(second, 99)) == 99
        accept(first, [lease])


async def test_cut_connection_is_a_lost_lease_of_all_that_is_held(group: Group) -> None:
    await group.produce(20)
    async with group.member() as one:
        leases = await take(one, 20)
        accept(one, leases[:5])
        await flush(one)
        one.free = 0
        one.leasing.settle(leases[5], ACCEPT)
        connection = one.cluster.pool.usable(leases[0].partition.node_id, Lane.FETCH)
        assert connection is not None
        connection.close()
        began = time.monotonic()
        await until(lambda: bool(one.lost))
        assert one.lost_offsets == offsets(leases[5:])
        assert {lease.state for lease in leases[5:]} == {LeaseState.LOST}
        one.free = 100
        one.leasing.wanted()
        again = await take(one, 15)
        back_s = time.monotonic() - began
        assert {(lease.offset, lease.range.delivery_count) for lease in again} == {
            (offset, 2) for offset in range(5, 20)
        }
        print(f"back after {back_s:.3f} s")
        assert back_s < 3.0


async def test_removed_member_joins_with_the_same_id_and_drops_all(group: Group) -> None:
    await group.produce(5)
    async with group.member() as one:
        leases = await take(one, 5)
        member_id = one.leasing.member_id
        one.free = 0
        leave = ShareGroupHeartbeatRequest(
            group_id=group.group_id, member_id=member_id, member_epoch=-1
        )
        async with group.kafka.raw() as client:
            assert (await client.request(leave)).error_code == 0
        await until(lambda: bool(one.lost))
        assert one.lost_offsets == offsets(leases)
        one.free = 100
        one.leasing.wanted()
        again = await take(one, 5)
        assert [lease.range.delivery_count for lease in again] == [2] * 5
        assert one.leasing.member_id == member_id


async def test_control_batches_are_acknowledged_as_gaps(group: Group) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=group.kafka.bootstrap_servers, transactional_id=unique("t")
    )
    async with producer:
        for _ in range(3):
            async with producer.transaction():
                await producer.send(group.topic, b"x", partition=0)
    async with group.member() as one:
        leases = await take(one, 3)
        assert offsets(leases) == [0, 2, 4]
        accept(one, leases)
        await flush(one)
        await until(lambda: one.leasing.leases.counts.gaps == 3)


@pytest.mark.slow
async def test_locks_are_renewed_as_long_as_records_are_held(group: Group) -> None:
    await group.set(share_record_lock_duration_ms="15000")
    await group.produce(3)
    async with group.member() as one:
        leases = await take(one, 3)
        async with group.member() as other:
            await asyncio.sleep(20)
        assert {lease.state for lease in leases} == {LeaseState.HELD}
        assert one.leasing.leases.counts.renewed >= 3
        assert other.leasing.leases.counts.acquired == 0
        accept(one, leases)
        await flush(one)


@pytest.mark.slow
async def test_group_without_renewals_keeps_records_until_their_locks_end(group: Group) -> None:
    await group.set(share_record_lock_duration_ms="15000", share_renew_acknowledge_enable="false")
    await group.produce(3)
    async with group.member() as one:
        leases = await take(one, 3)
        (source,), loop = one.leasing.copy_sources(), asyncio.get_running_loop()
        await until(lambda: not one.leasing.leases.can_renew(source.node_id, loop.time()))
        accept(one, leases[:1])
        await flush(one)
        await until(lambda: bool(one.lost))
        assert one.lost_offsets == [1, 2]


@pytest.mark.slow
async def test_blocked_loop_loses_no_lease(real_kafka: str) -> None:
    group = await new_group(KafkaHandle("real", real_kafka))
    await group.set(share_record_lock_duration_ms="15000")
    await group.produce(3)
    async with group.member() as one:
        leases = await take(one, 3)
        one.free = 0
        await asyncio.sleep(1)
        time.sleep(20)  # noqa: ASYNC251 -- as an application does
        await asyncio.sleep(1)
        assert {lease.state for lease in leases} == {LeaseState.HELD}
        accept(one, leases)
        await flush(one)
        assert one.leasing.leases.counts.accepted == 3
