"""Which worker of xdist gets which tests."""

from __future__ import annotations

import itertools
import os
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from xdist.scheduler import LoadFileScheduling

from tests.support.durations import ROOT, Durations, kept
from tests.support.rounds import LONG

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

SHARED: Final = (0.55, 0.80)
"""Which scopes belong to all workers: those between these parts of the time, longest first."""
IMPORT_S: Final = 0.1
"""What a file costs that has only quick tests."""

SHARE_SPARK: Final = frozenset(
    f"tests/{name}.py"
    for name in (
        "demos/parquet/test_pipeline",
        "demos/parquet/test_storage",
        "spark/alike/test_alike",
        "spark/alike/test_streams",
        "spark/planning/test_as_the_connector",
        "spark/test_batch",
        "spark/test_checkpoints",
        "spark/test_spark_home",
        "spark/test_options_alike",
        "spark/test_session",
        "spark/test_snippets",
        "spark/test_stream",
    )
)
"""The files with tests that use the fixture `spark`."""

SHARE_JAVA: Final = frozenset(
    f"tests/{name}.py"
    for name in (
        "broker/clients/test_java_load",
        "broker/clients/test_java_tools",
        "broker/groups/kip848/test_clients",
        "broker/groups/test_clients",
        "broker/security/test_clients",
        "broker/share/test_clients",
        "broker/transactions/test_clients",
        "records/test_kafka_reads_us",
    )
)
"""The files with tests that use the fixture `java_runner`."""

BY_THEMSELVES: Final = frozenset(
    f"tests/{name}.py"
    for name in (
        "broker/log/test_kill",
        "chaos/test_real",
        "demos/parquet/test_killed",
        "demos/parquet/test_session",
        "spark/chaos/test_kills",
        "spark/test_deployments",
        "spark/test_versions",
        "model/storm/test_storm",
    )
)
"""The files whose tests start a cluster or a Spark session in other processes."""

# Those that share a session, which takes a gigabyte, and half a minute of CPU time until its code
# is compiled, have to be one worker's, and so have those that share the JVM of Kafka's tools. The
# others keep two cores busy by themselves, and beside one another they come to their timeouts. One
# worker would run them all for longer than an hour: the longest is run after those of the session.
_SCOPE_OF: Final[Mapping[str, str]] = {
    **dict.fromkeys(BY_THEMSELVES, "heavy"),
    **dict.fromkeys(SHARE_JAVA, "of Kafka's tools"),
    **dict.fromkeys((*SHARE_SPARK, "tests/spark/chaos/test_kills.py"), "of the session"),
}


def one_scope(nodeid: str) -> str | None:
    """Return the scope that a test shares with those of other files; None if it has its file's."""
    return _SCOPE_OF.get(nodeid.partition("::")[0])


