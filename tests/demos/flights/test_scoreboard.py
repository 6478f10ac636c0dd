from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from aiokafka_lite.structs import ConsumerRecord
from demos.flights.problems import ForeignTopicError, LostRecordError
from demos.flights.scoreboard import LogRange, Pace, Scoreboard
from demos.flights.statistics import CarrierTally
from tests.support.for_each import for_each


def record(partition: int, offset: int, carrier: str = "UA", delay: int = 1) -> ConsumerRecord:
    flight = {"carrier": carrier, "dep_time": 900, "dep_delay": delay, "arr_delay": -delay}
    key, value = carrier.encode(), json.dumps(flight).encode()
    return ConsumerRecord(
        "flights", partition, offset, 0, 0, key, value, None, len(key), len(value), ()
    )


def ticks() -> Iterator[float]:
    now = 0.0
    while True:
        yield now
        now += 1.0


def scoreboard(**ranges: tuple[int, int]) -> Scoreboard:
    wall, cpu = ticks(), ticks()
    return Scoreboard(
        {int(name[1:]): LogRange(*each) for name, each in ranges.items()},
        clock=lambda: next(wall),
        cpu_clock=lambda: next(cpu) / 2,
    )


def test_counts_each_record_and_finishes_at_the_end_offsets() -> None:
    board = scoreboard(p0=(0, 2), p1=(5, 6))
    assert board.goal == 3
    assert board.count(record(0, 0, "UA", 10))
    assert board.count(record(1, 5, "AA", 3))
    assert not board.finished.is_set()
    assert board.missing() == {0: 1}
    assert board.count(record(0, 1, "UA", 20))
    assert board.finished.is_set()
    assert board.carriers() == {
        "AA": CarrierTally(1, 1, 3, 1, -3, 0),
        "UA": CarrierTally(2, 2, 30, 2, -30, 0),
    }


def test_records_that_come_again_after_a_rebalance_count_once() -> None:
    board = scoreboard(p0=(0, 4))
    for offset in (0, 1, 2):
        assert board.count(record(0, offset))
    # The new owner starts at the committed offset, which lies behind what was counted.
    assert [board.count(record(0, offset)) for offset in (1, 2, 3)] == [False, False, True]
    assert board.counted == 4
    assert board.redelivered == 2
    assert board.carriers()["UA"].flights == 4


def test_gap_is_an_error() -> None:
    board = scoreboard(p0=(0, 4))
    board.count(record(0, 0))
    with pytest.raises(LostRecordError, match="read offset 2, but expected offset 1"):
        board.count(record(0, 2))


def test_records_beyond_the_goal_are_left_out() -> None:
    board = scoreboard(p0=(0, 1))
    board.count(record(0, 0))
    later = [record(0, 1), record(0, 2), record(1, 0)]
    assert not any(board.count(each) for each in later)
    assert board.counted == 1


@for_each([None, b"", b"not JSON", b"[1, 2]", b'{"carrier": "UA"}', b"\xff"])
def test_record_that_is_no_flight_is_named(value: bytes | None) -> None:
    board = scoreboard(p0=(0, 1))
    foreign = record(0, 0)
    foreign.value = value
    with pytest.raises(ForeignTopicError, match="offset 0 of partition 0"):
        board.count(foreign)


def test_empty_topic_is_finished_at_once() -> None:
    assert scoreboard(p0=(0, 0), p1=(7, 7)).finished.is_set()


def test_pace_runs_from_the_first_record_to_the_last() -> None:
    board = scoreboard(p0=(0, 2))
    board.count(record(0, 0))
    board.count(record(0, 1))
    assert board.pace() == Pace(records=2, wall_s=1.0, cpu_s=0.5)
    assert board.pace().records_per_s == 2
    assert board.pace().cpu_ns_per_record == 0.25e9
