from __future__ import annotations

import pytest

from aiokafka_lite.cli.arguments import parse_duration_ms
from tests.support.for_each import for_each


@for_each(
    [
        ("10s", 10_000),
        ("0s", 0),
        ("250 ms", 250),
        ("1 hour", 3_600_000),
        ("1 Day 12 hours", 129_600_000),
        (" 2 weeks ", 1_209_600_000),
        ("90 minutes", 5_400_000),
    ]
)
def test_lengths_of_time_are_read(text: str, duration_ms: int) -> None:
    assert parse_duration_ms(text) == duration_ms


@for_each(["", " ", "10", "s", "1 hour x", "-1 s", "1.5 h", "1 moon"])
def test_what_is_no_length_of_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration_ms(text)
