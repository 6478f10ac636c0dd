from __future__ import annotations

import re
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import durations, fast
from tests.support.durations import Durations, Measured
from tests.support.for_each import for_each


def report(nodeid: str, seconds: float, *keywords: str) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid=nodeid,
        location=(nodeid, 0, nodeid),
        keywords=dict.fromkeys(keywords, 1),
        outcome="passed",
        longrepr=None,
        when="call",
        duration=seconds,
    )


def test_files_whose_quick_tests_take_least_are_chosen() -> None:
    measured = {
        "a.py": Durations(quick_s=3.0),
        "b.py": Durations(quick_s=1.0),
        "c.py": Durations(quick_s=1.5),
    }
    assert fast.chosen(measured, 3.0) == {"b.py", "c.py"}
    assert fast.chosen(measured, 6.0) == {"a.py", "b.py", "c.py"}


def test_slow_tests_and_those_with_kafka_are_not_quick() -> None:
    measured = Measured()
    measured.pytest_runtest_logreport(report("a.py::test_quick[1]", 0.1))
    measured.pytest_runtest_logreport(report("a.py::test_quick[2]", 0.125))
    measured.pytest_runtest_logreport(report("a.py::test_slow[1]", 0.1))
    measured.pytest_runtest_logreport(report("a.py::test_slow[2]", 2.0))
    measured.pytest_runtest_logreport(report("a.py::test_kafka", 5.0, "real_kafka"))
    (of_file,) = measured.by_file().values()
    assert of_file.all_s == pytest.approx(7.325)
    assert of_file.quick_s == pytest.approx(0.225)
    assert of_file.slow == {"test_slow"}


@pytest.mark.parametrize(
    ("is_long", "kept"),
    [(False, Durations(2.0, 1.0, long_s=9.0)), (True, Durations(1.0, long_s=2.0))],
)
def test_a_run_replaces_the_durations_of_its_form(*, is_long: bool, kept: Durations) -> None:
    before = Durations(1.0, long_s=9.0)
    assert durations.merged(before, Durations(2.0, 1.0), is_long=is_long) == kept


@pytest.mark.parametrize(
    ("status", "chosen", "is_written"),
    [
        (pytest.ExitCode.OK, {}, True),
        (pytest.ExitCode.TESTS_FAILED, {"args": ["tests/consumer/test_a.py"]}, True),
        (pytest.ExitCode.INTERRUPTED, {}, False),
        (pytest.ExitCode.OK, {"keyword": "a"}, False),
        (pytest.ExitCode.OK, {"markexpr": "not slow"}, False),
        (pytest.ExitCode.OK, {"args": ["tests/consumer/test_a.py::test_b"]}, False),
    ],
)
def test_a_run_with_a_part_of_a_files_tests_replaces_no_duration(
    status: int, chosen: dict[str, object], is_written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[object] = []
    monkeypatch.setattr(durations, "write", written.append)
    option = SimpleNamespace(**{"keyword": "", "markexpr": "", "args": ["tests"], **chosen})
    terminal: Any = SimpleNamespace(write_line=str)
    config: Any = SimpleNamespace(option=option, args=option.args)
    Measured().pytest_terminal_summary(terminal, status, config)
    assert bool(written) is is_written


@for_each(
    [
        (ModuleNotFoundError("no", name="no_such_package.part"), "no_such_package"),
        (ModuleNotFoundError("no", name="asyncio.no_such_part"), None),
        (ModuleNotFoundError("no", name="aiokafka_lite.no_such_part"), None),
        (ModuleNotFoundError("a message of its own", name="no_such_package"), "no_such_package"),
        (ImportError("cannot import name 'x' from 'y'", name="y"), None),
        (None, None),
    ]
)
def test_only_a_package_that_is_not_installed_is_missing(
    error: ImportError | None, package: str | None
) -> None:
    assert fast.missing_package(error) == package


@for_each(
    [
        ("import no_such_package.part", "skipped"),
        ("raise ModuleNotFoundError('install it', name='no_such_package')", "skipped"),
        ("import aiokafka_lite.no_such_part", "failed"),
        ("from aiokafka_lite import no_such_name", "failed"),
        ("def test_it(): pass", "passed"),
    ]
)
def test_a_file_that_needs_a_package_that_is_not_installed_is_skipped(
    code: str, outcome: str
) -> None:
    def collect() -> list[Any]:
        try:
            exec(code, {})  # noqa: S102 -- as pytest imports a file
        except ImportError as error:
            raise pytest.Collector.CollectError("it cannot be imported") from error
        return []

    call = pytest.CallInfo.from_call(collect, "collect")
    found: Any = SimpleNamespace(
        failed=call.excinfo is not None,
        outcome="passed" if call.excinfo is None else "failed",
        call=call,
    )
    hook = fast.Fast().pytest_make_collect_report(SimpleNamespace(path="x"))  # type: ignore[arg-type]
    next(hook)
    with pytest.raises(StopIteration):
        hook.send(found)
    assert found.outcome == outcome


def test_what_is_kept_names_files_and_tests_that_exist() -> None:
    gone = []
    for file, each in durations.kept().items():
        path = durations.ROOT / file
        text = path.read_text("utf-8") if path.exists() else ""
        gone += [] if text else [file]
        for name in (slow.partition("::")[0] for slow in each.slow):
            if re.search(rf"^(async def|def|class) {name}\b|^{name} = ", text, re.M) is None:
                gone.append(f"{file}::{name}")
    assert gone == [], "make durations"


@pytest.mark.parametrize("hook", [fast.Fast.pytest_runtest_setup, fast.Fast.pytest_runtest_call])
@pytest.mark.parametrize("package", ["no_such_package", "asyncio.no_such_part"])
def test_what_stops_for_want_of_a_package_is_skipped(
    hook: Callable[[fast.Fast], Generator[None, None, None]], package: str
) -> None:
    is_missing = package == "no_such_package"
    running = hook(fast.Fast())
    next(running)
    with pytest.raises(pytest.skip.Exception if is_missing else ModuleNotFoundError):
        running.throw(ModuleNotFoundError("no", name=package))
