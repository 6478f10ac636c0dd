"""How much of what has arrived a micro-batch takes: the options per trigger.

The rules are those of Spark's own Kafka source, so that a query that moves to this one has
batches of the same size. They are worked out here, because Spark's Python API has no limit made
of two, and none that waits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from typing import TypeAlias

from aiokafka_lite.client.offsets import Offsets
from aiokafka_lite.structs import TopicPartition

EarliestOffsets: TypeAlias = Callable[[Collection[TopicPartition]], Offsets]
"""Looks up where partitions begin; leaves out those that are not there any more."""


class Admission:
    """Decides where the next batch ends, and whether there is to be one already."""

    def __init__(
        self,
        *,
        max_offsets: int | None,
        min_offsets: int | None,
        max_delay_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the limits: ``maxOffsetsPerTrigger``, ``minOffsetsPerTrigger``, ``maxTriggerDelay``.

        Args:
            max_offsets: Offsets a batch covers at most, but for one of each partition; None: all.
            min_offsets: Offsets to wait for; None: do not wait.
            max_delay_s: How long to wait for them, counted from the batch before.
            clock: Where the time is read, in seconds.
        """
        self._max_offsets = max_offsets
        self._min_offsets = min_offsets
        self._max_delay_s = max_delay_s
        self._clock = clock
        self._last_batch_at: float | None = None

    @property
    def is_unlimited(self) -> bool:
        """Whether a batch takes all there is, whenever there is some."""
        return self._max_offsets is None and self._min_offsets is None

    def admit(
        self,
        start: Offsets,
        latest: Offsets,
        earliest: EarliestOffsets,
        *,
        may_wait: bool = True,
    ) -> Offsets:
        """Return where the next batch ends: at `start` when it is to wait for more.

        Args:
            start: Where the batch before ended.
            latest: The ends of the partitions that there are now.
            earliest: Asked for partitions that `start` does not have, if there are any.
            may_wait: False when nothing more will come: what there is is taken, however little.
        """
        if may_wait and self._min_offsets is not None and self._must_wait(start, latest):
            return start
        if self._max_offsets is None:
            return latest
        added = latest.keys() - start.keys()
        begins = {**earliest(added), **start} if added else start
        return prorate(self._max_offsets, begins, latest)

    def _must_wait(self, start: Offsets, latest: Offsets) -> bool:
        """Tell whether too little has come, in too short a time; the first batch never waits."""
        now = self._clock()
        if self._last_batch_at is not None and now - self._last_batch_at < self._max_delay_s:
            # An added partition counts from offset 0: to ask where it begins would cost a
            # request for each trigger that waits.
            arrived = sum(end - start.get(tp, 0) for tp, end in latest.items())
            if arrived < (self._min_offsets or 0):
                return True
        self._last_batch_at = now
        return False


def prorate(limit: int, begins: Offsets, latest: Offsets) -> Offsets:
    """Return ends that cover about `limit` offsets, in proportion to each partition's backlog.

    A part is rounded down, but up to one offset where it is less, so that a partition with few
    records next to large ones does not starve. Partitions that begin nowhere, or past their end,
    end where they end: the planner reports what is wrong with them.
    """
    backlog = {
        tp: end - begins[tp] for tp, end in latest.items() if tp in begins and end > begins[tp]
    }
    total = float(sum(backlog.values()))
    if total < 1:
        return dict(latest)
    ends = dict(latest)
    for tp, size in backlog.items():
        part = limit * (size / total)
        ends[tp] = min(latest[tp], begins[tp] + (math.floor(part) if part >= 1 else 1))
    return ends
