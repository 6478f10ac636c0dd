"""What is buffered keeps to its budget, and nothing waits for ever for its share of it."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.fetching.budget import ByteBudget
from aiokafka_lite.records import scratch
from aiokafka_lite.structs import TopicPartition
from tests.consumer.buffers import A, B, Buffers, batch
from tests.consumer.test_consumer import reading
from tests.support.cluster import KafkaHandle

pytestmark = pytest.mark.one_loop_each

BUDGET_BYTES = 2 * 1024 * 1024


class Watched(ByteBudget):
    """A budget that notes the most that was buffered at a time."""

    most_bytes = 0
    change_count = 0

    def change(self, by_bytes: int) -> None:
        super().change(by_bytes)
        self.change_count += 1
        self.most_bytes = max(self.most_bytes, self.buffered_bytes)


@pytest.fixture(autouse=True)
def watched_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    scratch._kept.clear()  # what other tests' batches needed counts whole when it is used again
    monkeypatch.setattr("aiokafka_lite.consumer.engine.ByteBudget", Watched)


def budget_of(consumer: AIOKafkaConsumer) -> Watched:
    budget = consumer._engine.budget
    assert isinstance(budget, Watched)
    return budget


async def filled(
    kafka: KafkaHandle, partitions: int, count: int, size: int, codec: str = "none"
) -> str:
    """A topic with as many records of that size in each partition."""
    topic = await kafka.create_topic(partitions=partitions)
    for partition in range(partitions):
        await kafka.produce(topic, partition, [(None, bytes(size))] * count, codec=codec)
    return topic


# --- Over a broker -------------------------------------------------------------------------
@pytest.mark.parametrize("codec", ["none", "gzip"])
async def test_a_slow_application_with_a_thousand_partitions_keeps_to_the_budget(
    codec: str,
) -> None:
    async with Broker() as broker:
        broker.create_topic("t", 1_000)
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        for partition in range(1_000):
            broker.partition("t", partition).append(batch(0, 4, codec=codec, size=2_000))
        async with reading(
            kafka, "t", max_buffered_bytes=BUDGET_BYTES, max_poll_records=37
        ) as consumer:
            budget = budget_of(consumer)
            read = 0
            while read < 4_000:
                for records in (await consumer.poll(timeout_ms=10_000)).values():
                    read += len(records)
                # Slow: whatever may come meanwhile comes.
                await asyncio.sleep(0)
            assert budget.change_count > 10
            assert budget.most_bytes <= BUDGET_BYTES
            assert read == 4_000
    assert broker.failure is None


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["none", "lz4"])
async def test_the_budget_holds_with_a_real_broker_too(kafka: KafkaHandle, codec: str) -> None:
    topic = await filled(kafka, 12, 10, 5_000, codec)
    async with reading(kafka, topic, max_buffered_bytes=200_000, max_poll_records=37) as consumer:
        read = 0
        while read < 120:
            for records in (await consumer.poll(timeout_ms=10_000)).values():
                read += len(records)
            await asyncio.sleep(0.001)
        assert budget_of(consumer).most_bytes <= 200_000


async def test_batches_larger_than_the_budget_come_through_alone(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=3)
    sizes = {0: 300_000, 1: 700_000, 2: 50_000}
    for partition, size in sizes.items():
        for _ in range(3):
            await kafka.produce(topic, partition, [(None, bytes(size))])
    async with reading(
        kafka, topic, max_buffered_bytes=400_000, max_partition_fetch_bytes=100_000
    ) as consumer:
        seen = [(await asyncio.wait_for(consumer.getone(), 20)).partition for _ in range(9)]
        assert sorted(seen) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
        # The largest alone, a little for its headers.
        assert budget_of(consumer).most_bytes <= 701_000


async def test_paused_partitions_that_fill_the_budget_do_not_hold_up_others(
    kafka: KafkaHandle,
) -> None:
    topic = await filled(kafka, 4, 1, 60_000)
    last = TopicPartition(topic, 3)
    settings: dict[str, object] = {"max_buffered_bytes": 100_000, "fetch_max_wait_ms": 50}
    async with reading(kafka, topic, **settings) as consumer:  # type: ignore[arg-type]
        paused = [TopicPartition(topic, number) for number in range(3)]
        # Something of them is buffered when they are paused.
        first = await consumer.getone(*paused)
        consumer.pause(*paused)
        assert (await asyncio.wait_for(consumer.getone(last), 20)).partition == 3
        await kafka.produce(topic, 3, [(None, bytes(60_000))] * 3)
        for _ in range(3):
            assert (await asyncio.wait_for(consumer.getone(), 20)).partition == 3
        consumer.resume(*paused)
        rest = [(await asyncio.wait_for(consumer.getone(), 20)).partition for _ in range(2)]
        assert sorted([first.partition, *rest]) == [0, 1, 2]


async def test_a_get_of_one_partition_is_not_held_up_by_what_others_have(
    kafka: KafkaHandle,
) -> None:
    topic = await filled(kafka, 6, 4, 30_000)
    settings: dict[str, object] = {"max_buffered_bytes": 150_000, "fetch_max_wait_ms": 50}
    async with reading(kafka, topic, **settings) as consumer:  # type: ignore[arg-type]
        for number in (5, 0, 3):
            tp = TopicPartition(topic, number)
            offsets = [(await asyncio.wait_for(consumer.getone(tp), 20)).offset for _ in range(4)]
            assert offsets == [0, 1, 2, 3]
        rest = [await asyncio.wait_for(consumer.getone(), 20) for _ in range(12)]
        assert sorted((r.partition, r.offset) for r in rest) == list(
            itertools.product((1, 2, 4), range(4))
        )


# --- Within what is buffered ---------------------------------------------------------------
async def test_decompression_makes_room_by_what_has_not_been_begun() -> None:
    size = len(batch(0, 100, codec="gzip", size=500))
    buffers = Buffers(A, B, budget_bytes=100_000)
    buffers.put({A: batch(0, 100, codec="gzip", size=500)}, node_id=1)
    budget = buffers.budget
    large = batch(0, 1, size=99_000 - size)
    buffers.put({B: large}, node_id=2)
    assert not budget.is_over
    found = await buffers.poll(max_records=10)
    assert found == {A: list(range(10))}
    assert not budget.is_over  # B's was dropped, and is to be fetched again
    assert buffers.partition(B).fetched == 0
    assert B in buffers.with_room or buffers.queue.line.has_room(buffers.partition(B))
    assert budget.is_tight or budget.headroom_bytes > 0


async def test_under_pressure_what_is_decompressed_is_finished_first() -> None:
    tps = [TopicPartition("t", number) for number in range(4)]
    compressed = batch(0, 40, codec="gzip", size=1_000)
    buffers = Buffers(*tps, budget_bytes=100_000)
    for number, tp in enumerate(tps):
        buffers.put({tp: compressed}, node_id=number)
    served: list[list[int]] = []
    most = 0
    while found := await buffers.poll(max_records=10):
        served.append([tp.partition for tp in found])
        most = max(most, buffers.budget.buffered_bytes)
    assert sum(len(each) for each in served) >= 16
    assert most <= 100_000
    assert [buffers.partition(tp).position for tp in tps] == [40] * 4


@pytest.mark.parametrize("rows", [False, True], ids=["records", "rows"])
async def test_many_batches_that_are_begun_keep_to_the_budget(rows: bool) -> None:
    tps = [TopicPartition("t", number) for number in range(40)]
    buffers = Buffers(*tps, budget_bytes=2_000_000)
    for tp in tps:
        buffers.put({tp: batch(0, 100, codec="gzip", size=2_000)}, node_id=tp.partition)
    if rows:
        arrow_gets = pytest.importorskip("aiokafka_lite.consumer.delivery.arrow_gets")
        arrow = arrow_gets.ArrowGets(buffers.state, buffers.queue, buffers.ready, None)
    for _ in range(40):
        if rows:
            assert (await arrow.one(arrow.columns(None), 0, 3)).num_rows
        else:
            assert await buffers.gets.many((), 0, 3)
        assert buffers.budget.buffered_bytes <= 2_000_000


def test_who_claims_bytes_gets_the_next_that_are_free() -> None:
    told: list[int] = []
    budget = ByteBudget(100, lambda: told.append(budget.used_bytes))
    first = budget.reserve(60, 60)
    assert first is not None
    large = object()
    assert budget.reserve(90, 90, large) is None
    assert budget.reserve(10, 10) is None  # others wait behind it
    first.release()
    assert told == [0]
    second = budget.reserve(90, 90, large)
    assert second is not None
    assert budget.reserve(10, 10) is not None
    assert budget.reserve(90, 90, large) is None
    budget.withdraw(large)
    assert budget.reserve(1, 1) is None  # none left: the claim is not what holds it up
    second.release()
    assert budget.reserve(1, 1) is not None


def test_what_decompression_may_take_is_left_free() -> None:
    budget = ByteBudget(100, lambda: None)
    first = budget.reserve(20, 20)
    assert first is not None
    first.keep(20)
    assert (budget.buffered_bytes, budget.pending_bytes) == (20, 0)
    first.inflated(30, 30)
    assert (budget.buffered_bytes, budget.room_bytes) == (50, 70)
    second = budget.reserve(100, 10)
    assert second is not None
    assert second.size_bytes == 50
    second.release()
    first.inflated(-30, 0)
    third = budget.reserve(100, 10)
    assert third is not None
    assert third.size_bytes == 50  # 30 of the 80 for the next batch
