"""A check of many rows as one test: items cost more time than most checks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeVar

import pytest

C = TypeVar("C", bound=type)
PARAM: Final = type(pytest.param())


class Row(NamedTuple):
    """The arguments of one check, and the name under which its failure is reported."""

    arguments: tuple[object, ...]
    name: str


def in_every_version(
    of: Iterable[tuple[C, int]],
) -> Callable[[Callable[[C, int], None]], Callable[..., None]]:
    """Make a check of a class and a version one test of all of them."""
    return for_each(of, "{0.__name__} v{1}")


def for_each(
    of: Iterable[object], names: str | Iterable[str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a check one test of all rows. Further parameters of the check are fixtures.

    Every row is checked, whichever fails. The failure names each row that failed with its reason,
    and has the traceback of the first.

    Args:
        of: Rows: the check's only argument, a tuple of its arguments, or a `pytest.param`.
        names: Those of all rows, or a format of their arguments.
    """
    rows = [_row(each, names if isinstance(names, str) else None) for each in of]
    if not (names is None or isinstance(names, str)):
        rows = [row._replace(name=name) for row, name in zip(rows, names, strict=True)]

    def make_test(check: Callable[..., None]) -> Callable[..., None]:
        def test(**fixtures: object) -> None:
            failures: list[tuple[str, BaseException]] = []
            for row in rows:
                try:
                    check(*row.arguments, **fixtures)
                except (Exception, pytest.fail.Exception) as failure:  # noqa: BLE001 -- reported below
                    failures.append((row.name, failure))
            if failures:
                reasons = (f"{name}: {failure!r}" for name, failure in failures)
                raise AssertionError("\n".join(reasons)) from failures[0][1]

        # Not by functools.wraps: pytest would ask for the arguments of the function inside.
        test.__name__, test.__qualname__ = check.__name__, check.__qualname__
        test.__module__, test.__doc__ = check.__module__, check.__doc__
        signature = inspect.signature(check)
        fixtures = list(signature.parameters.values())[len(rows[0].arguments) :]
        vars(test)["__signature__"] = signature.replace(parameters=fixtures)
        return test

    return make_test


def _row(given: object, name: str | None) -> Row:
    if isinstance(given, PARAM):
        assert not given.marks, "a row of one test has no marks of its own"
        arguments, own_name = tuple(given.values), given.id
    else:
        arguments, own_name = given if type(given) is tuple else (given,), None
    if isinstance(own_name, str):
        return Row(arguments, own_name)
    return Row(arguments, name.format(*arguments) if name else ", ".join(map(_name_of, arguments)))


def _name_of(value: object) -> str:
    return value.__name__ if isinstance(value, type) else repr(value)
