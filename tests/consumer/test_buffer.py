from __future__ import annotations

import asyncio
import gc
import itertools
import weakref
from typing import Any, cast

import pytest

from aiokafka_lite import records
from aiokafka_lite.consumer.assignment.cursor import Place
from aiokafka_lite.consumer.buffer.buffer import Limits
from aiokafka_lite.consumer.delivery import gets as delivery_gets
from aiokafka_lite.consumer.delivery.gets import RECORD_BYTES
from aiokafka_lite.consumer.gate import Hold
from aiokafka_lite.errors import (
    ConsumerStoppedError,
    CorruptRecordException,
    DeserializationError,
    KafkaError,
    OffsetOutOfRangeError,
)
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition
from tests.support import tuning
from tests.support.buffers import A, B, Buffers, batch
from tests.support.virtual_time import VirtualTimeLoop


async def test_poll_returns_records_in_order_and_moves_the_position() -> None:
    buffers = Buffers()
    buffers.put({A: batch(0, 3) + batch(3, 2)})
    assert await buffers.poll() == {A: [0, 1, 2, 3, 4]}
    assert buffers.partition().position == 5
    assert await buffers.poll() == {}


async def test_poll_never_returns_more_than_asked_for() -> None:
    buffers = Buffers(A, B)
    buffers.put({A: batch(0, 5), B: batch(0, 5)})
    seen: dict[object, list[int]] = {A: [], B: []}
    for _ in range(5):
        found = await buffers.poll(max_records=2)
        assert sum(map(len, found.values())) == 2
        for tp, offsets in found.items():
            seen[tp] += offsets
    assert seen == {A: [0, 1, 2, 3, 4], B: [0, 1, 2, 3, 4]}


async def test_a_limit_may_end_exactly_with_a_response_behind_which_more_is_decoded() -> None:
    buffers = Buffers()
    buffers.put({A: batch(0, 3)})
    buffers.put({A: batch(3, 3)})
    await buffers.buffer.decode(Limits())  # as a get does that is cancelled then
    assert await buffers.poll(max_records=3) == {A: [0, 1, 2]}
    assert await buffers.poll() == {A: [3, 4, 5]}


async def test_a_read_takes_no_response_that_its_limit_leaves_out() -> None:
    buffers = Buffers(A, B)
    buffers.put({A: batch(0, 2)}, node_id=7)
    buffers.put({B: batch(0, 2)}, node_id=8)
    assert await buffers.poll(max_records=2) == {A: [0, 1]}
    assert buffers.taken == [7]


