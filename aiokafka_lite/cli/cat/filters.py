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
    is_fixed: bool = False,
    ignores_case: bool = False,
    is_inverted: bool = False,
) -> Filter | None:
    """Return what picks the records that match every pattern; None where there is none.

    A key or value that is null matches nothing. An inverted filter picks all the others.

    Raises:
        UsageError: A pattern is no regular expression.
    """
    flags = re.IGNORECASE if ignores_case else 0
    of_value = None if value is None else _search(value, is_fixed, flags)
    of_key = None if key is None else _search(key, is_fixed, flags)
    if of_value is None and of_key is None:
        return None

    def matches(record: Record) -> bool:
        return (of_value is None or (record.value is not None and of_value(record.value))) and (
            of_key is None or (record.key is not None and of_key(record.key))
        )

    return lambda records: [each for each in records if matches(each) is not is_inverted]


def _search(pattern: str, is_fixed: bool, flags: int) -> Callable[[bytes], bool]:
    encoded = pattern.encode("utf-8", "surrogateescape")
    if is_fixed and not flags:
        return lambda content: encoded in content
    try:
        search = re.compile(re.escape(encoded) if is_fixed else encoded, flags).search
    except re.error as error:
        raise UsageError(
            f"{pattern!r} is no regular expression: {error} (-F searches for it as it is)"
        ) from error
    return lambda content: search(content) is not None
