from __future__ import annotations

import pytest

from tests.mutants import __main__ as mutants
from tests.mutants.changes import changes_of
from tests.mutants.contexts import Contexts
from tests.mutants.trials import Mutant

FILE = "aiokafka_lite/module.py"
SOURCE = "def f(a):\n    return a < 3  # or less\n"
LESS = Mutant(FILE, changes_of(SOURCE)[0])


def contexts(seconds: dict[str, float]) -> Contexts:
    return Contexts({FILE: {2: frozenset(seconds)}}, seconds)


def test_the_narrowest_tests_are_run_first_then_the_nearest_and_then_some_of_the_others() -> None:
    near = [f"tests/module/test_{letter}.py::test_it" for letter in "ab"]
    seconds = {"narrow": 1.0, "wide": 1.0, "slow": 30.0, **dict.fromkeys([*near, *"cdefgh"], 1.0)}
    breadth = {**dict.fromkeys(seconds, 5), "narrow": 1, "wide": 9, "c": 2, near[0]: 8, near[1]: 8}

    def groups(seed: int) -> list[list[str]]:
        return mutants.groups_of_tests(LESS, contexts(seconds), breadth, 2.0, seed)

    narrowest, nearest, others = groups(1)
    assert narrowest == ["narrow", "c"]
    assert sorted(nearest) == near
    assert 1 <= len(others) <= 2
    assert groups(1) == [narrowest, nearest, others]
    left = {test for seed in range(30) for test in groups(seed)[2]}
    assert left == seconds.keys() - {*narrowest, *nearest}


def test_a_line_that_no_test_runs_has_no_group() -> None:
    assert mutants.groups_of_tests(LESS, Contexts({}, {}), {}, 3.0, seed=1) == []


def test_an_equivalent_change_has_a_reason_and_is_found_after_its_line_has_moved() -> None:
    moved = Mutant(FILE, changes_of("X = 1\n\n" + SOURCE)[0])
    assert mutants.equivalents(f"# a comment\n\n{LESS.key}  # it is never 3\n") == {moved.key}
    with pytest.raises(ValueError, match="the reason is missing"):
        mutants.equivalents(LESS.key)
