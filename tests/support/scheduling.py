"""Which worker of xdist gets which tests."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Final

from xdist.scheduler import LoadFileScheduling

from tests.support.durations import Durations, kept
from tests.support.rounds import LONG

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

_HEAVY_SCOPE: Final = "heavy"

SHARE_SPARK: Final = frozenset(
    f"tests/spark/{name}.py"
    for name in (
        "alike/test_alike",
        "alike/test_streams",
        "pipeline/test_pipeline",
        "pipeline/test_storage",
        "planning/test_as_the_connector",
        "test_batch",
        "test_checkpoints",
        "test_spark_home",
        "test_options_alike",
        "test_session",
        "test_snippets",
        "test_stream",
    )
)
"""The files with tests that use the fixture `spark`."""

BY_THEMSELVES: Final = frozenset(
    f"tests/{name}.py"
    for name in (
        "broker/log/test_kill",
        "chaos/test_real",
        "spark/chaos/test_kills",
        "spark/pipeline/test_killed",
        "spark/pipeline/test_session",
        "spark/test_deployments",
        "spark/test_versions",
        "model/storm/test_storm",
    )
)
"""The files whose tests start a cluster or a Spark session in other processes."""


def one_scope(nodeid: str) -> str | None:
    """Return the scope that a test shares with those of other files; None if it has its file's."""
    # Those that share a session, which takes a gigabyte, and half a minute of CPU time until its
    # code is compiled, have to be one worker's. The others keep two cores busy by themselves, and
    # beside one another they come to their timeouts.
    file = nodeid.partition("::")[0]
    return _HEAVY_SCOPE if file in SHARE_SPARK or file in BY_THEMSELVES else None


def seconds_by_scope(durations: Mapping[str, Durations], *, is_long: bool) -> Mapping[str, float]:
    """Return how long the tests of each scope take: in the short form if the long is unknown."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for file, each in durations.items():
        seconds[one_scope(file) or file] += (is_long and each.long_s) or each.all_s
    return seconds


def put_longest_first(
    queue: OrderedDict[str, dict[str, bool]], seconds: Mapping[str, float]
) -> None:
    """Move the scopes that take longest to the front of a queue of scopes.

    A long scope that begins last runs on alone, while the other workers have no tests left. Scopes
    that take equally long keep their order.
    """
    for scope in sorted(queue, key=lambda each: -seconds.get(each, 0.0)):
        queue.move_to_end(scope)


class SchedulingWithHeavyOnes(LoadFileScheduling):  # type: ignore[misc]  # xdist is not typed
    """Gives out tests by the file, and the heavy ones to one worker."""

    def _split_scope(self, nodeid: str) -> str:
        scope: str = one_scope(nodeid) or super()._split_scope(nodeid)
        return scope

    @cached_property
    def _seconds(self) -> Mapping[str, float]:
        return seconds_by_scope(kept(), is_long=LONG)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if node not in self.registered_collections:
            return  # it replaces a worker that has crashed, and has not collected yet
        put_longest_first(self.workqueue, self._seconds)
        super()._assign_work_unit(node)