def seconds_by_scope(durations: Mapping[str, Durations], *, is_long: bool) -> Mapping[str, float]:
    """Return how long the tests of each scope take: in the short form if the long is unknown."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for file, each in durations.items():
        seconds[one_scope(file) or file] += (is_long and each.long_s) or each.all_s
    return seconds


def seconds_of_form() -> Mapping[str, float]:
    """Return how long the tests of each scope take in the form that runs."""
    durations = kept()
    if os.environ.get("AIOKAFKA_LITE_TEST_FAST") == "1":
        from tests.support.fast import SECONDS, chosen  # it imports this module

        durations = {
            file: replace(durations[file], all_s=durations[file].quick_s)
            for file in chosen(durations, SECONDS)
        }
    return seconds_by_scope(durations, is_long=LONG)


def put_longest_first(
    queue: OrderedDict[str, dict[str, bool]], seconds: Mapping[str, float]
) -> None:
    """Move the scopes that take longest to the front of a queue of scopes.

    A long scope that begins last runs on alone, while the other workers have no tests left. Scopes
    that take equally long keep their order.
    """
    for scope in sorted(queue, key=lambda each: -seconds.get(each, 0.0)):
        queue.move_to_end(scope)


def shares(seconds: Mapping[str, float], count: int) -> Sequence[Set[str]]:
    """Return the scopes that each of `count` workers has for itself.

    The others belong to all workers: some that take neither long nor little time, and those of
    which the time is unknown. A worker that has finished its own takes one of them.
    """
    total = sum(seconds.values())
    before = 0.0
    own: list[set[str]] = [set() for _ in range(count)]
    loads = [0.0] * count
    for scope in sorted(seconds, key=lambda each: (-seconds[each], each)):
        is_shared = SHARED[0] * total <= before < SHARED[1] * total
        before += seconds[scope]
        if is_shared:
            continue
        least = loads.index(min(loads))
        own[least].add(scope)
        loads[least] += seconds[scope] + IMPORT_S
    return own


class Collected:
    """Leaves out the files that other workers have for themselves: they are not even imported."""

    def __init__(self, shares: Sequence[Set[str]], index: int) -> None:
        self._left_out = frozenset().union(*shares) - shares[index]

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        if not collection_path.name.startswith("test_"):
            return None
        file = collection_path.relative_to(ROOT).as_posix()
        return True if (one_scope(file) or file) in self._left_out else None


def collect_share(config: pytest.Config) -> None:
    """Have this worker collect its share, if the run has all tests, and not in the long form.

    A worker that replaces one that has crashed collects all tests.
    """
    index = int(config.workerinput["workerid"].removeprefix("gw"))  # type: ignore[attr-defined]
    count: int = config.workerinput["workercount"]  # type: ignore[attr-defined]
    has_all = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if has_all and not LONG and index < count:
        config.pluginmanager.register(Collected(shares(seconds_of_form(), count), index))


class SchedulingWithHeavyOnes(LoadFileScheduling):  # type: ignore[misc]  # xdist is not typed
    """Gives out tests by the file, and the heavy ones to one worker.

    Workers may have collected different tests. Each is given those that no other has, and then
    those that others have, too.
    """

    collection: list[str] | None

    def _split_scope(self, nodeid: str) -> str:
        scope: str = one_scope(nodeid) or super()._split_scope(nodeid)
        return scope

    @cached_property
    def _seconds(self) -> Mapping[str, float]:
        return seconds_of_form()

    @cached_property
    def _indices(self) -> dict[WorkerController, Mapping[str, int]]:
        return {}

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        self.registered_collections[node] = list(collection)
        self._indices[node] = {nodeid: index for index, nodeid in enumerate(collection)}

    def schedule(self) -> None:
        if self.collection is None:
            everything = itertools.chain(*self.registered_collections.values())
            collection = list(dict.fromkeys(everything))
            for nodeid in collection:
                self.workqueue.setdefault(self._split_scope(nodeid), {})[nodeid] = False
            self.collection = collection
            session = self.config.pluginmanager.get_plugin("session")
            session.testscollected = len(collection)  # the progress is that of all workers
        for _ in range(2):  # a worker begins its last test when it knows the next one
            for node in self.nodes:
                self._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if node not in self.registered_collections:
            return  # it replaces a worker that has crashed, and has not collected yet
        put_longest_first(self.workqueue, self._seconds)
        scope = self._next_scope(node)
        if scope is None:
            node.shutdown()
            return
        unit = self.assigned_work[node][scope] = self.workqueue.pop(scope)
        index = self._indices[node]
        if missing := [nodeid for nodeid in unit if nodeid not in index]:
            raise RuntimeError(
                f"{node.gateway.id} has no test {missing[0]}: its id differs between processes"
            )
        node.send_runtest_some([index[nodeid] for nodeid, is_done in unit.items() if not is_done])

    def _next_scope(self, node: WorkerController) -> str | None:
        """Return a scope that the worker has collected, one that no other has if there is any."""
        others = [self._indices[each] for each in self.nodes if each is not node]
        shared: str | None = None
        scope: str
        # The longest are those with clusters and JVMs. If all workers began with them, each would
        # get so little of the processors that it came to its timeouts.
        begins_with_short = LONG and int(node.gateway.id.removeprefix("gw")) % 2 == 1
        queue = reversed(self.workqueue.items()) if begins_with_short else self.workqueue.items()
        for scope, unit in queue:
            first = next(iter(unit))
            if first in self._indices[node]:
                if not any(first in other for other in others):
                    return scope
                shared = shared or scope
        return shared
