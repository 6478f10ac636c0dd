from __future__ import annotations

import argparse

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


def test_arguments_are_declared_as_help_shows_them() -> None:
    parser = argparse.ArgumentParser(prog="p", usage="p")
    text = """
TOPIC ...  the topics
-k, --keys  with
  keys
--header NAME=REGEX ...  of a header
--format  one of two
"""
    arguments.add_arguments(parser, text, header=arguments.name_and_value, format=("text", "json"))
    given = "a b -k --header x=1 --header y=2 --format json"
    assert vars(parser.parse_args(given.split())) == {
        "topics": ["a", "b"],
        "keys": True,
        "header": [("x", "1"), ("y", "2")],
        "format": "json",
    }
    assert "-k, --keys            with keys\n" in parser.format_help()
    with pytest.raises(TypeError, match="there are no arguments key"):
        arguments.add_arguments(parser, "--keep  a flag", key=int)
