"""A check of many rows as one test: items cost more time than most checks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import TypeVar

import pytest

C = TypeVar("C", bound=type)


def in_every_version(
    of: Iterable[tuple[C, int]],
) -> Callable[[Callable[[C, int], None]], Callable[..., None]]:
    """Make a check of a class and a version one test of all of them."""
    return for_each(of, "{0.__name__} v{1}")


def for_each(
    of: Iterable[object], name: str | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a check one test of all rows. Further parameters of the check are fixtures.

    Every row is checked, whichever fails. The failure names each row that failed with its reason,
    and has the traceback of the first.

    Args:
        of: Rows: the check's only argument, or a tuple of its arguments.
        name: Formats the name of a row.
    """
    rows = [row if type(row) is tuple else (row,) for row in of]

    def make_test(check: Callable[..., None]) -> Callable[..., None]:
        def test(**fixtures: object) -> None:
            failures: dict[str, BaseException] = {}
            for row in rows:
                try:
                    check(*row, **fixtures)
                except (Exception, pytest.fail.Exception) as failure:  # noqa: BLE001 -- reported below
                    where = name.format(*row) if name else ", ".join(map(_name_of, row))
                    failures[where] = failure
            if failures:
                reasons = (f"{where}: {failure!r}" for where, failure in failures.items())
                raise AssertionError("\n".join(reasons)) from next(iter(failures.values()))

        # Not by functools.wraps: pytest would ask for the arguments of the function inside.
        test.__name__, test.__qualname__ = check.__name__, check.__qualname__
        test.__module__, test.__doc__ = check.__module__, check.__doc__
        signature = inspect.signature(check)
        fixtures = list(signature.parameters.values())[len(rows[0]) :]
        vars(test)["__signature__"] = signature.replace(parameters=fixtures)
        return test

    return make_test


def _name_of(value: object) -> str:
    return value.__name__ if isinstance(value, type) else repr(value)
