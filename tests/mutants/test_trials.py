from __future__ import annotations

import importlib.util
import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tests.mutants import trials
from tests.mutants.changes import changes_of
from tests.mutants.trials import Ended, Mutant, Outcome, Run, Soundness, Trial, Trials
from tests.support.programs import started_and_awaited

SOURCE = """
def plain(a):
    return a < 3

class Thing:
    @property
    def half(self):
        return self.whole // 2

    @half.setter
    def half(self, value):
        self.whole = value * 2

def make(limit):
    def inner(a):
        if a > limit:
            return "large"
        return "small"
    return inner

def recent(limit):
    if limit:
        return lambda: limit
"""
PLAIN = Mutant("aiokafka_lite/module.py", changes_of(SOURCE)[0])
_numbers = itertools.count()


@pytest.fixture
def module(tmp_path: Path) -> ModuleType:
    path = tmp_path / f"changed_{next(_numbers)}.py"
    path.write_text(SOURCE, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def changed(module: ModuleType, text: str) -> int:
    """Make the change that is printed so."""
    (change,) = (each for each in changes_of(SOURCE) if str(each) == text)
    assert module.__file__ is not None
    return trials.replace(Path(module.__file__), SOURCE, change.apply(SOURCE))


def test_a_change_is_made_in_a_loaded_function(module: ModuleType) -> None:
    assert not module.plain(3)
    assert changed(module, "a < 3  ->  (a <= 3)") == 1
    assert module.plain(3)


def test_a_property_and_its_setter_are_told_apart(module: ModuleType) -> None:
    thing = module.Thing()
    assert changed(module, "value * 2  ->  (value // 2)") == 1
    thing.half = 8
    assert (thing.whole, thing.half) == (4, 2)


def test_a_change_of_an_inner_function_is_in_those_made_before_and_after(
    module: ModuleType,
) -> None:
    before = module.make(3)
    assert changed(module, "a > limit  ->  (a >= limit)") == 2
    assert (before(3), module.make(3)(3)) == ("large", "large")


def test_a_change_that_takes_a_free_variable_away_cannot_be_made(module: ModuleType) -> None:
    inner = module.make(3)
    with pytest.raises(ValueError, match="free vars"):
        changed(module, "a > limit  ->  (False)")
    assert inner(4) == "large"


def ended(
    soundness: Soundness, groups: list[list[str]], *courses: Ended
) -> tuple[list[Run], object]:
    """Have the runs of a trial end so; return the runs, and the outcome if there is one."""
    trial, runs = soundness.trial(PLAIN, groups), list[Run]()
    left: Iterator[Ended | None] = iter((None, *courses))
    try:
        while True:
            runs.append(trial.send(next(left)))  # type: ignore[arg-type]  # None begins it
    except StopIteration as end:
        assert next(left, None) is None
        return runs, end.value


def test_a_change_is_killed_by_a_test_that_passes_without_it() -> None:
    soundness = Soundness()
    runs, outcome = ended(soundness, [["a"], ["b", "c"], ["d"]], Ended(), Ended("c"), Ended())
    assert outcome is Outcome.KILLED
    assert runs == [Run(["a"], PLAIN), Run(["b", "c"], PLAIN), Run(["c"], None)]
    runs, outcome = ended(soundness, [["c"]], Ended("c"))  # that is known now
    assert (len(runs), outcome) == (1, Outcome.KILLED)


def test_a_test_that_fails_without_the_change_is_left_out() -> None:
    soundness = Soundness()
    groups = [["a", "b"]]
    runs, outcome = ended(soundness, groups, Ended("b"), Ended("b"), Ended())
    assert outcome is Outcome.SURVIVED
    assert [run.tests for run in runs] == [["a", "b"], ["b"], ["a"]]
    runs, outcome = ended(soundness, [["b"], ["c"]], Ended())
    assert ([run.tests for run in runs], outcome) == ([["c"]], Outcome.SURVIVED)


def test_a_change_whose_tests_do_not_end_is_timed_out() -> None:
    runs, outcome = ended(Soundness(), [["a"], ["b"]], Ended(outcome=Outcome.TIMED_OUT))
    assert (len(runs), outcome) == (1, Outcome.TIMED_OUT)


def test_a_change_of_a_line_that_no_test_runs_is_told_apart() -> None:
    assert ended(Soundness(), []) == ([], Outcome.NOT_RUN)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="trials are forked")
def test_no_trial_runs_on_when_all_are_interrupted() -> None:
    def interrupt(mutant: Mutant) -> Trial:
        raise KeyboardInterrupt

    running = Trials([PLAIN], interrupt, lambda *_: None, {}, workers=2)
    forever = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
    with started_and_awaited(forever, start_new_session=True) as process:
        running._children[process.pid] = trials._Child(Soundness().trial(PLAIN, []), [], -1, 0.0)
        with pytest.raises(KeyboardInterrupt):
            running.pytest_runtestloop(SimpleNamespace(items=[], testsfailed=0))  # type: ignore[arg-type]
        with pytest.raises(ProcessLookupError):
            os.kill(process.pid, 0)


def test_nothing_is_tried_while_a_file_of_tests_cannot_be_imported() -> None:
    session = SimpleNamespace(items=[], testsfailed=1, Interrupted=pytest.Session.Interrupted)
    running = Trials([PLAIN], lambda _: Soundness().trial(PLAIN, []), lambda *_: None, {}, 1)
    with pytest.raises(pytest.Session.Interrupted):
        running.pytest_runtestloop(session)  # type: ignore[arg-type]
