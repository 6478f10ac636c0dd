"""Try changes of the package: a plugin that collects the tests once, and forks a process a trial.

The process puts the changed code into the functions that are loaded, and runs tests until one
fails. So a trial costs what its tests cost.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import time
import types
import warnings
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.mutants import choice
from tests.mutants.changes import Change
from tests.mutants.contexts import name_of_test
from tests.support.durations import ROOT

# Fixtures of a session, and tests that take longer than when they were measured.
_START_S: Final = 10.0
_POLL_S: Final = 0.005
# How a process ends that could not run tests.
_NOT_CHANGED: Final = 3
_BROKEN: Final = 4


class Outcome(Enum):
    KILLED = "killed"
    TIMED_OUT = "timed out"
    SURVIVED = "survived"
    NOT_RUN = "no test runs the line"
    NOT_TRIED = "the function cannot be replaced while it is loaded"


NOTICED: Final = (Outcome.KILLED, Outcome.TIMED_OUT)


class Mutant(NamedTuple):
    """A change of a file, whose path is that of the tree."""

    file: str
    change: Change

    @property
    def package(self) -> str:
        return "/".join(self.file.split("/")[1:-1][:2]) or "."

    @property
    def key(self) -> str:
        """Return how equivalents.txt names it: with the line's text, as its number may change."""
        return f"{self.file}: {self.change.around}: {self.change}"

    def __str__(self) -> str:
        return f"{self.file}:{self.change.line}: {self.change}"


class Run(NamedTuple):
    """Tests to run in a process of their own; without a mutant on the package as it is."""

    tests: Sequence[str]
    mutant: Mutant | None


class Ended(NamedTuple):
    """How a run ended: the test that failed, or why there is none; both None: all have passed."""

    failed: str | None = None
    outcome: Outcome | None = None


Trial = Generator[Run, Ended, Outcome]


class Soundness:
    """Which tests pass without a change, as far as it was looked at."""

    def __init__(self) -> None:
        self._sound: set[str] = set()
        self._unsound: set[str] = set()

    def trial(self, mutant: Mutant, groups: Sequence[Sequence[str]]) -> Trial:
        """Run groups of tests with a change, until a test fails that passes without it."""
        for group in groups:
            while tests := [test for test in group if test not in self._unsound]:
                ended = yield Run(tests, mutant)
                if ended.outcome is not None:
                    return ended.outcome
                if ended.failed is None:
                    break
                if ended.failed not in self._sound:
                    alone = yield Run([ended.failed], None)
                    (self._sound if alone == Ended() else self._unsound).add(ended.failed)
                if ended.failed in self._sound:
                    return Outcome.KILLED
        return Outcome.SURVIVED if groups else Outcome.NOT_RUN


# --- The changed code ----------------------------------------------------------------------
def replace(file: Path, before: str, after: str) -> int:
    """Put the changed code of a file into the functions that are loaded; return how many."""
    changed = {}
    old, new = (dict(_codes(_compiled(file, source))) for source in (before, after))
    for path, code in old.items():
        if path in new and not _are_alike(code, new[path]):
            changed[code.co_name, code.co_firstlineno] = new[path]
    count = 0
    for function in _functions_of(file):
        key = function.__code__.co_name, function.__code__.co_firstlineno
        if key in changed:
            function.__code__ = changed[key]
            count += 1
    return count


def _compiled(file: Path, source: str) -> types.CodeType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return compile(source, str(file), "exec", dont_inherit=True)


def _codes(
    code: types.CodeType, path: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], types.CodeType]]:
    """Yield the code of functions by names, and by number where two have one name."""
    counts: defaultdict[str, int] = defaultdict(int)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            place = (*path, const.co_name, counts[const.co_name])
            counts[const.co_name] += 1
            yield place, const
            yield from _codes(const, place)


def _are_alike(one: types.CodeType, other: types.CodeType) -> bool:
    return (one.co_code, one.co_consts, one.co_names) == (
        other.co_code,
        other.co_consts,
        other.co_names,
    )


def _functions_of(file: Path) -> list[types.FunctionType]:
    name = str(file)
    return [
        each
        for each in gc.get_objects()
        if type(each) is types.FunctionType and each.__code__.co_filename == name
    ]


# --- The processes -------------------------------------------------------------------------
class _Child(NamedTuple):
    """A process that runs tests."""

    trial: Trial
    tests: Sequence[pytest.Item]
    report: int
    ends_at: float


