"""Which worker of xdist gets which tests."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

_SPARK_SCOPE: Final = "tests/spark"
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
        "test_options_alike",
        "test_session",
        "test_stream",
    )
)
"""The files with tests that use the fixture `spark`."""

START_SPARK: Final = frozenset(
    f"tests/spark/{name}.py"
    for name in ("chaos/test_kills", "pipeline/test_killed", "test_deployments", "test_versions")
)
"""The files with tests that start sessions in processes of their own; in the long form only."""


def one_scope(nodeid: str) -> str | None:
    """Return the scope that a test shares with those of other files; None if it has its file's."""
    # Those that share a session, which takes a gigabyte, and half a minute of CPU time until its
    # code is compiled, have to be one worker's. Those that start their own are, too: one session
    # keeps two cores busy, and beside two others it comes to its timeouts.
    file = nodeid.partition("::")[0]
    return _SPARK_SCOPE if file in SHARE_SPARK or file in START_SPARK else None


LONGEST: Final = (_SPARK_SCOPE, "tests/chaos/test_real.py", "tests/broker/log/test_kill.py")
"""Scopes that take minutes, the longest first; but for the first in the long form only."""


def put_longest_first(queue: OrderedDict[str, dict[str, bool]]) -> None:
    """Move the scopes that take longest to the front of a queue of scopes.

    Begun last they would run on alone, beside workers that are done.
    """
    for scope in reversed(LONGEST):
        if scope in queue:
            queue.move_to_end(scope, last=False)


class SchedulingWithOneSpark(LoadFileScheduling):  # type: ignore[misc]  # xdist is not typed
    """Gives out tests by the file, and those that run Spark to one worker."""

    def _split_scope(self, nodeid: str) -> str:
        scope: str = one_scope(nodeid) or super()._split_scope(nodeid)
        return scope

    def _assign_work_unit(self, node: WorkerController) -> None:
        put_longest_first(self.workqueue)
        super()._assign_work_unit(node)
