from __future__ import annotations

from collections import OrderedDict

import pytest

from tests.support.scheduling import one_scope, put_longest_first


@pytest.mark.parametrize(
    ("nodeid", "scope"),
    [
        ("tests/spark/test_session.py::test_a", "tests/spark"),
        ("tests/spark/test_source.py::TestB::test_c[embedded-1]", "tests/spark"),
        ("tests/spark/alike/test_alike.py::test_e[c]", "tests/spark"),
        ("tests/spark/pipeline/test_storage.py::test_f", "tests/spark"),
        ("tests/spark/planning/test_planner.py::test_d", None),
        ("tests/client/test_view.py::test_e[tests/spark/test_x.py::y]", None),
    ],
)
def test_tests_that_share_a_spark_session_share_a_worker(nodeid: str, scope: str | None) -> None:
    assert one_scope(nodeid) == scope


@pytest.mark.parametrize(
    ("scopes", "ordered"),
    [
        (["a.py", "tests/spark", "b.py"], ["tests/spark", "a.py", "b.py"]),
        (["a.py", "b.py"], ["a.py", "b.py"]),
    ],
)
def test_tests_that_share_a_spark_session_are_begun_first(
    scopes: list[str], ordered: list[str]
) -> None:
    queue: OrderedDict[str, dict[str, bool]] = OrderedDict((scope, {}) for scope in scopes)
    put_longest_first(queue)
    assert list(queue) == ordered