class Trials:
    """Runs trials in place of the collected tests.

    Args:
        begin: Begins a trial of a mutant.
        tell: Takes the outcome of each.
    """

    def __init__(
        self,
        mutants: Iterable[Mutant],
        begin: Callable[[Mutant], Trial],
        tell: Callable[[Mutant, Outcome], None],
        seconds_of: Mapping[str, float],
        workers: int,
    ) -> None:
        self._left = iter(mutants)
        self._begin = begin
        self._tell = tell
        self._seconds_of = seconds_of
        self._workers = workers
        self._items: defaultdict[str, list[pytest.Item]] = defaultdict(list)
        self._mutants: dict[Trial, Mutant] = {}
        self._children: dict[int, _Child] = {}

    def pytest_configure(self, config: pytest.Config) -> None:
        config.pluginmanager.register(choice)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:  # files that cannot be imported: a change would survive them
            raise session.Interrupted("not every test can be collected")
        for item in session.items:
            self._items[name_of_test(item.nodeid)].append(item)
        gc.unfreeze()  # or the functions would not be found
        try:
            while self._start_others(session) or self._children:
                for pid, child in list(self._children.items()):
                    if (ended := self._ended(pid, child)) is not None:
                        del self._children[pid]
                        self._proceed(session, child.trial, ended)
                time.sleep(_POLL_S)
        finally:
            for pid in self._children:
                _kill(pid)
                os.waitpid(pid, 0)
        return True

    def _start_others(self, session: pytest.Session) -> bool:
        while len(self._children) < self._workers:
            if (mutant := next(self._left, None)) is None:
                return False
            trial = self._begin(mutant)
            self._mutants[trial] = mutant
            self._proceed(session, trial, None)
        return True

    def _proceed(self, session: pytest.Session, trial: Trial, ended: Ended | None) -> None:
        try:
            run = next(trial) if ended is None else trial.send(ended)
            while not (items := [each for test in run.tests for each in self._items[test]]):
                run = trial.send(Ended())  # these tests are no more
        except StopIteration as end:
            self._tell(self._mutants.pop(trial), end.value)
        else:
            self._fork(session, trial, run, items)

    def _fork(
        self, session: pytest.Session, trial: Trial, run: Run, items: list[pytest.Item]
    ) -> None:
        report, reporting = os.pipe()
        sys.stdout.flush()
        if not (pid := os.fork()):
            status = _BROKEN
            try:
                status = _run_in_child(session, run, items, reporting)
            finally:
                os._exit(status)
        os.close(reporting)
        seconds = sum(self._seconds_of.get(test, 0.0) for test in run.tests)
        ends_at = time.monotonic() + _START_S + 3 * seconds
        self._children[pid] = _Child(trial, items, report, ends_at)

    def _ended(self, pid: int, child: _Child) -> Ended | None:
        done, status = os.waitpid(pid, os.WNOHANG)
        is_late = not done and time.monotonic() > child.ends_at
        if not done and not is_late:
            return None
        _kill(pid, is_ended=bool(done))
        if is_late:
            os.waitpid(pid, 0)
        number = os.read(child.report, 20)
        os.close(child.report)
        if is_late:
            return Ended(outcome=Outcome.TIMED_OUT)
        if number:
            return Ended(failed=name_of_test(child.tests[int(number)].nodeid))
        code = os.waitstatus_to_exitcode(status)
        if code == _NOT_CHANGED:
            return Ended(outcome=Outcome.NOT_TRIED)
        return Ended(outcome=Outcome.KILLED) if code else Ended()


def _kill(pid: int, *, is_ended: bool = False) -> None:
    """Kill a process that runs tests, unless it has ended, and those that it has started."""
    if not is_ended:
        os.kill(pid, signal.SIGKILL)  # at first it is in our session
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _run_in_child(
    session: pytest.Session, run: Run, items: list[pytest.Item], reporting: int
) -> int:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)
    if run.mutant is not None:
        file = ROOT / run.mutant.file
        source = file.read_text(encoding="utf-8")
        try:
            importlib.import_module(run.mutant.file.removesuffix(".py").replace("/", "."))
            if not replace(file, source, run.mutant.change.apply(source)):
                return _NOT_CHANGED
        except (ImportError, ValueError):  # it needs a package, or has other free variables
            return _NOT_CHANGED
    session.items[:] = items
    session.testsfailed = 0
    for number, item in enumerate(items):
        following = items[number + 1] if number + 1 < len(items) else None
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            os.write(reporting, str(number).encode())
            break
    return 0
