"""The starts and ends of a streaming query's micro-batches.

Spark asks in this order: for the query's start (only without a checkpoint), for the end of the next
batch, and for its ranges. From PySpark 4.2 on the second question contains the batch's start. For a
query that continues from a checkpoint, Spark first asks for ranges or names the next start.

**No checkpoint has the start of a query**, but it has the end of the first batch. So the first
batch reads no records of partitions that begin at their end (startingOffsets "latest"), and a query
that stops before its first batch is finished finds its start there.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

from aiokafka_lite.client.backoff import Backoff
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.cluster_requests import coordinator_of, coordinator_request
from aiokafka_lite.client.offset_commits import commit_request, commit_results
from aiokafka_lite.client.offsets import LATEST, CommittedOffset, Offsets
from aiokafka_lite.client.view import Node
from aiokafka_lite.errors import (
    GroupAuthorizationFailedError,
    KafkaError,
    OptionError,
    RebalanceInProgressError,
    TopicAuthorizationFailedError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka_lite.spark import worker
from aiokafka_lite.spark.errors import named
from aiokafka_lite.spark.options import SourceOptions
from aiokafka_lite.spark.planner import Planner, Task
from aiokafka_lite.structs import TopicPartition

log = logging.getLogger("aiokafka_lite.spark")

# --- Commits to a group -----------------------------------------------------------------------
# How long a commit may delay a micro-batch.
TRIED_FOR_S: Final = 5.0
# The first and the longest time without commits after failures.
PAUSE_FIRST_S: Final = 1.0
PAUSE_LAST_S: Final = 60.0
# Kafka deletes offsets that were committed seven days ago (by default).
COMMITTED_AGAIN_AFTER_S: Final = 3600.0

_IN_USE: Final = (
    "consumers are members of the group, but this source can only commit to a group without "
    "members: set the option commitOffsetsToGroup to a group that has no members"
)
ADVICE: Final[Mapping[type[KafkaError], str]] = {
    UnknownMemberIdError: _IN_USE,
    RebalanceInProgressError: _IN_USE,
    GroupAuthorizationFailedError: (
        "grant the user READ on the group that the option commitOffsetsToGroup names"
    ),
    TopicAuthorizationFailedError: "grant the user READ on the topics",
}


class GroupCommits:
    """Commits offsets of processed micro-batches to a group, so that its lag can be seen.

    Spark uses its checkpoint only. So a failed commit is only retried for some seconds, and the log
    warns once. The group has no members: a group with members rejects the commits.
    """

    def __init__(
        self,
        group_id: str,
        cluster: BlockingCluster,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._group_id = group_id
        self._cluster = cluster
        self._clock = clock
        self._sleep = sleep
        self._coordinator: Node | None = None
        self._committed: Offsets = {}
        self._committed_all_at = float("-inf")
        self._failures = Backoff(PAUSE_FIRST_S, PAUSE_LAST_S, random.Random())
        self._next_attempt_at = float("-inf")
        self._warned_of: type[KafkaError] | None = None

    def commit(self, offsets: Offsets) -> None:
        """Commit the offsets that changed since the last commit. Takes about 5 seconds at most."""
        now = self._clock()
        if now < self._next_attempt_at:
            return
        is_time_for_all = now - self._committed_all_at >= COMMITTED_AGAIN_AFTER_S
        left = {
            tp: offset
            for tp, offset in offsets.items()
            if is_time_for_all or self._committed.get(tp) != offset
        }
        if not left:
            return
        try:
            self._carry_through(left)
        except KafkaError as error:
            self._next_attempt_at = self._clock() + self._failures.next_delay_s()
            self._warn(error, left)
            return
        if is_time_for_all:
            self._committed_all_at = now
        self._failures.reset()
        if self._warned_of is not None:
            self._warned_of = None
            log.warning("group %s: offset commits succeed again", self._group_id)

    def _carry_through(self, left: Offsets) -> None:
        config = self._cluster.config
        backoff = Backoff(config.retry_backoff_s, config.retry_backoff_max_s, random.Random())
        give_up_at = self._clock() + TRIED_FOR_S
        while True:
            try:
                return self._attempt(left, give_up_at)
            except KafkaError as error:
                # After any failure the coordinator is looked up again.
                self._coordinator = None
                delay_s = backoff.next_delay_s()
                if not error.retriable or self._clock() + delay_s >= give_up_at:
                    raise
            self._sleep(delay_s)

    def _left_s(self, give_up_at: float) -> float:
        return min(max(give_up_at - self._clock(), 0.1), self._cluster.config.request_timeout_s)

    def _attempt(self, left: Offsets, give_up_at: float) -> None:
        if self._coordinator is None:
            request = coordinator_request(self._group_id)
            answer = self._cluster.request_any(request, timeout_s=self._left_s(give_up_at))
            self._coordinator = coordinator_of(self._group_id, answer)
        entries = {tp: CommittedOffset(offset) for tp, offset in left.items()}
        commit = commit_request(self._group_id, entries)
        timeout_s = self._left_s(give_up_at)
        response = self._cluster.request(self._coordinator, commit, timeout_s=timeout_s)
        refusal: KafkaError | None = None
        for tp, code in commit_results(response).items():
            error_class = for_code(code) if code else None
            # A deleted topic has no lag, and needs no retry.
            if error_class is None or error_class is UnknownTopicOrPartitionError:
                if tp in left:
                    self._committed[tp] = left.pop(tp)
            elif refusal is None or (refusal.retriable and not error_class.retriable):
                refusal = error_class(error_class.description.rstrip("."))
        if refusal is not None:
            raise refusal

    def _warn(self, error: KafkaError, left: Offsets) -> None:
        """Warn of a failure, unless the previous failure was the same."""
        if type(error) is self._warned_of:
            return
        self._warned_of = type(error)
        advice = ADVICE.get(type(error))
        log.warning(
            "group %s: offsets of %s were not committed (%s%s), so the group's lag is outdated. "
            "The query continues, and a later micro-batch will commit its offsets",
            self._group_id,
            named(left),
            error,
            f": {advice}" if advice else "",
        )


# --- The offsets per trigger ------------------------------------------------------------------
class Admission:
    """How many new offsets a micro-batch takes, or whether it waits, as in Spark's own source."""

    def __init__(
        self, options: SourceOptions, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_offsets = options.max_offsets_per_trigger
        self._min_offsets = options.min_offsets_per_trigger
        self._max_delay_s = options.max_trigger_delay_s
        self._clock = clock
        self._last_batch_at: float | None = None

    def admit(
        self,
        start: Offsets,
        latest: Offsets,
        earliest: Callable[[Collection[TopicPartition]], Offsets],
        *,
        may_wait: bool = True,
    ) -> Offsets:
        """Return the end of the next batch, which is `start` if it waits for more offsets.

        `earliest` is called for partitions that `start` does not have. `may_wait` is False if no
        more records follow.
        """
        if may_wait and self._min_offsets is not None and self._must_wait(start, latest):
            return start
        if self._max_offsets is None:
            return latest
        added = latest.keys() - start.keys()
        begins = {**earliest(added), **start} if added else start
        return prorate(self._max_offsets, begins, latest)

    def _must_wait(self, start: Offsets, latest: Offsets) -> bool:
        """Whether too few offsets arrived, after too short a time. The first batch never waits."""
        now = self._clock()
        if self._last_batch_at is not None and now - self._last_batch_at < self._max_delay_s:
            # A new partition counts from offset 0, to save a lookup in each waiting trigger.
            arrived = sum(end - start.get(tp, 0) for tp, end in latest.items())
            if arrived < (self._min_offsets or 0):
                return True
        self._last_batch_at = now
        return False


def prorate(limit: int, begins: Offsets, latest: Offsets) -> Offsets:
    """Return ends that cover about `limit` offsets, in proportion to each partition's backlog.

    A part is at least one offset, so that small partitions do not starve. Partitions without a
    begin, or past their end, are not limited: the planner reports them.
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


# --- The micro-batches ------------------------------------------------------------------------
class MicroBatches:
    """Plans one query's micro-batches, as long as the query runs, with a cluster of its own."""

    def __init__(self, raw: Mapping[str, str], *, has_admission_control: bool = True) -> None:
        self.options = options = worker.options_of(raw, is_streaming=True)
        if not has_admission_control:
            _refuse_limit(options)
        self._cluster = worker.new_cluster(options)
        self._planner = Planner(options, self._cluster)
        self._admission = Admission(options)
        group_id = options.commit_group
        self._commits = None if group_id is None else GroupCommits(group_id, self._cluster)
        self._initial: Offsets | None = None
        self._mismatch: OptionError | None = None
        self._at_end: frozenset[TopicPartition] = frozenset()
        self._target: Offsets | None = None
        self._last_end: Offsets | None = None
        self.newest: Offsets | None = None  # the ends of all partitions at their last lookup

    def initial(self) -> Offsets:
        """Return the start of a query without a checkpoint, which is always the same."""
        if self._initial is None:
            initial, self._mismatch = self._planner.beginning()
            self._at_end = frozenset(self._beginning_at_end(initial))
            if self._target is not None:  # the query began when that was fixed
                initial.update({tp: self._target.get(tp, initial[tp]) for tp in self._at_end})
            self._initial = initial
        return self._initial

    def _beginning_at_end(self, initial: Offsets) -> Collection[TopicPartition]:
        """Return the partitions whose start would be another one at a later lookup."""
        starting = self.options.starting
        if not starting.is_time:
            return [tp for tp, at in starting.by_partition(initial).items() if at == LATEST]
        if self.options.timestamp_strategy == "latest":
            ends = self._planner.latest(initial)
            return [tp for tp in initial if initial[tp] == ends.get(tp)]
        return ()

    def fix_target(self) -> None:
        """Read only the records that exist now: the trigger availableNow."""
        self._target = self._planner.latest()

    def next_end(self, start: Offsets | None, *, is_limited: bool) -> Offsets:
        """Return the end of the next batch, which is `start` if there is no batch yet.

        `start` is None if Spark did not pass it. Without `is_limited` the trigger reads everything.
        """
        if start is None:
            # A query that continues from a checkpoint has requested ranges before.
            start = self.initial() if self._last_end is None else self._last_end
        is_first = self._last_end is None and start == self._initial
        if is_first and self._mismatch is not None:
            raise self._mismatch
        latest = self._planner.latest(start) if self._target is None else self._target
        self.newest = latest
        end = latest
        if is_limited:
            may_wait = self._target is None
            end = self._admission.admit(start, latest, self._planner.earliest, may_wait=may_wait)
        if is_first:
            end = {**end, **{tp: start[tp] for tp in self._at_end if tp in end}}
        self._last_end = end
        return end

    def tasks(self, start: Offsets, end: Offsets) -> list[Task]:
        is_resumed, self._last_end = self._last_end is None, end
        if start == end:
            return []  # a query that continues from a checkpoint passes its position like this
        if self._target is not None:
            self._planner.check_target(
                # A batch that an earlier run has planned may end elsewhere. Its tasks find deleted
                # records, and the option failOnDataLoss decides.
                {tp: offset for tp, offset in end.items() if offset <= self._target.get(tp, -1)}
            )
        if start == self._initial:
            start = self._as_begun(start, end, is_resumed=is_resumed)
        return self._planner.tasks(self._planner.stream_ranges(start, end))

    def _as_begun(self, start: Offsets, end: Offsets, *, is_resumed: bool) -> Offsets:
        """Return the start of the first batch if an earlier run planned that batch."""
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

    def processed(self, offsets: Offsets) -> None:
        if self._commits is not None:
            self._commits.commit(offsets)

    def close(self) -> None:
        self._cluster.close()


def _refuse_limit(options: SourceOptions) -> None:
    """Refuse a limit with which PySpark 4.0 and 4.1 would end a query too early.

    The trigger availableNow asks such a source only once for the end.
    """
    if options.max_offsets_per_trigger is not None and options.admission_control == "engine":
        raise OptionError(
            f"option maxOffsetsPerTrigger={options.max_offsets_per_trigger} needs PySpark 4.2 or "
            "newer, because earlier versions do not pass the trigger to a source. Upgrade PySpark, "
            "or leave maxOffsetsPerTrigger out (availableNow then reads all records in one batch). "
            "With the trigger processingTime, you can set the option admissionControl to source "
            "instead"
        )
