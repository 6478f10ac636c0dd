"""Gets of rows on the fetch queue, fed by hand: what they hand out, and what they leave behind."""

from __future__ import annotations

import asyncio
import gzip
import random

import pytest

from aiokafka_lite import records
from aiokafka_lite.consumer.assignment.cursor import Place
from aiokafka_lite.consumer.buffer.buffer import Limits
from aiokafka_lite.consumer.buffer.decode import ROWS_A_RECORD
from aiokafka_lite.consumer.gate import Hold
from aiokafka_lite.errors import (
    ConsumerStoppedError,
    CorruptRecordException,
    KafkaError,
    OffsetOutOfRangeError,
)
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition
from tests.support.buffers import A, B, Buffers, batch
from tests.support.crafted import message

pytest.importorskip("pyarrow", reason="rows are for pyarrow: pip install pyarrow")

import pyarrow as pa

from aiokafka_lite.consumer.delivery.arrow_gets import ArrowGets
from aiokafka_lite.records.arrow import DEFAULT_SCHEMA, ArrowColumns
from tests.support import tuning

pytestmark = pytest.mark.usefixtures("decoder")

Rows = list[tuple[int, int]]
"""Partition and offset of each row."""


@pytest.fixture(autouse=True)
def _no_batch_ends_for_lack_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    tuning.end_no_slice(monkeypatch)


class Gets:
    """Gets of rows beside those of records, of the same queue."""

    def __init__(self, buffers: Buffers, max_rows: int | None = None) -> None:
        self.arrow = ArrowGets(buffers.buffer, max_rows)

    async def rows(self, timeout_s: float | None = 0, max_rows: int | None = None) -> Rows:
        return rows_of(await self.arrow.one(self.arrow.columns(None), timeout_s, max_rows))


def rows_of(found: pa.RecordBatch) -> Rows:
    found.validate(full=True)
    offsets = found.column("offset").to_pylist()
    assert [int(key) for key in found.column("key").to_pylist()] == offsets
    return list(zip(found.column("partition").to_pylist(), offsets, strict=True))


def of(tp: TopicPartition, *offsets: int) -> Rows:
    return [(tp.partition, offset) for offset in offsets]


# --- handing out ---------------------------------------------------------------------------------


async def test_rows_come_in_order_and_move_the_position() -> None:
    buffers = Buffers()
    gets = Gets(buffers)
    buffers.put({A: batch(0, 3) + batch(3, 2)})
    assert await gets.rows() == of(A, 0, 1, 2, 3, 4)
    assert buffers.partition().position == 5
    assert buffers.budget.used_bytes == 0
    assert buffers.partition(A).place is Place.READY  # for another request
    assert await gets.rows() == []


async def test_one_batch_holds_all_partitions_each_in_order() -> None:
    buffers = Buffers(A, B)
    buffers.put({A: batch(0, 3), B: batch(0, 2)}, node_id=1)
    buffers.put({A: batch(3, 3)}, node_id=2)
    assert await Gets(buffers).rows() == of(A, 0, 1, 2, 3, 4, 5) + of(B, 0, 1)
    assert buffers.taken == [1, 2]
    assert buffers.budget.used_bytes == 0


async def test_messages_of_the_old_formats_are_rows_too() -> None:
    buffers = Buffers()
    inner = b"".join(
        message(offset, b"v", key=b"%d" % (5 + offset), magic=1) for offset in range(3)
    )
    wrapper = message(7, gzip.compress(inner), magic=1, attributes=1)
    single = message(8, b"v", key=b"8", magic=0)
    buffers.put({A: wrapper + single + batch(9, 1)})
    assert await Gets(buffers).rows() == of(A, 5, 6, 7, 8, 9)


async def test_a_batch_never_has_more_rows_than_asked_for() -> None:
    buffers = Buffers(A, B)
    gets = Gets(buffers, max_rows=3)
    buffers.put({A: batch(0, 5), B: batch(0, 5)})
    seen: dict[int, list[int]] = {0: [], 1: []}
    for count in (3, 3, 3, 1, 0):
        found = await gets.rows()
        assert len(found) == count
        for partition, offset in found:
            seen[partition].append(offset)
    assert seen == {0: [0, 1, 2, 3, 4], 1: [0, 1, 2, 3, 4]}


