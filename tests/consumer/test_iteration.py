"""Reading record by record over buffers that are filled by hand, on both per-message paths."""

from __future__ import annotations

import asyncio
import gc
import math
import sys
import threading
import weakref
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from aiokafka_lite import records
from aiokafka_lite.consumer.delivery import ready
from aiokafka_lite.errors import KafkaError
from tests.support import tuning
from tests.support.buffers import A, B, Buffers, batch
from tests.support.iterations import (
    Iteration,
    PlainReader,
    Reader,
    iterate_over,
    read_until_stop,
    rounds,
    stand_still,
    step_of,
    stop,
)

pytestmark = pytest.mark.every_loop


@pytest.fixture(autouse=True)
def no_stalls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take no time that the machine has for others as that of a blocked loop."""
    monkeypatch.setattr(ready, "STALL_S", math.inf)


async def test_async_for_hands_out_all_in_order_until_the_stop(iteration: Iteration) -> None:
    buffers = Buffers(A, B)
    reader = iteration.read(buffers)
    buffers.put({A: batch(0, 700), B: batch(0, 10)})
    found: dict[object, list[int]] = {A.partition: [], B.partition: []}

    async def read() -> None:
        async for record in reader:
            found[record.partition].append(record.offset)

    reading = asyncio.ensure_future(read())
    await rounds(10)
    buffers.put({B: batch(10, 5)})
    await rounds(10)
    assert not reading.done()
    stop(buffers)
    await reading
    assert found == {A.partition: list(range(700)), B.partition: list(range(15))}


async def test_an_async_comprehension_and_a_generator_read_too(iteration: Iteration) -> None:
    buffers = Buffers()
    reader = iteration.read(buffers)

    async def passed_on() -> AsyncGenerator[int, None]:
        async for record in reader:
            yield record.offset

    buffers.put({A: batch(0, 5)})
    offsets = passed_on()
    assert [await anext(offsets) for _ in range(3)] == [0, 1, 2]
    await offsets.aclose()
    buffers.put({A: batch(5, 2)})
    reading = asyncio.ensure_future(read_until_stop(reader))
    await rounds(5)
    stop(buffers)
    assert await reading == [3, 4, 5, 6]


async def test_an_error_is_raised_by_the_loop_and_the_next_one_goes_on(
    iteration: Iteration,
) -> None:
    buffers = Buffers()
    reader = iteration.read(buffers)
    buffers.put({A: batch(0, 2)})
    buffers.buffer.put_error(buffers.partition(), KafkaError("refused"))
    found: dict[int, bytes | None] = {}

    async def read() -> None:
        async for record in reader:
            found[record.offset] = record.key

    with pytest.raises(KafkaError, match="refused"):
        await read()
    assert list(found) == [0, 1]
    buffers.put({A: batch(2, 1)})
    assert (await anext(reader)).offset == 2


# --- Cancellation, timeouts, several tasks ------------------------------------------------


@pytest.mark.parametrize("in_thread", [False, True])
async def test_cancelled_at_any_await_no_record_is_lost_or_comes_twice(
    iteration: Iteration, monkeypatch: pytest.MonkeyPatch, *, in_thread: bool
) -> None:
    if in_thread:
        tuning.decompress(monkeypatch, in_thread=True)
    tuning.end_slices_at_once(monkeypatch)
    for turns in range(12):
        buffers = Buffers(A, B)
        reader = iteration.read(buffers)
        codec = "gzip" if in_thread else "none"
        buffers.put({A: batch(0, 7, codec=codec), B: batch(0, 3, codec=codec)})
        found: dict[int, list[int]] = {A.partition: [], B.partition: []}

        async def read(
            reader: Reader | PlainReader = reader, found: dict[int, list[int]] = found
        ) -> None:
            async for record in reader:
                found[record.partition].append(record.offset)
                if sum(map(len, found.values())) == 10:
                    break
                await asyncio.sleep(0)

        for _ in range(30):
            reading = asyncio.ensure_future(read())
            await rounds(turns)
            reading.cancel()
            await asyncio.wait([reading])
            if not reading.cancelled():
                break  # it was done
        else:
            await read()
        assert found == {0: list(range(7)), 1: [0, 1, 2]}, f"cancelled after {turns} turns"


async def test_under_a_timeout_nothing_is_lost(iteration: Iteration) -> None:
    buffers = Buffers()
    reader = iteration.read(buffers)
    found: list[int] = []

    async def feed() -> None:
        for first in range(0, 40, 2):
            await asyncio.sleep(0.001)
            buffers.put({A: batch(first, 2)})

    feeder = asyncio.ensure_future(feed())
    while len(found) < 40:
        try:
            found.append((await asyncio.wait_for(anext(reader), 0.0005)).offset)
        except asyncio.TimeoutError:
            continue
    await feeder
    assert found == list(range(40))


async def test_what_is_cancelled_whenever_it_lets_others_run_gets_on(
    iteration: Iteration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a timeout of nothing does: uvloop makes one of 0.4 ms."""
    tuning.end_slices_at_once(monkeypatch)
    buffers = Buffers()
    reader = iteration.read(buffers)
    buffers.put({A: batch(0, 5)})
    found: list[int] = []
    for _ in range(20):
        step = asyncio.ensure_future(anext(reader))
        await asyncio.sleep(0)
        step.cancel()
        await asyncio.wait({step})
        if not step.cancelled():
            found.append(step.result().offset)
    assert found == list(range(5))