@pytest.fixture
def few_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches that hold three records with values of 1,000 bytes, and six of others at most."""
    tuning.end_no_slice(monkeypatch)
    monkeypatch.setattr(delivery_gets, "MOST_CACHED_RECORDS", 6)
    monkeypatch.setattr(delivery_gets, "CACHED_BYTES", 3 * (RECORD_BYTES + 1_002))


@pytest.mark.usefixtures("few_are_cached")
@pytest.mark.parametrize("way", ["poll", "getmany"])
async def test_reads_without_a_limit_return_as_many_records_as_the_caches_hold(way: str) -> None:
    buffers = Buffers()

    async def count(max_records: int | None = None, max_of_each: int | None = None) -> int:
        if way == "poll":
            found = await buffers.gets.some(0, max_records, max_of_each)
        else:
            found = await buffers.gets.many((), 0, max_records, max_of_each)
        return len(found[A])

    buffers.put({A: batch(0, 6)})
    assert await count() == 6
    buffers.put({A: batch(6, 9, size=1_000)})
    counts = [await count(1), await count(), await count(4), await count(None, 1)]
    assert counts == [1, 3, 4, 1]
    buffers.put({A: batch(15, 2, size=10_000)})
    assert [await count(1), await count()] == [1, 1]
    buffers.put({A: batch(17, 8)})
    assert [await count(1), await count()] == [1, 6]


@pytest.mark.usefixtures("few_are_cached")
@pytest.mark.parametrize("wanted", [(), (A,)], ids=["of all", "of one"])
async def test_records_that_are_read_one_by_one_are_decoded_as_many_as_the_caches_hold(
    wanted: tuple[TopicPartition, ...],
) -> None:
    decoded: list[bytes | None] = []
    buffers = Buffers(value_deserializer=decoded.append)
    for first in (0, 6):
        buffers.put({A: batch(first, 6, size=1_000)})
    counts = []
    for _ in range(8):
        await buffers.gets.one(wanted)
        counts.append(len(decoded))
    assert counts == [6] * 6 + [9] * 2


async def test_partitions_take_turns() -> None:
    buffers = Buffers(A, B)
    buffers.put({A: batch(0, 4), B: batch(0, 4)})
    turns = [next(iter(await buffers.poll(max_records=1))) for _ in range(4)]
    assert sorted(turns) == [A, A, B, B]
    assert turns[0] != turns[1]


async def test_a_read_that_leaves_out_no_partition_moves_only_the_first_behind_the_others() -> None:
    c = TopicPartition("t", 2)
    buffers = Buffers(A, B, c)
    buffers.put({tp: batch(0, 3) for tp in (A, B, c)})
    assert (await buffers.gets.many((), 0, None, 1)).keys() == {A, B, c}
    turns = [next(iter(await buffers.poll(max_records=1))) for _ in range(3)]
    assert turns == [B, c, A]


async def test_partitions_take_turns_one_answer_of_each_in_gets_of_one_record() -> None:
    buffers = Buffers(A, B)
    buffers.put({A: batch(0, 2), B: batch(0, 2)})
    buffers.put({A: batch(2, 2), B: batch(2, 2)})
    found = [await buffers.gets.one(()) for _ in range(8)]
    assert [record.partition for record in found] == [0, 0, 1, 1, 0, 0, 1, 1]


async def test_poll_waits_until_something_is_put() -> None:
    buffers = Buffers()
    poll = asyncio.ensure_future(buffers.poll(timeout_s=None))
    await asyncio.sleep(0)
    assert not poll.done()
    buffers.put({A: batch(0, 1)})
    assert await poll == {A: [0]}


async def test_poll_returns_nothing_when_its_time_is_up() -> None:
    assert await Buffers().poll(timeout_s=0.01) == {}


async def test_reads_that_never_wait_let_others_run_unless_there_are_records() -> None:
    buffers = Buffers()
    others: list[str] = []

    def wait_for_a_turn() -> None:
        others.clear()
        asyncio.get_running_loop().call_soon(others.append, "has run")

    wait_for_a_turn()
    assert await buffers.poll() == {}
    assert others
    buffers.put({A: batch(0, 1)})
    wait_for_a_turn()
    assert await buffers.poll() == {A: [0]}
    assert not others
    buffers.buffer.put_error(buffers.partition(), KafkaError("refused"), is_sticky=True)
    wait_for_a_turn()
    with pytest.raises(KafkaError, match="refused"):
        await buffers.poll()
    assert others


@pytest.mark.virtual_time
async def test_records_that_come_with_the_end_of_the_time_are_returned() -> None:
    buffers = Buffers()
    poll = asyncio.ensure_future(buffers.poll(timeout_s=1.0))
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.pass_time(1.0)
    buffers.put({A: batch(0, 1)})
    assert await poll == {A: [0]}


@pytest.mark.virtual_time
async def test_records_that_come_while_a_read_waits_are_returned_in_a_new_time_slice() -> None:
    buffers = Buffers()
    buffers.put({A: batch(0, 1)})
    assert await buffers.poll() == {A: [0]}
    poll = asyncio.ensure_future(buffers.poll(timeout_s=None))
    await asyncio.sleep(1.0)
    buffers.put({A: batch(1, 1)})
    await asyncio.sleep(0)
    assert poll.done()


@pytest.mark.virtual_time
async def test_a_read_whose_time_is_up_returns_what_it_has_decoded() -> None:
    def deserialize(value: bytes | None) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        loop.pass_time(0.001)

    buffers = Buffers(value_deserializer=deserialize)
    buffers.put({A: batch(0, 1_000)})
    found = await buffers.poll(timeout_s=0.2)
    assert 200 <= len(found[A]) <= 300


async def test_a_response_is_taken_before_its_records_are_decoded() -> None:
    buffers = Buffers()
    response = buffers.put({A: batch(0, 3)}, node_id=7)
    assert buffers.has_untaken(7)
    assert not response.is_taken
    await buffers.poll(max_records=1)
    assert buffers.taken == [7]
    assert not buffers.has_untaken(7)
    assert response.is_taken


async def test_a_waiting_get_takes_a_response_at_once() -> None:
    buffers = Buffers()
    poll = asyncio.ensure_future(buffers.poll(timeout_s=None))
    await asyncio.sleep(0)
    response = buffers.put({A: batch(0, 1)})
    assert response.is_taken
    await poll


async def test_a_get_that_waits_for_other_partitions_lets_the_fetchers_go_on() -> None:
    buffers = Buffers(A, B)
    buffers.put({B: batch(0, 1)}, node_id=7)
    get = asyncio.ensure_future(buffers.gets.one({A}))
    await asyncio.sleep(0)
    assert buffers.taken == [7]
    buffers.put({A: batch(0, 1)})
    assert (await get).partition == A.partition
    assert await buffers.poll() == {B: [0]}


async def test_fetching_goes_on_behind_what_is_buffered_twice_at_most() -> None:
    buffers = Buffers()
    assert not buffers.partition().is_full
    buffers.put({A: batch(0, 3)})
    assert buffers.partition().fetched == 3
    assert not buffers.partition().is_full
    buffers.put({A: batch(3, 3)})
    assert buffers.partition().is_full
    await buffers.poll(max_records=3)
    assert not buffers.partition().is_full
    assert buffers.partition(A).place is Place.READY  # for another request
    assert await buffers.poll() == {A: [3, 4, 5]}


async def test_a_response_counts_as_taken_only_when_its_own_records_are() -> None:
    buffers = Buffers()
    buffers.put({A: batch(0, 4)}, node_id=7)
    await buffers.poll(max_records=2)
    buffers.put({A: batch(4, 4)}, node_id=7)
    await buffers.poll(max_records=2)
    assert buffers.has_untaken(7)
    await buffers.poll(max_records=2)
    assert not buffers.has_untaken(7)


async def test_a_response_without_records_for_the_application_holds_nothing_up() -> None:
    buffers = Buffers()
    marker = records.control_batch(
        records.ControlType.COMMIT, producer_id=1, producer_epoch=0, timestamp_ms=1, base_offset=2
    )
    buffers.put({A: batch(0, 2)}, node_id=7)
    await buffers.poll(max_records=1)
    buffers.put({A: marker}, node_id=7)
    assert await buffers.poll(max_records=1) == {A: [1]}
    assert not buffers.has_untaken(7)
    assert buffers.partition().position == 3
    assert buffers.state.finished.processed_offsets()[A].offset == 1


async def test_bytes_are_given_back_when_the_last_share_of_a_response_is_used_up() -> None:
    buffers = Buffers(A, B)
    buffers.put({A: batch(0, 3), B: batch(0, 3)})
    held = buffers.budget.used_bytes
    await buffers.gets.many({A}, 0, None)
    assert buffers.budget.used_bytes == held
    await buffers.gets.many({B}, 0, None)
    assert buffers.budget.used_bytes == 0


async def test_seek_drops_what_is_buffered() -> None:
    buffers = Buffers()
    buffers.put({A: batch(0, 3)}, node_id=7)
    buffers.state.seek(buffers.partition(), 10)
    assert await buffers.poll() == {}
    assert buffers.budget.used_bytes == 0
    assert not buffers.has_untaken(7)
    buffers.put({A: batch(10, 1)})
    assert await buffers.poll() == {A: [10]}


async def test_a_response_waits_for_the_application_until_all_of_it_is_dropped() -> None:
    buffers = Buffers(A, B)
    buffers.put({A: batch(0, 3), B: batch(0, 3)}, node_id=7)
    buffers.state.seek(buffers.partition(A), 10)
    await asyncio.sleep(0)
    assert buffers.has_untaken(7)
    buffers.state.seek(buffers.partition(B), 10)
    assert not buffers.has_untaken(7)
    assert buffers.taken == []  # soon, not in the middle of the change
    await asyncio.sleep(0)
    assert buffers.taken == [7]


async def test_a_paused_partition_keeps_its_records_and_does_not_block_others() -> None:
    buffers = Buffers(A, B)
    buffers.put({A: batch(0, 2), B: batch(0, 2)})
    buffers.state.pause(buffers.partition(A))
    assert await buffers.poll() == {B: [0, 1]}
    assert await buffers.poll() == {}
    buffers.state.resume(buffers.partition(A))
    assert await buffers.poll() == {A: [0, 1]}


async def test_resume_wakes_a_waiting_get() -> None:
    buffers = Buffers()
    buffers.state.pause(buffers.partition())
    buffers.put({A: batch(0, 1)})
    poll = asyncio.ensure_future(buffers.poll(timeout_s=None))
    await asyncio.sleep(0)
    buffers.state.resume(buffers.partition())
    assert await poll == {A: [0]}


async def test_held_hand_outs_wait_for_the_release() -> None:
    buffers = Buffers()
    buffers.put({A: batch(0, 2)})
    assert (await buffers.gets.one(())).offset == 0
    buffers.state.gate.hold(Hold.LISTENER)
    get = asyncio.ensure_future(buffers.gets.one(()))
    await asyncio.sleep(0.01)
    assert not get.done()
    buffers.state.gate.release(Hold.LISTENER)
    assert (await get).offset == 1


async def test_records_ahead_of_a_corrupt_batch_come_first_then_the_error_each_time() -> None:
    buffers = Buffers()
    broken = bytearray(batch(3, 3))
    broken[-1] ^= 0xFF

    def refetched() -> bytes:
        partition = buffers.partition()
        return bytes(broken) if partition.fetched else batch(0, 3) + bytes(broken)

    buffers.put({A: refetched()})
    assert await buffers.poll() == {A: [0, 1, 2]}
    assert await buffers.poll() == {}  # fetched once more before it counts
    for _ in range(2):
        assert buffers.partition().fetched == 3
        buffers.put({A: refetched()})
        with pytest.raises(CorruptRecordException) as raised:
            await buffers.poll()
        assert (raised.value.tp, raised.value.offset) == (A, 3)
        assert buffers.partition().position == 3
        assert buffers.partition().retry_at > asyncio.get_running_loop().time()
    buffers.state.seek(buffers.partition(), 6)
    buffers.put({A: batch(6, 1)})
    assert await buffers.poll() == {A: [6]}


async def test_a_corrupt_batch_that_is_whole_the_second_time_loses_nothing() -> None:
    buffers = Buffers()
    broken = bytearray(batch(0, 3))
    broken[-1] ^= 0xFF
    buffers.put({A: bytes(broken)})
    assert await buffers.poll() == {}
    buffers.put({A: batch(0, 3)})
    assert await buffers.poll() == {A: [0, 1, 2]}


def _refuse_fourth(value: bytes | None) -> object:
    if value == b"bad":
        raise ValueError("cannot read this")
    return (value or b"").decode()


async def test_a_record_that_cannot_be_deserialised_is_raised_each_time_until_sought_past() -> None:
    buffers = Buffers(A, B, value_deserializer=_refuse_fourth)
    values = [b"0", b"1", b"2", b"bad", b"4"]
    view = records.build_batch([(1, None, value, ()) for value in values])
    buffers.put({A: view})
    first = await buffers.gets.many((), 0, None)
    values_read: list[object] = [record.value for record in first[A]]
    assert values_read == ["0", "1", "2"]
    for _ in range(3):
        with pytest.raises(DeserializationError) as raised:
            await buffers.poll()
        assert (raised.value.tp, raised.value.offset) == (A, 3)
        assert isinstance(raised.value.__cause__, ValueError)
        assert buffers.partition().position == 3
    buffers.put({B: batch(0, 2)})
    assert await _until_found(buffers, B) == [0, 1]
    buffers.state.seek(buffers.partition(A), 4)
    buffers.put({A: view})
    assert await buffers.poll() == {A: [4]}


async def _until_found(buffers: Buffers, tp: TopicPartition) -> list[int]:
    for _ in range(3):
        try:
            found = await buffers.poll()
        except KafkaError:
            continue
        if tp in found:
            return found[tp]
    raise AssertionError("the other partition was never served")


async def test_a_sticky_error_stays_until_seek() -> None:
    buffers = Buffers()
    error = OffsetOutOfRangeError({A: 0}).at(A, 0)
    buffers.buffer.put_error(buffers.partition(), error, is_sticky=True)
    buffers.buffer.put_error(buffers.partition(), error, is_sticky=True)
    for _ in range(3):
        with pytest.raises(OffsetOutOfRangeError):
            await buffers.poll()
    assert buffers.partition().is_full
    buffers.state.seek(buffers.partition(), 2)
    assert await buffers.poll() == {}
    assert not buffers.partition().is_full


async def test_other_errors_are_raised_once_behind_the_records() -> None:
    buffers = Buffers()
    buffers.put({A: batch(0, 2)})
    buffers.buffer.put_error(buffers.partition(), KafkaError("refused"))
    assert await buffers.poll() == {A: [0, 1]}
    with pytest.raises(KafkaError, match="refused"):
        await buffers.poll()
    assert "refused" in buffers.state.reads.latest_raised
    assert await buffers.poll() == {}
    buffers.put({A: batch(2, 1)})
    assert await buffers.poll() == {A: [2]}
    assert buffers.state.reads.latest_raised == ""


async def test_a_stopped_consumer_wakes_its_gets() -> None:
    buffers = Buffers()
    poll = asyncio.ensure_future(buffers.poll(timeout_s=None))
    await asyncio.sleep(0)
    buffers.state.gate.die(ConsumerStoppedError("stopped"))
    buffers.buffer.wake()
    with pytest.raises(ConsumerStoppedError):
        await poll


async def test_large_compressed_batches_leave_the_loop_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tuning.decompress(monkeypatch, in_thread=True)
    buffers = Buffers()
    buffers.put({A: batch(0, 50, codec="gzip") + batch(50, 50, codec="gzip")})
    assert await buffers.poll() == {A: list(range(100))}
    assert buffers.budget.used_bytes == 0


@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_get_cancelled_at_any_await_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, *, in_thread: bool
) -> None:
    if in_thread:
        tuning.decompress(monkeypatch, in_thread=True)
    tuning.end_slices_at_once(monkeypatch, first_run=2)
    for steps in range(12):
        buffers = Buffers(A, B)
        codec = "gzip" if in_thread else "none"
        buffers.put({A: batch(0, 7, codec=codec), B: batch(0, 3, codec=codec)})
        poll = asyncio.ensure_future(buffers.poll(max_records=8))
        for _ in range(steps):
            await asyncio.sleep(0)
        poll.cancel()
        found: dict[object, list[int]] = {A: [], B: []}
        try:
            for tp, offsets in (await poll).items():
                found[tp] += offsets
        except asyncio.CancelledError:
            assert buffers.partition(A).position == 0
        while more := await buffers.poll():
            for tp, offsets in more.items():
                found[tp] += offsets
        assert found == {A: list(range(7)), B: [0, 1, 2]}, f"cancelled after {steps} steps"


async def test_getone_under_a_timeout_loses_nothing() -> None:
    buffers = Buffers()
    found: list[int] = []

    async def feed() -> None:
        for first in range(0, 40, 2):
            await asyncio.sleep(0.001)
            buffers.put({A: batch(first, 2)})

    feeder = asyncio.ensure_future(feed())
    while len(found) < 40:
        try:
            found.append((await asyncio.wait_for(buffers.gets.one(()), 0.0005)).offset)
        except asyncio.TimeoutError:
            continue
    await feeder
    assert found == list(range(40))


@pytest.mark.parametrize("first", ["one", "many"])
async def test_gets_of_two_tasks_that_wait_share_what_comes(first: str) -> None:
    buffers = Buffers()
    found: list[int] = []

    async def one() -> None:
        found.append((await buffers.gets.one(())).offset)

    async def many() -> None:
        found.extend((await buffers.poll(timeout_s=None))[A])

    gets = [one(), many(), one()] if first == "one" else [many(), one(), one()]
    tasks = [asyncio.ensure_future(get) for get in gets]
    await asyncio.sleep(0)
    buffers.put({A: batch(0, 3)})
    for _ in range(5):
        await asyncio.sleep(0)
    buffers.put({A: batch(3, 3)})
    for _ in range(5):
        await asyncio.sleep(0)
    buffers.put({A: batch(6, 3)})
    await asyncio.gather(*tasks)
    while more := await buffers.poll():
        found += more[A]
    assert found == list(range(9))


async def test_one_by_one_counts_as_processed_only_up_to_the_latest() -> None:
    buffers = Buffers(A, B)
    buffers.put({A: batch(0, 3)})
    for offset in range(3):
        assert (await buffers.gets.one(())).offset == offset
        assert buffers.state.finished.processed_offsets()[A] == OffsetAndMetadata(offset, "")
        assert buffers.state.finished.handed_out_offsets()[A] == OffsetAndMetadata(offset + 1, "")
    buffers.put({B: batch(0, 1)})
    assert (await buffers.gets.one(())).partition == B.partition
    assert buffers.state.finished.processed_offsets() == {
        A: OffsetAndMetadata(3, ""),
        B: OffsetAndMetadata(0, ""),
    }


async def test_poll_goes_on_where_getone_stopped() -> None:
    buffers = Buffers()
    buffers.put({A: batch(0, 5)})
    assert [(await buffers.gets.one(())).offset for _ in range(2)] == [0, 1]
    assert await buffers.poll(max_records=2) == {A: [2, 3]}
    assert (await buffers.gets.one(())).offset == 4
    assert buffers.state.finished.handed_out_offsets() == {A: OffsetAndMetadata(5, "")}
    buffers.ready.close()
    assert buffers.budget.used_bytes == 0


async def test_seek_pause_and_revoke_take_effect_between_two_records() -> None:
    buffers = Buffers(A, B)
    buffers.put({A: batch(0, 5)})
    assert (await buffers.gets.one(())).offset == 0
    buffers.state.pause(buffers.partition(A))
    assert await buffers.poll() == {}
    buffers.state.resume(buffers.partition(A))
    assert (await buffers.gets.one(())).offset == 1
    buffers.state.seek(buffers.partition(A), 1)
    assert await buffers.poll() == {}
    buffers.put({A: batch(1, 4)})
    assert (await buffers.gets.one(())).offset == 1
    buffers.state.assign_from_user([B])
    assert await buffers.poll() == {}
    assert buffers.budget.used_bytes == 0


async def test_records_are_the_plain_values() -> None:
    buffers = Buffers()
    buffers.put({A: batch(0, 1)})
    record = await buffers.gets.one(())
    assert (record.topic, record.partition, record.key, record.value) == ("t", 0, b"0", b"xxx")


@pytest.mark.parametrize("change", ["seek", "pause"])
async def test_a_deserialiser_may_move_or_pause_its_own_partition(change: str) -> None:
    calls = itertools.count()

    def deserialize(value: bytes | None) -> bytes | None:
        if next(calls) == 0:
            if change == "seek":
                buffers.state.seek(buffers.partition(), 10)
            else:
                buffers.state.pause(buffers.partition())
        return value

    buffers = Buffers(value_deserializer=deserialize)
    buffers.put({A: batch(0, 5)})
    getting = asyncio.ensure_future(buffers.gets.one(()))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not getting.done()
    if change == "seek":
        assert buffers.partition().position == 10
        buffers.put({A: batch(10, 1)})
        assert (await getting).offset == 10
    else:
        buffers.state.resume(buffers.partition())
        assert (await getting).offset == 0


@pytest.mark.virtual_time
async def test_a_get_with_a_time_limit_ends_when_its_partition_is_taken_away() -> None:
    buffers = Buffers(A, B)
    reading = asyncio.ensure_future(buffers.gets.many(frozenset({A}), 60.0, None))
    await asyncio.sleep(0)
    buffers.state.remove_from_user([A])
    assert await asyncio.wait_for(reading, 1) == {}


async def test_an_error_of_a_partition_taken_away_meanwhile_is_nobody_s() -> None:
    buffers = Buffers(A, B)
    partition = buffers.partition(A)
    buffers.state.remove_from_user([A])
    buffers.buffer.put_error(partition, KafkaError("late"), is_sticky=True)
    assert await buffers.poll() == {}


async def test_an_error_wakes_the_get_that_waits_and_is_told_of() -> None:
    buffers = Buffers()
    poll = asyncio.ensure_future(buffers.poll(timeout_s=None))
    await asyncio.sleep(0)
    buffers.buffer.put_error(buffers.partition(), KafkaError("refused"))
    assert buffers.error_count == 1
    with pytest.raises(KafkaError, match="refused"):
        await asyncio.wait_for(poll, 1)


@pytest.mark.virtual_time
async def test_a_buffer_that_was_cleared_is_kept_by_no_deadline_of_a_get() -> None:
    buffers = Buffers()
    delivery = weakref.ref(buffers.delivery)
    for timeout_s in (3600, 1800):
        poll = asyncio.ensure_future(buffers.poll(timeout_s))
        await asyncio.sleep(0)
        poll.cancel()
        await asyncio.wait([poll])
    buffers.buffer.clear()
    del buffers, poll
    gc.collect()
    assert delivery() is None


@pytest.mark.virtual_time
async def test_gets_end_at_their_own_deadlines_whichever_began_first() -> None:
    buffers = Buffers()
    loop = asyncio.get_running_loop()
    ended: dict[float, float] = {}

    async def poll(timeout_s: float) -> None:
        assert await buffers.poll(timeout_s) == {}
        ended[timeout_s] = loop.time()

    await asyncio.gather(*(poll(timeout_s) for timeout_s in (3.0, 1.0, 2.0, 2.0)))
    assert ended == pytest.approx({3.0: 3.0, 1.0: 1.0, 2.0: 2.0}, abs=1e-3)


# --- When memory is short ---------------------------------------------------------------------
def left_out(buffers: Buffers) -> list[TopicPartition]:
    """The partitions that are not fetched because reads wait for others."""
    return [tp for tp in (A, B) if buffers.buffer.is_left_out(buffers.partition(tp))]


async def test_others_are_fetched_no_more_and_then_dropped_until_a_get_has_what_it_waits_for() -> (
    None
):
    buffers = Buffers(A, B)
    buffers.put({A: batch(0, 3)})
    buffers.buffer.make_room(is_behind=True)
    assert left_out(buffers) == []  # no read waits
    get = asyncio.ensure_future(buffers.gets.one({B}))
    await asyncio.sleep(0)
    assert left_out(buffers) == []
    buffers.buffer.make_room(is_behind=True)
    assert left_out(buffers) == [A]
    for is_behind, fetched in ((False, 3), (True, 0)):
        buffers.buffer.make_room(is_behind=is_behind)
        assert buffers.partition(A).fetched == fetched
    assert buffers.sought_count == 1
    buffers.put({B: batch(0, 1)})
    assert left_out(buffers) == []
    assert buffers.sought_count == 2
    assert (await get).partition == B.partition


async def test_a_get_of_all_partitions_leaves_none_out_and_gets_that_end_are_not_minded() -> None:
    buffers = Buffers(A, B)
    gets = [asyncio.ensure_future(buffers.gets.one(wanted)) for wanted in ((), {B})]
    await asyncio.sleep(0)
    buffers.buffer.make_room(is_behind=True)
    assert left_out(buffers) == []
    gets[0].cancel()
    await asyncio.wait(gets[:1])
    buffers.buffer.make_room(is_behind=True)
    assert left_out(buffers) == [A]
    gets.append(asyncio.ensure_future(buffers.gets.one({A})))
    await asyncio.sleep(0)
    assert left_out(buffers) == []  # it waits for this one
    for get, expected in ((gets[1], [B]), (gets[2], [])):
        get.cancel()
        await asyncio.wait([get])
        await asyncio.sleep(0)
        assert left_out(buffers) == expected


async def test_gets_that_a_rebalance_holds_are_sought_nothing_for() -> None:
    buffers = Buffers(A, B)
    get = asyncio.ensure_future(buffers.gets.one({B}))
    await asyncio.sleep(0)
    buffers.state.gate.hold(Hold.LISTENER)
    buffers.buffer.make_room(is_behind=True)
    assert left_out(buffers) == []
    get.cancel()


async def test_room_is_made_of_paused_partitions_but_not_of_errors() -> None:
    buffers = Buffers(A, B)
    buffers.put({A: batch(0, 3)})
    error = OffsetOutOfRangeError({B: 0}).at(B, 0)
    buffers.buffer.put_error(buffers.partition(B), error, is_sticky=True)
    buffers.buffer.make_room(is_behind=True)
    assert buffers.partition(A).fetched == 3
    for tp in (A, B):
        buffers.state.pause(buffers.partition(tp))
    buffers.buffer.make_room(is_behind=False)
    assert buffers.partition(A).fetched == 0
    assert buffers.buffer.sticky_error(buffers.partition(B)) is error


async def test_room_is_made_of_partitions_in_open_batches_if_a_read_waits() -> None:
    buffers = Buffers(A, B)
    buffers.put({A: batch(0, 3)})
    buffers.partition(A).enter_work(cast("Any", object()), is_enough=True)
    buffers.buffer.make_room(is_behind=False)
    assert buffers.partition(A).fetched == 3
    get = asyncio.ensure_future(buffers.gets.one({B}))
    await asyncio.sleep(0)
    buffers.buffer.make_room(is_behind=False)
    assert buffers.partition(A).fetched == 0
    get.cancel()


async def test_what_was_cleared_under_the_cursor_may_be_closed() -> None:
    buffers = Buffers()
    buffers.put({A: batch(0, 1)})
    assert (await buffers.gets.one(())).offset == 0
    buffers.buffer.clear()
    buffers.ready.close()
    assert buffers.partition().position == 1


@pytest.mark.parametrize(("most", "of_each", "count"), [(3, None, 3), (7, 1, 2), (None, 4, 6)])
async def test_no_more_records_are_decoded_than_a_read_returns(
    most: int | None, of_each: int | None, count: int
) -> None:
    decoded: list[bytes | None] = []
    buffers = Buffers(A, B, value_deserializer=decoded.append)
    buffers.put({A: batch(0, 2), B: batch(0, 5)})
    found = await buffers.gets.many((), 0, most, of_each)
    assert sum(map(len, found.values())) == len(decoded) == count


async def test_what_a_limit_by_partition_leaves_out_is_not_counted() -> None:
    buffers = Buffers(A, B)
    buffers.put({A: batch(0, 50), B: batch(0, 50)})
    assert (await buffers.gets.one(())).offset == 0  # all of it is decoded
    for _ in range(3):
        found = await buffers.gets.many((), 0, 20, 5)
        assert {tp: len(records) for tp, records in found.items()} == {A: 5, B: 5}
