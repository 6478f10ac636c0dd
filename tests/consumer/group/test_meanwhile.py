"""What is asked for while a rebalance is under way holds if the partition comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import RebalanceInProgressError, UnknownMemberIdError
from aiokafka_lite.protocol.messages.offsets import OffsetCommitRequest
from aiokafka_lite.structs import TopicPartition
from tests.support.cluster import KafkaHandle, unique
from tests.support.reading import reading
from tests.support.rows import rows
from tests.support.waiting import PATIENCE_S, eventually, until

Call = Callable[[AIOKafkaConsumer, TopicPartition], object]
T = TopicPartition("t", 0)


class Rebalances(ConsumerRebalanceListener):
    """Keeps each rebalance of a member under way until the test lets it go on."""

    def __init__(self, consumer: AIOKafkaConsumer, topic: str) -> None:
        self._consumer = consumer
        self._topic = topic
        self._is_under_way = asyncio.Event()
        self._may_go_on = asyncio.Event()
        self._may_go_on.set()
        self.assigned_count = 0

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        self._is_under_way.set()
        await self._may_go_on.wait()

    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self.assigned_count += 1

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """A rebalance in which only this member takes part, under way in the body."""
        self._consumer.subscribe([self._topic], listener=self)
        async with self.coming():
            pass_by = self.assigned_count
            yield
        await until(lambda: self.assigned_count > pass_by)

    @asynccontextmanager
    async def coming(self) -> AsyncIterator[None]:
        """A rebalance that something else has brought about, under way in the body."""
        self._may_go_on.clear()
        self._is_under_way.clear()
        try:
            await asyncio.wait_for(self._is_under_way.wait(), PATIENCE_S)
            yield
        finally:
            self._may_go_on.set()


@asynccontextmanager
async def filled_broker(
    count: int = 10, nodes: int = 1
) -> AsyncIterator[tuple[Broker, KafkaHandle]]:
    """An embedded broker with so many records in partition T."""
    async with Broker(nodes=nodes) as broker:
        broker.create_topic("t")
        for number in range(count):
            broker.produce("t", b"%d" % number)
        yield broker, KafkaHandle("embedded", broker.bootstrap_servers)


@asynccontextmanager
async def member(
    kafka: KafkaHandle, topic: str, group: str = "", **settings: object
) -> AsyncIterator[tuple[AIOKafkaConsumer, Rebalances]]:
    """A member whose rebalances are under way for as long as the test wants."""
    # What the application works on when a rebalance begins stays unfinished.
    settings = {
        "group_protocol": "classic",  # each call of subscribe is a rebalance
        "heartbeat_interval_ms": 100,
        "fetch_max_wait_ms": 50,
        "rebalance_hold_ms": 0,
        **settings,
    }
    async with reading(kafka, group_id=group or unique("g"), **settings) as consumer:  # type: ignore[arg-type]
        rebalances = Rebalances(consumer, topic)
        consumer.subscribe([topic], listener=rebalances)
        await until(lambda: rebalances.assigned_count)
        yield consumer, rebalances


async def next_offset(consumer: AIOKafkaConsumer) -> int:
    return (await asyncio.wait_for(consumer.getone(), PATIENCE_S)).offset


# --- Positions -----------------------------------------------------------------------------
MOVES: dict[str, tuple[Call, int]] = {
    "seek": (lambda consumer, tp: consumer.seek(tp, 7), 7),
    "seek_to_beginning": (lambda consumer, tp: consumer.seek_to_beginning(tp), 0),
    "seek_to_end": (lambda consumer, tp: consumer.seek_to_end(tp), 10),
    "seek_to_committed": (lambda consumer, tp: consumer.seek_to_committed(tp), 3),
}


@pytest.mark.real_if_long
@pytest.mark.parametrize("move", MOVES)
async def test_a_new_position_holds(kafka: KafkaHandle, move: str) -> None:
    topic = await kafka.create_topic()
    tp = TopicPartition(topic, 0)
    await kafka.produce(topic, 0, rows(0, 10))
    call, expected = MOVES[move]
    async with member(kafka, topic, enable_auto_commit=False) as (consumer, rebalances):
        for _ in range(5):
            await next_offset(consumer)
        await consumer.commit({tp: 3})
        async with rebalances.one():
            moved = call(consumer, tp)
            if isinstance(moved, Awaitable):
                await asyncio.wait_for(moved, PATIENCE_S)
            assert await consumer.position(tp) == expected
        assert await consumer.position(tp) == expected
        await kafka.produce(topic, 0, rows(10, 1))
        assert await next_offset(consumer) == expected
        # It was for that rebalance. After another one reading goes on from what is committed.
        async with rebalances.one():
            pass
        assert await next_offset(consumer) == 3


@pytest.mark.real_if_long
async def test_records_finished_behind_the_committed_offset_are_passed_over_from_there(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic()
    tp = TopicPartition(topic, 0)
    await kafka.produce(topic, 0, rows(0, 10))
    async with member(kafka, topic, ack_mode="explicit") as (consumer, rebalances):
        for _ in range(10):
            record = await asyncio.wait_for(consumer.getone(), PATIENCE_S)
            assert record.offset == 3 or record.ack()
        await eventually(lambda: consumer.committed(tp), 3)
        async with rebalances.one():
            consumer.seek(tp, 0)
            assert await consumer.seek_to_committed(tp) == {tp: 3}
            assert await consumer.position(tp) == 3
        assert await consumer.position(tp) == 3
        await kafka.produce(topic, 0, rows(10, 1))
        assert [await next_offset(consumer) for _ in range(2)] == [3, 10]


async def test_a_seek_to_committed_in_a_rebalance_follows_the_commits_after_it() -> None:
    async with (
        filled_broker() as (_, kafka),
        member(kafka, "t", enable_auto_commit=False) as (consumer, rebalances),
    ):
        for _ in range(7):
            await next_offset(consumer)
        await consumer.commit({T: 3})
        async with rebalances.one():
            assert await consumer.seek_to_committed(T) == {T: 3}
            committing = asyncio.ensure_future(consumer.commit({T: 5}))
            await asyncio.sleep(0)
        await committing
        assert await next_offset(consumer) == 5


async def test_the_last_of_several_seeks_holds_over_a_rebalance_of_three_attempts() -> None:
    async with (
        filled_broker() as (broker, kafka),
        member(kafka, "t") as (consumer, rebalances),
    ):
        assert await next_offset(consumer) == 0
        mark = broker.requests.total
        broker.on("SyncGroup").fail(RebalanceInProgressError, times=2)
        async with rebalances.one():
            consumer.seek(T, 5)
        assert len(broker.requests.of("JoinGroup", since=mark)) == 3
        assert await next_offset(consumer) == 5


async def test_a_seek_is_forgotten_if_the_member_is_given_up_in_the_rebalance() -> None:
    """Others may have had the partition: what they have committed holds."""
    async with (
        filled_broker() as (broker, kafka),
        member(kafka, "t") as (consumer, rebalances),
    ):
        assert [await next_offset(consumer) for _ in range(4)] == [0, 1, 2, 3]
        await consumer.commit()
        broker.on("JoinGroup").fail(UnknownMemberIdError)
        async with rebalances.one():
            consumer.seek(T, 2)
        assert await next_offset(consumer) == 4


@pytest.mark.real_if_long
async def test_a_listener_may_move_what_it_gives_back(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    tp = TopicPartition(topic, 0)
    await kafka.produce(topic, 0, rows(0, 10))

    class Moving(Rebalances):
        async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
            if revoked:
                consumer.seek(tp, 6)

    async with member(kafka, topic) as (consumer, _):
        moving = Moving(consumer, topic)
        assert await next_offset(consumer) == 0
        consumer.subscribe([topic], listener=moving)
        await until(lambda: moving.assigned_count)
        assert await next_offset(consumer) == 6


@pytest.mark.virtual_time
async def test_a_search_that_is_on_its_way_as_the_rebalance_begins_is_not_forgotten() -> None:
    group = unique("g")
    async with filled_broker(nodes=2) as (broker, kafka):
        if broker.leader_of(T) == broker.coordinator_of(group):  # which is to answer meanwhile
            broker.move_leader(T)
        async with member(kafka, "t", group) as (consumer, rebalances):
            assert await next_offset(consumer) == 0
            with broker.on("ListOffsets").hold():
                moving = asyncio.ensure_future(consumer.seek_to_end(T))
                await asyncio.sleep(0)
                asking = asyncio.ensure_future(consumer.position(T))
                async with rebalances.one():
                    pass
                assert not moving.done()
            assert await asyncio.wait_for(moving, PATIENCE_S)
            assert await asyncio.wait_for(asking, PATIENCE_S) == 10
            assert await consumer.position(T) == 10


async def test_where_the_partition_goes_to_another_member_a_seek_is_void(
    kafka: KafkaHandle,
) -> None:
    topic, group = await kafka.create_topic(partitions=2), unique("g")
    both = {TopicPartition(topic, 0), TopicPartition(topic, 1)}
    for tp in both:
        await kafka.produce(topic, tp.partition, rows(0, 10))
    async with member(kafka, topic, group) as (consumer, rebalances):
        for tp in both:
            assert (await consumer.getone(tp)).offset == 0
        await consumer.commit()
        second = AIOKafkaConsumer(
            topic,
            bootstrap_servers=kafka.bootstrap_servers,
            group_id=group,
            group_protocol="classic",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        starting = asyncio.ensure_future(second.start())
        try:
            async with rebalances.coming():
                for tp in both:
                    consumer.seek(tp, 5)
            await asyncio.wait_for(starting, PATIENCE_S)
            await until(lambda: len(consumer.assignment()) == 1)
            (kept,), (gone,) = consumer.assignment(), second.assignment()
            assert (await second.getone()).offset == 1
            assert (await consumer.getone(kept)).offset == 5
        finally:
            await second.stop()
        # Nor does it come to life again when the partition is back.
        await until(lambda: consumer.assignment() == both)
        assert await consumer.position(gone) == 1


# --- What is committed of it ---------------------------------------------------------------
@asynccontextmanager
async def at_work_on_the_fourth(
    kafka: KafkaHandle,
) -> AsyncIterator[tuple[TopicPartition, AIOKafkaConsumer, Rebalances]]:
    """A member that was handed four of twenty records, and commits by itself every 20 ms."""
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 20))
    async with member(kafka, topic, auto_commit_interval_ms=20) as (consumer, rebalances):
        assert [await next_offset(consumer) for _ in range(4)] == [0, 1, 2, 3]
        yield TopicPartition(topic, 0), consumer, rebalances


@pytest.mark.real_if_long
@pytest.mark.parametrize("target", [1, 9])
async def test_auto_commit_waits_for_the_next_get_where_records_are_in_work(
    kafka: KafkaHandle, target: int
) -> None:
    async with at_work_on_the_fourth(kafka) as (tp, consumer, rebalances):
        async with rebalances.one():
            assert await consumer.committed(tp) == 3  # the fourth is in work
            consumer.seek(tp, target)
        for _ in range(5):
            await asyncio.sleep(0.02)
            assert await consumer.committed(tp) == 3
        assert await next_offset(consumer) == target
        await eventually(lambda: consumer.committed(tp), target)
        async with rebalances.one():  # and by the commit before the next one
            pass
        assert await consumer.committed(tp) == target
        assert await next_offset(consumer) == target


@pytest.mark.real_if_long
async def test_auto_commit_commits_no_seek_in_what_is_being_given_back(kafka: KafkaHandle) -> None:
    async with at_work_on_the_fourth(kafka) as (tp, consumer, rebalances):
        async with rebalances.one():
            consumer.seek(tp, 1)
            for _ in range(5):  # while the listener takes its time
                await asyncio.sleep(0.03)
                assert await consumer.committed(tp) == 3
        assert await next_offset(consumer) == 1
        await eventually(lambda: consumer.committed(tp), 1)


async def test_an_application_that_goes_on_by_seeks_loses_and_repeats_nothing() -> None:
    async with filled_broker(count=20) as (broker, kafka):
        async with member(kafka, "t", auto_commit_interval_ms=10) as (consumer, rebalances):
            offsets = []
            for _ in range(3):
                offsets += [await next_offset(consumer) for _ in range(5)]
                async with rebalances.one():
                    consumer.seek(T, offsets[-1] + 1)  # the last one is done, too
            offsets.append(await next_offset(consumer))
        assert offsets == list(range(16))
        committed = [
            seen.request.topics[0].partitions[0].committed_offset
            for seen in broker.requests.of("OffsetCommit")
            if isinstance(seen.request, OffsetCommitRequest)
        ]
        assert committed == sorted(committed)


# --- Pauses --------------------------------------------------------------------------------
@pytest.mark.real_if_long
async def test_a_pause_holds_and_so_does_its_end(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    tp = TopicPartition(topic, 0)
    await kafka.produce(topic, 0, rows(0, 10))
    async with member(kafka, topic) as (consumer, rebalances):
        assert await next_offset(consumer) == 0
        async with rebalances.one():
            consumer.pause(tp)
        assert consumer.paused() == {tp}
        assert await consumer.getmany(timeout_ms=150) == {}
        consumer.resume(tp)
        assert await next_offset(consumer) == 0  # it was in work, and so is not committed
        async with rebalances.one():
            consumer.pause(tp)
            consumer.seek(tp, 4)
            consumer.resume(tp)
        assert consumer.paused() == set()
        assert await next_offset(consumer) == 4


@pytest.mark.real_if_long
async def test_a_pause_from_before_ends_with_the_rebalance(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    tp = TopicPartition(topic, 0)
    await kafka.produce(topic, 0, rows(0, 10))
    async with member(kafka, topic) as (consumer, rebalances):
        assert await next_offset(consumer) == 0
        consumer.pause(tp)
        async with rebalances.one():
            assert consumer.paused() == {tp}
        assert consumer.paused() == set()
        assert await next_offset(consumer) == 0  # it was in work, and so is not committed
