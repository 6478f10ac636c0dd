"""Committed offsets never go back to what this member was handed before somebody else was.

The other member leads the group, and each of its steps is the test's. While it acts, the event loop
is blocked, as by a handler that computes; the broker goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.errors import CommitFailedError, CoordinatorLoadInProgressError
from aiokafka_lite.structs import OffsetAndMetadata
from tests.support import inside
from tests.support.cluster import KafkaHandle
from tests.support.other_member import OtherMember
from tests.support.pair import Pair, two_members
from tests.support.waiting import PATIENCE_S


@pytest.fixture(params=["embedded", pytest.param("real", marks=pytest.mark.real_kafka)])
def outside(request: pytest.FixtureRequest) -> Iterator[KafkaHandle]:
    """A cluster that goes on while the test's loop is blocked."""
    if request.param == "real":
        yield KafkaHandle("real", request.getfixturevalue("real_kafka"))
        return
    with BrokerThread() as broker:
        yield KafkaHandle("embedded", broker.bootstrap_servers)


# --- Between JoinGroup and SyncGroup -----------------------------------------------------------
async def test_a_stop_after_a_block_while_joining_leaves_the_next_owners_offsets(
    outside: KafkaHandle,
) -> None:
    async with two_members(outside) as pair:
        await pair.read(20)
        await pair.have_it_join()
        pair.take_over(510)

        assert await pair.consumer.stop() == {pair.tp: OffsetAndMetadata(20, "")}
        assert pair.other.committed(pair.tp) == 510


async def test_a_stop_while_syncing_leaves_the_next_owners_offsets(outside: KafkaHandle) -> None:
    async with two_members(outside) as pair:
        await pair.read(20)
        pair.other.begin_join()
        await pair.other.joined()
        await pair.until_it_is("SYNCING")
        pair.other.share_out([0], [])
        pair.other.commit({pair.tp: 510})

        assert await pair.consumer.stop() == {pair.tp: OffsetAndMetadata(20, "")}
        assert pair.other.committed(pair.tp) == 510


async def test_a_stop_while_joining_commits_what_nobody_else_can_have_had(
    outside: KafkaHandle,
) -> None:
    async with two_members(outside) as pair:
        await pair.read(20)
        await pair.have_it_join()

        assert await pair.consumer.stop() == {}
        assert pair.other.committed(pair.tp) == 20


async def test_an_error_after_a_block_while_joining_leaves_the_next_owners_offsets(
    outside: KafkaHandle,
) -> None:
    async with two_members(outside) as pair:
        with pytest.raises(LookupError):
            await fail_after_a_block(pair)
        assert pair.other.committed(pair.tp) == 510


async def fail_after_a_block(pair: Pair) -> None:
    try:
        await pair.read(10)
        await pair.have_it_join()
        assert await pair.consumer.getmany(timeout_ms=0) == {}  # now the ten are processed
        pair.take_over(510)
        raise LookupError
    except LookupError as error:
        # As an `async with` does that is left by an exception.
        await pair.consumer.__aexit__(type(error), error, error.__traceback__)
        raise


async def test_a_commit_called_while_syncing_is_not_made_two_generations_later(
    outside: KafkaHandle,
) -> None:
    async with two_members(outside, enable_auto_commit=False) as pair:
        consumer, other, tp = pair.consumer, pair.other, pair.tp
        await pair.read(20)
        await pair.have_it_join()
        pair.take_over(510)
        other.begin_join()  # before the consumer asks what it has got
        await pair.until_it_is("SYNCING")
        commit = asyncio.ensure_future(consumer.commit({tp: 20}))
        await other.joined()
        other.share_out([], [0])

        with pytest.raises(CommitFailedError):
            await asyncio.wait_for(commit, PATIENCE_S)
        assert other.committed(tp) == 510
        assert (await consumer.getone()).offset == 510


async def test_a_commit_called_while_syncing_is_made_if_the_partition_comes_back(
    outside: KafkaHandle,
) -> None:
    async with two_members(outside, enable_auto_commit=False) as pair:
        consumer, other, tp = pair.consumer, pair.other, pair.tp
        await pair.read(20)
        other.begin_join()
        await other.joined()
        await pair.until_it_is("SYNCING")
        commit = asyncio.ensure_future(consumer.commit({tp: 20}))
        await asyncio.sleep(0)
        other.share_out([], [0])

        await asyncio.wait_for(commit, PATIENCE_S)
        assert other.committed(tp) == 20
        assert (await consumer.getone()).offset == 20