@pytest.mark.parametrize("beside", ["alone", "with poll", "with poll_arrow"])
async def test_several_tasks_share_the_records(
    iteration: Iteration, monkeypatch: pytest.MonkeyPatch, beside: str
) -> None:
    if beside == "with poll_arrow":
        pytest.importorskip("pyarrow", reason="rows are for pyarrow: pip install pyarrow")
    tuning.end_slices_at_once(monkeypatch)
    buffers = Buffers(A, B)
    reader = iteration.read(buffers)
    found: dict[int, list[int]] = {A.partition: [], B.partition: []}
    is_all_there = asyncio.Event()

    def note(partition: int, *offsets: int) -> None:
        found[partition] += offsets
        if sum(map(len, found.values())) >= 400:
            is_all_there.set()

    async def read() -> None:
        async for record in reader:
            note(record.partition, record.offset)
            if record.offset % 3 == 0:
                await asyncio.sleep(0)

    async def read_one_by_one() -> None:
        while True:
            record = await buffers.gets.one({A})
            note(record.partition, record.offset)

    async def poll() -> None:
        while True:
            for tp, polled in (await buffers.gets.many((), None, 3)).items():
                note(tp.partition, *(record.offset for record in polled))
            await asyncio.sleep(0)

    async def poll_arrow() -> None:
        from aiokafka_lite.consumer.delivery.arrow_gets import ArrowGets

        gets = ArrowGets(buffers.buffer, max_rows=3)
        while True:
            for row in (await gets.one(gets.columns(None), None, None)).to_pylist():
                note(row["partition"], row["offset"])
            await asyncio.sleep(0)

    others = {"alone": [], "with poll": [poll], "with poll_arrow": [poll_arrow]}
    gets = [read, read, read, read_one_by_one, *others[beside]]
    tasks = [asyncio.ensure_future(get()) for get in gets]
    for first in range(0, 200, 20):
        buffers.put({A: batch(first, 20), B: batch(first, 20)})
        await rounds(30)
    await is_all_there.wait()
    await rounds(30)
    stop(buffers)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert found == {0: list(range(200)), 1: list(range(200))}
    assert {
        tp: each.offset for tp, each in buffers.state.finished.handed_out_offsets().items()
    } == {
        A: 200,
        B: 200,
    }


async def test_two_gets_that_wait_for_one_share_take_its_records_once(
    iteration: Iteration, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuning.end_slices_at_once(monkeypatch)
    buffers = Buffers()
    reader = iteration.read(buffers)
    buffers.put({A: batch(0, 1)})
    buffers.buffer.decoder.slice.begin()  # and end it: both gets let others run before they decode
    gets = [asyncio.ensure_future(anext(reader)) for _ in range(2)]
    await rounds(5)
    assert [get.done() for get in gets] == [True, False]
    buffers.put({A: batch(1, 1)})
    assert [(await get).offset for get in gets] == [0, 1]


async def test_seek_and_pause_take_effect_between_two_records(iteration: Iteration) -> None:
    buffers = Buffers()
    reader = iteration.read(buffers)
    buffers.put({A: batch(0, 5)})
    found = []
    async for record in reader:
        found.append(record.offset)
        if found == [0, 1]:
            buffers.state.pause(buffers.partition())
            buffers.state.resume(buffers.partition())
        elif found == [0, 1, 2]:
            assert buffers.state.finished.processed_offsets()[A].offset == 2
            buffers.state.seek(buffers.partition(), 1)
            buffers.put({A: batch(1, 2)})
        elif len(found) == 5:
            break
    assert found == [0, 1, 2, 1, 2]


# --- The loop's time ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cost_s", "records_a_turn"), [(0.0, 600), (0.000_01, 115), (0.000_1, 12), (0.002, 1)]
)
async def test_others_run_when_the_slice_is_used_up(
    iteration: Iteration, monkeypatch: pytest.MonkeyPatch, cost_s: float, records_a_turn: int
) -> None:
    loop = asyncio.get_running_loop()
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now)
    buffers = Buffers()
    reader = iteration.read(buffers)
    buffers.put({A: batch(0, 600)})
    in_turn = 0
    seen: list[int] = []

    async def run_beside() -> None:
        nonlocal in_turn
        while True:
            seen.append(in_turn)
            in_turn = 0
            await asyncio.sleep(0)

    beside = asyncio.ensure_future(run_beside())
    async for record in reader:
        now += cost_s
        in_turn += 1
        if record.offset == 599:
            break
    beside.cancel()
    assert max(seen, default=0) <= records_a_turn
    assert len(seen) >= 599 // records_a_turn


