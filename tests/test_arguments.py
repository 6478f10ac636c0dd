"""Checks of arguments by annotations: which values pass, and what the errors name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from aiokafka_lite._arguments import (
    FLAG,
    INT,
    NUMBER,
    TEXT,
    Kind,
    are_ints,
    check_fields,
    checks_arguments,
    is_list,
    is_number,
    is_partition,
    one_of,
)
from aiokafka_lite.structs import TopicPartition
from tests.support.for_each import for_each

if TYPE_CHECKING:
    from collections.abc import Callable

    Size = int


@for_each(
    [
        (0, True),
        (-1.5, True),
        (float("inf"), True),
        (float("nan"), False),
        (2**1023 - 1, True),
        (2**1023, False),
        (True, False),
        ("1", False),
        (None, False),
    ]
)
def test_a_number_is_a_float_or_an_int_that_a_float_can_hold(given: object, is_right: bool) -> None:
    assert is_number(given) is is_right


@for_each(
    [
        (TopicPartition("t", 0), True),
        (("t", 0), True),
        (("t", 0, 0), False),
        (("t",), False),
        (["t", 0], False),
        ((5, 0), False),
        (("t", "0"), False),
        (("t", True), False),
    ]
)
def test_a_partition_is_a_pair_of_a_str_and_an_int(given: object, is_right: bool) -> None:
    assert is_partition(given) is is_right


def test_a_list_is_iterable_and_no_text() -> None:
    lists: list[object] = [[], ("t",), {"t"}]
    assert all(is_list(given) for given in lists)
    others: list[object] = ["t", b"t", 5, None]
    assert not any(is_list(given) for given in others)
    ints: list[object] = [[1, 2], []]
    assert all(are_ints(given) for given in ints)
    others = [[1, "2"], [True], 5]
    assert not any(are_ints(given) for given in others)


@for_each(
    [
        (INT, False, True, "n must be an int, not True"),
        (INT, True, "5", "n must be an int or None, not '5'"),
        (INT, False, None, "n must be an int, not None"),
        (FLAG, False, 1, "n must be True or False, not 1"),
        (TEXT, False, int, "n must be a str, not the class int"),
        (NUMBER, False, "5", "n must be a number, not '5'"),
        (one_of("a", "b"), False, "c", "n must be 'a' or 'b', not 'c'"),
    ]
)
def test_an_error_names_the_argument_and_the_value(
    kind: Kind, or_none: bool, given: object, text: str
) -> None:
    with pytest.raises(kind.error, match=f"^{text}$"):
        kind.check("n", given, or_none=or_none)


def test_right_values_pass() -> None:
    for kind, given in ((INT, 5), (FLAG, False), (TEXT, ""), (NUMBER, 5), (one_of("a"), "a")):
        kind.check("n", given)
    INT.check("n", None, or_none=True)


class Checked:
    """Has methods of each kind."""

    def __init__(self, name: str, count: int = 1) -> None:
        self.name, self.count = name, count

    def call(self, count: int | None, *, wait: bool = False, size: Size = 0) -> object:
        return count, wait, size

    async def wait(self, timeout: float, function: Callable[[], None] | None = None) -> float:
        return timeout

    def free(self, given: object) -> object:
        return given

    def quick(self, count: int) -> int:
        return count

    def _inner(self, count: int) -> int:
        return count


def wrong(given: object) -> Any:
    """Return a value whose type a type checker would reject."""
    return given


async def test_public_methods_of_a_class_check_their_arguments() -> None:
    # Here and not at the import, so that it is done by the test.
    checks_arguments({"Size": INT}, unchecked=("quick",))(Checked)
    checked = Checked("n", count=2)
    assert checked.call(5, wait=True, size=3) == (5, True, 3)
    assert checked.call(None) == (None, False, 0)
    assert await checked.wait(1.5, wrong(print)) == 1.5
    assert await checked.wait(timeout=2) == 2
    assert [checked.free(wrong), checked.quick(wrong("5")), checked._inner(wrong("6"))] == [
        wrong, "5", "6"
    ]  # fmt: skip
    calls: list[Callable[[], object]] = [
        lambda: Checked(wrong(5)),
        lambda: Checked("n", wrong("1")),
        lambda: Checked("n", count=wrong("1")),
        lambda: checked.call(wrong("5")),
        lambda: checked.call(count=wrong("5")),
        lambda: checked.call(5, wait=wrong(1)),
        lambda: checked.call(5, size=wrong("1")),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=r" must be .*, not "):
            call()
    for timeout, function in (("1", None), (1, 5)):
        with pytest.raises(TypeError, match=r" must be .*, not "):
            await checked.wait(wrong(timeout), wrong(function))


@dataclass
class Fields:
    """Is checked by its annotations."""

    count: int | None
    name: str
    other: object


def test_fields_are_checked_by_their_annotations() -> None:
    check_fields(Fields(None, "n", other=5))
    with pytest.raises(TypeError, match="count must be an int or None, not '5'"):
        check_fields(Fields(wrong("5"), "n", other=5))
    with pytest.raises(TypeError, match="name must be a str, not None"):
        check_fields(Fields(5, wrong(None), other=5))
