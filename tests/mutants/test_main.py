from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.mutants import __main__ as mutants
from tests.mutants.__main__ import Mutant, Outcome, Trial
from tests.mutants.changes import changes_of
from tests.mutants.contexts import Contexts

FILE = "aiokafka_lite/module.py"
SOURCE = "def f(a):\n    return a < 3\n"
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


class Tree:
    """A tree of one module; its tests are functions that get the module's text."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.source = path / FILE
        self.source.parent.mkdir()
        self.source.write_text(SOURCE)
        self.failing: dict[str, str] = {}
        self.ran: list[list[str]] = []
        monkeypatch.setattr(mutants, "ROOT", path)
        monkeypatch.setattr(mutants, "run", self._run)

    def _run(self, tests: Sequence[str], tree: Path, timeout_s: float) -> object:
        self.ran.append(list(tests))
        text = self.source.read_text()
        failed = [test for test in tests if self.failing.get(test, "-") in text]

        class Done:
            returncode = 1 if failed else 0
            stdout = f"FAILED {failed[0]}[a-b] - AssertionError" if failed else ""

        return Done()


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    return Tree(tmp_path, monkeypatch)


def test_a_change_is_killed_by_a_test_that_fails_because_of_it(tree: Tree) -> None:
    tree.failing = {"b": "<="}
    trial = Trial(contexts({}))
    assert trial.outcome(LESS, [["a"], ["b", "c"], ["d"]], tree.path) is Outcome.KILLED
    assert tree.ran == [["a"], ["b", "c"], ["b"]]
    assert tree.source.read_text() == SOURCE


def test_a_test_that_fails_without_the_change_is_left_out(tree: Tree) -> None:
    tree.failing = {"b": "return"}
    trial = Trial(contexts({}))
    assert trial.outcome(LESS, [["a", "b"]], tree.path) is Outcome.SURVIVED
    assert tree.ran == [["a", "b"], ["b"], ["a"]]
    assert trial.outcome(LESS, [["b"], ["c"]], tree.path) is Outcome.SURVIVED
    assert tree.ran[3:] == [["c"]]


def test_a_change_of_a_line_that_no_test_runs_is_told_apart(tree: Tree) -> None:
    assert Trial(contexts({})).outcome(LESS, [], tree.path) is Outcome.NOT_RUN
