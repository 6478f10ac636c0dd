"""Records that are read one by one are in hand once they are returned, and not before."""

from __future__ import annotations

import asyncio
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from aiokafka_lite._compat import timeout
from aiokafka_lite.consumer.assignment.cursor import Range
from aiokafka_lite.consumer.processing.acks import AckedBatch, Acks
from aiokafka_lite.errors import ConsumerStoppedError, IllegalStateError, WrongLoopError
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition
from tests.consumer.processing.acking import Record
from tests.support.buffers import A, B, Buffers, batch
from tests.support.virtual_time import VirtualTimeLoop

pytestmark = pytest.mark.virtual_time


class Reader:
    """Reads partitions with some records each, one by one.

    Args:
        partitions: Which.
        max_uncommitted: How many records of one may be unacknowledged.
    """

    def __init__(self, *partitions: TopicPartition, max_uncommitted: int = 10_000) -> None:
        self.buffers = Buffers(*partitions, ack_mode="explicit", max_uncommitted=max_uncommitted)
        self.state = self.buffers.state
        (acks,) = self.state.works.begun
        assert isinstance(acks, Acks)
        self.acks, self.gets = acks, self.buffers.gets
        for tp in partitions:
            self.buffers.put({tp: batch(0, 10)}, node_id=tp.partition)

    async def read(self, count: int = 1) -> list[Record]:
        return [await self.gets.one(()) for _ in range(count)]

    def in_hand(self) -> dict[TopicPartition, Range]:
        return self.acks.undone(self.state.assignment)

    def to_commit(self, tp: TopicPartition = A) -> OffsetAndMetadata:
        return self.state.finished.processed_offsets()[tp]


async def test_what_is_not_returned_is_not_in_hand() -> None:
    reader = Reader(A)
    first, second = await reader.read(2)
    assert reader.in_hand() == {A: Range(0, 2)}
    assert reader.acks.partitions() == {A}
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
    assert reader.acks.partitions() == set()


async def test_a_read_of_lists_goes_on_behind_it() -> None:
    reader = Reader(A)
    await reader.read(3)
    assert await reader.buffers.poll(max_records=2) == {A: [3, 4]}
    assert reader.buffers.partition().position == 5
    assert [record.offset for record in await reader.read(2)] == [5, 6]
    assert reader.in_hand() == {A: Range(0, 7)}
    assert reader.state.reads.record_count == 7


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


async def test_reads_of_one_partition_keep_the_place_in_another() -> None:
    reader = Reader(A, B)

    async def read(tp: TopicPartition, count: int = 1) -> list[int]:
        return [(await reader.gets.one(frozenset({tp}))).offset for _ in range(count)]

    assert [*await read(A, 2), *await read(B, 2), *await read(A), *await read(B)] == [0, 1] * 2 + [
        2
    ] * 2
    first = await reader.gets.one(frozenset({A}))
    first.nack()
    assert [*await read(B), *await read(A, 2), *await read(B)] == [3, 3, 4, 4]
    tp = TopicPartition("other", 0)
    assert reader.acks.undone([tp, B, A]) == {A: Range(0, 5), B: Range(0, 5)}


async def test_what_a_seek_leaves_of_refused_records_is_returned_again() -> None:
    reader = Reader(A)
    for record in await reader.read(10):
        record.nack()
    assert [record.offset for record in await reader.read(2)] == [0, 1]
    reader.state.seek(reader.buffers.partition(), 5)
    reader.buffers.put({A: batch(5, 5)})
    assert sorted(record.offset for record in await reader.read(8)) == list(range(2, 10))


async def test_records_are_counted_by_where_they_are() -> None:
    reader = Reader(A)
    first, second, third, _ = await reader.read(4)
    assert reader.acks.counts() == {"at_work": 4, "waiting_for_retry": 0, "uncommitted": 4}
    (record,) = await reader.read()
    assert record.offset == 4
    assert second.ack()
    assert third.nack(delay_ms=60_000)
    assert third.nack()  # which it was already
    assert reader.acks.counts() == {"at_work": 3, "waiting_for_retry": 1, "uncommitted": 5}
    assert reader.state.works.totals["finished_total"] == 1
    assert reader.state.works.totals["failed_total"] == 1
    await asyncio.sleep(2)
    explained = reader.acks.explain(reader.buffers.partition(), 5.0)
    assert "was returned 5.0 s ago" in explained
    assert "(1 later records are finished, 4 records are unfinished)" in explained
    first.nack(delay_ms=60_000)
    assert reader.in_hand() == {A: Range(3, 5)}
    assert "waits to be returned again" in reader.acks.explain(reader.buffers.partition(), 5.0)


