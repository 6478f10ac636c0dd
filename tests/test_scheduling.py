from __future__ import annotations

import re
from collections import OrderedDict
from pathlib import Path

import pytest

from tests.support.durations import Durations
from tests.support.scheduling import (
    BY_THEMSELVES,
    SHARE_SPARK,
    SchedulingWithHeavyOnes,
    one_scope,
    put_longest_first,
    seconds_by_scope,
)

TESTS = Path(__file__).parent


@pytest.mark.parametrize(
    ("nodeid", "scope"),
    [
        ("tests/spark/test_session.py::test_a", "heavy"),
        ("tests/spark/test_batch.py::TestB::test_c[embedded-1]", "heavy"),
        ("tests/spark/alike/test_alike.py::test_e[c]", "heavy"),
        ("tests/spark/pipeline/test_storage.py::test_f", "heavy"),
        ("tests/chaos/test_real.py::test_g[4.0]", "heavy"),
        ("tests/spark/planning/test_planner.py::test_d", None),
        ("tests/client/test_view.py::test_e[tests/spark/test_x.py::y]", None),
    ],
)
def test_heavy_tests_share_a_worker(nodeid: str, scope: str | None) -> None:
    assert one_scope(nodeid) == scope


def test_files_that_use_the_session_are_known() -> None:
    uses = re.compile(r"\bspark(_with_connector)?: SparkSession")
    using = {
        f"tests/{file.relative_to(TESTS).as_posix()}"
        for file in TESTS.rglob("test_*.py")
        if uses.search(file.read_text())
    }
    assert using == SHARE_SPARK


@pytest.mark.parametrize(
    ("is_long", "ordered"),
    [
        (False, ["heavy", "b.py", "a.py", "new.py", "newer.py"]),
        (True, ["a.py", "heavy", "b.py", "new.py", "newer.py"]),
    ],
)
def test_scopes_that_take_longest_are_begun_first(*, is_long: bool, ordered: list[str]) -> None:
    durations = {
        "a.py": Durations(all_s=1.0, long_s=100.0),
        "b.py": Durations(all_s=3.0),
        "tests/spark/test_batch.py": Durations(all_s=2.0, long_s=2.0),
        "tests/spark/test_session.py": Durations(all_s=2.0, long_s=2.0),
    }
    queue: OrderedDict[str, dict[str, bool]] = OrderedDict(
        (scope, {}) for scope in ("new.py", "a.py", "newer.py", "b.py", "heavy")
    )
    put_longest_first(queue, seconds_by_scope(durations, is_long=is_long))
    assert list(queue) == ordered


def test_files_that_are_named_exist() -> None:
    assert [file for file in BY_THEMSELVES if not (TESTS.parent / file).exists()] == []


def test_a_worker_that_replaces_another_one_gets_work_when_it_has_collected() -> None:
    scheduling = object.__new__(SchedulingWithHeavyOnes)
    scheduling.registered_collections = {}
    scheduling.workqueue = OrderedDict(scope={"test": False})
    scheduling._assign_work_unit(object())
    assert list(scheduling.workqueue) == ["scope"]
