"""Which records are printed: those whose keys and values match."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

from aiokafka_lite.cli.problems import UsageError
from aiokafka_lite.structs import ConsumerRecord

Record: TypeAlias = ConsumerRecord[bytes | None, bytes | None]
Filter: TypeAlias = Callable[[Sequence[Record]], list[Record]]


def filter_of(
    *,
    value: str | None,
    key: str | None,
    headers: Sequence[tuple[str, str]] = (),
    sees_headers: bool = False,
    is_fixed: bool = False,
    ignores_case: bool = False,
    is_inverted: bool = False,
) -> Filter | None:
    """Return what picks the records that match every pattern; None where there is none.

    A key or value that is null matches nothing. Each of `headers` is looked for in the values of
    one name. With `sees_headers` the pattern of values is looked for in headers, too, each as
    ``name=value``. An inverted filter picks all the others.

    Raises:
        UsageError: A pattern is no regular expression.
    """
    flags = re.IGNORECASE if ignores_case else 0
    of_value = None if value is None else _search(value, is_fixed, flags)
    of_key = None if key is None else _search(key, is_fixed, flags)
    of_headers = [(name, _search(pattern, is_fixed, flags)) for name, pattern in headers]
    if of_value is None and of_key is None and not of_headers:
        return None

    def matches(record: Record) -> bool:
        if of_key is not None and (record.key is None or not of_key(record.key)):
            return False
        if of_value is not None and not (
            (record.value is not None and of_value(record.value))
            or (sees_headers and any(of_value(_line(*header)) for header in record.headers))
        ):
            return False
        return all(
            any(found == name and of(text or b"") for found, text in record.headers)
            for name, of in of_headers
        )

    return lambda records: [each for each in records if matches(each) is not is_inverted]


def _line(name: str, value: bytes | None) -> bytes:
    return name.encode("utf-8", "surrogateescape") + b"=" + (value or b"")


def _search(pattern: str, is_fixed: bool, flags: int) -> Callable[[bytes], bool]:
    encoded = pattern.encode("utf-8", "surrogateescape")
    if is_fixed and not flags:
        return lambda content: encoded in content
    try:
        search = re.compile(re.escape(encoded) if is_fixed else encoded, flags).search
    except re.error as error:
        raise UsageError(
            f"{pattern!r} is not a regular expression: {error} (use -F to search for plain text)"
        ) from error
    return lambda content: search(content) is not None