async def test_partitions_take_turns() -> None:
    buffers = Buffers(A, B)
    gets = Gets(buffers)
    buffers.put({A: batch(0, 4), B: batch(0, 4)})
    turns = [(await gets.rows(max_rows=1))[0] for _ in range(4)]
    assert turns == [*of(A, 0), *of(B, 0), *of(A, 1), *of(B, 1)]


async def test_a_batch_ends_before_it_has_too_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    tuning.limit_arrow_batches(monkeypatch, 350)
    buffers = Buffers(A, B)
    gets = Gets(buffers)
    buffers.put({A: batch(0, 4, size=100), B: batch(0, 2, size=1_000)})
    assert await gets.rows() == of(A, 0, 1, 2)
    assert await gets.rows() == of(B, 0)
    assert await gets.rows() == of(A, 3)
    assert await gets.rows() == of(B, 1)


async def test_an_empty_batch_has_the_schema_when_the_time_is_up() -> None:
    gets = Gets(Buffers()).arrow
    schema = pa.schema([("value", pa.binary())])
    for timeout_s in (0, 0.01):
        assert (await gets.one(gets.columns(None), timeout_s, None)).schema == DEFAULT_SCHEMA
        found = await gets.one(gets.columns(schema), timeout_s, None)
        assert (found.schema, found.num_rows) == (schema, 0)
    assert gets.columns(schema) is gets.columns(schema)


async def test_a_get_waits_until_something_is_put() -> None:
    buffers = Buffers()
    get = asyncio.ensure_future(Gets(buffers).rows(timeout_s=None))
    await asyncio.sleep(0)
    assert not get.done()
    response = buffers.put({A: batch(0, 1)})
    assert response.is_taken
    assert await get == of(A, 0)


async def test_a_response_is_taken_before_its_rows_are_decompressed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tuning.decompress(monkeypatch, in_thread=True)
    buffers = Buffers()
    buffers.put({A: batch(0, 3, codec="gzip")}, node_id=7)
    get = asyncio.ensure_future(Gets(buffers).rows())
    await asyncio.sleep(0)
    assert (buffers.taken, get.done()) == ([7], False)
    assert await get == of(A, 0, 1, 2)


async def test_a_read_of_rows_that_raises_lets_others_run() -> None:
    buffers = Buffers()
    gets = Gets(buffers)
    buffers.buffer.put_error(buffers.partition(), KafkaError("refused"), is_sticky=True)
    others: list[str] = []
    asyncio.get_running_loop().call_soon(others.append, "has run")
    with pytest.raises(KafkaError, match="refused"):
        await gets.rows()
    assert others


async def test_a_batch_ends_when_the_time_slice_does(monkeypatch: pytest.MonkeyPatch) -> None:
    tuning.end_slices_at_once(monkeypatch, first_run=8)
    buffers = Buffers(A, B)
    gets = Gets(buffers)
    buffers.put({A: batch(0, 100), B: batch(0, 100)})
    found: Rows = []
    while rows := await gets.rows():
        assert len(rows) <= 8 * ROWS_A_RECORD
        found += rows
    assert sorted(found) == of(A, *range(100)) + of(B, *range(100))


# --- positions and commits -----------------------------------------------------------------------


async def test_rows_count_as_processed_when_the_next_get_begins() -> None:
    buffers = Buffers(A, B)
    gets = Gets(buffers)
    buffers.put({A: batch(0, 5), B: batch(0, 1)})
    await gets.rows(max_rows=4)
    assert buffers.state.finished.processed_offsets()[A].offset == 0
    assert buffers.state.finished.handed_out_offsets()[A].offset == 4
    await gets.rows()
    assert buffers.state.finished.processed_offsets() == {
        A: OffsetAndMetadata(4, ""),
        B: OffsetAndMetadata(0, ""),
    }
    await gets.rows()
    assert buffers.state.finished.processed_offsets()[A].offset == 5


