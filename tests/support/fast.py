"""The tests of `make test-fast`: quick ones, without Kafka, Java and Spark.

    python -m pytest -p tests.support.fast

The files are chosen by the durations that are kept in tests/durations.json: those whose quick tests
take least, until SECONDS are full. A file that was not measured yet is run. A test that stops
because a package is missing, one that the extra `test` does not have, is skipped.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from aiokafka_lite.cli.problems import MissingExtraError
from tests.support.durations import ROOT, Durations, function_of, kept
from tests.support.required import MARKS
from tests.support.scheduling import BY_THEMSELVES, SHARE_SPARK

SECONDS: Final = 45.0
"""Of the chosen tests, one after the other; collecting takes half a minute of CPU time more."""


def chosen(durations: Mapping[str, Durations], seconds: float) -> frozenset[str]:
    """Return the files whose quick tests take least, as many as fit into `seconds`."""
    files: set[str] = set()
    for file, each in sorted(durations.items(), key=lambda item: (item[1].quick_s, item[0])):
        seconds -= each.quick_s
        if seconds < 0:
            break
        files.add(file)
    return frozenset(files)


def missing_package(error: BaseException | None) -> str | None:
    """Return the package that is not installed, if an import failed because of it."""
    name = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
    package = name.partition(".")[0]
    return package if package and importlib.util.find_spec(package) is None else None


@contextmanager
def skipping() -> Iterator[None]:
    """Skip the test if it stops because a package is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = missing_package(error)
        if package is None:
            raise
        pytest.skip(f"{package} is not installed")
    except MissingExtraError as error:
        pytest.skip(str(error))


class Fast:
    """Leaves out files before they are imported, and tests before they run."""

    def __init__(self) -> None:
        self._durations = kept()
        self._chosen = chosen(self._durations, SECONDS)
        self._left_out = 0

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        if collection_path.suffix != ".py" or not collection_path.is_relative_to(ROOT):
            return None
        file = collection_path.relative_to(ROOT).as_posix()
        is_heavy = file in BY_THEMSELVES or file in SHARE_SPARK
        is_known = file in self._durations and file not in self._chosen
        self._left_out += is_heavy or is_known
        return True if is_heavy or is_known else None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        slow = [item for item in items if self._is_slow(item)]
        if slow:
            config.hook.pytest_deselected(items=slow)
            items[:] = [item for item in items if item not in set(slow)]

    def _is_slow(self, item: pytest.Item) -> bool:
        if any(item.get_closest_marker(mark) for mark in (*MARKS, "real_time")):
            return True
        durations = self._durations.get(item.nodeid.partition("::")[0])
        return durations is not None and function_of(item.nodeid) in durations.slow

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        if not report.failed:
            return report
        # A file that cannot be imported fails with an error of pytest, whose cause is the import's.
        excinfo = report.call.excinfo
        if package := missing_package(excinfo.value.__cause__):
            report.outcome = "skipped"
            report.longrepr = (str(collector.path), 0, f"Skipped: {package} is not installed")
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Generator[None, None, None]:
        with skipping():
            yield

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, None, None]:
        with skipping():
            yield

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.write_line(
            f"the fast form: {len(self._chosen)} of {len(self._durations)} files that were measured"
        )


def pytest_configure(config: pytest.Config) -> None:
    os.environ["AIOKAFKA_LITE_TEST_FAST"] = "1"
    config.pluginmanager.register(Fast())
