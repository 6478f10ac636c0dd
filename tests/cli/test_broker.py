"""What the command `broker` makes of its options, and what it does without its extras."""

from __future__ import annotations

import argparse
import importlib.util
import io
import sys
from importlib.machinery import ModuleSpec

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.cli.broker import TopicOption, serve_status, topic_option
from aiokafka_lite.cli.output import progress
from aiokafka_lite.cli.problems import MissingExtraError
from tests.support.for_each import for_each


@for_each(
    [
        ("orders", TopicOption("orders")),
        ("orders:3", TopicOption("orders", 3)),
        ("orders:3:", TopicOption("orders", 3)),
        ("orders::retention.ms=-1", TopicOption("orders", None, {"retention.ms": "-1"})),
        (
            "orders:3:cleanup.policy=compact,delete,retention.ms=5",
            TopicOption("orders", 3, {"cleanup.policy": "compact,delete", "retention.ms": "5"}),
        ),
    ]
)
def test_topic_is_parsed(text: str, option: TopicOption) -> None:
    assert topic_option(text) == option


@for_each(["", ":3", "orders:x", "orders:0", "orders:1:x", "orders:1:=x"])
def test_what_is_no_topic_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        topic_option(text)


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Packages that are not installed."""
    missing: set[str] = set()
    find_spec = importlib.util.find_spec

    def find(name: str, parent: str | None = None) -> ModuleSpec | None:
        return None if name in missing else find_spec(name, parent)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    return missing


async def test_broker_without_aiohttp_has_no_page_and_says_why(without: set[str]) -> None:
    without.add("aiohttp")
    async with Broker() as broker:
        async with serve_status(broker, is_wanted=True, port=None) as said:
            assert (
                said == "off, because aiohttp is not installed: pip install 'aiokafka-lite[http]'"
            )
        async with serve_status(broker, is_wanted=False, port=None) as said:
            assert said is None
        with pytest.raises(MissingExtraError, match=r"aiokafka-lite\[http\]"):
            async with serve_status(broker, is_wanted=True, port=0):
                pass


class Terminal(io.StringIO):
    """A stream with a person in front of it."""

    def isatty(self) -> bool:
        return True


def test_progress_is_shown_to_a_person_only(
    monkeypatch: pytest.MonkeyPatch, without: set[str]
) -> None:
    pytest.importorskip("rich")
    for stream, packages, is_shown in (
        (Terminal(), set[str](), True),
        (Terminal(), {"rich"}, False),
        (io.StringIO(), set[str](), False),
    ):
        without.clear()
        without.update(packages)
        monkeypatch.setattr(sys, "stderr", stream)
        with progress("Loading seed[1].jsonl", 2) as advance:
            advance(2)
        assert ("Loading seed[1].jsonl" in stream.getvalue()) == is_shown
