"""Calls that change or ask for a part of the assignment, and leave the rest as it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import (
    IllegalStateError,
    KafkaTimeoutError,
    NoOffsetForPartitionError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.messages.fetch import FetchRequest
from aiokafka_lite.protocol.messages.offsets import OffsetCommitRequest
from aiokafka_lite.structs import TopicPartition
from tests.support.cluster import KafkaHandle, unique
from tests.support.reading import offsets_read, reading
from tests.support.rows import rows

A, B, C = (TopicPartition("t", number) for number in range(3))


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """A broker with ten records in each of three partitions."""
    async with Broker() as broker:
        broker.create_topic("t", 3)
        for partition in range(3):
            for number in range(10):
                broker.produce("t", b"%d" % number, partition=partition)
        yield broker
    assert broker.failure is None


def handle(broker: Broker) -> KafkaHandle:
    return KafkaHandle("embedded", broker.bootstrap_servers)


def fetched_from(broker: Broker, partition: int) -> list[int]:
    """The offsets that one partition was asked for from, request by request."""
    return [
        asked.fetch_offset
        for seen in broker.requests.of("Fetch")
        if isinstance(seen.request, FetchRequest)
        for topic in seen.request.topics
        for asked in topic.partitions
        if asked.partition == partition
    ]


# --- position ------------------------------------------------------------------------------
@pytest.mark.real_if_long
async def test_position_answers_for_one_or_several(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=3)
    await kafka.produce(topic, 1, rows(0, 4))
    first, second, third = (TopicPartition(topic, number) for number in range(3))
    async with reading(kafka, auto_offset_reset="latest") as consumer:
        consumer.assign([first, second])
        # Asked for at once: they are being looked up.
        assert await consumer.position(first, second) == {first: 0, second: 4}
        assert await consumer.position(second) == 4
        assert await consumer.position(partition=second) == 4
        consumer.seek(second, 1)
        assert (await consumer.getone()).offset == 1
        assert await consumer.position(second, first) == {second: 2, first: 0}
        with pytest.raises(IllegalStateError):
            await consumer.position(first, third)
        with pytest.raises(TypeError):
            await consumer.position(first, (topic, 1))  # type: ignore[call-overload]


async def test_position_of_several_has_one_deadline_and_names_what_is_missing(
    broker: Broker,
) -> None:
    def asks_for_the_last(context: object, request: object) -> bool:
        return "partition=2" in repr(request) or "partition_index=2" in repr(request)

    with broker.on("ListOffsets", when=asks_for_the_last).fail(
        UnknownTopicOrPartitionError, times=None
    ):
        async with reading(handle(broker), request_timeout_ms=400) as consumer:
            consumer.assign([A, B, C])
            with pytest.raises(
                KafkaTimeoutError, match="was not determined within request_timeout_ms=400"
            ) as caught:
                await consumer.position(A, B, C)
            assert caught.value.tp in (A, B, C)


async def test_a_wait_for_a_position_ends_when_the_partition_is_unassigned(
    broker: Broker,
) -> None:
    with broker.on("ListOffsets").hold() as rule:
        async with reading(handle(broker)) as consumer:
            consumer.assign([A, B])
            waiting = asyncio.ensure_future(consumer.position(A))
            await rule.reached()
            consumer.incremental_unassign([A])
            with pytest.raises(IllegalStateError, match="not assigned"):
                await asyncio.wait_for(waiting, 5)
            rule.release()


@pytest.mark.real_if_long
async def test_position_of_several_raises_what_keeps_one_from_being_found(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic(partitions=2)
    first, second = (TopicPartition(topic, number) for number in range(2))
    async with reading(kafka, auto_offset_reset="none") as consumer:
        consumer.assign([first, second])
        consumer.seek(first, 0)
        with pytest.raises(NoOffsetForPartitionError):
            await consumer.position(first, second)
        assert await consumer.position(first) == 0


# --- incremental_assign, incremental_unassign ----------------------------------------------
async def test_partitions_come_and_go_and_the_others_go_on(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=3)
    for partition in range(3):
        await kafka.produce(topic, partition, rows(0, 5))
    first, second, third = (TopicPartition(topic, number) for number in range(3))
    async with reading(kafka, fetch_max_wait_ms=50) as consumer:
        consumer.incremental_assign([first])
        assert [(await consumer.getone()).offset for _ in range(2)] == [0, 1]
        consumer.incremental_assign([second, first])
        assert consumer.assignment() == {first, second}
        assert await consumer.position(first) == 2
        assert await offsets_read(consumer, 8) == {0: [2, 3, 4], 1: [0, 1, 2, 3, 4]}
        consumer.incremental_assign([third])
        consumer.incremental_unassign([first])
        assert consumer.assignment() == {second, third}
        assert await consumer.position(second) == 5
        await kafka.produce(topic, 0, rows(5, 1))
        await kafka.produce(topic, 1, rows(5, 1))
        assert await offsets_read(consumer, 6) == {1: [5], 2: [0, 1, 2, 3, 4]}
        consumer.incremental_unassign([second, third])
        assert consumer.assignment() == set()
        # Taken again it starts afresh: without a group by the policy.
        consumer.incremental_assign([first])
        assert await offsets_read(consumer, 6) == {0: [0, 1, 2, 3, 4, 5]}


async def test_what_is_buffered_of_the_others_is_not_fetched_again(broker: Broker) -> None:
    async with reading(handle(broker)) as consumer:
        consumer.assign([A, B])
        while (await consumer.getone()).partition != 0:
            pass
        await broker.wait_until(lambda: consumer.highwater(A) == consumer.highwater(B) == 10)
        left = 20 - sum((await consumer.position(A, B)).values())
        consumer.incremental_assign([C])
        consumer.incremental_unassign([C])
        await offsets_read(consumer, left)
        for partition in (0, 1):
            assert set(fetched_from(broker, partition)) <= {0, 10}


async def test_incremental_calls_raise_as_assign_does(broker: Broker) -> None:
    async with reading(handle(broker), "t") as consumer:
        with pytest.raises(IllegalStateError, match="exclude each other"):
            consumer.incremental_assign([A])
        with pytest.raises(IllegalStateError, match="exclude each other"):
            consumer.incremental_unassign([A])
    async with reading(handle(broker)) as consumer:
        consumer.assign([A])
        with pytest.raises(IllegalStateError, match="not assigned"):
            consumer.incremental_unassign([A, B])
        assert consumer.assignment() == {A}
        for call in (consumer.incremental_assign, consumer.incremental_unassign):
            with pytest.raises(TypeError):
                call([("t", 0)])  # type: ignore[list-item]
        with pytest.raises(IllegalStateError):
            consumer.subscribe(["t"])


async def test_they_can_be_used_before_the_start(broker: Broker) -> None:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest"
    )
    consumer.incremental_assign([A, B])
    consumer.incremental_unassign([A])
    async with consumer:
        assert (await consumer.getone()).partition == 1


@pytest.mark.real_if_long
@pytest.mark.parametrize(
    "call", ["incremental_unassign", pytest.param("assign", marks=pytest.mark.slow)]
)
async def test_what_was_processed_of_a_partition_given_up_is_committed_at_once(
    kafka: KafkaHandle, call: str
) -> None:
    topic, group = await kafka.create_topic(partitions=2), unique("group")
    first, second = (TopicPartition(topic, number) for number in range(2))
    await kafka.produce(topic, 0, rows(0, 5))
    async with reading(kafka, group_id=group, auto_commit_interval_ms=3_600_000) as consumer:
        consumer.assign([first, second])
        assert [(await consumer.getone(first)).offset for _ in range(4)] == [0, 1, 2, 3]
        if call == "assign":
            consumer.assign([second])
        else:
            consumer.incremental_unassign([first])
        # Reading waits for the commit.
        assert await consumer.committed(first) == 4
        # And so does the start of the same partition.
        consumer.incremental_assign([first])
        assert await consumer.position(first) == 4
        assert (await consumer.getone()).offset == 4


async def test_a_stop_right_after_commits_what_was_given_up(broker: Broker) -> None:
    async with reading(handle(broker), group_id="g") as consumer:
        consumer.assign([A, B])
        for _ in range(2):
            await consumer.getone(A)
        await consumer.getone(B)
        with broker.on("OffsetCommit").disconnect():
            consumer.incremental_unassign([A])
    assert broker.committed("g") == {A: 2, B: 1}


async def test_without_auto_commit_nothing_is_committed_of_what_is_given_up(
    broker: Broker,
) -> None:
    async with reading(handle(broker), group_id="g", enable_auto_commit=False) as consumer:
        consumer.assign([A])
        for _ in range(2):
            await consumer.getone()
        consumer.incremental_unassign([A])
    assert not broker.requests.of(OffsetCommitRequest)


# --- pause ---------------------------------------------------------------------------------
async def test_resuming_fetches_nothing_again(broker: Broker) -> None:
    async with reading(handle(broker)) as consumer:
        consumer.assign([A])
        assert (await consumer.getone()).offset == 0
        consumer.pause(A)
        assert await consumer.poll(timeout_ms=20) == {}
        consumer.resume(A)
        assert await offsets_read(consumer, 9) == {0: list(range(1, 10))}
        consumer.pause(A)
        consumer.resume(A)
        broker.produce("t", b"last", partition=0)
        assert await offsets_read(consumer, 1) == {0: [10]}
    assert set(fetched_from(broker, 0)) <= {0, 10, 11}


@pytest.mark.real_if_long
async def test_a_seek_while_paused_drops_what_is_buffered(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    tp = TopicPartition(topic, 0)
    await kafka.produce(topic, 0, rows(0, 10))
    async with reading(kafka) as consumer:
        consumer.assign([tp])
        assert (await consumer.getone()).offset == 0
        consumer.pause(tp)
        consumer.seek(tp, 7)
        assert await consumer.poll(timeout_ms=50) == {}
        consumer.resume(tp)
        assert await offsets_read(consumer, 3) == {0: [7, 8, 9]}


# --- committed offsets ---------------------------------------------------------------------
async def test_seek_to_committed_takes_one_round_trip_and_goes_to_0(broker: Broker) -> None:
    settings = {"group_id": "g", "enable_auto_commit": False, "fetch_max_wait_ms": 50}
    async with reading(handle(broker), **settings) as consumer:  # type: ignore[arg-type]
        consumer.assign([A, B, C])
        await offsets_read(consumer, 30)
        await consumer.commit({A: 0, B: 4})
        mark = broker.requests.total
        assert await consumer.seek_to_committed() == {A: 0, B: 4, C: None}
        assert len(broker.requests.of("OffsetFetch", since=mark)) == 1
        assert await consumer.position(A, B, C) == {A: 0, B: 4, C: 10}
        assert await asyncio.wait_for(offsets_read(consumer, 16), 20) == {
            0: list(range(10)),
            1: list(range(4, 10)),
        }


async def test_a_member_starts_at_a_committed_0(kafka: KafkaHandle) -> None:
    topic, group = await kafka.create_topic(), unique("group")
    tp = TopicPartition(topic, 0)
    await kafka.produce(topic, 0, rows(0, 3))
    async with reading(kafka, group_id=group, enable_auto_commit=False) as consumer:
        consumer.assign([tp])
        await consumer.commit({tp: 0})
    async with reading(kafka, group_id=group, auto_offset_reset="latest") as consumer:
        consumer.assign([tp])
        assert await consumer.position(tp) == 0
        assert (await consumer.getone()).offset == 0
