"""Cooperative rebalances (KIP-429): only the partitions that move stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from aiokafka_lite import AIOKafkaConsumer, CooperativeStickyPartitionAssignor
from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer.assignors import RangePartitionAssignor
from aiokafka_lite.errors import UnknownMemberIdError
from aiokafka_lite.protocol.schema import Request, Response
from aiokafka_lite.structs import TopicPartition
from tests.support import inside
from tests.support.cluster import KafkaHandle, unique
from tests.support.listeners import Losing
from tests.support.protocols import WAYS
from tests.support.reading import consumer_of, offsets_read
from tests.support.rows import rows
from tests.support.waiting import until

PARTITIONS = 6
COOPERATIVE = (CooperativeStickyPartitionAssignor,)


class Waiting(Losing):
    """Returns from `on_partitions_assigned` when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_return = asyncio.Event()
        self.may_return.set()

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        await super().on_partitions_assigned(assigned)
        await self.may_return.wait()


class Member:
    """A consumer whose listener's calls are on record."""

    def __init__(self, kafka: KafkaHandle, topic: str, group: str, **settings: object) -> None:
        self.group = group
        self.listener = Waiting()
        arguments: dict[str, object] = {
            "bootstrap_servers": kafka.bootstrap_servers,
            "group_id": group,
            "auto_offset_reset": "earliest",
            "heartbeat_interval_ms": 100,
            "session_timeout_ms": 6000,
            "fetch_max_wait_ms": 50,
            "group_protocol": "classic",
            "partition_assignment_strategy": COOPERATIVE,
            **settings,
        }
        self.consumer = AIOKafkaConsumer(**arguments)  # type: ignore[arg-type]
        self.consumer.subscribe([topic], listener=self.listener)

    @property
    def has(self) -> set[TopicPartition]:
        return self.consumer.assignment()

    async def partition_of_next(self) -> TopicPartition:
        record = await asyncio.wait_for(self.consumer.getone(), 10)
        return TopicPartition(record.topic, record.partition)

    def told(self) -> list[tuple[str, int]]:
        """What the listener was called with, but for calls about nothing."""
        return [(name, len(tps)) for name, tps in self.listener.calls if tps]


@asynccontextmanager
async def members(
    kafka: KafkaHandle, count: int, **settings: object
) -> AsyncIterator[tuple[str, list[Member]]]:
    """Members of one group of which the first has been started."""
    topic, group = await kafka.create_topic(partitions=PARTITIONS), unique("g")
    async with AsyncExitStack() as stack:
        made = [Member(kafka, topic, group, **settings) for _ in range(count)]
        for each in made:
            stack.push_async_callback(each.consumer.stop)
        await made[0].consumer.start()
        yield topic, made


def is_shared_out(*among: Member) -> bool:
    """Whether each partition has one owner, and the counts differ by one at most."""
    counts = [len(each.has) for each in among]
    every = set[TopicPartition]().union(*(each.has for each in among))
    return (
        sum(counts) == len(every) == PARTITIONS
        and max(counts) - min(counts) <= 1
        and all(inside.is_settled(each.consumer) for each in among)
    )


async def test_only_what_moves_is_revoked_through_three_rebalances(kafka: KafkaHandle) -> None:
    async with members(kafka, 3) as (_, (one, two, three)):
        assert one.told() == [("assigned", 6)]
        assignment = inside.assignment(one.consumer).assignment
        cursors = dict(assignment)

        await two.consumer.start()
        await until(lambda: is_shared_out(one, two))
        assert one.told() == [("assigned", 6), ("revoked", 3)]
        assert two.told() == [("assigned", 3)]

        await three.consumer.start()
        await until(lambda: is_shared_out(one, two, three))
        assert one.told() == [("assigned", 6), ("revoked", 3), ("revoked", 1)]
        assert two.told() == [("assigned", 3), ("revoked", 1)]
        assert three.told() == [("assigned", 2)]
        assert all(cursors[tp] is cursor for tp, cursor in assignment.items())
        kept = two.has

        await one.consumer.stop()
        await until(lambda: is_shared_out(two, three))
        assert kept < two.has
        assert two.told() == [("assigned", 3), ("revoked", 1), ("assigned", 1)]
        assert three.told() == [("assigned", 2), ("assigned", 1)]


