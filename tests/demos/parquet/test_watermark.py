from __future__ import annotations

from aiokafka_lite.structs import TopicPartition
from demos.parquet.watermark import Watermark

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def test_slowest_of_the_partitions_that_moved_holds_it_back() -> None:
    watermark = Watermark().advanced({}, {A: 5, B: 5}, {A: 1000, B: 400}, delay_ms=100)
    assert watermark.time_ms == 300


def test_partition_that_stands_still_does_not_hold_it_back() -> None:
    first = Watermark().advanced({}, {A: 5, B: 5}, {A: 1000, B: 400}, delay_ms=100)
    assert first.advanced({A: 5, B: 5}, {A: 6, B: 5}, {A: 2000}, delay_ms=100).time_ms == 1900


def test_it_never_goes_back() -> None:
    first = Watermark().advanced({}, {A: 5}, {A: 1000}, delay_ms=0)
    assert first.advanced({A: 5}, {A: 6}, {A: 10}, delay_ms=0).time_ms == 1000
    assert first.advanced({A: 5}, {A: 6}, {A: 1200}, delay_ms=900).time_ms == 1000


def test_old_rows_do_not_take_back_how_far_a_partition_was() -> None:
    first = Watermark().advanced({}, {A: 5, B: 5}, {A: 1000, B: 1000}, delay_ms=0)
    second = first.advanced({A: 5, B: 5}, {A: 6, B: 6}, {A: 10, B: 1100}, delay_ms=0)
    assert second.latest_ms == {A: 1000, B: 1100}
    assert second.time_ms == 1000


def test_partition_with_nothing_but_bad_records_so_far_holds_it_back() -> None:
    assert Watermark().advanced({}, {A: 5, B: 5}, {A: 1000}, delay_ms=0).time_ms is None


def test_nothing_moves_it_when_nothing_moved() -> None:
    first = Watermark().advanced({}, {A: 5}, {A: 1000}, delay_ms=0)
    assert first.advanced({A: 5}, {A: 5}, {}, delay_ms=0) == first
