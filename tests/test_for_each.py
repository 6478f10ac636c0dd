"""One item with many rows (tests/support/for_each.py): every row that fails reports itself."""

from __future__ import annotations

import pytest

from tests.support.for_each import for_each


def test_every_row_is_checked_and_the_failure_names_those_that_fail() -> None:
    checked: list[int] = []

    @for_each([(3, 4), pytest.param(1, 2, id="by its id"), (4, 4), (5, 6)])
    def check(one: int, other: int) -> None:
        checked.append(one)
        assert one == other, f"{one} is another"

    with pytest.raises(AssertionError) as failure:
        check()
    lines = [line for line in str(failure.value).splitlines() if "is another" in line]
    assert checked == [3, 1, 4, 5]
    assert [line.split(": ")[0] for line in lines] == ["3, 4", "by its id", "5, 6"]


@pytest.mark.parametrize("names", [["small", "large"], "{0.real} items"])
def test_rows_may_have_names(names: str | list[str]) -> None:
    @for_each([1, 1000], names)
    def check(count: int) -> None:
        pytest.fail(f"{count} is wrong")

    with pytest.raises(AssertionError) as failure:
        check()
    found = [line.split(": ")[0] for line in str(failure.value).splitlines()]
    assert found == (names if isinstance(names, list) else ["1 items", "1000 items"])