async def test_what_is_kept_is_read_and_committed_while_the_group_waits_for_a_member(
    kafka: KafkaHandle,
) -> None:
    topic, group = await kafka.create_topic(partitions=PARTITIONS), unique("g")
    one = Member(kafka, topic, group)
    # It hears of the rebalance seldom: so long the group waits for it.
    slow = Member(kafka, topic, group, heartbeat_interval_ms=2_500)
    three = Member(kafka, topic, group)
    async with one.consumer, slow.consumer:
        await until(lambda: is_shared_out(one, slow))
        joining = asyncio.create_task(three.consumer.start())
        await until(lambda: inside.group_state(one.consumer) == "JOINING")
        kept = sorted(one.has)
        for tp in kept:
            await kafka.produce(topic, tp.partition, rows(0, 5))
        found: set[tuple[TopicPartition, int]] = set()
        async with timeout(2):
            while len(found) < 5 * len(kept):
                for tp, batch in (await one.consumer.getmany(timeout_ms=500)).items():
                    found |= {(tp, record.offset) for record in batch}
        assert inside.group_state(one.consumer) == "JOINING"
        commit = asyncio.create_task(one.consumer.commit())
        await joining
        await until(lambda: is_shared_out(one, slow, three))
        await commit  # though two rebalances came in between
        for tp in one.has:
            assert await one.consumer.committed(tp) == 5
        await three.consumer.stop()


@pytest.mark.virtual_time
async def test_a_read_of_a_kept_partition_does_not_wait_for_the_end_of_the_rebalance() -> None:
    async with Broker() as broker:
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        async with members(kafka, 1) as (topic, (one,)):
            tp, other = TopicPartition(topic, 0), await kafka.create_topic()
            await kafka.produce(topic, 0, rows(0, 2))
            with broker.on("JoinGroup").hold() as joining:
                one.consumer.subscribe([topic, other], listener=one.listener)
                await joining.reached()
                first = await asyncio.wait_for(one.consumer.getone(tp), 5)
                rest = await one.consumer.getmany(tp, timeout_ms=5_000)
            assert [first.offset, *(record.offset for record in rest[tp])] == [0, 1]


async def test_new_partitions_are_withheld_until_the_listener_has_returned_and_kept_ones_not(
    kafka: KafkaHandle,
) -> None:
    async with members(kafka, 2) as (topic, (one, two)):
        await two.consumer.start()
        await until(lambda: is_shared_out(one, two))
        kept, others = sorted(one.has), sorted(two.has)
        one.listener.may_return.clear()
        await two.consumer.stop()
        await until(lambda: len(one.has) == PARTITIONS)
        for tp in (*kept, *others):
            await kafka.produce(topic, tp.partition, rows(0, 1))
        assert {await one.partition_of_next() for _ in kept} == set(kept)
        assert not await one.consumer.getmany(timeout_ms=200)
        assert "the rebalance listener has not returned" in one.consumer.explain(others[0])
        one.listener.may_return.set()
        assert {await one.partition_of_next() for _ in others} == set(others)


async def test_positions_and_pauses_of_what_is_kept_stay(kafka: KafkaHandle) -> None:
    async with members(kafka, 2) as (topic, (one, two)):
        for tp in one.has:
            await kafka.produce(topic, tp.partition, rows(0, 9))
            one.consumer.seek(tp, 4)
            one.consumer.pause(tp)
        await two.consumer.start()
        await until(lambda: is_shared_out(one, two))
        assert one.consumer.paused() == one.has
        assert [await one.consumer.position(tp) for tp in one.has] == [4] * 3
        assert not two.consumer.paused()


async def test_a_new_subscription_gives_back_what_is_not_in_it(kafka: KafkaHandle) -> None:
    async with members(kafka, 1) as (topic, (one,)):
        more = await kafka.create_topic(partitions=2)
        one.consumer.subscribe([topic, more], listener=one.listener)
        await until(lambda: len(one.told()) == 2)
        assert one.told() == [("assigned", 6), ("assigned", 2)]
        assert len(one.has) == PARTITIONS + 2
        one.consumer.subscribe([more], listener=one.listener)
        await until(lambda: len(one.has) == 2 and inside.is_settled(one.consumer))
        assert one.told() == [("assigned", 6), ("assigned", 2), ("revoked", 6)]
        one.consumer.unsubscribe()
        await until(lambda: len(one.told()) == 4)
        assert one.told()[-1] == ("revoked", 2)


# --- Two steps to be cooperative ---------------------------------------------------------------
async def test_a_group_becomes_cooperative_by_two_rolling_restarts(kafka: KafkaHandle) -> None:
    topic, group = await kafka.create_topic(partitions=PARTITIONS), unique("g")
    both = (CooperativeStickyPartitionAssignor, RangePartitionAssignor)
    running = [
        Member(kafka, topic, group, partition_assignment_strategy=(RangePartitionAssignor,))
        for _ in range(2)
    ]
    for member in running:
        await member.consumer.start()
    await until(lambda: is_shared_out(*running))
    for strategy in (both, COOPERATIVE):
        for number in range(2):
            await running[number].consumer.stop()
            running[number] = Member(kafka, topic, group, partition_assignment_strategy=strategy)
            await running[number].consumer.start()
            await until(lambda: is_shared_out(*running))
    assert all(inside.group_protocol(m.consumer) == "cooperative-sticky" for m in running)
    one = running[1]
    await running[0].consumer.stop()
    await until(lambda: is_shared_out(one))
    assert one.told()[-1] == ("assigned", 3)
    await one.consumer.stop()


