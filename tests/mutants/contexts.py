"""Which tests run which lines, and how long each takes: kept in out/contexts.json by a plugin.

    python -m pytest -p tests.mutants.contexts -n 4 --dist loadfile    (make contexts)

A test is a function, whatever its parameters; those of its items that choice.py leaves out do not
count. Tests that fail are left out.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import coverage
import pytest

from tests.mutants import choice
from tests.support.durations import ROOT

FILE: Final = ROOT / "out" / "contexts.json"
_PARTS: Final = ROOT / "out" / "contexts"
_PACKAGE: Final = ROOT / "aiokafka_lite"


class Contexts(NamedTuple):
    """Which tests run which lines, and how long each takes.

    Attributes:
        lines: The tests that run a line, by the file and the line.
        seconds: How long each test takes, all of its parameters together.
        sources: A digest of each file that was measured.
    """

    lines: Mapping[str, Mapping[int, frozenset[str]]]
    seconds: Mapping[str, float]
    sources: Mapping[str, str] = {}

    def changed(self, files: Iterable[str]) -> list[str]:
        """Return those of the files that are not as they were measured."""
        return sorted(file for file in {*files} if self.sources.get(file) != digest(file))


def digest(file: str) -> str:
    """Return a digest of a file of the tree."""
    return hashlib.sha256((ROOT / file).read_bytes()).hexdigest()[:16]


def kept() -> Contexts:
    """Return the contexts that are kept."""
    content = json.loads(FILE.read_text(encoding="utf-8"))
    tests: list[str] = list(content["seconds"])
    lines = {
        file: {int(line): frozenset(tests[each] for each in runs) for line, runs in lines.items()}
        for file, lines in content["lines"].items()
    }
    return Contexts(lines, content["seconds"], content.get("sources", {}))


def name_of_test(nodeid: str) -> str:
    """Return the test of an item: its file and its function."""
    return nodeid.partition("[")[0]


class Lines:
    """Measures in the process that runs tests; the process that started it keeps the result."""

    def __init__(self, worker: str) -> None:
        self._coverage = coverage.Coverage(
            data_file=str(_PARTS / f"coverage.{worker}"), source=[str(_PACKAGE)], branch=False
        )

    def start(self) -> None:
        self._coverage.start()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._coverage.switch_context(name_of_test(nodeid))

    def pytest_runtest_logfinish(self) -> None:
        self._coverage.switch_context("")

    def pytest_unconfigure(self) -> None:
        self._coverage.stop()
        self._coverage.save()


class Kept:
    """Adds up the reports, and puts the workers' measurements together."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._failed: set[str] = set()
        self._has_ended = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[name_of_test(report.nodeid)] += report.duration
        if report.failed:
            self._failed.add(name_of_test(report.nodeid))

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, exitstatus: int
    ) -> None:
        self._has_ended = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        if not self._has_ended:
            terminalreporter.write_line(f"{FILE.relative_to(ROOT)} stays as it was")

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        if not self._has_ended:
            return
        passed = self._seconds.keys() - self._failed
        write(_PARTS.glob("coverage.*"), {test: self._seconds[test] for test in sorted(passed)})


def write(parts: Iterable[Path], seconds: Mapping[str, float]) -> None:
    """Keep what these files of coverage hold about these tests."""
    lines: defaultdict[str, defaultdict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    index = {test: number for number, test in enumerate(seconds)}
    for part in parts:
        data = coverage.CoverageData(basename=str(part))
        data.read()
        for file in data.measured_files():
            name = Path(file).relative_to(ROOT).as_posix()
            for line, tests in data.contexts_by_lineno(file).items():
                lines[name][line].update(index[test] for test in tests if test in index)
    content = {
        "sources": {file: digest(file) for file in sorted(lines)},
        "seconds": {test: round(each, 3) for test, each in seconds.items()},
        "lines": {
            file: {line: sorted(tests) for line, tests in of_file.items() if tests}
            for file, of_file in sorted(lines.items())
        },
    }
    FILE.write_text(json.dumps(content), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    worker: Mapping[str, str] | None = getattr(config, "workerinput", None)
    runs_tests = worker is not None or not config.getoption("numprocesses", None)
    if worker is None:
        _PARTS.mkdir(parents=True, exist_ok=True)
        for part in _PARTS.glob("coverage.*"):
            part.unlink()
        config.pluginmanager.register(Kept())
    if runs_tests:
        measuring = Lines("main" if worker is None else worker["workerid"])
        config.pluginmanager.register(measuring)
        config.pluginmanager.register(choice)
        measuring.start()