async def test_a_record_that_holds_its_partition_up_is_a_trouble() -> None:
    reader = Reader(A, max_uncommitted=3)
    first, *_ = await reader.read(1)
    assert reader.in_hand() == {A: Range(0, 1)}
    assert not list(reader.acks.troubles(1.0))
    assert await reader.buffers.poll(max_records=2) == {A: [1, 2]}
    (trouble,) = reader.acks.troubles(1.0)
    assert trouble == reader.acks.explain(reader.buffers.partition(), 1.0)
    assert first.ack()
    assert not list(reader.acks.troubles(1.0))


async def test_a_poll_raises_what_the_application_has_to_hear() -> None:
    reader = Reader(A)
    reader.state.gate.post_to_poll(IllegalStateError("told by a poll"))
    with pytest.raises(IllegalStateError, match="told by a poll"):
        await reader.gets.some(0, None)
    assert [record.offset for record in (await reader.gets.some(0, 2))[A]] == [0, 1]
    assert await reader.buffers.poll() == {A: list(range(2, 10))}


async def test_an_acknowledgement_tells_a_rebalance_or_a_stop_that_waits() -> None:
    reader = Reader(A)
    told: list[int] = []
    reader.state.observers.acted.add(lambda: told.append(1))
    first, second, third, fourth = await reader.read(4)
    told.clear()
    first.ack()
    assert not told
    second.nack()
    assert len(told) == 1
    reader.acks.is_wanted_by(10.0)
    third.ack()
    assert len(told) == 2
    again, fifth = await reader.read(2)
    assert (again, fifth.offset) == (second, 4)
    await reader.acks.end(10.0)
    assert not fourth.ack()
    assert not fourth.nack()
    progress = reader.buffers.partition().progress
    assert progress is not None
    assert progress.uncommitted_count == 4  # what was not returned is in nobody's hands


async def test_a_record_in_a_transaction_is_finished_by_that() -> None:
    reader = Reader(A)
    (record,) = await reader.read()
    assert reader.in_hand() == {A: Range(0, 1)}
    (receipt,) = reader.acks.receipts()
    receipt.enlist(object())
    assert record.ack()
    assert reader.in_hand() == {A: Range(0, 1)}
    receipt.enlist(None)
    assert record.ack()
    assert reader.in_hand() == {}


async def test_a_reader_that_has_ended_is_kept_by_no_refused_record() -> None:
    reader = Reader(A)
    (record,) = await reader.read()
    record.nack(delay_ms=3_600_000)
    await reader.acks.end(10.0)
    kept = weakref.ref(reader.acks)
    del reader, record
    gc.collect()
    assert kept() is None


async def test_a_block_that_fails_again_waits_longer_each_time() -> None:
    reader = Reader(A)
    times: list[float] = []
    done: list[int] = []
    while len(times) < 5:
        found = await reader.gets.many((), None, 1)
        block = AckedBatch(reader.state.works, None)
        block.open(found)
        (record,) = found[A]
        if record.offset == 0:
            times.append(asyncio.get_running_loop().time())
        block.close(is_done=record.offset > 0)
        done += [record.offset] * (record.offset > 0)
    first, *delays = [after - before for before, after in pairwise(times)]
    assert first < 0.0005
    assert delays == [pytest.approx(s, rel=0.3) for s in (0.1, 0.2, 0.4)]
    assert done == list(range(1, 10))


async def test_a_block_holds_what_it_has_not_acknowledged_or_refused() -> None:
    reader = Reader(A, B)
    found = {A: [await reader.gets.one(frozenset({A})) for _ in range(4)]}
    (other,) = [await reader.gets.one(frozenset({B}))]
    block = AckedBatch(reader.state.works, None)
    block.open(found)
    assert reader.in_hand() == {B: Range(0, 1)}
    assert len(reader.acks.receipts()) == 5
    found[A][0].ack()
    found[A][3].nack(delay_ms=60_000)
    assert block.undone([A, B]) == {A: Range(1, 3)}
    assert block.undone([B]) == {}
    assert (block.held(), block.lost()) == ({A}, frozenset())
    block.give_up([B], 1.0)
    assert not block.revoking.is_set()
    block.give_up([A], 2.0)
    assert block.revoking.is_set()
    reader.state.seek(reader.buffers.partition(), 2)
    assert block.undone([A, B]) == {A: Range(1, 2)}
    assert block.lost() == {A}
    block.close(is_done=True)
    assert not found[A][1].ack()  # it is finished
    assert reader.to_commit() == OffsetAndMetadata(2, "")
    assert other.ack()
    assert reader.in_hand() == {}
    with pytest.raises(IllegalStateError, match="block of the batch has ended"):
        block.require_delivered()


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


