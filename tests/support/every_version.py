"""A check of every version of a message, as one test a message."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import pytest

from tests.support.samples import name_of

C = TypeVar("C", bound=type)


def in_every_version(
    of: Iterable[tuple[C, int]],
) -> Callable[[Callable[[C, int], None]], Callable[[C], None]]:
    """Make a check of a class and a version a test with one item a class.

    All versions are checked, whichever fails. The failure names each that failed with its reason,
    and has the traceback of the first.
    """
    versions: dict[C, list[int]] = {}
    for cls, version in of:
        versions.setdefault(cls, []).append(version)

    def make_test(check: Callable[[C, int], None]) -> Callable[[C], None]:
        @pytest.mark.parametrize("cls", versions, ids=name_of)
        def test(cls: C) -> None:
            failures: dict[str, BaseException] = {}
            for version in versions[cls]:
                try:
                    check(cls, version)
                except (Exception, pytest.fail.Exception) as failure:  # noqa: BLE001 -- reported below
                    failures[f"{cls.__name__} v{version}"] = failure
            if failures:
                reasons = (f"{where}: {reason!r}" for where, reason in failures.items())
                raise AssertionError("\n".join(reasons)) from next(iter(failures.values()))

        # Not by functools.wraps: pytest would ask for the arguments of the function inside.
        test.__name__, test.__qualname__ = check.__name__, check.__qualname__
        test.__module__, test.__doc__ = check.__module__, check.__doc__
        return test

    return make_test