@pytest.mark.parametrize("way", ["records", "rows"])
async def test_gaps_count_for_rows_as_they_do_for_records(way: str) -> None:
    buffers = Buffers()
    marker = records.control_batch(
        records.ControlType.COMMIT, producer_id=1, producer_epoch=0, timestamp_ms=1, base_offset=9
    )
    buffers.put({A: batch(5, 2) + marker + batch(12, 1) + marker})
    if way == "rows":
        assert await Gets(buffers).rows(max_rows=2) == of(A, 5, 6)
    else:
        assert await buffers.poll(max_records=2) == {A: [5, 6]}
    assert buffers.state.finished.processed_offsets()[A].offset == 5
    assert buffers.partition().position == 10
    if way == "rows":
        assert await Gets(buffers).rows() == of(A, 12)
    else:
        assert await buffers.poll() == {A: [12]}
    assert buffers.state.finished.processed_offsets()[A].offset in (10, 12)
    assert buffers.partition().position == 13


async def test_a_response_without_rows_only_moves_the_position() -> None:
    buffers = Buffers()
    marker = records.control_batch(
        records.ControlType.COMMIT, producer_id=1, producer_epoch=0, timestamp_ms=1, base_offset=0
    )
    buffers.put({A: marker})
    assert await Gets(buffers).rows() == []
    assert buffers.partition().position == 1
    assert buffers.budget.used_bytes == 0


# --- other gets, cancellation --------------------------------------------------------------------


async def test_records_that_another_get_has_decoded_come_first() -> None:
    buffers = Buffers()
    gets = Gets(buffers)
    buffers.put({A: batch(0, 10)})
    assert await buffers.poll(max_records=2) == {A: [0, 1]}
    assert (await buffers.gets.one(())).offset == 2
    assert await gets.rows(max_rows=3) == of(A, 3, 4, 5)
    assert buffers.state.finished.handed_out_offsets()[A].offset == 6
    assert (await buffers.gets.one(())).offset == 6
    assert await gets.rows() == of(A, 7, 8, 9)
    assert buffers.budget.used_bytes == 0


@pytest.mark.parametrize(
    ("limit_bytes", "key", "value"),
    [
        (2 * 101, b"k", b"v" * 100),
        (3 * 101 - 1, b"k", b"v" * 100),
        (2 * 100, None, b"v" * 100),
        (2 * 100, b"k" * 100, None),
    ],
)
async def test_what_was_decoded_is_bounded_in_bytes_too(
    monkeypatch: pytest.MonkeyPatch, limit_bytes: int, key: bytes | None, value: bytes | None
) -> None:
    tuning.limit_arrow_batches(monkeypatch, limit_bytes)
    buffers = Buffers()
    gets = Gets(buffers).arrow
    buffers.put({A: records.build_batch([(1, key, value, ())] * 3) + batch(3, 1, size=999)})
    await buffers.buffer.decode(Limits())
    found = [await gets.one(gets.columns(None), 0, None) for _ in range(4)]
    assert [rows.column("offset").to_pylist() for rows in found] == [[0, 1], [2], [3], []]


@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_get_cancelled_at_any_await_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, *, in_thread: bool
) -> None:
    if in_thread:
        tuning.decompress(monkeypatch, in_thread=True)
    tuning.end_slices_at_once(monkeypatch, first_run=1)
    codec = "gzip" if in_thread else "none"
    for steps in range(8):
        buffers = Buffers(A, B)
        gets = Gets(buffers)
        buffers.put({A: batch(0, 7, codec=codec), B: batch(0, 3, codec=codec)})
        await gets.rows(max_rows=1)
        get = asyncio.ensure_future(gets.rows(max_rows=4))
        for _ in range(steps):
            await asyncio.sleep(0)
        get.cancel()
        found: dict[int, list[int]] = {0: [0], 1: []}
        try:
            for partition, offset in await get:
                found[partition].append(offset)
        except asyncio.CancelledError:
            assert (buffers.partition(A).position, buffers.partition(B).position) == (1, 0)
        while more := await gets.rows():
            for partition, offset in more:
                found[partition].append(offset)
        assert found == {0: list(range(7)), 1: [0, 1, 2]}, f"cancelled after {steps} steps"


