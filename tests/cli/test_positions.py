"""Places in a topic as people write them."""

from __future__ import annotations

import argparse
import time
from datetime import datetime

import pytest

from aiokafka_lite.cli.asking import place
from aiokafka_lite.client.offsets import EARLIEST, LATEST
from tests.support.for_each import for_each


def local_ms(*moment: int) -> int:
    return int(datetime(*moment).timestamp() * 1000)  # type: ignore[arg-type]


@for_each(
    [
        ("earliest", EARLIEST),
        ("Latest", LATEST),
        ("@1767225600000", 1_767_225_600_000),
        ("2026-07-17T10:00:00Z", 1_784_282_400_000),
        ("2026-07-17T12:00+02:00", 1_784_282_400_000),
        ("2026-07-17", local_ms(2026, 7, 17)),
        ("2026-07-17 10:30", local_ms(2026, 7, 17, 10, 30)),
    ]
)
def test_times_are_understood(text: str, time_ms: int) -> None:
    found = place(text)
    assert (found.offset, found.time_ms) == (None, time_ms)
    assert found.is_time is (time_ms >= 0)


@pytest.mark.parametrize("text", ["9:05", "09:05", "9:05:00"])
def test_time_of_day_is_todays(text: str) -> None:
    today = datetime.now().date()
    assert place(text).time_ms == local_ms(today.year, today.month, today.day, 9, 5)


@pytest.mark.parametrize(
    ("text", "ago_s"), [("30m", 1_800), ("2h", 7_200), ("1 day 12 hours", 129_600), ("5s ago", 5)]
)
def test_so_long_ago_is_counted_from_now(text: str, ago_s: int) -> None:
    before = time.time()
    found = place(text).time_ms / 1000 + ago_s
    assert before - 0.01 <= found <= time.time() + 0.01


def test_whole_number_is_an_offset() -> None:
    assert place("1234").offset == 1_234
    assert not place("1234").is_time


@for_each(["", "-5", "1.5", "soon", "25:00", "2026-13-01", "@x", "9" * 30])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="write earliest, latest, an offset"):
        place(text)


def test_moments_before_kafka_are_its_beginning() -> None:
    assert place("1969-01-01").time_ms == 0
    assert place("1970-01-01T00:00:01Z").time_ms == 1_000
