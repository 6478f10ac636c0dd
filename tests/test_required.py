"""Without Kafka tests are skipped, or fail where it has to be there; how many ran is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
pytest_plugins = ["pytester"]

CONFTEST = """
import pytest
from tests.support.required import summary, unavailable

@pytest.fixture
def missing():
    unavailable("there is no Java")

def pytest_terminal_summary(terminalreporter):
    stats = terminalreporter.stats
    terminalreporter.write_line(
        summary([each for kind in ("passed", "skipped", "error") for each in stats.get(kind, ())])
    )
"""
SOURCE = """
import pytest

@pytest.mark.real_kafka
@pytest.mark.parametrize("number", range(3))
def test_there(number): ...

@pytest.mark.real_kafka
def test_left_out(missing): ...

@pytest.mark.java
def test_tool(): ...

def test_without(): ...
"""

# Plugins that the environment has take longer to import than all else.
WITHOUT_PLUGINS = ("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.fixture
def result(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> pytest.RunResult:
    monkeypatch.setenv("PYTHONPATH", str(TESTS.parent))
    monkeypatch.setenv("PYTEST_ADDOPTS", "")
    monkeypatch.setenv(*WITHOUT_PLUGINS)
    monkeypatch.setenv("REQUIRE_KAFKA", request.param[0])
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(SOURCE)
    pytester.makeini("[pytest]\nmarkers =\n    real_kafka\n    java\n")
    return pytester.runpytest_subprocess("-p", "no:randomly", *request.param[1])


ALONE: list[str] = []
WITH_WORKERS = ["-p", "xdist", "-n", "2"]


@pytest.mark.parametrize(
    "result",
    [pytest.param(("", ALONE), marks=pytest.mark.slow), ("", WITH_WORKERS)],
    indirect=True,
    ids=str,
)
def test_what_needs_kafka_is_skipped_and_counted(result: pytest.RunResult) -> None:
    result.assert_outcomes(passed=5, skipped=1)
    result.stdout.fnmatch_lines(
        ["with a real Kafka: 3 tests ran, 1 skipped; with Kafka's Java tools: 1 tests ran, 0 *"]
    )


@pytest.mark.parametrize(
    "result",
    [("1", ALONE), pytest.param(("1", WITH_WORKERS), marks=pytest.mark.slow)],
    indirect=True,
    ids=str,
)
def test_where_kafka_is_required_a_skip_is_a_failure(result: pytest.RunResult) -> None:
    result.assert_outcomes(passed=5, errors=1)
    result.stdout.fnmatch_lines(
        ["REQUIRE_KAFKA=1 allows no test to be skipped for want of Kafka: there is no Java"]
    )


def test_no_test_skips_for_want_of_kafka_by_itself() -> None:
    caught = re.compile(
        r"except \(?\s*(?:\w+,\s*)*(?:Kafka|Jars|Spark)UnavailableError.*\n.*skip\("
    )
    found = [
        str(path.relative_to(TESTS))
        for path in TESTS.rglob("*.py")
        if caught.search(path.read_text())
    ]
    assert found == []


def test_ci_requires_it_where_java_and_maven_are() -> None:
    script = (TESTS.parent / ".ci" / "run").read_text()
    required = script.index("export REQUIRE_KAFKA=1")
    assert "command -v java" in script[:required]
    assert "command -v mvn" in script[:required]
    assert required < script.index("make test")


def test_a_file_that_cannot_be_read_is_told_by_its_error(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS.parent))
    monkeypatch.setenv(*WITHOUT_PLUGINS)
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile("import no_such_module")
    told = pytester.runpytest_subprocess("-p", "no:randomly")
    assert told.ret == pytest.ExitCode.INTERRUPTED
    told.stdout.fnmatch_lines(["*No module named 'no_such_module'*", "*0 tests ran*"])
