"""What is written for records."""

from __future__ import annotations

import json

import pytest

from aiokafka_lite.cli import formats
from aiokafka_lite.cli.json_records import parse_line
from tests.cli.cat.records import record
from tests.support.for_each import for_each


def test_terminal_is_shown_control_characters_and_does_not_obey_them() -> None:
    shown = formats.text_formatter((), is_for_terminal=True)
    assert shown([record(b"\x1b[31mred\x07\tx\n"), record(b"\xff\xc2\x9b")]) == (
        rb"\x1b[31mred\x07" + b"\tx\n\n" + rb"\xff\x9b" + b"\n"
    )
    assert formats.text_formatter(())([record(b"\x1b\xff")]) == b"\x1b\xff\n"


def test_times_are_in_utc() -> None:
    line = formats.text_formatter({formats.TIMESTAMP, formats.OFFSET})([record(b"v")])
    assert line == b"1:7\t2025-07-17T10:00:00.123Z\tv\n"


def test_columns_stand_in_one_order() -> None:
    fields = {formats.HEADERS, formats.KEY}
    assert formats.text_formatter(fields)([record(b"v", b"k", [("a", b"1"), ("b", b"2")])]) == (
        b"k\ta=1,b=2\tv\n"
    )


def test_unpacked_json_is_one_line_and_nothing_but_json() -> None:
    unpacked = formats.json_formatter(unpacks=True)
    records = [record(b'{\n"a": [1, "\xc3\xa4"]}'), record(b"NaN"), record(b"{"), record(b"\xff")]
    values = [json.loads(line)["value"] for line in unpacked(records).splitlines()]
    assert values == [{"a": [1, "ä"]}, "NaN", "{", {"base64": "/w=="}]


@pytest.mark.parametrize("value", ["null", " null\n", '{"base64": "/w=="}'])
def test_json_that_would_mean_another_value_stays_a_string(value: str) -> None:
    line = formats.json_formatter(unpacks=True)([record(value.encode(), b"null")])
    assert json.loads(line)["value"] == value
    assert parse_line(line)[1:3] == (b"null", value.encode())


@for_each(
    ['{"a":1e400}', '{"a":1,"a":2}', "0.1000000000000000055511151231257827", "1E2", r'"\ud800"']
)
def test_unpacked_json_is_as_it_was_written(value: str) -> None:
    line = formats.json_formatter(unpacks=True)([record(value.encode())]).decode()
    assert line.endswith(f'"value":{value}}}\n')
