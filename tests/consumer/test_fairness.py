"""Partitions take turns: none waits for ever behind one that has more."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiokafka_lite.broker import Broker
from aiokafka_lite.protocol.messages.fetch import FetchRequest
from aiokafka_lite.structs import TopicPartition
from tests.support.buffers import A, B, Buffers, batch
from tests.support.cluster import KafkaHandle
from tests.support.reading import reading
from tests.support.rows import rows

HOT = 3_000
COLD = 5
COLD_PARTITIONS = 5


async def skewed(kafka: KafkaHandle) -> str:
    """A topic with one partition that has nearly everything."""
    topic = await kafka.create_topic(partitions=1 + COLD_PARTITIONS)
    for first in range(0, HOT, 500):
        await kafka.produce(topic, 0, rows(first, 500))
    for partition in range(1, 1 + COLD_PARTITIONS):
        for number in range(COLD):
            await kafka.produce(topic, partition, rows(number, 1))
    return topic


# --- Within what is buffered ---------------------------------------------------------------
async def turns(counts: list[int], limits: list[int]) -> list[dict[int, int]]:
    """How many records of each partition the gets of these limits hand out, one after the other."""
    tps = [TopicPartition("t", number) for number in range(len(counts))]
    buffers = Buffers(*tps)
    buffers.put({tp: batch(0, count) for tp, count in zip(tps, counts, strict=True)})
    handed_out: list[dict[int, int]] = []
    position = 0
    while found := await buffers.poll(max_records=limits[position % len(limits)]):
        handed_out.append({tp.partition: len(offsets) for tp, offsets in found.items()})
        position += 1
    return handed_out


@settings(max_examples=30)
@given(
    counts=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    limits=st.lists(st.integers(1, 20), min_size=1, max_size=3),
)
def test_a_partition_waits_for_one_turn_of_each_other_at_most(
    counts: list[int], limits: list[int]
) -> None:
    handed_out = asyncio.run(turns(counts, limits))
    served = [0] * len(counts)
    for each in handed_out:
        for number, count in each.items():
            served[number] += count
    assert served == counts
    order = [number for each in handed_out for number in each]
    for number in range(len(counts)):
        places = [-1, *(place for place, other in enumerate(order) if other == number)]
        for before, after in pairwise(places):
            between = order[before + 1 : after]
            assert len(between) == len(set(between)), "another one had two turns meanwhile"


async def test_a_limit_by_partition_leaves_room_for_the_others() -> None:
    buffers = Buffers(A, B)
    buffers.put({A: batch(0, 50), B: batch(0, 3)})
    found = await buffers.gets.many((), 0, 20, 5)
    assert {tp: len(records) for tp, records in found.items()} == {A: 5, B: 3}
    found = await buffers.gets.many((), 0, None, 40)
    assert {tp: len(records) for tp, records in found.items()} == {A: 40}
    found = await buffers.gets.many((), 0, 3, 40)
    assert {tp: len(records) for tp, records in found.items()} == {A: 3}
    assert await buffers.poll() == {A: [48, 49]}


# --- Over a broker -------------------------------------------------------------------------
@pytest.mark.real_if_long
async def test_small_gets_come_to_every_partition_soon(kafka: KafkaHandle) -> None:
    topic = await skewed(kafka)
    async with reading(kafka, topic, max_poll_records=10) as consumer:
        cold = 0
        hot = 0
        while cold < COLD * COLD_PARTITIONS:
            for tp, records in (await consumer.poll(timeout_ms=10_000)).items():
                if tp.partition:
                    cold += len(records)
                else:
                    hot += len(records)
            # One get in turn for the hot one, one for each of the others; and some for the
            # answers that had come before the others' first.
            assert hot <= HOT / 2


@pytest.mark.real_if_long
@pytest.mark.parametrize("way", ["getone", "async for"])
async def test_message_by_message_comes_to_every_partition_soon(
    kafka: KafkaHandle, way: str
) -> None:
    topic = await kafka.create_topic(partitions=2)
    for first in range(0, 10_000, 1_000):
        await kafka.produce(topic, 0, rows(first, 1_000))
    await kafka.produce(topic, 1, rows(0, 3))
    async with reading(kafka, topic) as consumer:
        cold = hot = 0
        while cold < 3:
            record = await (consumer.getone() if way == "getone" else anext(consumer))
            if record.partition:
                cold += 1
            else:
                hot += 1
        assert hot <= 8_000


@pytest.mark.real_if_long
async def test_a_limit_by_partition_is_the_constructor_s_or_the_get_s(kafka: KafkaHandle) -> None:
    topic = await skewed(kafka)
    async with reading(kafka, topic, max_records_per_partition=4) as consumer:
        for count in (4, 4):
            found = await consumer.poll(timeout_ms=10_000)
            assert max(map(len, found.values())) <= count
        found = await consumer.getmany(timeout_ms=10_000, max_records_per_partition=7)
        assert max(map(len, found.values())) <= 7
        for bad in (0, -1, True, "4"):
            with pytest.raises(ValueError, match="max_records_per_partition"):
                await consumer.poll(max_records_per_partition=bad)  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="max_records_per_partition"):
                await consumer.getmany(max_records_per_partition=bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_records_per_partition"):
        async with reading(kafka, topic, max_records_per_partition=0):
            pass


async def test_answers_too_small_for_all_bring_all_in_turn(kafka: KafkaHandle) -> None:
    """Brokers fill answers in the order of the request, or of the session (KIP-74, KIP-227)."""
    topic = await kafka.create_topic(partitions=6)
    for partition in range(6):
        for _ in range(10):
            await kafka.produce(topic, partition, [(b"k", bytes(1_000))] * 2)
    async with reading(kafka, topic, fetch_max_bytes=2_500, max_partition_fetch_bytes=2_100) as c:
        order: list[int] = []
        while len(order) < 30:
            order += [tp.partition for tp in await c.poll(timeout_ms=10_000)]
    assert set(order[:12]) == set(range(6)), order


async def test_full_requests_name_the_partitions_that_had_records_last() -> None:
    async with Broker(max_fetch_sessions=0) as broker:
        broker.create_topic("t", 4)
        for partition in range(4):
            for _ in range(6):
                broker.produce("t", bytes(1_000), partition=partition)
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        async with reading(
            kafka, "t", fetch_max_bytes=1_100, max_partition_fetch_bytes=1_100
        ) as consumer:
            order = [(await consumer.getone()).partition for _ in range(12)]
        firsts = [
            seen.request.topics[0].partitions[0].partition
            for seen in broker.requests.of("Fetch")
            if isinstance(seen.request, FetchRequest) and seen.request.topics
        ]
    assert set(firsts[:6]) == {0, 1, 2, 3}, firsts
    assert set(order[:6]) == {0, 1, 2, 3}, order