# --- Faults ------------------------------------------------------------------------------------
@pytest.mark.virtual_time
@pytest.mark.parametrize("lost", ["JoinGroup", "SyncGroup", "Heartbeat", "OffsetCommit"])
async def test_a_lost_answer_moves_nothing_twice(lost: str) -> None:
    async with Broker() as broker:
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        async with members(kafka, 2, request_timeout_ms=1_000) as (topic, (one, two)):
            await kafka.produce(topic, 0, rows(0, 3))
            broker.on(lost).disconnect(2, handled=True)
            await two.consumer.start()
            await until(lambda: is_shared_out(one, two))
            await two.consumer.stop()
            await until(lambda: is_shared_out(one))


@pytest.mark.virtual_time
@pytest.mark.parametrize("where", ["Heartbeat", "JoinGroup", "SyncGroup"])
async def test_a_member_that_is_forgotten_loses_what_it_kept(where: str) -> None:
    async with Broker() as broker:
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        async with members(kafka, 2) as (_, (one, two)):
            if where == "Heartbeat":
                broker.on(where).fail(UnknownMemberIdError)
            await two.consumer.start()
            await until(lambda: is_shared_out(one, two))
            if where != "Heartbeat":
                broker.on(where).fail(UnknownMemberIdError)
                await two.consumer.stop()
                await until(lambda: is_shared_out(one))
            assert ("lost", 6) in one.told() or ("lost", 3) in one.told()
            # What is lost comes back as new.
            had = set[TopicPartition]()
            for name, tps in one.listener.calls:
                assert not (name == "assigned" and had & tps)
                assert not (name != "assigned" and tps - had)
                had = had | tps if name == "assigned" else had - tps
            assert had == one.has


# --- A stop in the middle of a rebalance -------------------------------------------------------
@pytest.mark.virtual_time
@pytest.mark.parametrize("where", ["others are to join", "the answer is on its way", "syncing"])
async def test_a_stop_in_the_middle_of_a_rebalance_commits_what_was_handed_out(where: str) -> None:
    async with Broker() as broker:
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        async with members(kafka, 3, auto_commit_interval_ms=60_000) as (topic, (one, two, three)):
            await two.consumer.start()
            await until(lambda: is_shared_out(one, two))
            kept = min(one.has)
            ids = {inside.member_id(each.consumer): each for each in (one, two)}
            if where == "syncing":
                rule = broker.on("SyncGroup").hold()
            elif where == "others are to join":
                rule = broker.on("JoinGroup", when=of(two, ids)).hold()
            else:
                rule = broker.on("JoinGroup", when=of(one, ids)).trickle(300)
            joining = asyncio.ensure_future(three.consumer.start())
            state = "SYNCING" if where == "syncing" else "JOINING"
            await until(lambda: inside.group_state(one.consumer) == state)
            for number in range(3):
                await kafka.produce(topic, kept.partition, rows(number, 1))
                assert (await asyncio.wait_for(one.consumer.getone(), 10)).offset == number
            stop = asyncio.ensure_future(one.consumer.stop())
            if where == "others are to join":
                assert await asyncio.wait_for(stop, 2) == {}  # it need not wait for them
            await asyncio.sleep(0.2)
            rule.release()
            assert await asyncio.wait_for(stop, 10) == {}
            await joining
            assert broker.committed(one.group)[kept] == 3
            await until(lambda: is_shared_out(two, three))


def of(member: Member, ids: dict[str, Member]) -> Callable[[object, Request[Response]], bool]:
    """Say whether a request is a member's."""

    def is_so(_: object, request: Request[Response]) -> bool:
        return ids.get(getattr(request, "member_id", "")) is member

    return is_so


@pytest.mark.parametrize("way", ["cooperative", "consumer"])
async def test_a_commit_of_positions_leaves_out_what_has_gone_to_another_member(way: str) -> None:
    async with Broker() as broker:
        broker.create_topic("t", 2)
        for number in range(2):
            broker.produce("t", "v", partition=number)

        def member() -> AIOKafkaConsumer:
            settings: dict[str, object] = {"heartbeat_interval_ms": 20, **WAYS[way]}
            return consumer_of(broker, "t", group_id="g", enable_auto_commit=False, **settings)

        async with member() as one:
            await offsets_read(one, 2)
            starting = asyncio.ensure_future((two := member()).start())
            async with timeout(20):
                while len(one.assignment()) > 1 or not starting.done():
                    await one.getmany(timeout_ms=20)
            await one.commit()
            (kept,) = one.assignment()
            assert broker.committed("g") == {kept: 1}
            await two.stop()
