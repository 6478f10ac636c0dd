"""JSON files of the data directory, checked against the types of what they store.

A value of another type, in a file that was edited or damaged, would fail at some later request.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypedDict, get_args, get_origin, get_type_hints

from aiokafka_lite.errors import KafkaStorageError

FORMAT: Final = 1
_INT64: Final = range(-(1 << 63), 1 << 63)
_hints_of: Final = functools.cache(get_type_hints)


class _Formatted(TypedDict):
    format: int


def load_json(stored: bytes, kind: type) -> Any:
    """Return JSON that fits a class with annotated fields, such as a TypedDict.

    Raises:
        ValueError, KeyError: It is no JSON, or does not fit.
    """
    try:
        value = json.loads(stored)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error
    _check(value, kind, "it")
    return value


def load_formatted(path: Path, stored: bytes, kind: type) -> Any:
    """As `load_json`, for a file that contains its format.

    Raises:
        KafkaStorageError: The file has another format.
        ValueError, KeyError: It is no JSON, or does not fit.
    """
    found = load_json(stored, _Formatted)["format"]
    if found != FORMAT:
        raise KafkaStorageError(
            f"{path} has format {found}, but this version of aiokafka_lite reads only format "
            f"{FORMAT}: choose another data directory"
        )
    return load_json(stored, kind)


def _check(value: object, kind: Any, place: str) -> None:
    """Check a value. Tuples and sequences are lists in JSON."""
    args = get_args(kind)
    match get_origin(kind), value:
        case None, bool() | int() | str():
            _check_single(value, kind, place)
        case None, dict() if hasattr(kind, "__annotations__") and not hasattr(kind, "_fields"):
            for key in getattr(kind, "__required_keys__", ()):
                if key not in value:
                    raise KeyError(f"{place} has no {key!r}")
            for key, each in _hints_of(kind).items():
                if key in value:
                    _check(value[key], each, f"{place}[{key!r}]")
        case None, list() if hasattr(kind, "_fields"):
            _check_each(value, [*_hints_of(kind).values()], place)
        case origin, list() if origin is tuple:
            _check_each(value, args, place)
        case origin, list() if origin in (list, Sequence):
            for item in value:
                _check(item, args[0], place)
        case origin, dict() if origin is dict:
            for key, item in value.items():
                _check_single(key, str, place)
                _check(item, args[1], f"{place}[{key!r}]")
        case _:
            raise ValueError(f"{place} is {value!r:.40}")


def _check_each(values: Sequence[object], kinds: Sequence[Any], place: str) -> None:
    if len(values) != len(kinds):
        raise ValueError(f"{place} has {len(values)} values instead of {len(kinds)}")
    for value, kind in zip(values, kinds, strict=True):
        _check(value, kind, place)


def _check_single(value: bool | int | str, kind: Any, place: str) -> None:
    if type(value) is not kind or (isinstance(value, int) and value not in _INT64):
        raise ValueError(f"{place} is {value!r:.40}")
    if isinstance(value, str):
        value.encode()  # UnicodeEncodeError is a ValueError, too