@pytest.mark.few_rows(11)
@pytest.mark.parametrize("seed", range(20))
async def test_gets_of_every_kind_mixed_and_cancelled_give_each_record_once(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    if seed % 2:
        tuning.end_slices_at_once(monkeypatch)
    tuning.decompress(monkeypatch, in_thread=rng.choice((True, False)))
    buffers = Buffers(A, B)
    gets = Gets(buffers)
    ends = {A: 0, B: 0}
    found: Rows = []

    async def rows() -> None:
        found.extend(await gets.rows(max_rows=rng.choice((1, 5, None))))

    async def poll() -> None:
        for tp, offsets in (await buffers.poll(max_records=rng.choice((1, 5, None)))).items():
            found.extend(of(tp, *offsets))

    async def one() -> None:
        record = await buffers.gets.one(())
        found.append((record.partition, record.offset))

    for _ in range(60):
        for tp, end in ends.items():
            if not buffers.partition(tp).is_full:
                counts = [rng.randint(1, 9) for _ in range(rng.randint(1, 3))]
                view = b""
                for count in counts:
                    view += batch(end, count, codec=rng.choice(("none", "gzip")))
                    end += count
                ends[tp] = end
                buffers.put({tp: view}, node_id=tp.partition)
        get = asyncio.ensure_future(rng.choice((rows, poll, one))())
        for _ in range(rng.randint(0, 3)):
            await asyncio.sleep(0)
        if rng.random() < 0.4:
            get.cancel()
        await asyncio.gather(get, return_exceptions=True)
        if not get.cancelled():
            get.result()
    while len(found) < sum(ends.values()):
        await rows()
    for tp, end in ends.items():
        assert [offset for partition, offset in found if partition == tp.partition] == [*range(end)]
        assert buffers.partition(tp).position == end
    assert buffers.budget.used_bytes == 0


@pytest.mark.few_rows(6)
@pytest.mark.parametrize("seed", range(10))
async def test_gets_of_several_tasks_give_each_record_once(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    tuning.decompress(monkeypatch, in_thread=rng.choice((True, False)))
    if seed % 2:
        tuning.end_slices_at_once(monkeypatch)
    buffers = Buffers(A, B)
    gets = Gets(buffers)
    found: Rows = []
    total = 2 * 300

    async def work() -> None:
        while True:
            way = rng.randrange(3)
            if way == 0:
                found.extend(await gets.rows(timeout_s=None, max_rows=rng.choice((1, 5, None))))
            elif way == 1:
                polled = await buffers.poll(timeout_s=None, max_records=rng.choice((1, 5, None)))
                for tp, offsets in polled.items():
                    found.extend(of(tp, *offsets))
            else:
                record = await buffers.gets.one(())
                found.append((record.partition, record.offset))
            if rng.random() < 0.5:
                await asyncio.sleep(0)

    workers = [asyncio.ensure_future(work()) for _ in range(4)]
    ends = {A: 0, B: 0}
    while len(found) < total:
        for tp, end in ends.items():
            if end < 300 and not buffers.partition(tp).is_full:
                count = rng.choice((1, 3, 12))
                count = min(count, 300 - end)
                buffers.put({tp: batch(end, count, codec=rng.choice(("none", "gzip")))})
                ends[tp] = end + count
        await asyncio.sleep(0)
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    assert sorted(found) == of(A, *range(300)) + of(B, *range(300))


async def test_rows_that_no_batch_could_be_made_of_are_fetched_again() -> None:
    class Failing(ArrowColumns):
        fails = True

        def finish(self) -> pa.RecordBatch:
            if self.fails:
                raise MemoryError
            return super().finish()

    columns = Failing()
    buffers = Buffers(A, B)
    gets = Gets(buffers)
    buffers.put({A: batch(0, 2) + batch(2, 2), B: batch(0, 1)})
    assert await gets.rows(max_rows=1) == of(A, 0)
    with pytest.raises(MemoryError):
        await gets.arrow.one(columns, 0, None)
    columns.fails = False
    assert buffers.budget.used_bytes == 0
    for tp, position in ((A, 1), (B, 0)):
        assert buffers.partition(tp).position == buffers.partition(tp).fetched == position
    buffers.put({A: batch(1, 3), B: batch(0, 1)})
    assert rows_of(await gets.arrow.one(columns, 0, None)) == of(A, 1, 2, 3) + of(B, 0)


# --- seek, pause, revoke -------------------------------------------------------------------------


async def test_seek_drops_what_is_buffered() -> None:
    buffers = Buffers()
    gets = Gets(buffers)
    buffers.put({A: batch(0, 9)})
    assert await gets.rows(max_rows=3) == of(A, 0, 1, 2)
    buffers.state.seek(buffers.partition(), 20)
    assert await gets.rows() == []
    assert buffers.budget.used_bytes == 0
    buffers.put({A: batch(20, 1)})
    assert await gets.rows() == of(A, 20)


async def test_a_paused_partition_keeps_its_rows_and_does_not_block_others() -> None:
    buffers = Buffers(A, B)
    gets = Gets(buffers)
    buffers.put({A: batch(0, 2), B: batch(0, 2)})
    buffers.state.pause(buffers.partition(A))
    assert await gets.rows() == of(B, 0, 1)
    assert await gets.rows() == []
    buffers.state.resume(buffers.partition(A))
    assert await gets.rows() == of(A, 0, 1)


async def test_what_happens_to_a_partition_during_the_pause_takes_effect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tuning.decompress(monkeypatch, in_thread=True)
    for change in ("seek", "pause", "revoke", "hold"):
        buffers = Buffers(A, B)
        gets = Gets(buffers)
        buffers.put({A: batch(0, 2, codec="gzip")})
        get = asyncio.ensure_future(gets.rows(timeout_s=None))
        await asyncio.sleep(0)
        if change == "seek":
            buffers.state.seek(buffers.partition(A), 5)
        elif change == "pause":
            buffers.state.pause(buffers.partition(A))
        elif change == "revoke":
            buffers.state.assign_from_user([B])
        else:
            buffers.state.gate.hold(Hold.LISTENER)
        await asyncio.sleep(0.01)
        assert not get.done(), change
        buffers.state.gate.release(Hold.LISTENER)
        buffers.put({B: batch(0, 1)})
        expected = of(A, 0, 1) + of(B, 0) if change == "hold" else of(B, 0)
        assert await get == expected, change


# --- errors --------------------------------------------------------------------------------------


async def test_rows_ahead_of_a_corrupt_batch_come_first_then_the_error_each_time() -> None:
    buffers = Buffers(A, B)
    gets = Gets(buffers)
    broken = bytearray(batch(3, 3))
    broken[-1] ^= 0xFF
    buffers.put({A: batch(0, 3) + bytes(broken)})
    assert await gets.rows() == of(A, 0, 1, 2)
    assert await gets.rows() == []  # fetched once more before it counts
    for _ in range(2):
        assert buffers.partition().fetched == 3
        buffers.put({A: bytes(broken)})
        with pytest.raises(CorruptRecordException) as raised:
            await gets.rows()
        assert (raised.value.tp, raised.value.offset) == (A, 3)
        assert buffers.partition().position == 3
    buffers.put({A: bytes(broken), B: batch(0, 1)})
    with pytest.raises(CorruptRecordException):
        await gets.rows()
    assert await gets.rows() == of(B, 0)
    buffers.state.seek(buffers.partition(), 6)
    buffers.put({A: batch(6, 1)})
    assert await gets.rows() == of(A, 6)


async def test_an_error_never_takes_rows_of_others_with_it() -> None:
    buffers = Buffers(A, B)
    gets = Gets(buffers)
    buffers.put({A: batch(0, 1), B: batch(0, 1)})
    buffers.buffer.put_error(buffers.partition(A), KafkaError("refused"))
    assert await gets.rows() == of(A, 0) + of(B, 0)
    buffers.put({B: batch(1, 1)})
    with pytest.raises(KafkaError, match="refused"):
        await gets.rows()
    assert await gets.rows() == of(B, 1)
    assert await gets.rows() == []


async def test_a_sticky_error_stays_until_seek() -> None:
    buffers = Buffers()
    gets = Gets(buffers)
    error = OffsetOutOfRangeError({A: 0}).at(A, 0)
    buffers.buffer.put_error(buffers.partition(), error, is_sticky=True)
    for _ in range(3):
        with pytest.raises(OffsetOutOfRangeError):
            await gets.rows()
    buffers.state.seek(buffers.partition(), 2)
    assert await gets.rows() == []


async def test_iterating_ends_when_the_consumer_is_stopped() -> None:
    buffers = Buffers()
    batches = Gets(buffers).arrow.batches(None, 2)
    buffers.put({A: batch(0, 3)})

    async def iterate() -> list[Rows]:
        return [rows_of(rows) async for rows in batches]

    iterating = asyncio.ensure_future(iterate())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not iterating.done()
    buffers.state.gate.die(ConsumerStoppedError("stopped"))
    buffers.buffer.wake()
    assert await iterating == [of(A, 0, 1), of(A, 2)]
