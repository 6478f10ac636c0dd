from __future__ import annotations

import argparse
import re

import pytest

from aiokafka_lite.cli import arguments
from tests.support.for_each import for_each


@for_each(
    [
        ("kafka:9093", ("kafka", 9093)),
        ("kafka", ("kafka", 9092)),
        ("[::1]:9093", ("::1", 9093)),
        ("[::1]", ("::1", 9092)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
    ]
)
def test_address_is_split(text: str, address: tuple[str, int]) -> None:
    assert arguments.host_and_port(text) == address


@for_each(["", ":9092", "kafka:", "kafka:x", "kafka:65536", "http://kafka"])
def test_bad_address_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="write host:port"):
        arguments.host_and_port(text)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many"])
def test_bad_count_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        arguments.positive_int(text)


@for_each(["0", "-1", "nan", "inf", "soon"])
def test_bad_duration_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        arguments.positive_seconds(text)


def test_good_numbers_are_parsed() -> None:
    assert arguments.positive_int("12") == 12
    assert arguments.positive_seconds("0.5") == 0.5


def test_commands_are_declared_as_help_shows_them() -> None:
    subparsers = argparse.ArgumentParser(prog="p").add_subparsers()
    text = """
Do something.

And more.

arguments:
FIRST  the first
[TOPIC ...]  the topics
-k, --keys  with
  keys
--watch [SECONDS=2]  again

in which format:
--size N  how large (default: =7)
--header, --only NAME=VALUE ...  of a header
--format  one of two
| --none  no format
--here  in this place
|| --there  in that place

examples:
  p do x
"""

    def run(options: argparse.Namespace) -> int:
        return 0

    kinds = {"format": ("text", "json")}
    parser = arguments.Declaration(run, text, kinds).add_to(subparsers, "do")
    given = "a b c -k --only x=1 --header y=2 --watch --format JSON --there"
    assert vars(parser.parse_args(given.split())) == {
        "first": "a",
        "topics": ["b", "c"],
        "keys": True,
        "watch": 2.0,
        "only": [("x", "1"), ("y", "2")],
        "size": 7,
        "format": "json",
        "none": False,
        "here": False,
        "there": True,
        "run": run,
        "later": "topics",
    }
    assert parser.parse_args(["a", "--here", "--watch", "3"]).watch == 3.0
    shown = parser.format_help()
    assert "Do something.\n\nAnd more.\n\npositional arguments:\n" in shown
    assert re.search("  -k, --keys +with keys\n", shown)
    assert re.search(r"\nin which format:\n  --size N +how large \(default: 7\)\n", shown)
    assert shown.endswith("\n\nexamples:\n  p do x\n")
    for wrong in ("--here --format x", "--here --format text --none", "--here --there", "-k"):
        with pytest.raises(SystemExit):
            parser.parse_args(["a", *wrong.split()])
    with pytest.raises(TypeError, match="there are no arguments key"):
        arguments.Declaration(run, text, {"format": ("text",), "key": int}).add_to(
            subparsers, "keep"
        )
