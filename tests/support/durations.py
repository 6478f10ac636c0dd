"""How long the tests of each file take: kept in tests/durations.json, measured by a plugin.

    python -m pytest -p tests.support.durations    (make durations)

replaces the entries of the files that run and removes those of files that no longer exist. With
AIOKAFKA_LITE_TEST_LONG=1 the seconds of the long form are replaced, and no others. A run that is
interrupted, or has some tests of a file only (-k, -m, file::test), replaces none.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import pytest

from tests.support.required import MARKS
from tests.support.rounds import LONG

ROOT: Final = Path(__file__).parents[2]
FILE: Final = ROOT / "tests" / "durations.json"
SLOW_S: Final = 0.3
"""A test is slow if one of its items takes longer."""


@dataclass(frozen=True, slots=True)
class Durations:
    """How long the tests of a file take, in seconds.

    Attributes:
        all_s: Every test of the file, in the short form.
        quick_s: The tests that need no Kafka and are not slow.
        slow: The functions of tests that are slow, without Kafka.
        long_s: Every test of the file, in the long form.
    """

    all_s: float = 0.0
    quick_s: float = 0.0
    slow: frozenset[str] = field(default_factory=frozenset)
    long_s: float = 0.0


def kept() -> Mapping[str, Durations]:
    """Return the durations that are kept, by file."""
    entries = json.loads(FILE.read_text(encoding="utf-8"))
    return {
        file: Durations(**{**entry, "slow": frozenset(entry.get("slow", ()))})
        for file, entry in entries.items()
    }


def function_of(nodeid: str) -> str:
    """Return what an item is called in its file, without its parameters."""
    return nodeid.partition("::")[2].partition("[")[0]


class Measured:
    """Adds up the reports of a run."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._with_kafka: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if not MARKS.keys().isdisjoint(report.keywords):
            self._with_kafka.add(report.nodeid)

    def by_file(self) -> dict[str, Durations]:
        items: defaultdict[str, list[str]] = defaultdict(list)
        for nodeid in self._seconds:
            items[nodeid.partition("::")[0]].append(nodeid)
        return {file: self._of(nodeids) for file, nodeids in items.items()}

    def _of(self, nodeids: Iterable[str]) -> Durations:
        own = [nodeid for nodeid in nodeids if nodeid not in self._with_kafka]
        slow = frozenset(function_of(each) for each in own if self._seconds[each] > SLOW_S)
        return Durations(
            all_s=sum(self._seconds[each] for each in nodeids),
            quick_s=sum(self._seconds[each] for each in own if function_of(each) not in slow),
            slow=slow,
        )

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
    ) -> None:
        # The process that has a terminal gets the workers' reports.
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and not (
            config.option.keyword or config.option.markexpr or "::" in " ".join(config.args)
        ):
            write(self.by_file())
        else:
            terminalreporter.write_line(f"{FILE.relative_to(ROOT)} stays as it was")


def merged(before: Durations, measured: Durations, *, is_long: bool) -> Durations:
    """Return the durations of a file after a run in the short form or in the long one."""
    if is_long:
        return replace(before, long_s=measured.all_s)
    return replace(measured, long_s=before.long_s)


def write(measured: Mapping[str, Durations]) -> None:
    """Replace the entries of these files, and remove those of files that no longer exist."""
    entries = {file: each for file, each in kept().items() if (ROOT / file).exists()}
    for file, each in measured.items():
        entries[file] = merged(entries.get(file, Durations()), each, is_long=LONG)
    lines = [f"{json.dumps(file)}: {json.dumps(_entry(entries[file]))}" for file in sorted(entries)]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _entry(durations: Durations) -> dict[str, float | list[str]]:
    entry: dict[str, float | list[str]] = {
        "all_s": round(durations.all_s, 1),
        "quick_s": round(durations.quick_s, 2),
    }
    if durations.slow:
        entry["slow"] = sorted(durations.slow)
    if durations.long_s:
        entry["long_s"] = round(durations.long_s, 1)
    return entry


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Measured())
