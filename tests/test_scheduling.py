from __future__ import annotations

import re
from collections import OrderedDict
from pathlib import Path

import pytest

from tests.support.scheduling import (
    BY_THEMSELVES,
    HALF_HOURS,
    MINUTES,
    SHARE_SPARK,
    one_scope,
    put_longest_first,
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
    ("scopes", "ordered"),
    [
        (["a.py", "heavy", "b.py"], ["heavy", "a.py", "b.py"]),
        (["a.py", "b.py"], ["a.py", "b.py"]),
        (["a.py", *reversed(HALF_HOURS), "heavy"], ["heavy", *HALF_HOURS, "a.py"]),
        ([HALF_HOURS[0], "a.py", *HALF_HOURS[1:]], [*HALF_HOURS, "a.py"]),
        (["a.py", *MINUTES, *HALF_HOURS], [*HALF_HOURS, *MINUTES, "a.py"]),
    ],
)
def test_what_takes_longest_is_begun_first(scopes: list[str], ordered: list[str]) -> None:
    queue: OrderedDict[str, dict[str, bool]] = OrderedDict((scope, {}) for scope in scopes)
    put_longest_first(queue)
    assert list(queue) == ordered


def test_files_that_are_named_exist() -> None:
    named = (*BY_THEMSELVES, *HALF_HOURS, *MINUTES)
    assert [file for file in named if not (TESTS.parent / file).exists()] == []
