"""Committed offsets never go back to what this member was handed before somebody else was.

The other member leads the group, and each of its steps is the test's. While it acts, the event loop
is blocked, as by a handler that computes; the broker goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.assignors import RebalanceProtocol, RoundRobinPartitionAssignor
from aiokafka_lite.errors import CommitFailedError, CoordinatorLoadInProgressError
from aiokafka_lite.protocol.codec import decode_versioned
from aiokafka_lite.protocol.messages.group_members import ConsumerProtocolSubscription
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition
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
@pytest.mark.real_if_long
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


@pytest.mark.real_if_long
async def test_a_stop_while_joining_commits_what_nobody_else_can_have_had(
    outside: KafkaHandle,
) -> None:
    async with two_members(outside) as pair:
        await pair.read(20)
        await pair.have_it_join()

        assert await pair.consumer.stop() == {}
        assert pair.other.committed(pair.tp) == 20


@pytest.mark.real_if_long
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


@pytest.mark.real_if_long
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


@pytest.mark.real_if_long
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


@pytest.mark.real_if_long
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


# --- What is unsubscribed between JoinGroup and SyncGroup --------------------------------------
class Cooperative(RoundRobinPartitionAssignor):
    """Keeps partitions through a rebalance; the other member shares them out."""

    rebalance_protocols = frozenset({RebalanceProtocol.COOPERATIVE})


@pytest.fixture(params=["eager", "cooperative"])
def assignor(request: pytest.FixtureRequest) -> type[RoundRobinPartitionAssignor]:
    return Cooperative if request.param == "cooperative" else RoundRobinPartitionAssignor


async def begin_to_sync(pair: Pair) -> None:
    """Have the consumer wait for what the other one assigns."""
    pair.other.begin_join()
    await pair.other.joined()
    await pair.until_it_is("SYNCING")


def stay_away(consumer: AIOKafkaConsumer, tp: TopicPartition) -> None:
    consumer.unsubscribe()


def assign_it_by_hand(consumer: AIOKafkaConsumer, tp: TopicPartition) -> None:
    consumer.unsubscribe()
    consumer.assign([tp])


def subscribe_again(consumer: AIOKafkaConsumer, tp: TopicPartition) -> None:
    consumer.unsubscribe()
    consumer.subscribe([tp.topic])


@pytest.mark.real_if_long
@pytest.mark.parametrize(
    "leave", [stay_away, assign_it_by_hand, subscribe_again], ids=lambda f: f.__name__
)
async def test_what_is_unsubscribed_while_syncing_is_committed_if_it_comes_back(
    outside: KafkaHandle,
    assignor: type[RoundRobinPartitionAssignor],
    leave: Callable[[AIOKafkaConsumer, TopicPartition], None],
) -> None:
    async with two_members(outside, partition_assignment_strategy=(assignor,)) as pair:
        await pair.read(20)
        await begin_to_sync(pair)
        leave(pair.consumer, pair.tp)
        await asyncio.sleep(0)
        pair.other.share_out([], [0])

        await pair.other.until(lambda: pair.other.committed(pair.tp) == 20)


@pytest.mark.real_if_long
@pytest.mark.parametrize("goes_to", ["this", "the other", "nobody"])
async def test_a_stop_waits_to_commit_what_was_unsubscribed_while_syncing(
    outside: KafkaHandle, assignor: type[RoundRobinPartitionAssignor], goes_to: str
) -> None:
    async with two_members(outside, partition_assignment_strategy=(assignor,)) as pair:
        consumer, other, tp = pair.consumer, pair.other, pair.tp
        await pair.read(20)
        await begin_to_sync(pair)
        consumer.unsubscribe()
        stop = asyncio.ensure_future(consumer.stop())
        await asyncio.sleep(0.05)
        # A leader gives nobody else what a cooperative member keeps.
        is_anothers = goes_to == "the other" and assignor is not Cooperative
        other.share_out([0] if is_anothers else [], [0] if goes_to == "this" else [])
        if is_anothers:
            other.commit({tp: 510})

        is_kept = goes_to == "this" or assignor is Cooperative
        assert await stop == ({} if is_kept else {tp: OffsetAndMetadata(20, "")})
        assert other.committed(tp) == (20 if is_kept else 510 if is_anothers else 0)


@pytest.mark.real_if_long
async def test_what_a_cooperative_member_unsubscribes_is_committed_though_the_rebalance_fails(
    outside: KafkaHandle,
) -> None:
    async with two_members(outside, partition_assignment_strategy=(Cooperative,)) as pair:
        await pair.read(20)
        await begin_to_sync(pair)
        pair.consumer.unsubscribe()
        await asyncio.sleep(0)
        pair.other.begin_join()  # SyncGroup is answered by REBALANCE_IN_PROGRESS

        await pair.other.until(lambda: pair.other.committed(pair.tp) == 20)


async def claim_told_to(leader: OtherMember) -> ConsumerProtocolSubscription:
    """Return what the consumer claims when all have joined."""
    joined = await leader.joined()
    (claim,) = (
        decode_versioned(ConsumerProtocolSubscription, member.metadata)
        for member in joined.members
        if member.member_id != leader.member_id
    )
    return claim


@pytest.mark.real_if_long
async def test_a_cooperative_member_says_what_it_keeps_under_the_generation_that_it_saw(
    outside: KafkaHandle,
) -> None:
    """Leaders pass over claims of a generation before the others': two would own a partition."""
    async with two_members(outside, partition_assignment_strategy=(Cooperative,)) as pair:
        consumer, other = pair.consumer, pair.other
        await pair.read(20)
        generation = other.generation
        await begin_to_sync(pair)
        other.begin_join()  # SyncGroup is answered by REBALANCE_IN_PROGRESS: nothing is assigned
        claim = await claim_told_to(other)
        assert claim.generation_id == generation
        await pair.until_it_is("SYNCING")
        consumer.subscribe([pair.tp.topic, pair.more])
        await asyncio.sleep(0)
        other.share_out([], [0])
        await other.until(other.is_called_to_rejoin)
        generation = other.generation
        other.begin_join()
        claim = await claim_told_to(other)
        assert [part.topic for part in claim.owned_partitions] == [pair.tp.topic]
        assert claim.generation_id == generation
        other.share_out([], [0])  # or the stop waits until it can commit


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


@pytest.mark.real_if_long
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


@pytest.mark.real_if_long
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
