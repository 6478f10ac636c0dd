from __future__ import annotations

import re
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.durations import ROOT, Durations
from tests.support.for_each import for_each
from tests.support.scheduling import (
    BY_THEMSELVES,
    SHARE_JAVA,
    SHARE_SPARK,
    Collected,
    SchedulingWithHeavyOnes,
    one_scope,
    put_longest_first,
    seconds_by_scope,
    shares,
)

TESTS = Path(__file__).parent


@for_each(
    [
        ("tests/spark/test_session.py::test_a", "of the session"),
        ("tests/spark/test_batch.py::TestB::test_c[embedded-1]", "of the session"),
        ("tests/spark/alike/test_alike.py::test_e[c]", "of the session"),
        ("tests/demos/parquet/test_storage.py::test_f", "of the session"),
        ("tests/spark/chaos/test_kills.py::test_h", "of the session"),
        ("tests/chaos/test_real.py::test_g[4.0]", "heavy"),
        ("tests/records/test_kafka_reads_us.py::test_i", "of Kafka's tools"),
        ("tests/spark/planning/test_planner.py::test_d", None),
        ("tests/client/test_view.py::test_e[tests/spark/test_x.py::y]", None),
    ]
)
def test_heavy_tests_share_two_workers(nodeid: str, scope: str | None) -> None:
    assert one_scope(nodeid) == scope


@pytest.mark.parametrize(
    ("parameter", "files"),
    [
        (r"\bspark(_with_connector)?: SparkSession", SHARE_SPARK),
        (r"\b(java_runner|both): (JavaRunner|BothKafkas)", SHARE_JAVA),
    ],
)
def test_files_that_use_the_session_are_known(parameter: str, files: frozenset[str]) -> None:
    uses = re.compile(parameter)
    using = {
        f"tests/{file.relative_to(TESTS).as_posix()}"
        for file in TESTS.rglob("test_*.py")
        if uses.search(file.read_text())
    }
    assert using == files


@pytest.mark.parametrize(
    ("is_long", "ordered"),
    [
        (False, ["of the session", "b.py", "a.py", "new.py", "newer.py"]),
        (True, ["a.py", "of the session", "b.py", "new.py", "newer.py"]),
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
        (scope, {}) for scope in ("new.py", "a.py", "newer.py", "b.py", "of the session")
    )
    put_longest_first(queue, seconds_by_scope(durations, is_long=is_long))
    assert list(queue) == ordered


def test_every_file_is_collected_by_one_worker_or_by_all() -> None:
    seconds = {"of the session": 50.0, "test_a.py": 40.0, "test_b.py": 40.0, "test_c.py": 20.0}
    assert shares(seconds, 2) == [{"of the session"}, {"test_a.py", "test_c.py"}]
    files = ["tests/spark/test_batch.py", "test_a.py", "test_b.py", "test_c.py", "test_new.py"]
    heavy, other = (
        [file for file in files if not each.pytest_ignore_collect(ROOT / file)]
        for each in (Collected(shares(seconds, 2), index) for index in range(2))
    )
    assert heavy == ["tests/spark/test_batch.py", "test_b.py", "test_new.py"]
    assert other == ["test_a.py", "test_b.py", "test_c.py", "test_new.py"]


class Worker:
    """A worker that keeps what it is to run."""

    def __init__(self, collection: list[str], name: str = "gw0") -> None:
        self.collection = collection
        self.shutting_down = False
        self.given: list[str] = []
        self.done = 0
        self.gateway = SimpleNamespace(id=name)

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += [self.collection[index] for index in indices]

    def shutdown(self) -> None:
        self.shutting_down = True


def test_workers_run_their_own_files_first_and_every_test_is_run_once(
    pytestconfig: pytest.Config, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = request.session
    monkeypatch.setattr(session, "testscollected", session.testscollected)
    monkeypatch.setattr(pytestconfig.option, "tx", ["2*popen"])
    shared = [f"{file}.py::test_{n}" for file in ("shared", "other") for n in range(4)]
    slow = Worker([*shared, *(f"slow.py::test_{n}" for n in range(4))])
    quick = Worker([*(f"quick.py::test_{n}" for n in range(4)), *shared])
    scheduling = SchedulingWithHeavyOnes(pytestconfig)
    for worker in (slow, quick):
        scheduling.add_node(worker)
        scheduling.add_node_collection(worker, worker.collection)
    scheduling.schedule()
    assert session.testscollected == 16
    while not scheduling.tests_finished:
        # The slow one stays in its first test.
        index = quick.collection.index(quick.given[quick.done])
        scheduling.mark_test_complete(quick, index)
        quick.done += 1
        if quick.done == len(quick.given):
            break
    assert slow.given[:4] == [f"slow.py::test_{n}" for n in range(4)]
    assert quick.given[:4] == [f"quick.py::test_{n}" for n in range(4)]
    assert sorted(slow.given + quick.given) == sorted({*slow.collection, *quick.collection})
    assert quick.shutting_down


def test_every_other_worker_of_the_long_form_begins_with_the_shortest(
    pytestconfig: pytest.Config, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = request.session
    monkeypatch.setattr(session, "testscollected", session.testscollected)
    monkeypatch.setattr(pytestconfig.option, "tx", ["2*popen"])
    monkeypatch.setattr("tests.support.scheduling.LONG", True)
    files = ("c.py", "a.py", "f.py", "d.py", "b.py", "e.py")
    workers = [Worker([f"{file}::test" for file in files], name) for name in ("gw0", "gw1")]
    scheduling = SchedulingWithHeavyOnes(pytestconfig)
    scheduling._seconds = {file: ord(file[0]) for file in files}
    for worker in workers:
        scheduling.add_node(worker)
        scheduling.add_node_collection(worker, worker.collection)
    scheduling.schedule()
    assert workers[0].given == ["f.py::test", "e.py::test"]
    assert workers[1].given == ["a.py::test", "b.py::test"]


def test_files_that_are_named_exist() -> None:
    assert [file for file in BY_THEMSELVES if not (TESTS.parent / file).exists()] == []


def test_a_worker_that_replaces_another_one_gets_work_when_it_has_collected() -> None:
    scheduling = object.__new__(SchedulingWithHeavyOnes)
    scheduling.registered_collections = {}
    scheduling.workqueue = OrderedDict(scope={"test": False})
    scheduling._assign_work_unit(object())
    assert list(scheduling.workqueue) == ["scope"]


def test_an_id_that_differs_between_processes_is_named(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytestconfig.option, "tx", ["popen"])
    scheduling = SchedulingWithHeavyOnes(pytestconfig)
    worker = Worker(["a.py::test[1]"])
    scheduling.add_node(worker)
    scheduling.add_node_collection(worker, worker.collection)
    scheduling.workqueue = OrderedDict({"a.py": {"a.py::test[1]": False, "a.py::test[2]": False}})
    with pytest.raises(RuntimeError, match=r"gw0 has no test a\.py::test\[2\]"):
        scheduling._assign_work_unit(worker)
