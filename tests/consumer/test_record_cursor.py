"""How the cursor goes through records, and how often it looks at the clock."""

from __future__ import annotations

import asyncio
import math
import runpy
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import aiokafka_lite
from aiokafka_lite import records
from aiokafka_lite.consumer.buffer.chunk import Record
from aiokafka_lite.consumer.delivery.record_cursor import LONGEST_STRIDE, RecordCursor
from aiokafka_lite.consumer.delivery.steady import SteadyGets
from tests.support.buffers import A, Buffers, batch

SLICE_S = 0.001
# How long a block is that is noticed: by the system's clock, which no test can set.
STALL_S = 0.01
NEVER = math.inf
# The same class as plain Python runs it.
PLAIN: type[RecordCursor] = runpy.run_path(
    str(Path(str(aiokafka_lite.__file__)).parent / "consumer/delivery/record_cursor.py")
)["RecordCursor"]
RECORDS = records.decode_all(memoryview(batch(0, 2_000)))


class Clock:
    """Stands still unless it is told otherwise, and counts who looks at it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.looks = 0

    def __call__(self) -> float:
        self.looks += 1
        return self.now


def take_all(cursor: RecordCursor, clock: Clock, cost_s: float = 0.0) -> list[int]:
    """Take records until none is given, each of which costs the application some time."""
    offsets = []
    while (record := cursor.take()) is not None:
        offsets.append(record.offset)
        clock.now += cost_s
    return offsets


def test_records_come_in_order_and_once() -> None:
    clock = Clock()
    cursor = RecordCursor(clock, SLICE_S, NEVER)
    assert (cursor.take(), cursor.has_rest(), cursor.taken_count) == (None, False, 0)
    cursor.open(RECORDS[:300], clock.now + SLICE_S)
    first = cursor.take()
    assert first is RECORDS[0]
    assert (cursor.has_rest(), cursor.taken_count) == (True, 1)
    assert take_all(cursor, clock) == list(range(1, 300))
    assert (cursor.take(), cursor.has_rest(), cursor.taken_count) == (None, False, 300)
    cursor.open(RECORDS[300:302], clock.now + SLICE_S)
    assert take_all(cursor, clock) == [300, 301]


async def test_only_the_task_that_reads_takes_its_own() -> None:
    buffers = Buffers(A)
    cursor = RecordCursor(time.monotonic, SLICE_S, NEVER)
    state = buffers.state
    cursor.belong_to(SteadyGets(state.reads, state.gate, buffers.buffer, buffers.ready))

    async def take() -> Record | None:
        return cursor.take_own()

    cursor.open(RECORDS[:2], NEVER)
    assert cursor.take_own() is None  # no task reads yet
    buffers.state.reads.note_reader()
    assert cursor.take_own() is RECORDS[0]
    assert await asyncio.create_task(take()) is None
    assert cursor.take_own() is RECORDS[1]
    assert cursor.take_own() is None


def test_a_closed_cursor_has_nothing() -> None:
    clock = Clock()
    cursor = RecordCursor(clock, SLICE_S, NEVER)
    cursor.open(RECORDS[:3], clock.now + SLICE_S)
    cursor.take()
    cursor.close()
    assert (cursor.take(), cursor.has_rest(), cursor.taken_count) == (None, False, 0)


def test_records_appended_meanwhile_are_handed_out_too() -> None:
    clock = Clock()
    cursor = RecordCursor(clock, SLICE_S, NEVER)
    growing = RECORDS[:2]
    cursor.open(growing, clock.now + SLICE_S)
    assert take_all(cursor, clock) == [0, 1]
    growing += RECORDS[2:200]
    assert cursor.has_rest()
    assert take_all(cursor, clock) == list(range(2, 200))


def test_records_that_go_missing_are_not_read() -> None:
    clock = Clock()
    cursor = RecordCursor(clock, SLICE_S, NEVER)
    shrinking = RECORDS[:100]
    cursor.open(shrinking, clock.now + SLICE_S)
    cursor.take()
    shrinking.clear()
    assert (cursor.take(), cursor.has_rest()) == (None, False)


@pytest.mark.parametrize("cost_s", [0.000_01, 0.000_1, 0.000_3, 0.01])
def test_nothing_is_handed_out_when_the_slice_is_used_up(cost_s: float) -> None:
    clock = Clock()
    cursor = RecordCursor(clock, SLICE_S, NEVER)
    cursor.open(RECORDS, clock.now + SLICE_S)
    take_all(cursor, clock, cost_s)  # now it knows the pace
    for _ in range(10):
        began, taken_count = clock.now, cursor.taken_count
        assert (cursor.take(), cursor.has_rest()) == (None, True)
        cursor.go_on(clock.now + SLICE_S)
        assert take_all(cursor, clock, cost_s) == list(range(taken_count, cursor.taken_count))
        longest_s = max(SLICE_S * 9 / 8, SLICE_S + cost_s) if cost_s < SLICE_S else cost_s
        assert SLICE_S <= clock.now - began <= longest_s + 1e-9


def test_one_record_is_handed_out_however_late_it_is() -> None:
    clock = Clock()
    cursor = RecordCursor(clock, SLICE_S, NEVER)
    cursor.open(RECORDS, clock.now - 1)
    assert take_all(cursor, clock) == [0]
    for offset in range(1, 4):
        cursor.go_on(clock.now - 1)
        assert take_all(cursor, clock) == [offset]


def test_the_clock_is_looked_at_seldom_when_records_are_quickly_done() -> None:
    clock = Clock()
    cursor = RecordCursor(clock, SLICE_S, NEVER)
    cursor.open(RECORDS, clock.now + SLICE_S)
    assert len(take_all(cursor, clock, 1e-9)) == len(RECORDS)
    assert clock.looks <= len(RECORDS) // LONGEST_STRIDE + 10


def test_records_that_become_slow_are_noticed_after_a_stride() -> None:
    clock = Clock()
    cursor = RecordCursor(clock, SLICE_S, NEVER)
    cursor.open(RECORDS, clock.now + SLICE_S)
    for _ in range(1_000):
        cursor.take()
    assert len(take_all(cursor, clock, 0.002)) <= LONGEST_STRIDE
    cursor.go_on(clock.now + SLICE_S)
    assert len(take_all(cursor, clock, 0.002)) == 1


def test_no_record_is_handed_out_after_a_block_before_a_look_at_the_clock() -> None:
    clock = Clock()
    cursor = RecordCursor(clock, SLICE_S, STALL_S)
    cursor.open(RECORDS, clock.now + SLICE_S)
    for _ in range(1_001):  # far from the next look
        cursor.take()
    looks = clock.looks
    time.sleep(0.03)
    clock.now += 0.03
    assert (cursor.take(), cursor.take(), cursor.has_rest()) == (None, None, True)
    assert clock.looks == looks + 1


@pytest.mark.parametrize("how", ["close", "clear", "open"])
def test_the_records_may_change_while_the_clock_is_looked_at(how: str) -> None:
    clock = Clock()
    handed_out = RECORDS[:5]

    def look() -> float:
        if clock.looks == 1:  # the second
            if how == "close":
                cursor.close()
            elif how == "clear":
                handed_out.clear()
            else:
                clock.looks += 1
                cursor.open(RECORDS[7:9], clock.now + SLICE_S)
        return clock()

    cursor = RecordCursor(look, SLICE_S, NEVER)
    cursor.open(handed_out, clock.now + SLICE_S)
    assert cursor.take() is RECORDS[0]
    assert take_all(cursor, clock) == ([7, 8] if how == "open" else [])


def test_an_error_of_the_clock_loses_no_record() -> None:
    clock = Clock()

    def look() -> float:
        if clock.now < 0:
            raise OSError("no clock")
        return clock()

    cursor = RecordCursor(look, SLICE_S, NEVER)
    cursor.open(RECORDS[:5], clock.now + SLICE_S)
    assert cursor.take() is RECORDS[0]
    clock.now = -1
    for _ in range(2):
        with pytest.raises(OSError, match="no clock"):
            cursor.take()
    clock.now = 100
    assert cursor.take() is RECORDS[1]


STEP = st.tuples(
    st.sampled_from(["take", "take", "take", "go_on", "open", "close", "grow"]),
    st.floats(min_value=0, max_value=0.003),
)


@given(st.lists(STEP, max_size=200))
def test_both_cursors_do_the_same(steps: list[tuple[str, float]]) -> None:
    def run(cursor_class: type[RecordCursor]) -> list[tuple[Record | None, int, bool, int]]:
        clock = Clock()
        cursor = cursor_class(clock, SLICE_S, NEVER)
        seen = []
        growing: list[Record] = []
        for step, cost_s in steps:
            record = None
            if step == "take":
                record = cursor.take()
            elif step == "go_on":
                cursor.go_on(clock.now + SLICE_S)
            elif step == "open":
                growing = RECORDS[:150]
                cursor.open(growing, clock.now + SLICE_S)
            elif step == "close":
                cursor.close()
            else:
                growing += RECORDS[150:160]
            clock.now += cost_s
            seen.append((record, cursor.taken_count, cursor.has_rest(), clock.looks))
        return seen

    assert run(RecordCursor) == run(PLAIN)
