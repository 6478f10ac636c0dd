from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Collection
from pathlib import Path

import pytest

from tests.support.scheduling import (
    LONGEST,
    SHARE_SPARK,
    START_SPARK,
    one_scope,
    put_longest_first,
)

TESTS = Path(__file__).parent


@pytest.mark.parametrize(
    ("nodeid", "scope"),
    [
        ("tests/spark/test_session.py::test_a", "tests/spark"),
        ("tests/spark/test_batch.py::TestB::test_c[embedded-1]", "tests/spark"),
        ("tests/spark/alike/test_alike.py::test_e[c]", "tests/spark"),
        ("tests/spark/pipeline/test_storage.py::test_f", "tests/spark"),
        ("tests/spark/test_versions.py::test_g[4.0]", "tests/spark"),
        ("tests/spark/planning/test_planner.py::test_d", None),
        ("tests/client/test_view.py::test_e[tests/spark/test_x.py::y]", None),
    ],
)
def test_tests_that_run_spark_share_a_worker(nodeid: str, scope: str | None) -> None:
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
        (["a.py", "tests/spark", "b.py"], ["tests/spark", "a.py", "b.py"]),
        (["a.py", LONGEST[2], LONGEST[1]], [LONGEST[1], LONGEST[2], "a.py"]),
        (["a.py", "b.py"], ["a.py", "b.py"]),
    ],
)
def test_what_takes_longest_is_begun_first(scopes: list[str], ordered: list[str]) -> None:
    queue: OrderedDict[str, dict[str, bool]] = OrderedDict((scope, {}) for scope in scopes)
    put_longest_first(queue)
    assert list(queue) == ordered


@pytest.mark.parametrize("scopes", [LONGEST, START_SPARK])
def test_files_that_are_named_exist(scopes: Collection[str]) -> None:
    assert [scope for scope in scopes if not (TESTS.parent / scope).exists()] == []
