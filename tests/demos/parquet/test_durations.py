from __future__ import annotations

from demos.arguments import duration_ms
from demos.parquet.options import format_duration
from tests.support.for_each import for_each


@for_each(["1 hour", "2 weeks 1 day", "1 minute 30 seconds", "5 ms", "0 ms"])
def test_lengths_of_time_are_written_as_they_are_read(text: str) -> None:
    assert format_duration(duration_ms(text)) == text