async def test_an_assignment_starts_behind_a_commit_of_the_one_before_that_is_tried_again() -> None:
    with BrokerThread() as broker:
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        async with two_members(kafka, enable_auto_commit=False) as pair:
            await pair.read(20)
            pair.other.begin_join()
            await pair.other.joined()
            await pair.until_it_is("SYNCING")
            commit = asyncio.ensure_future(pair.consumer.commit({pair.tp: 20}))
            await asyncio.sleep(0)
            refused = broker.on("OffsetCommit").fail(CoordinatorLoadInProgressError)
            pair.other.share_out([], [0])

            assert (await pair.consumer.getone()).offset == 20
            await asyncio.wait_for(commit, PATIENCE_S)
            assert refused.hits == 1
            assert pair.other.committed(pair.tp) == 20


async def test_a_stop_commits_nothing_of_a_lost_assignment_though_another_one_is_on_its_way(
    outside: KafkaHandle,
) -> None:
    async with two_members(outside) as pair:
        await pair.read(20)
        throw_out(outside, pair)
        pair.take_over(510)
        await pair.other.until(pair.other.is_called_to_rejoin)
        pair.other.begin_join()
        await pair.other.joined()
        await pair.until_it_is("SYNCING")
        pair.other.share_out([], [0])

        assert await pair.consumer.stop() == {pair.tp: OffsetAndMetadata(20, "")}
        assert pair.other.committed(pair.tp) == 510


def throw_out(kafka: KafkaHandle, pair: Pair) -> None:
    """Have the group forget the consumer, which it hears at its next heartbeat."""
    with OtherMember(kafka.bootstrap_servers, pair.other.group_id, pair.tp.topic) as somebody:
        somebody.member_id = inside.member_id(pair.consumer)
        somebody.leave()


# --- The partition went and came back ----------------------------------------------------------
async def test_a_commit_of_records_from_before_another_member_had_the_partition_fails(
    outside: KafkaHandle,
) -> None:
    async with two_members(outside, enable_auto_commit=False) as pair:
        consumer, other, tp = pair.consumer, pair.other, pair.tp
        await pair.read(20)
        await pair.move(to_other=True)
        other.commit({tp: 500})
        await pair.move(to_other=False)

        for offset in (20, 7, 1):
            with pytest.raises(CommitFailedError, match="earlier assignment"):
                await consumer.commit({tp: offset})
        assert other.committed(tp) == 500
        assert (await consumer.getone()).offset == 500
        await consumer.commit({tp: 501})
        with pytest.raises(CommitFailedError, match="earlier assignment"):
            await consumer.commit({tp: 20})
        await consumer.commit()
        assert other.committed(tp) == 501


async def test_what_was_handed_out_is_remembered_over_several_owners(
    outside: KafkaHandle,
) -> None:
    async with two_members(outside, enable_auto_commit=False) as pair:
        consumer, other, tp = pair.consumer, pair.other, pair.tp
        await pair.read(20)
        for offset in (100, 200):
            await pair.move(to_other=True)
            other.commit({tp: offset})
            await pair.move(to_other=False)
            await pair.read(5)

        for stale in (20, 105):
            with pytest.raises(CommitFailedError, match="earlier assignment"):
                await consumer.commit({tp: stale})
        await consumer.commit({tp: 205})
        assert other.committed(tp) == 205


def rewind(pair: Pair) -> int:
    return 0


def go_ahead(pair: Pair) -> int:
    return 515


def seek_back(pair: Pair) -> int:
    pair.consumer.seek(pair.tp, 7)
    return 7


@pytest.mark.parametrize("choose", [rewind, go_ahead, seek_back], ids=lambda f: f.__name__)
async def test_any_other_offset_may_be_committed(
    outside: KafkaHandle, choose: Callable[[Pair], int]
) -> None:
    async with two_members(outside, enable_auto_commit=False) as pair:
        await pair.read(20)
        await pair.move(to_other=True)
        pair.other.commit({pair.tp: 500})
        await pair.move(to_other=False)
        await pair.read(5)

        await pair.consumer.commit({pair.tp: choose(pair)})
        assert pair.other.committed(pair.tp) == choose(pair)


async def test_a_partition_that_nobody_else_had_in_between_may_be_committed(
    outside: KafkaHandle,
) -> None:
    """As Java's and aiokafka's consumers: the work on a batch may outlast a rebalance."""
    async with two_members(outside, enable_auto_commit=False) as pair:
        await pair.read(20)
        for _ in range(2):
            await pair.move(to_other=False)

        await pair.consumer.commit({pair.tp: 20})
        assert pair.other.committed(pair.tp) == 20


async def test_a_member_that_was_thrown_out_commits_nothing_it_was_handed_before(
    outside: KafkaHandle,
) -> None:
    async with two_members(outside, enable_auto_commit=False) as pair:
        consumer, other, tp = pair.consumer, pair.other, pair.tp
        await pair.read(20)
        throw_out(outside, pair)
        pair.take_over(500)
        await other.until(other.is_called_to_rejoin)
        await pair.move(to_other=False)

        with pytest.raises(CommitFailedError, match="earlier assignment"):
            await consumer.commit({tp: 20})
        assert other.committed(tp) == 500
