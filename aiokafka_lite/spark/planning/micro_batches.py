"""Where the micro-batches of a streaming query begin and end.

Spark asks, in this order: where the query begins (only if no checkpoint knows), where the next
batch ends, and what lies between. From PySpark 4.2 on it says with the second question where the
batch begins; before that one has to remember. Of a query that goes on from a checkpoint it asks
for what lies between first, or else it names the beginning of the next batch.

**The beginning of a query is in no checkpoint.** Spark's own source writes it to a file of the
checkpoint, whose place a Python source is not told. What is in the checkpoint is where the first
batch ends, before anything of it is read. So partitions that begin at their end (startingOffsets
"latest") are left out of the first batch: it ends there where it begins, and a query that stops
before the first batch is done finds in its checkpoint where it began. Other partitions begin where
the options say, however often they are asked.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from aiokafka_lite.client.offsets import LATEST, Offsets
from aiokafka_lite.spark.options.positions import AtOffsets, AtTimestamp, AtTimestamps, Latest

if TYPE_CHECKING:
    from aiokafka_lite.errors import OptionError
    from aiokafka_lite.spark.options import SourceOptions
    from aiokafka_lite.spark.planning.admission import Admission
    from aiokafka_lite.spark.planning.planner import Planner
    from aiokafka_lite.spark.ranges import KafkaOffsetRange
    from aiokafka_lite.structs import TopicPartition

log = logging.getLogger("aiokafka_lite.spark")


class MicroBatches:
    """Decides about one query's micro-batches, for as long as the query runs.

    Attributes:
        newest: The ends of all partitions when they were last looked up, None before that.
    """

    def __init__(self, options: SourceOptions, planner: Planner, admission: Admission) -> None:
        """Take what the query was asked to read, and who looks offsets up."""
        self._options = options
        self._planner = planner
        self._admission = admission
        self._initial: Offsets | None = None
        self._mismatch: OptionError | None = None
        self._at_end: frozenset[TopicPartition] = frozenset()
        self._target: Offsets | None = None
        self._last_end: Offsets | None = None
        self.newest: Offsets | None = None

    def initial(self) -> Offsets:
        """Return where the query begins that has no checkpoint: the same however often asked.

        Raises:
            OptionError, KafkaError: See `Planner.beginning`.
        """
        if self._initial is None:
            initial, self._mismatch = self._planner.beginning()
            self._at_end = frozenset(self._beginning_at_end(initial))
            if self._target is not None:  # the query began when that was fixed
                initial.update({tp: self._target.get(tp, initial[tp]) for tp in self._at_end})
            self._initial = initial
        return self._initial

    def _beginning_at_end(self, initial: Offsets) -> Collection[TopicPartition]:
        """Return the partitions whose beginning may be another one when it is asked for later."""
        match self._options.starting:
            case Latest():
                return initial.keys()
            case AtOffsets(offsets):
                return [tp for tp in initial if offsets.get(tp) == LATEST]
            case AtTimestamp() | AtTimestamps() if self._options.timestamp_strategy == "latest":
                ends = self._planner.latest(initial)
                return [tp for tp in initial if initial[tp] == ends.get(tp)]
            case _:
                return ()

    def fix_target(self) -> None:
        """Read what is there now and nothing that comes later: the trigger availableNow.

        Raises:
            KafkaError: See `Planner.latest`.
        """
        self._target = self._planner.latest()

    def next_end(self, start: Offsets | None, *, is_limited: bool) -> Offsets:
        """Return where the next batch ends: at `start` if there is to be none yet.

        Args:
            start: Where it begins; None if Spark did not say, which is remembered then.
            is_limited: False if the trigger takes everything, whatever the options say.

        Raises:
            OptionError: The query is new, and an option names other partitions than there are.
            KafkaError: See `Planner.latest`.
        """
        if start is None:
            # A query that goes on from a checkpoint has asked for ranges before it comes here.
            start = self.initial() if self._last_end is None else self._last_end
        is_first = self._last_end is None and start == self._initial
        if is_first and self._mismatch is not None:
            raise self._mismatch
        latest = self._planner.latest(start) if self._target is None else self._target
        self.newest = latest
        end = latest
        if is_limited and not self._admission.is_unlimited:
            may_wait = self._target is None
            end = self._admission.admit(start, latest, self._planner.earliest, may_wait=may_wait)
        if is_first:
            end = {**end, **{tp: start[tp] for tp in self._at_end if tp in end}}
        self._last_end = end
        return end

    def ranges(self, start: Offsets, end: Offsets) -> list[KafkaOffsetRange]:
        """Return what a batch reads.

        Raises:
            DataLossError, KafkaError: See `Planner.stream_ranges`.
        """
        is_resumed, self._last_end = self._last_end is None, end
        if start == end:
            return []  # how a query that goes on from a checkpoint says where it is
        if self._target is not None:
            self._planner.check_target(
                # A batch that a run before this one has planned may end elsewhere; what of it is
                # gone its tasks find out, and the option failOnDataLoss decides.
                {tp: offset for tp, offset in end.items() if offset <= self._target.get(tp, -1)}
            )
        if start == self._initial:
            start = self._as_begun(start, end, is_resumed=is_resumed)
        return self._planner.stream_ranges(start, end)

    def _as_begun(self, start: Offsets, end: Offsets, *, is_resumed: bool) -> Offsets:
        """Return where the first batch began when it was planned by a run that is over.

        A partition which that batch does not have was added since, and is not gone: the next batch
        reads it.
        """
        if is_resumed:
            start = {tp: offset for tp, offset in start.items() if tp in end}
        moved = {tp: end[tp] for tp in self._at_end if tp in end and start.get(tp, 0) > end[tp]}
        if moved:
            log.info(
                "an earlier run of this query planned its first batch, so the query begins at the "
                "offsets that were the latest then: %s",
                moved,
            )
        return {**start, **moved}
