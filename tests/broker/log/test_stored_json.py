"""JSON files of the data directory are checked when they are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple, TypedDict

import pytest

from aiokafka_lite.broker.log.disk import load_formatted, load_json
from aiokafka_lite.broker.log.storage import LogState
from aiokafka_lite.errors import KafkaStorageError
from tests.support.for_each import for_each


class Point(NamedTuple):
    """A list in JSON."""

    x: int
    y: int


class Optional(TypedDict, total=False):
    """Fields that may be missing."""

    more: list[Point]


class Stored(Optional):
    """A file."""

    format: int
    names: dict[str, list[str]]


GOOD = {"format": 1, "names": {"a": ["b"]}, "more": [[1, 2]], "of a later version": None}


def test_what_fits_is_returned_as_it_is() -> None:
    assert load_json(json.dumps(GOOD).encode(), Stored) == GOOD
    assert load_json(b'{"format": 1, "names": {}}', Stored) == {"format": 1, "names": {}}


@for_each(
    [
        None,
        [],
        {},
        {"format": 1},
        GOOD | {"format": "1"},
        GOOD | {"format": True},
        GOOD | {"format": 1.0},
        GOOD | {"format": 2**63},
        GOOD | {"names": []},
        GOOD | {"names": {"a": "b"}},
        GOOD | {"names": {"a": [1]}},
        GOOD | {"names": {"a": ["\ud800"]}},
        GOOD | {"names": {"\ud800": []}},
        GOOD | {"more": {}},
        GOOD | {"more": [{}]},
        GOOD | {"more": [[1]]},
        GOOD | {"more": [[1, 2, 3]]},
        GOOD | {"more": [[1, None]]},
    ]
)
def test_what_does_not_fit_is_refused(wrong: object) -> None:
    with pytest.raises((ValueError, KeyError), match=r"\bit\b|surrogates"):
        load_json(json.dumps(wrong).encode(), Stored)


def test_what_is_no_json_is_refused() -> None:
    for content in (b"", b"{", b"\xff", b"[" * 100_000):
        with pytest.raises(ValueError):
            load_json(content, Stored)


def test_a_state_that_was_saved_fits() -> None:
    state = LogState(1, 9, [(0, 1)], [(5, 0, [], -1, 3, 8, -1)], [], 2, 3)
    assert LogState.from_json(state.to_json()).producers == [[5, 0, [], -1, 3, 8, -1]]
    with pytest.raises(ValueError):
        LogState.from_json(state.to_json().replace(b"[[5,", b'[["5",'))


def test_another_format_is_told_before_anything_else() -> None:
    with pytest.raises(KafkaStorageError, match=r"f has format 2, .* reads only format 1: choose"):
        load_formatted(Path("f"), b'{"format": 2}', Stored)
