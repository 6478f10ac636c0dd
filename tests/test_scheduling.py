from __future__ import annotations

import pytest

from tests.support.scheduling import one_scope


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