async def test_a_seek_in_another_partition_leaves_what_is_read_one_by_one() -> None:
    reader = Reader(A, B)
    (first,) = await reader.read()
    other = B if first.partition == A.partition else A
    reader.state.seek(reader.buffers.partition(other), 5)
    found = [(record.partition, record.offset) for record in await reader.read(9)]
    assert found == [(first.partition, offset) for offset in range(1, 10)]


async def test_a_revocation_ends_reads_and_waits_for_what_is_in_hand_only() -> None:
    reader = Reader(A)
    first, _ = await reader.read(2)
    first.ack()
    reader.state.withhold({A})
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
    assert reader.state.works.totals["passed_over_total"] == 4
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


async def test_a_list_whose_time_is_up_goes_on_before_other_partitions() -> None:
    reader = Reader(A, B)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    found: list[Record] = []
    for _ in range(4):
        found += await reader.read()
        loop.pass_time(1)
    assert [record.offset for record in found] == [0, 1, 2, 3]
    assert len({record.partition for record in found}) == 1


async def test_a_refused_record_that_is_due_comes_before_the_rest_of_a_list() -> None:
    reader = Reader(A)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    (refused,) = await reader.read()
    refused.nack(delay_ms=500)
    assert [record.offset for record in await reader.read(2)] == [1, 2]
    loop.pass_time(1)
    # The clock is looked at after some records.
    assert [record.offset for record in await reader.read(2)] == [3, 0]


async def test_nothing_is_in_work_once_all_that_was_returned_is_acknowledged() -> None:
    reader = Reader(A)
    first, second = await reader.read(2)
    assert first.ack()
    assert reader.buffers.ready.has_rest(())  # the next read goes on
    assert second.ack()
    count = reader.state.reads.hand_out_count
    assert reader.state.reads.hand_out_count == count
    assert reader.acks.explain(reader.buffers.partition(), 1.0) == ""
    assert reader.buffers.partition().worked_by is None
    assert reader.to_commit().offset == 2


async def test_what_was_not_returned_is_not_said_to_be_unfinished() -> None:
    reader = Reader(A)
    await reader.read(2)
    explained = reader.acks.explain(reader.buffers.partition(), 1.0)
    assert "(0 later records are finished, 2 records are unfinished)" in explained


async def test_a_record_that_is_refused_at_once_is_in_hand_no_more() -> None:
    reader = Reader(A)
    (record,) = await reader.read()
    assert record.nack(delay_ms=60_000)
    assert reader.in_hand() == {}


async def test_a_record_is_refused_as_often_as_a_list_returns_it() -> None:
    reader = Reader(A)
    record, *_ = (await reader.gets.many((), 0, None))[A]
    for delay_s in (1, 2, 3):
        assert record.nack(delay_ms=1000 * delay_s)
        assert await reader.gets.many((), 5, None) == {A: [record]}


async def test_refused_records_that_are_not_returned_yet_wait_while_others_are() -> None:
    reader = Reader(A, B)

    async def read(tp: TopicPartition) -> Record:
        return await reader.gets.one(frozenset({tp}))

    refused = [await read(A) for _ in range(2)]
    for record in refused:
        record.nack()
    assert await read(A) is refused[0]
    assert (await read(B)).offset == 0
    assert [await read(A) for _ in range(9)][-1] is refused[1]


async def test_refused_records_that_are_not_returned_yet_wait_for_those_of_other_partitions() -> (
    None
):
    reader = Reader(A, B)
    records = await reader.read(20)
    of_a, of_b = (
        [record for record in records if record.partition == tp.partition] for tp in (A, B)
    )
    for record in (*of_a[:2], of_b[0]):
        record.nack()
    for tp, record in ((A, of_a[0]), (B, of_b[0]), (A, of_a[1])):
        assert await reader.gets.one(frozenset({tp})) is record


async def test_a_read_of_refused_records_ends_with_the_consumer() -> None:
    reader = Reader(A)
    (record,) = await reader.read()
    record.nack()
    reading = asyncio.create_task(reader.read())
    await asyncio.sleep(0)
    reader.state.gate.refuse(lambda: ConsumerStoppedError("stopped"))
    with pytest.raises(ConsumerStoppedError):
        await reading


async def test_what_was_all_finished_before_counts_as_processed_while_a_read_waits() -> None:
    reader = Reader(A)
    reader.state.start_behind(reader.buffers.partition(), [Range(0, 10)], 0)
    reading = asyncio.create_task(reader.read())
    await asyncio.sleep(1)
    assert reader.to_commit().offset == 10
    reading.cancel()


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
