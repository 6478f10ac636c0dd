from __future__ import annotations

import argparse
from types import SimpleNamespace

import pytest

from tests.mutants import __main__ as mutants
from tests.mutants import contexts as measuring
from tests.mutants.changes import changes_of
from tests.mutants.contexts import Contexts, digest
from tests.mutants.trials import Mutant
from tests.support.durations import ROOT

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


def test_every_equivalent_change_is_one_of_a_line_that_exists() -> None:
    lines: dict[str, set[str]] = {}
    for key in mutants.equivalents(mutants._EQUIVALENTS.read_text(encoding="utf-8")):
        file, _, change = key.partition(": ")
        if file not in lines:
            text = (ROOT / file).read_text(encoding="utf-8")
            lines[file] = {f"{line.strip()}: " for line in text.splitlines()}
        assert any(change.startswith(line) for line in lines[file]), key


@pytest.mark.parametrize("path", ["no/such", "aiokafka_lite/consumer", "../tests", "../setup.py"])
def test_a_path_without_files_of_the_package_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match=f"no Python file at aiokafka_lite/{path}: paths are"):
        mutants.files_below(["consumer", path])


def test_files_are_those_below_a_path_or_the_one_that_it_names() -> None:
    home = ROOT / "aiokafka_lite"
    assert mutants.files_below(["_tasks.py"]) == {home / "_tasks.py"}
    assert mutants.files_below(["sasl/"]) == set((home / "sasl").rglob("*.py"))


@pytest.mark.parametrize("count", ["0", "-3", "some"])
def test_a_count_is_positive(count: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a positive number"):
        mutants.positive(count)


def test_files_that_changed_since_their_lines_were_measured_are_known() -> None:
    files = ["setup.py", "README.md", "pyproject.toml"]
    sources = {"setup.py": digest("setup.py"), "README.md": "another"}
    assert Contexts({}, {}, sources).changed(files) == ["README.md", "pyproject.toml"]


@pytest.mark.parametrize(
    ("status", "is_written"),
    [
        (pytest.ExitCode.OK, True),
        (pytest.ExitCode.TESTS_FAILED, True),
        (pytest.ExitCode.INTERRUPTED, False),
    ],
)
def test_an_interrupted_run_leaves_the_contexts_alone(
    status: int, is_written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[object] = []
    monkeypatch.setattr(measuring, "write", lambda *parts: written.append(parts))
    told: list[str] = []
    keeping = measuring.Kept()
    keeping.pytest_terminal_summary(SimpleNamespace(write_line=told.append), status)  # type: ignore[arg-type]
    keeping.pytest_unconfigure()
    assert (bool(written), bool(told)) == (is_written, not is_written)