async def test_what_was_handed_out_is_processed_when_the_next_get_has_to_wait_its_turn(
    iteration: Iteration, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now)
    buffers = Buffers()
    reader = iteration.read(buffers)
    buffers.put({A: batch(0, 5)})
    await anext(reader)
    for offset in range(1, 5):
        now += 1
        get = asyncio.ensure_future(anext(reader))
        await asyncio.sleep(0)
        assert not get.done()
        assert buffers.state.finished.processed_offsets()[A].offset == offset
        assert (await get).offset == offset


# --- Memory -------------------------------------------------------------------------------


async def _read_one(reader: Reader | PlainReader) -> None:
    async for _ in reader:
        break


async def test_a_reader_is_gone_when_nobody_holds_it(iteration: Iteration) -> None:
    buffers = Buffers()
    buffers.put({A: batch(0, 5)})
    reader: Reader | PlainReader | None = iteration.read(buffers)
    assert reader is not None
    for _ in range(3):
        await _read_one(reader)
    alive = weakref.ref(reader)
    gc.disable()  # counting references is enough
    try:
        reader = None
        assert alive() is None
    finally:
        gc.enable()


async def test_cycles_through_a_step_are_collected(iteration: Iteration) -> None:
    class Holding(iteration.reader):  # type: ignore[name-defined,misc]
        held: object = None

    def make(*, waiting: bool) -> weakref.ref[Any]:
        buffers = Buffers()
        reader = Holding()
        reader.buffers = buffers
        iterate_over(reader, buffers)
        if waiting:
            reader.held = step_of(reader)
            reader.held.send(None)
        elif iteration.is_compiled:  # a coroutine would say that it was never awaited
            reader.held = step_of(reader)
        return weakref.ref(reader)

    cycles = [make(waiting=False), make(waiting=True)]
    gc.collect()
    assert [cycle() for cycle in cycles] == [None, None]


def references(*objects: object) -> list[int]:
    return [sys.getrefcount(each) for each in objects]


async def test_references_are_counted_right(
    iteration: Iteration, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_still(monkeypatch)
    buffers = Buffers()
    reader = iteration.read(buffers)
    buffers.put({A: batch(0, 500)})
    kept = [await anext(reader)]
    before = references(reader, buffers.ready.cursor)
    async for record in reader:
        kept.append(record)
        if record.offset == 250:
            break
    kept += [await asyncio.ensure_future(anext(reader)) for _ in range(100)]
    for _ in range(149):
        with pytest.raises(StopIteration) as done:
            step_of(reader).send(None)
        kept.append(done.value.value)
        del done
    waiting = asyncio.ensure_future(anext(reader))
    await rounds(3)
    waiting.cancel()
    await asyncio.wait([waiting])
    del record, waiting
    gc.collect()  # in plain Python the error and a frame refer to each other
    after = references(reader, buffers.ready.cursor)
    assert after == before
    buffers.ready.close()
    del reader  # from 3.12 on it keeps the latest record inside a StopIteration
    others = records.decode_all(memoryview(batch(0, 500)))
    assert references(*kept) == references(*others)


async def test_steps_are_used_again(iteration: Iteration) -> None:
    if not iteration.is_compiled:
        pytest.skip("coroutines are not")
    buffers = Buffers()
    reader = iteration.read(buffers)
    buffers.put({A: batch(0, 300)})
    held = step_of(reader)
    kind = type(held)
    async for record in reader:
        if record.offset == 298:
            break
    gc.collect()
    steps = [each for each in gc.get_objects() if type(each) is kind]
    assert len(steps) <= 3
    assert (await held).offset == 299  # it was not: somebody held it


def test_records_are_read_in_another_thread_too(iteration: Iteration) -> None:
    """The exception kept for the next record is the iterator's own, not the module's."""
    found: list[list[int]] = []

    async def read() -> list[int]:
        buffers = Buffers()
        reader = iteration.read(buffers)
        buffers.put({A: batch(0, 3_000)})
        reading = asyncio.ensure_future(read_until_stop(reader))
        while buffers.partition().position != 3_000:
            await asyncio.sleep(0)
            buffers.state.reads.settle()
        stop(buffers)
        return await reading

    threads = [threading.Thread(target=lambda: found.append(asyncio.run(read()))) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [list(range(3_000))] * 2
