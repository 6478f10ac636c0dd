"""Which records a ShareFetch locks: whole batches, exact numbers, and the group's limits."""

from __future__ import annotations

import asyncio
import time

import pytest

from aiokafka_lite.errors import UnknownError
from tests.broker.share.requests import ACCEPT, RELEASE, ShareGroup, produce, share_group
from tests.support.cluster import KafkaHandle

EXACT = 1


async def test_records_are_acquired_once(group: ShareGroup) -> None:
    await produce(group, 5)
    await group.start()
    async with group.member() as member, group.member() as other:
        got = await member.poll()
        assert got.ranges == [(0, 4, 1)]
        assert got.records
        assert (await member.fetch()).ranges == []
        assert (await other.fetch()).ranges == []


async def test_fetch_of_a_group_that_has_not_started_returns_nothing(group: ShareGroup) -> None:
    await produce(group, 1)
    for _ in range(2):
        async with group.member() as member:
            got = await member.fetch()
            # A real broker fails with -1 as long as its cache of share fetches lacks a new topic.
            while got.error_code == UnknownError.errno and group.kafka.kind == "real":
                await asyncio.sleep(0.05)
                async with group.member() as again:
                    got = await again.fetch()
            assert (got.ranges, got.records, got.error_code) == ([], b"", 0)


async def test_last_batch_is_complete_and_batches_end_at_the_batch_size(group: ShareGroup) -> None:
    await produce(group, 5, 5, 3, 20)
    await group.start()
    async with group.member() as member:
        assert (await member.poll(max_records=7)).ranges == [(0, 9, 1)]
        assert (await member.poll(max_records=100, batch_size=4)).ranges == [(10, 32, 1)]
    fresh = ShareGroup(group.kafka, group.topic, group.topic_id)
    await fresh.start()
    async with fresh.member() as member:
        got = await member.poll(max_records=100, batch_size=1)
        assert got.ranges == [(0, 4, 1), (5, 9, 1), (10, 12, 1), (13, 32, 1)]
        await member.acknowledge((0, 32, RELEASE))
        # The same units are acquired again.
        assert (await member.poll(max_records=1)).ranges == [(0, 4, 2)]
        assert (await member.poll(max_records=6)).ranges == [(5, 9, 2), (10, 12, 2)]


async def test_exact_mode_acquires_so_many_and_sends_whole_batches(group: ShareGroup) -> None:
    await produce(group, 10)
    await group.start()
    async with group.member() as member:
        first = await member.poll(max_records=3, mode=EXACT)
        second = await member.poll(max_records=4, mode=EXACT)
        assert (first.ranges, second.ranges) == ([(0, 2, 1)], [(3, 6, 1)])
        assert first.records == second.records
        await member.acknowledge((0, 6, RELEASE))
        assert (await member.poll(max_records=2, mode=EXACT)).ranges == [(0, 1, 2)]
        assert (await member.poll(max_records=1, mode=EXACT)).ranges == [(2, 2, 2)]


async def test_records_have_only_batches_with_acquired_records(group: ShareGroup) -> None:
    await produce(group, 2, 2, 2, 2)
    await group.start()
    async with group.member() as member:
        everything = (await member.poll()).records
        await member.acknowledge((2, 5, RELEASE))
        assert len((await member.poll()).records) == len(everything) // 2


async def test_one_batch_is_sent_however_large_it_is(group: ShareGroup) -> None:
    await produce(group, 5, 5)
    await group.start()
    async with group.member() as member:
        assert (await member.poll(max_bytes=1)).ranges == [(0, 4, 1)]
        assert (await member.poll(max_bytes=1)).ranges == [(5, 9, 1)]


async def test_released_records_are_delivered_fewer_at_once_until_they_are_archived(
    group: ShareGroup,
) -> None:
    await produce(group, 4)
    await group.start()
    seen = []
    async with group.member() as member:
        while got := (await member.poll(tries=20)).ranges:
            seen += got
            assert (
                await member.acknowledge(*((first, last, RELEASE) for first, last, _ in got)) == 0
            )
        await produce(group, 1)
        assert (await member.poll()).ranges == [(4, 4, 1)]
    assert seen == [
        (0, 3, 1), (0, 3, 2), (0, 3, 3),
        (0, 1, 4), (0, 0, 5), (1, 1, 5),
        (2, 3, 4), (2, 2, 5), (3, 3, 5),
    ]  # fmt: skip


