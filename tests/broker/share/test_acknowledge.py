"""What acknowledgements do, and which ones are refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.broker.share.requests import (
    ACCEPT,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    ShareGroup,
    ShareMember,
    acquired,
    answered,
    produce,
)

UNKNOWN_PARTITION, INVALID_REQUEST, UNKNOWN_TOPIC_ID, INVALID_STATE = 3, 42, 100, 121
RENEW_ALONE = {"max_records": 0, "batch_size": 0, "min_bytes": 0, "max_bytes": 0}


@pytest.fixture
async def held(group: ShareGroup) -> ShareGroup:
    """A group that has started, of a topic with five records."""
    await produce(group, 5)
    await group.start()
    return group


async def test_finished_records_are_gone_and_released_ones_come_again(held: ShareGroup) -> None:
    async with held.member() as member, held.member() as other:
        await member.poll()
        assert await member.acknowledge((0, 4, [ACCEPT, RELEASE, REJECT, GAP, RELEASE])) == 0
        got = await other.poll()
        assert got.ranges == [(1, 1, 2), (4, 4, 2)]


async def test_fetch_acknowledges_and_may_acquire_the_same_records(held: ShareGroup) -> None:
    async with held.member() as member:
        await member.poll()
        got = await member.poll([(0, 0, ACCEPT), (1, 4, RELEASE)])
        assert (got.ack_error_code, got.ranges) == (0, [(1, 4, 2)])


@pytest.mark.parametrize(
    ("acks", "code"),
    [
        ([(3, 9, ACCEPT)], INVALID_REQUEST),
        ([(9, 9, ACCEPT)], INVALID_REQUEST),
        ([(0, 2, [ACCEPT, ACCEPT])], INVALID_REQUEST),
        ([(0, 0, [])], INVALID_REQUEST),
        ([(0, 0, 9)], INVALID_REQUEST),
        ([(0, 0, -1)], INVALID_REQUEST),
        ([(0, 0, RENEW)], INVALID_REQUEST),
        ([(1, 0, ACCEPT)], INVALID_REQUEST),
        ([(1, 1, ACCEPT), (0, 0, ACCEPT)], INVALID_REQUEST),
        ([(0, 0, ACCEPT), (0, 0, ACCEPT)], INVALID_STATE),
    ],
    ids=str,
)
async def test_refused_acknowledgements_change_nothing(
    held: ShareGroup, acks: Sequence[tuple[int, int, int | list[int]]], code: int
) -> None:
    async with held.member() as member:
        await member.poll()
        assert await member.acknowledge(*acks) == code
        assert await member.acknowledge((0, 4, ACCEPT)) == 0


async def test_records_of_others_and_finished_ones_are_refused(held: ShareGroup) -> None:
    async with held.member() as member, held.member() as other:
        await member.poll()
        await other.fetch()
        assert await other.acknowledge((0, 0, ACCEPT)) == INVALID_STATE
        assert await member.acknowledge((2, 2, ACCEPT)) == 0
        assert await member.acknowledge((2, 2, ACCEPT)) == INVALID_STATE
        assert await member.acknowledge((1, 3, ACCEPT)) == INVALID_STATE
        assert await member.acknowledge((1, 1, ACCEPT)) == 0


async def test_offsets_before_the_start_offset_are_ignored(held: ShareGroup) -> None:
    async with held.member() as member, held.member() as other:
        await member.poll()
        assert await member.acknowledge((0, 1, ACCEPT)) == 0
        assert await member.acknowledge((0, 1, REJECT)) == 0
        assert await member.acknowledge((0, 2, ACCEPT)) == 0
        await other.fetch()
        assert await other.acknowledge((0, 1, ACCEPT)) == 0


async def test_unknown_partitions_are_refused(held: ShareGroup) -> None:
    async with held.member() as member:
        await member.poll()
        answer = await member.acknowledge_as_is({0: [(0, 0, ACCEPT)], 7: [(0, 0, ACCEPT)]})
        codes = {each.partition_index: each.error_code for each in answer.responses[0].partitions}
        assert codes == {0: 0, 7: UNKNOWN_PARTITION}
        answer = await member.acknowledge_as_is({0: [(1, 1, ACCEPT)]}, topic_id=b"0" * 16)
        assert answer.responses[0].partitions[0].error_code == UNKNOWN_TOPIC_ID


async def test_fetch_answers_acknowledgements_of_each_partition(held: ShareGroup) -> None:
    async with held.member() as member:
        await member.poll()
        got = acquired(await member.ask({0: [(9, 9, ACCEPT)]}))
        assert (got.error_code, got.ack_error_code, got.ranges) == (0, INVALID_REQUEST, [])


# Renewing


async def renew(member: ShareMember, first: int, last: int) -> int:
    return await member.acknowledge((first, last, RENEW), is_renew=True)


async def test_renewal_keeps_the_record_and_its_delivery_count(held: ShareGroup) -> None:
    async with held.member() as member, held.member() as other:
        await member.poll()
        assert await renew(member, 0, 4) == 0
        got = acquired(
            await member.ask({0: [(0, 4, RENEW)]}, is_renew=True, **RENEW_ALONE)  # type: ignore[arg-type]
        )
        assert (got.error_code, got.ack_error_code, got.ranges) == (0, 0, [])
        assert (await other.fetch()).ranges == []
        answer = await member.acknowledge_as_is({0: [(0, 1, [RENEW, RELEASE])]}, is_renew=True)
        assert answer.acquisition_lock_timeout_ms == 30_000
        assert (await other.poll()).ranges == [(1, 1, 2)]
        assert await renew(member, 1, 1) == INVALID_STATE


async def test_request_that_renews_may_not_fetch(held: ShareGroup) -> None:
    async with held.member() as member:
        await member.poll()
        answer = await member.ask({0: [(0, 0, RENEW)]}, is_renew=True)
        assert answer.error_code == INVALID_REQUEST
    async with held.member() as member:
        await member.poll()
        answer = await member.ask({0: [(0, 0, RENEW)]})
        assert answered(answer)[0].acknowledge_error_code == INVALID_REQUEST


async def test_renewal_is_refused_if_the_group_disables_it(group: ShareGroup) -> None:
    await produce(group, 1)
    await group.start(renew_acknowledge_enable="false")
    async with group.member() as member:
        await member.poll()
        assert await renew(member, 0, 0) == INVALID_STATE
        assert await member.acknowledge((0, 0, ACCEPT)) == 0
