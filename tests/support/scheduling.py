"""Which worker of xdist gets which tests."""

from __future__ import annotations

import re
from typing import Final

from xdist.scheduler import LoadFileScheduling

_SPARK: Final = re.compile(r"tests/spark/(test_[^/]*|alike/[^/]*|pipeline/[^/]*)\.py::")


def one_scope(nodeid: str) -> str | None:
    """Return the scope that a test shares with those of other files; None if it has its file's."""
    # These share a session, which takes a gigabyte, and half a minute of CPU time until its code
    # is compiled: one worker has them all.
    return "tests/spark" if _SPARK.match(nodeid) else None


class SchedulingWithOneSpark(LoadFileScheduling):  # type: ignore[misc]  # xdist is not typed
    """Gives out tests by the file, and those that share a Spark session to one worker."""

    def _split_scope(self, nodeid: str) -> str:
        scope: str = one_scope(nodeid) or super()._split_scope(nodeid)
        return scope
