"""What is buffered keeps to its budget, and nothing waits for ever for its share of it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable

import pytest

from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.handlers.base import RequestContext
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.assignment.cursor import Place
from aiokafka_lite.consumer.buffer.budget import ByteBudget
from aiokafka_lite.errors import NotLeaderForPartitionError
from aiokafka_lite.structs import TopicPartition
from tests.support import inside, tuning
from tests.support.buffers import A, B, Buffers, batch
from tests.support.cluster import KafkaHandle
from tests.support.reading import reading

BUDGET_BYTES = 2 * 1024 * 1024


@pytest.fixture(autouse=True)
def watched_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    tuning.watch_budgets(monkeypatch)


def budget_of(consumer: AIOKafkaConsumer) -> tuning.WatchedBudget:
    budget = inside.budget(consumer)
    assert isinstance(budget, tuning.WatchedBudget)
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
@pytest.mark.few_rows(1)
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


@pytest.mark.real_if_long
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


@pytest.mark.real_if_long
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


# Batches, each of one record and much larger than a request asks for; no two fit into the budget.
BATCH_BYTES = 30_000
BATCHES_EACH = 4
TIGHT: dict[str, object] = {
    "max_buffered_bytes": 57_000,
    "max_partition_fetch_bytes": 3_000,
    "fetch_max_wait_ms": 50,
}
ORDERS: dict[str, Callable[[int], list[int]]] = {
    "one after the other": lambda parts: [n for n in range(parts) for _ in range(BATCHES_EACH)],
    "in turns": lambda parts: list(range(parts)) * BATCHES_EACH,
    "the last first": lambda parts: list(reversed(range(parts))) * BATCHES_EACH,
}


async def get_each(consumer: AIOKafkaConsumer, topic: str, order: list[int]) -> None:
    """Get the record that is next of a partition, and of none else, for each named."""
    seen = dict.fromkeys(order, 0)
    for number in order:
        tp = TopicPartition(topic, number)
        record = await asyncio.wait_for(consumer.getone(tp), 5)
        assert (record.partition, record.offset) == (number, seen[number])
        seen[number] += 1


@pytest.mark.few_rows(4)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("nodes", "partitions"), [(1, 2), (1, 4), (3, 6)])
async def test_gets_of_single_partitions_take_a_few_fetches_each(
    nodes: int, partitions: int, order: str
) -> None:
    received_bytes = 0

    def count(_: RequestContext, frame: bytes) -> bytes:
        nonlocal received_bytes
        received_bytes += len(frame)
        return frame

    async with Broker(nodes=nodes, request_log_size=100_000) as broker:
        broker.create_topic("t", partitions)
        for number in range(partitions):
            for _ in range(BATCHES_EACH):
                broker.produce("t", bytes(BATCH_BYTES), partition=number)
        broker.on("Fetch").on_frame(count, times=None)
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        async with reading(kafka, "t", **TIGHT) as consumer:  # type: ignore[arg-type]
            await get_each(consumer, "t", ORDERS[order](partitions))
            fetch_count = len(broker.requests.of("Fetch"))
            assert budget_of(consumer).most_bytes <= 57_000
    delivered = partitions * BATCHES_EACH
    assert fetch_count <= 8 * delivered
    assert received_bytes <= 6 * delivered * (BATCH_BYTES + 1_000)


async def test_gets_of_single_partitions_of_a_real_broker_get_on_with_little_memory(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic(partitions=4)
    for number in range(4):
        for _ in range(BATCHES_EACH):
            await kafka.produce(topic, number, [(None, bytes(BATCH_BYTES))])
    async with reading(kafka, topic, **TIGHT) as consumer:  # type: ignore[arg-type]
        await get_each(consumer, topic, ORDERS["one after the other"](4))
        assert budget_of(consumer).most_bytes <= 57_000
        fetch_count = consumer.metrics()["fetches_total"]
        assert isinstance(fetch_count, int)
        assert fetch_count <= 8 * 4 * BATCHES_EACH


async def test_a_get_that_nothing_comes_for_does_not_hold_up_one_that_something_does() -> None:
    async with Broker() as broker:
        broker.create_topic("t", 4)
        for number in range(1, 4):
            for _ in range(BATCHES_EACH):
                broker.produce("t", bytes(BATCH_BYTES), partition=number)
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        async with reading(kafka, "t", **TIGHT) as consumer:  # type: ignore[arg-type]
            waiting = asyncio.ensure_future(consumer.getone(TopicPartition("t", 0)))
            await asyncio.sleep(0)
            await get_each(consumer, "t", [3, 2, 1] * BATCHES_EACH)
            broker.produce("t", b"at last", partition=0)
            assert (await asyncio.wait_for(waiting, 5)).value == b"at last"


# What keeps a partition's record from coming; called before and after it is assigned.
Obstacle = Callable[[Broker, AIOKafkaConsumer, TopicPartition], AsyncIterator[None]]


async def at_its_end(
    broker: Broker, _: AIOKafkaConsumer, tp: TopicPartition
) -> AsyncIterator[None]:
    yield
    yield
    broker.produce(tp.topic, b"at last", partition=tp.partition)


async def paused(
    broker: Broker, consumer: AIOKafkaConsumer, tp: TopicPartition
) -> AsyncIterator[None]:
    broker.produce(tp.topic, b"at last", partition=tp.partition)
    yield
    consumer.pause(tp)
    yield
    consumer.resume(tp)


async def without_position(
    broker: Broker, _: AIOKafkaConsumer, tp: TopicPartition
) -> AsyncIterator[None]:
    broker.produce(tp.topic, b"at last", partition=tp.partition)
    with broker.on("ListOffsets").fail(NotLeaderForPartitionError, times=None):
        yield
        yield


async def without_leader(
    broker: Broker, _: AIOKafkaConsumer, tp: TopicPartition
) -> AsyncIterator[None]:
    broker.produce(tp.topic, b"at last", partition=tp.partition)
    leader = broker.leader_of(tp)
    await broker.stop_node(leader)
    yield
    yield
    await broker.start_node(leader)


async def anext_of(course: AsyncIterator[None]) -> bool:
    """Go on to the next stage; whether there is one."""
    async for _ in course:
        return True
    return False


async def wait_in_vain(consumer: AIOKafkaConsumer, tp: TopicPartition, get: str) -> None:
    """Get records of a partition of which none come: by one get, or by many for 50 ms each."""
    if get == "getone":
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(consumer.getone(tp), 0.3)
    else:
        for _ in range(6):
            assert await consumer.getmany(tp, timeout_ms=50) == {}


@pytest.mark.few_rows(6)
@pytest.mark.parametrize("get", ["getone", "getmany"])
@pytest.mark.parametrize(
    ("obstacle", "nodes"),
    [
        (at_its_end, 1),
        (at_its_end, 3),
        (paused, 1),
        (paused, 3),
        (without_position, 1),
        (without_position, 3),
        (without_leader, 3),
    ],
)
async def test_a_get_that_nothing_comes_for_fetches_no_batch_again(
    obstacle: Obstacle, nodes: int, get: str
) -> None:
    received_bytes = 0

    def count(_: RequestContext, frame: bytes) -> bytes:
        nonlocal received_bytes
        received_bytes += len(frame)
        return frame

    async with Broker(nodes=nodes, request_log_size=100_000) as broker:
        broker.create_topic("t", 7, replication_factor=1)
        tps = [TopicPartition("t", number) for number in range(7)]
        last, *others = tps
        broker.on("Fetch").on_frame(count, times=None)
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        settings: dict[str, object] = {"max_buffered_bytes": 65_536, "fetch_max_wait_ms": 50}
        async with reading(kafka, **settings) as consumer:  # type: ignore[arg-type]
            course = obstacle(broker, consumer, last)
            await anext_of(course)
            # No node that was stopped leads any of these.
            others = [tp for tp in others if broker.leader_of(tp) >= 0]
            for tp in others * 4:
                broker.produce("t", bytes(20_000), partition=tp.partition)
            consumer.assign([last, *others])
            for tp in others if obstacle is without_position else [last, *others]:
                consumer.seek(tp, 0)
            await anext_of(course)
            await wait_in_vain(consumer, last, get)
            assert len(broker.requests.of("Fetch")) <= 20 * nodes
            assert received_bytes <= 4 * 65_536
            assert budget_of(consumer).most_bytes <= 65_536

            assert await anext_of(course) is False
            assert (await asyncio.wait_for(consumer.getone(last), 5)).value == b"at last"
            rest = [await asyncio.wait_for(consumer.getone(), 5) for _ in range(4 * len(others))]
            assert sorted((r.partition, r.offset) for r in rest) == [
                (tp.partition, offset) for tp in others for offset in range(4)
            ]
            assert received_bytes <= 4 * 65_536 + 2 * 20_000 * len(rest)


@pytest.mark.parametrize("is_paused", [False, True], ids=["at its end", "paused"])
async def test_a_get_that_nothing_comes_for_of_a_real_broker_fetches_no_batch_again(
    kafka: KafkaHandle, is_paused: bool
) -> None:
    topic = await kafka.create_topic(partitions=7)
    for number in range(1, 7):
        for _ in range(4):
            await kafka.produce(topic, number, [(None, bytes(20_000))])
    settings: dict[str, object] = {"max_buffered_bytes": 65_536, "fetch_max_wait_ms": 50}
    async with reading(kafka, topic, **settings) as consumer:  # type: ignore[arg-type]
        tp = TopicPartition(topic, 0)
        if is_paused:
            consumer.pause(tp)
        await wait_in_vain(consumer, tp, "getone")
        figures = consumer.metrics()
        fetch_count, fetched_bytes = figures["fetches_total"], figures["fetched_bytes_total"]
        assert isinstance(fetch_count, int)
        assert isinstance(fetched_bytes, int)
        assert fetch_count <= 20
        assert fetched_bytes <= 4 * 65_536


@pytest.mark.real_if_long
async def test_partitions_left_out_for_a_get_are_explained_and_sound(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=7)
    for number in range(1, 7):
        for _ in range(4):
            await kafka.produce(topic, number, [(None, bytes(20_000))])
    settings: dict[str, object] = {"max_buffered_bytes": 65_536, "fetch_max_wait_ms": 50}
    async with reading(kafka, topic, **settings) as consumer:  # type: ignore[arg-type]
        waiting = asyncio.ensure_future(consumer.getone(TopicPartition(topic, 0)))
        others = [TopicPartition(topic, number) for number in range(1, 7)]
        async with timeout(5):
            words = ""
            while "reads wait for other partitions" not in words:
                await asyncio.sleep(0.01)
                words = " ".join(consumer.explain(tp) for tp in others)
        await kafka.produce(topic, 0, [(None, b"at last")])
        assert (await asyncio.wait_for(waiting, 5)).value == b"at last"
        seen = [(await asyncio.wait_for(consumer.getone(), 5)).partition for _ in range(24)]
        assert sorted(seen) == sorted(list(range(1, 7)) * 4)


@pytest.mark.parametrize("paused_number", [0, 1])
async def test_a_partition_paused_while_it_lacks_bytes_does_not_hold_up_the_rest(
    paused_number: int,
) -> None:
    async with Broker() as broker:
        broker.create_topic("t", 2)
        tps = [TopicPartition("t", number) for number in range(2)]
        for tp in tps * BATCHES_EACH:
            broker.partition(*tp).append(batch(0, 2, size=BATCH_BYTES // 2))
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        async with reading(kafka, "t", **TIGHT) as consumer:  # type: ignore[arg-type]
            first = await asyncio.wait_for(consumer.getone(), 5)
            async with timeout(5):
                words = ""
                while "max_buffered_bytes=" not in words:
                    await asyncio.sleep(0.01)
                    words = consumer.explain(tps[0]) + consumer.explain(tps[1])
            consumer.pause(tps[paused_number])
            seen = [first] if first.partition != paused_number else []
            while len(seen) < 2 * BATCHES_EACH:
                seen.append(await asyncio.wait_for(consumer.getone(), 5))
            assert [r.offset for r in seen] == list(range(2 * BATCHES_EACH))
            assert {r.partition for r in seen} == {1 - paused_number}


# --- Within what is buffered ---------------------------------------------------------------
@pytest.mark.parametrize("way", ["poll", "one"])
async def test_decompression_makes_room_by_what_has_not_been_begun(way: str) -> None:
    size = len(batch(0, 300, codec="gzip", size=170))
    buffers = Buffers(A, B, budget_bytes=100_000)
    buffers.put({A: batch(0, 300, codec="gzip", size=170)}, node_id=1)
    budget = buffers.budget
    large = batch(0, 1, size=99_000 - size)
    buffers.put({B: large}, node_id=2)
    assert not budget.is_over
    if way == "one":
        assert (await buffers.gets.one(())).offset == 0
    else:
        assert await buffers.poll(max_records=10) == {A: list(range(10))}
    assert not budget.is_over  # B's was dropped, and is to be fetched again
    assert buffers.partition(B).fetched == 0
    assert buffers.partition(B).place is Place.READY
    assert budget.headroom_bytes == budget.limit_bytes // 2  # the batch of A takes more


async def test_decompression_drops_the_records_first_that_are_read_last() -> None:
    tps = [TopicPartition("t", number) for number in range(3)]
    compressed, large = batch(0, 100, codec="gzip", size=170), batch(0, 1, size=48_000)
    buffers = Buffers(*tps, budget_bytes=100_000)
    for number, tp in enumerate(tps):
        buffers.put({tp: large if number else compressed}, node_id=number)
    assert await buffers.poll(max_records=10) == {tps[0]: list(range(10))}
    assert [buffers.partition(tp).fetched for tp in tps] == [100, 1, 0]


async def test_decompression_drops_no_records_that_share_their_memory_with_its_batch() -> None:
    tps = [TopicPartition("t", number) for number in range(3)]
    compressed, large = batch(0, 100, codec="gzip", size=170), batch(0, 1, size=48_000)
    buffers = Buffers(*tps, budget_bytes=100_000)
    buffers.put({tps[1]: large}, node_id=1)
    buffers.put({tps[0]: compressed, tps[2]: large}, node_id=2)
    assert len((await buffers.gets.many((tps[0],), 0, 10))[tps[0]]) == 10
    assert [buffers.partition(tp).fetched for tp in tps] == [100, 0, 1]


async def test_compressed_batches_take_their_turns_while_there_is_memory() -> None:
    buffers = Buffers(A, B)
    buffers.put({A: batch(0, 3, codec="gzip")})
    assert [await buffers.poll(max_records=2) for _ in range(2)] == [{A: [0, 1]}, {A: [2]}]
    assert buffers.budget.headroom_bytes > 0
    buffers.put({A: batch(3, 3, codec="gzip"), B: batch(0, 3)})
    assert await buffers.poll(max_records=3) == {A: [3, 4, 5]}


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
        arrow = arrow_gets.ArrowGets(buffers.buffer, None)
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
    assert (budget.buffered_bytes, (budget.limit_bytes - budget.headroom_bytes)) == (50, 70)
    second = budget.reserve(100, 10)
    assert second is not None
    assert second.size_bytes == 50
    second.release()
    first.inflated(-30, 0)
    third = budget.reserve(100, 10)
    assert third is not None
    assert third.size_bytes == 50  # 30 of the 80 for the next batch
