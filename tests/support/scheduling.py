"""Which worker of xdist gets which tests."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from xdist.scheduler import LoadFileScheduling

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


HALF_HOURS: Final = (
    "tests/model/test_model.py",
    "tests/model/test_model_real.py",
    "tests/model/pairs/test_pairs.py",
)
"""The files with tests that take half an hour each, or nearly, in the long form."""

MINUTES: Final = (
    "tests/consumer/group/test_heartbeat_thread.py",
    "tests/model/pairs/test_copying.py",
    "tests/consumer/group/test_kip848.py",
    "tests/consumer/processing/test_exactly_once_in_groups.py",
)
"""The files that take a minute or more in the short form with few tests, the longest first."""


def one_scope(nodeid: str) -> str | None:
    """Return the scope that a test shares with those of other files; None if it has its file's."""
    # Those that share a session, which takes a gigabyte, and half a minute of CPU time until its
    # code is compiled, have to be one worker's. The others keep two cores busy by themselves, and
    # beside one another they come to their timeouts.
    file = nodeid.partition("::")[0]
    return _HEAVY_SCOPE if file in SHARE_SPARK or file in BY_THEMSELVES else None


def put_longest_first(queue: OrderedDict[str, dict[str, bool]]) -> None:
    """Move the scopes that take longest to the front of a queue of scopes.

    The queue begins with the scopes of most tests. Begun last, the others would run on alone,
    beside workers that are done.
    """
    for scope in reversed((_HEAVY_SCOPE, *HALF_HOURS, *MINUTES)):
        if scope in queue:
            queue.move_to_end(scope, last=False)


class SchedulingWithHeavyOnes(LoadFileScheduling):  # type: ignore[misc]  # xdist is not typed
    """Gives out tests by the file, and the heavy ones to one worker."""

    def _split_scope(self, nodeid: str) -> str:
        scope: str = one_scope(nodeid) or super()._split_scope(nodeid)
        return scope

    def _assign_work_unit(self, node: WorkerController) -> None:
        put_longest_first(self.workqueue)
        super()._assign_work_unit(node)
