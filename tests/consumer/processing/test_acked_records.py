"""Records that are read one by one are in hand once they are returned, and not before."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from aiokafka_lite._compat import timeout
from aiokafka_lite.consumer.assignment.cursor import Range
from aiokafka_lite.errors import IllegalStateError, WrongLoopError
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition
from tests.consumer.processing.acking import Record
from tests.support.buffers import A, B, Buffers, batch

pytestmark = pytest.mark.virtual_time


class Reader:
    """Reads partitions with some records each, one by one.

    Args:
        partitions: Which.
        max_uncommitted: How many records of one may be unacknowledged.
    """

    def __init__(self, *partitions: TopicPartition, max_uncommitted: int = 10_000) -> None:
        self.buffers = Buffers(*partitions, ack_mode="explicit", max_uncommitted=max_uncommitted)
        self.state, self.gets = self.buffers.state, self.buffers.gets
        for tp in partitions:
            self.buffers.put({tp: batch(0, 10)}, node_id=tp.partition)

    async def read(self, count: int = 1) -> list[Record]:
        return [await self.gets.one(()) for _ in range(count)]

    def in_hand(self) -> dict[TopicPartition, Range]:
        (acks,) = self.state.works
        return acks.undone(self.state.assignment)

    def to_commit(self, tp: TopicPartition = A) -> OffsetAndMetadata:
        return self.state.processed_offsets()[tp]


async def test_what_is_not_returned_is_not_in_hand() -> None:
    reader = Reader(A)
    first, second = await reader.read(2)
    assert reader.in_hand() == {A: Range(0, 2)}
    assert reader.buffers.partition().position == 2
    assert first.ack()
    assert reader.to_commit().offset == 1
    assert second.ack()
    assert reader.in_hand() == {}
    assert reader.to_commit().offset == 2
    for record in await reader.read(8):
        assert record.ack()
    assert reader.to_commit().offset == 10
    assert reader.buffers.partition().worked_by is None


async def test_a_read_of_lists_goes_on_behind_it() -> None:
    reader = Reader(A)
    await reader.read(3)
    assert await reader.buffers.poll(max_records=2) == {A: [3, 4]}
    assert [record.offset for record in await reader.read(2)] == [5, 6]
    assert reader.in_hand() == {A: Range(0, 7)}


@pytest.mark.parametrize("offset", [0, 1, 2, 7])
async def test_a_seek_forgets_what_is_not_returned(offset: int) -> None:
    reader = Reader(A)
    first, second = await reader.read(2)
    reader.state.seek(reader.buffers.partition(), offset)
    reader.buffers.put({A: batch(offset, 10 - offset)})
    assert first.ack() == (offset > 0)
    assert second.ack() == (offset > 1)
    records = await reader.read(10 - offset)
    assert [record.offset for record in records] == list(range(offset, 10))
    assert all(record.ack() for record in records)
    assert reader.to_commit().offset == 10
    assert reader.in_hand() == {}


async def test_a_pause_gives_the_turn_to_others_and_keeps_the_rest() -> None:
    reader = Reader(A, B)
    (first,) = await reader.read()
    other = B if first.partition == A.partition else A
    mine = A if other is B else B
    reader.state.pause(reader.buffers.partition(mine))
    assert [record.partition for record in await reader.read(3)] == [other.partition] * 3
    assert first.ack()
    reader.state.resume(reader.buffers.partition(mine))
    reader.state.pause(reader.buffers.partition(other))
    assert [record.offset for record in await reader.read(9)] == list(range(1, 10))


async def test_a_revocation_ends_reads_and_waits_for_what_is_in_hand_only() -> None:
    reader = Reader(A)
    first, _ = await reader.read(2)
    first.ack()
    reader.state.begin_revocation({A})
    assert reader.in_hand() == {A: Range(1, 2)}
    with pytest.raises(asyncio.TimeoutError):
        async with timeout(1):
            await reader.read()


async def test_a_read_that_waits_for_a_partition_raises_when_it_is_unassigned() -> None:
    reader = Reader(A, B)
    await reader.read(20)
    waiting = asyncio.create_task(reader.gets.one([A]))
    await asyncio.sleep(1)
    assert not waiting.done()
    reader.state.assign_from_user([B])
    with pytest.raises(IllegalStateError, match="is not assigned"):
        await waiting


@pytest.mark.parametrize("closed_after", range(8))
async def test_what_was_finished_before_is_passed_over_wherever_the_list_is_closed(
    closed_after: int,
) -> None:
    reader = Reader(A)
    reader.state.start_behind(
        reader.buffers.partition(), [Range(0, 1), Range(3, 5), Range(9, 10)], 0
    )
    expected = [1, 2, 5, 6, 7, 8]
    found: list[int] = []
    while len(found) < len(expected):
        if len(found) == closed_after:
            reader.buffers.ready.close()
        (record,) = await reader.read()
        found.append(record.offset)
        assert record.ack()
    assert found == expected
    with pytest.raises(asyncio.TimeoutError):
        async with timeout(1):
            await reader.read()
    assert reader.state.processing_totals["passed_over_total"] == 4
    assert reader.to_commit().offset == 10


async def test_no_more_is_returned_than_may_be_unacknowledged() -> None:
    reader = Reader(A, max_uncommitted=3)
    in_hand = await reader.read(3)

    async def is_held_up() -> bool:
        reading = asyncio.create_task(reader.read())
        await asyncio.sleep(1)
        is_waiting = reading.cancel()
        return is_waiting and await reader.buffers.poll() == {}

    assert await is_held_up()
    assert in_hand[1].ack()  # the first still holds the commit back
    assert await is_held_up()
    assert in_hand[0].ack()
    in_hand = [in_hand[2], *await reader.read(2)]
    assert [record.offset for record in in_hand] == [2, 3, 4]
    assert await is_held_up()
    assert in_hand[0].ack()
    assert [record.offset for record in await reader.read()] == [5]
    assert await is_held_up()


async def test_a_refused_record_that_is_not_returned_yet_stays_where_it_is() -> None:
    reader = Reader(A)
    records = await reader.read(10)
    for record in records:
        record.nack()
    first, second = await reader.read(2)
    assert (first, second) == tuple(records[:2])
    assert reader.in_hand() == {A: Range(0, 2)}
    assert records[2].ack()
    assert [record.offset for record in await reader.read()] == [3]
    assert await reader.buffers.poll(max_records=2) == {A: [4, 5]}
    assert [record.offset for record in await reader.read(4)] == [6, 7, 8, 9]
    assert reader.in_hand() == {A: Range(0, 10)}


async def test_a_read_that_passes_over_finished_records_keeps_to_its_time() -> None:
    loop = asyncio.get_running_loop()
    buffers = Buffers(A, ack_mode="explicit")
    buffers.state.start_behind(buffers.partition(), [Range(0, 10)], 0)
    loop.call_later(0.6, buffers.put, {A: batch(0, 10)})
    began_at = loop.time()
    assert await buffers.poll(timeout_s=1) == {}
    assert loop.time() - began_at == pytest.approx(1, abs=0.01)


async def test_another_thread_is_told_how_to_acknowledge() -> None:
    reader = Reader(A)
    (record,) = await reader.read()
    for method in (record.ack, record.nack):
        with (
            ThreadPoolExecutor() as threads,
            pytest.raises(WrongLoopError, match="call_soon_threadsafe"),
        ):
            threads.submit(method).result()
    assert record.ack()
