from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.failures import FailuresAtOnce


def test_failures_are_in_the_file_at_once_and_those_of_the_run_before_are_not(
    tmp_path: Path,
) -> None:
    file = tmp_path / "out" / "failures.txt"
    for nodeid in ("test_a.py::test_of_before", "test_a.py::test_b[1]"):
        failures = FailuresAtOnce(file)
        failures.pytest_runtest_logreport(report("test_a.py::test_passed", "passed", None))
        assert file.read_text() == ""
        failures.pytest_runtest_logreport(report(nodeid, "failed", "E  assert 1 == 2"))
    text = file.read_text()
    assert "test_a.py::test_b[1] (call)\nE  assert 1 == 2\n-- Captured log\nthe log" in text
    assert "test_of_before" not in text


def report(nodeid: str, outcome: str, longrepr: str | None) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid, ("test_a.py", 1, "test_a"), {}, outcome, longrepr, "call",  # type: ignore[arg-type]
        sections=[("Captured log", "the log")],
    )  # fmt: skip
