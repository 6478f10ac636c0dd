"""Which tests run which lines of the package: measured by a plugin, kept in out/contexts.json.

    python -m pytest -p tests.mutants.contexts -n 4 --dist loadfile    (make contexts)

A test is a function, whatever its parameters. Tests with Kafka, Java or Spark are left out, because
a change is tried by hundreds of runs.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import coverage
import pytest

from tests.support.durations import ROOT
from tests.support.required import MARKS

FILE: Final = ROOT / "out" / "contexts.json"
_PARTS: Final = ROOT / "out" / "contexts"
_PACKAGE: Final = ROOT / "aiokafka_lite"

Lines = Mapping[str, Mapping[int, frozenset[str]]]
"""The tests that run a line, by the file and the line."""


def kept() -> Lines:
    """Return the contexts that are kept."""
    content = json.loads(FILE.read_text(encoding="utf-8"))
    tests: list[str] = content["tests"]
    return {
        file: {int(line): frozenset(tests[each] for each in runs) for line, runs in lines.items()}
        for file, lines in content["lines"].items()
    }


class Contexts:
    """Measures in the process that runs tests; the process that started it keeps the result."""

    def __init__(self, worker: str) -> None:
        self._coverage = coverage.Coverage(
            data_file=str(_PARTS / f"coverage.{worker}"), source=[str(_PACKAGE)], branch=False
        )

    def start(self) -> None:
        self._coverage.start()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        left_out = [item for item in items if any(item.get_closest_marker(mark) for mark in MARKS)]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item not in set(left_out)]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._coverage.switch_context(nodeid.partition("[")[0])

    def pytest_runtest_logfinish(self) -> None:
        self._coverage.switch_context("")

    def pytest_unconfigure(self) -> None:
        self._coverage.stop()
        self._coverage.save()


class Kept:
    """Puts the workers' measurements together."""

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        write(_PARTS.glob("coverage.*"))


def write(parts: Iterable[Path]) -> None:
    """Keep what these files of coverage hold."""
    lines: defaultdict[str, defaultdict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for part in parts:
        data = coverage.CoverageData(basename=str(part))
        data.read()
        for file in data.measured_files():
            name = Path(file).relative_to(ROOT).as_posix()
            for line, tests in data.contexts_by_lineno(file).items():
                lines[name][line].update(test for test in tests if test)
    tests = sorted({test for of in lines.values() for runs in of.values() for test in runs})
    index = {test: number for number, test in enumerate(tests)}
    content = {
        "tests": tests,
        "lines": {
            file: {line: sorted(index[test] for test in runs) for line, runs in of.items() if runs}
            for file, of in sorted(lines.items())
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
        measuring = Contexts("main" if worker is None else worker["workerid"])
        config.pluginmanager.register(measuring)
        measuring.start()
