"""Refused records take turns with others, and a record that is refused again waits longer."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any, cast

import pytest

from aiokafka_lite.consumer.processing.acks import Acks, Refusals
from tests.consumer.processing.acking import Record
from tests.support.buffers import A, B, Buffers, batch

pytestmark = pytest.mark.virtual_time
WAYS = ["getone", "getmany", "one partition", "at most one of each"]


class Reader:
    """Acknowledged gets of two partitions with some records each, one of which is always refused.

    Args:
        count: How many records each partition has.
        bad: The offsets of partition A that are refused whenever they are returned.
    """

    def __init__(self, count: int = 100, bad: tuple[int, ...] = (3,)) -> None:
        self.buffers = Buffers(A, B, ack_mode="explicit")
        assert isinstance(self.buffers.gets, Acks)
        self.gets = self.buffers.gets
        self.bad = {(A.partition, offset) for offset in bad}
        self.seen = Counter[tuple[int, int]]()
        self.times: list[float] = []
        for tp in (A, B):
            self.buffers.put({tp: batch(0, count)}, node_id=tp.partition)

    async def read(self, way: str = "getone") -> list[Record]:
        """One get, whose good records are acknowledged and whose bad ones are refused."""
        records = await self.records(way)
        for record in records:
            place = (record.partition, record.offset)
            self.seen[place] += 1
            if place in self.bad:
                self.times.append(asyncio.get_running_loop().time())
                record.nack()
            else:
                record.ack()
        return records

    async def records(self, way: str) -> list[Record]:
        if way == "getone":
            return [await self.gets.one(())]
        if way == "one partition":
            return [await self.gets.one(frozenset({A}))]
        one_of_each = 1 if way == "at most one of each" else None
        found = await self.gets.many((), None, 4, one_of_each)
        if one_of_each:
            assert all(len(records) == 1 for records in found.values())
        return [record for records in found.values() for record in records]


@pytest.mark.parametrize("way", WAYS)
async def test_a_record_that_is_always_refused_starves_no_other(way: str) -> None:
    reader = Reader()
    good = 100 if way == "one partition" else 200
    for _ in range(210):
        if len(reader.seen) < good:
            await reader.read(way)
    assert len(reader.seen) == good


@pytest.mark.parametrize("way", WAYS[:-1])
async def test_many_records_that_are_refused_once_take_turns_with_others(way: str) -> None:
    reader = Reader(bad=tuple(range(20)))
    fresh = Counter[bool]()
    for _ in range(60 if way == "getmany" else 230):
        for record in await reader.read(way):
            fresh[reader.seen[record.partition, record.offset] == 1] += 1
    assert fresh[True] >= 20
    assert fresh[False] >= 20


async def test_a_record_that_is_refused_again_waits_longer_each_time() -> None:
    reader = Reader(count=1, bad=(0,))
    while len(reader.times) < 14:
        await reader.read()
    delays = [after - before for before, after in zip(reader.times, reader.times[1:], strict=False)]
    assert delays[0] == pytest.approx(0, abs=0.01)
    for nominal, delay in zip((0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8), delays[1:], strict=False):
        assert delay == pytest.approx(nominal, rel=0.3)
    for delay in delays[10:]:
        assert delay == pytest.approx(30, rel=0.3)


async def test_a_delay_that_is_given_is_kept() -> None:
    reader = Reader(count=1, bad=())
    loop = asyncio.get_running_loop()
    record = await reader.gets.one(frozenset({A}))
    for _ in range(5):
        began_at = loop.time()
        assert record.nack(delay_ms=50)
        assert await reader.gets.one(frozenset({A})) is record
        assert loop.time() - began_at == pytest.approx(0.05, abs=0.01)


async def test_a_record_that_is_due_first_wakes_a_read_first() -> None:
    reader = Reader(count=2, bad=())
    first, second = [await reader.gets.one(frozenset({A})) for _ in range(2)]
    first.nack(delay_ms=2_000)
    second.nack(delay_ms=1_000)
    began_at = asyncio.get_running_loop().time()
    for expected, due_s in ((second, 1), (first, 2)):
        assert await reader.gets.one(frozenset({A})) is expected
        assert asyncio.get_running_loop().time() - began_at == pytest.approx(due_s, abs=0.01)


@pytest.mark.parametrize("way", ["getone", "getmany"])
async def test_reads_of_refused_records_only_let_the_loop_run(way: str) -> None:
    reader = Reader(count=20, bad=())
    records = [record for _ in range(40) for record in await reader.records("getone")]
    for record in records:
        record.nack()
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count_turns())
    await asyncio.sleep(0)
    reads = 0
    again: list[Record] = []
    while len(again) < 40:
        again += await reader.records(way)
        reads += 1
    # One by one a time slice of records is read in one go, as others are.
    assert turns >= (reads if way == "getmany" else 2)
    assert len({(record.partition, record.offset) for record in again}) == 40
    counting.cancel()


@pytest.mark.parametrize("of_each", [None, 2])
@pytest.mark.parametrize("most", [1, 2, 3, 5])
async def test_a_limit_is_exact_and_keeps_the_records_beyond_it(
    most: int, of_each: int | None
) -> None:
    reader = Reader(count=4, bad=())
    records = [record for _ in range(8) for record in await reader.records("getone")]
    for record in records[:7]:
        record.nack()
    again: list[Record] = []
    while len(again) < 7:
        found = await reader.gets.many((), 1, most, of_each)
        count = sum(map(len, found.values()))
        assert 0 < count <= most
        assert max(map(len, found.values())) <= (of_each or most)
        again += [record for each in found.values() for record in each]
    assert len(set(map(id, again))) == 7


class Receipt:
    """A record that was refused once."""

    refusal_count = 1
    is_current = True

    def __init__(self, cursor: str = "a partition") -> None:
        self.cursor = cursor


class Woken:
    """A buffer that notes when it is woken."""

    def __init__(self) -> None:
        self.woken_at: list[float] = []

    def wake(self) -> None:
        self.woken_at.append(asyncio.get_running_loop().time())


async def test_partitions_have_their_turns_in_the_order_of_their_refusals() -> None:
    refusals: Any = Refusals(cast("Any", Woken()), random.Random(1))
    one, other, later = Receipt("A"), Receipt("B"), Receipt("A")
    for receipt in (one, other):
        refusals.put(receipt, 0)
    assert refusals.first(lambda _: True) == "A"
    assert refusals.first(lambda cursor: cursor == "B") == "B"
    one.is_current = False
    assert refusals.first(lambda _: True) == "B"
    refusals.put(later, 0)
    assert refusals.first(lambda _: True) == "B"
    assert refusals.take("B", None) == [other]
    assert refusals.first(lambda _: True) == "A"
    assert len(refusals) == 1


async def test_a_refused_record_comes_when_each_partition_has_had_its_turn() -> None:
    reader = Reader(count=3, bad=())
    reader.buffers.put({A: batch(3, 3)}, node_id=A.partition)
    reader.buffers.put({B: batch(3, 3)}, node_id=B.partition)
    (first,) = await reader.records("getone")
    first.nack()
    assert await reader.records("getone") == [first]
    (second,) = await reader.records("getone")
    second.nack()
    between: list[Record] = []
    while (record := (await reader.records("getone"))[0]) is not second:
        between.append(record)
    assert {record.partition for record in between} == {A.partition, B.partition}
    assert len(between) <= 5


async def test_reads_of_one_record_take_turns_with_refused_ones() -> None:
    reader = Reader(count=5, bad=())

    async def poll() -> int:
        (records,) = (await reader.gets.many((), None, 1)).values()
        return records[0].offset

    for records in (await reader.gets.many((), None, None, 1)).values():
        records[0].nack()
    found = [await poll() for _ in range(4)]
    assert [offset == 0 for offset in found] == [True, False, False, True]


async def test_each_time_at_which_records_are_due_wakes_reads_once() -> None:
    buffer = Woken()
    refusals = Refusals(cast("Any", buffer), random.Random(1))
    for delay_s in (2, 1, 3):
        refusals.put(cast("Any", Receipt()), delay_s)
    await asyncio.sleep(2.5)
    assert buffer.woken_at == [1, 2]
    assert len(refusals) == 3
    refusals.clear()
    await asyncio.sleep(2.5)
    assert buffer.woken_at == [1, 2]
    assert len(refusals) == 0
    assert refusals.first(lambda _: True) is None


async def test_as_many_partitions_as_the_buffer_has_are_served_after_refused_records() -> None:
    refusals = Refusals(cast("Any", Woken()), random.Random(1))
    assert refusals.have_their_turn
    refusals.served(2)
    assert not refusals.have_their_turn
    refusals.others_served(1)
    assert not refusals.have_their_turn
    refusals.others_served(1)
    assert refusals.have_their_turn


async def test_a_refused_record_that_is_acknowledged_while_it_waits_is_not_returned() -> None:
    reader = Reader(count=3, bad=())
    first, second = [await reader.gets.one(frozenset({A})) for _ in range(2)]
    first.nack()
    second.nack()
    assert first.ack()
    assert await reader.gets.one(frozenset({A})) is second


async def test_a_cancelled_read_of_refused_records_takes_none() -> None:
    reader = Reader(count=1, bad=())
    record = await reader.gets.one(frozenset({A}))
    record.nack()
    reading = asyncio.create_task(reader.gets.one(frozenset({A})))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert await reader.gets.one(frozenset({A})) is record