async def test_locks_are_limited_from_the_first_unfinished_record_on(group: ShareGroup) -> None:
    await produce(group, *[10] * 12)
    await group.start(partition_max_record_locks=100)
    async with group.member() as member:
        assert (await member.poll(max_records=1_000)).ranges == [(0, 99, 1)]
        await member.acknowledge((50, 59, ACCEPT))
        assert (await member.fetch(max_wait_ms=100)).ranges == []
        await member.acknowledge((20, 24, RELEASE))
        assert (await member.poll()).ranges == [(20, 24, 2)]
        await member.acknowledge((0, 9, ACCEPT))
        assert (await member.poll()).ranges == [(100, 109, 1)]


@pytest.mark.parametrize("reset", ["latest", "earliest", "by_duration:PT2H"])
async def test_first_offset_is_that_of_the_reset(group: ShareGroup, reset: str) -> None:
    now_ms = int(time.time() * 1000)
    for hours_ago in (3, 1):
        row = (None, b"value")
        stamp = now_ms - hours_ago * 3_600_000
        await group.kafka.produce(group.topic, 0, [row, row], timestamp_ms=stamp)
    await group.start(auto_offset_reset=reset)
    async with group.member() as member:
        got = await member.poll(tries=10)
        if reset == "latest":
            assert got.ranges == []
            await produce(group, 1)
            assert (await member.poll()).ranges == [(4, 4, 1)]
        else:
            assert got.ranges == [(0 if reset == "earliest" else 2, 3, 1)]


async def test_fetch_waits_for_bytes_and_new_records_end_the_wait(group: ShareGroup) -> None:
    await group.start()
    loop = asyncio.get_running_loop()
    async with group.member() as member:
        await member.fetch(max_wait_ms=200)  # a real broker initialises the partition
        begin = loop.time()
        waiting = asyncio.ensure_future(member.fetch(max_wait_ms=400, min_bytes=1_000))
        await asyncio.sleep(0.05)
        await produce(group, 1)
        assert (await waiting).ranges == [(0, 0, 1)]
        assert loop.time() - begin >= 0.35
        waiting = asyncio.ensure_future(member.fetch(max_wait_ms=10_000))
        await asyncio.sleep(0.05)
        await produce(group, 1)
        assert (await waiting).ranges == [(1, 1, 1)]
        assert loop.time() - begin < 8


async def test_release_ends_no_wait(group: ShareGroup) -> None:
    """Kafka 4.3 looks for released records when the wait ends."""
    await produce(group, 1)
    await group.start()
    loop = asyncio.get_running_loop()
    async with group.member() as member, group.member() as other:
        await member.poll()
        await other.fetch()
        begin = loop.time()
        waiting = asyncio.ensure_future(other.fetch(max_wait_ms=500))
        await asyncio.sleep(0.05)
        await member.acknowledge((0, 0, RELEASE))
        assert (await waiting).ranges == [(0, 0, 2)]
        assert loop.time() - begin >= 0.45


async def test_partitions_take_turns(cluster: KafkaHandle) -> None:
    group = await share_group(cluster, 3)
    for partition in range(3):
        await produce(group, 2, partition=partition)
    await group.start()
    served = []
    async with group.member() as member:
        for _ in range(200):
            answer = await member.ask(partitions=range(3), max_records=1)
            served += [
                data.partition_index
                for topic in answer.responses
                for data in topic.partitions
                if data.acquired_records
            ]
            if len(served) == 3:
                break
            await asyncio.sleep(0.02)
    assert sorted(served) == [0, 1, 2]


@pytest.mark.parametrize(
    "how",
    [{"max_records": 0}, {"max_bytes": 0}, {"max_records": -1}],
    ids=str,
)
async def test_fetch_without_room_acquires_nothing(group: ShareGroup, how: dict[str, int]) -> None:
    await produce(group, 1)
    await group.start()
    async with group.member() as member:
        await member.poll()
        await member.acknowledge((0, 0, RELEASE))
        assert (await member.fetch(**how)).ranges == []  # type: ignore[arg-type]
        assert (await member.poll()).ranges == [(0, 0, 2)]
