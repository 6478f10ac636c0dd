"""Finds a position for every assigned partition, and watches for those that make no progress.

The resolver owns the cursors that are UNPOSITIONED. docs/design.md has its states. With
auto-commit, an offset found by auto_offset_reset is committed before records are returned. The
next owner could otherwise skip records: it would start at a later end of the log, or at the old
committed offset. "earliest" needs no such commit.

A result is applied only if the search is still the cursor's: a seek or revocation replaces it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from aiokafka_lite._compat import Never
from aiokafka_lite._tasks import Event, TaskScope
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.client.offsets import EARLIEST, LATEST, CommittedOffset
from aiokafka_lite.client.view import ClusterView
from aiokafka_lite.consumer.assignment.cursor import NO_EPOCH, Cursor, Place, Search, Sought
from aiokafka_lite.consumer.assignment.finished import decode
from aiokafka_lite.consumer.core import Core
from aiokafka_lite.consumer.positions.leader_requests import (
    EpochEnd,
    EpochEndLookup,
    FoundOffset,
    LeaderRequests,
    OffsetLookup,
    RequestKind,
)
from aiokafka_lite.consumer.positions.topic_changes import TopicChanges
from aiokafka_lite.errors import (
    KafkaError,
    LogTruncationError,
    NoOffsetForPartitionError,
    UnsupportedVersionError,
)
from aiokafka_lite.events import OffsetRange, OffsetReset
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.structs import TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.consumer.commits.commits import Commits
    from aiokafka_lite.consumer.fetching.sources import Sources

log = logging.getLogger(__name__)

NOTHING_COMMITTED: Final = "no committed offset"
TRUNCATED: Final = "truncated"


class Start(NamedTuple):
    """The start offset, and the start of the log if a reset may skip records that it still has."""

    offset: FoundOffset
    log_start: int | None


class PositionResolver:
    def __init__(
        self,
        core: Core,
        cluster: Cluster,
        lookup: OffsetLookup,
        committed: Commits | None,
        topic_changes: TopicChanges,
        scope: TaskScope,
    ) -> None:
        self._config, self._state, self._finished = core.config, core.state, core.finished
        self._gate, self._events, self._buffer = core.gate, core.events, core.buffer
        self._cluster = cluster
        self._lookup = lookup
        self._committed = committed
        self._topic_changes = topic_changes
        # Of starts, by auto-commit.
        self._start_commits = committed if core.config.enable_auto_commit else None
        # Starts to commit before they are applied, with leader epochs.
        self._starts: dict[Search, tuple[Start, int]] = {}
        self._committing: asyncio.Task[None] | None = None
        self._core = core
        self._scope = scope
        self._wake = Event()
        self._reading_committed: asyncio.Task[None] | None = None
        self._epoch_ends = EpochEndLookup(core.config, cluster)
        check = RequestKind(
            "check positions at", self._epoch_ends.ask, self._checked, self._not_checked, self.wake
        )
        reset = RequestKind(
            "look positions up at", self._ask_for_starts, self._found, self._not_found, self.wake
        )
        delay_s = self._config.retry_backoff_s
        self._checks = LeaderRequests(check, cluster, scope, core.rng, delay_s)
        self._resets = LeaderRequests(reset, cluster, scope, core.rng, delay_s)
        core.observers.assignment_changed.add(self._wake.set)
        core.observers.partition_changed.add(self._partition_changed)

    def view_changed(self, view: ClusterView) -> None:
        self.leaders_moved(view, self._state.assignment)

    def leaders_moved(self, view: ClusterView, moved: Iterable[TopicPartition]) -> None:
        for tp in moved:
            if (partition := self._state.assignment.get(tp)) is not None:
                self._compare_epochs(partition, view)
        self._wake.set()

    def _compare_epochs(
        self, partition: Cursor, view: ClusterView, *, is_start: bool = False
    ) -> None:
        """Have a leader of a newer epoch validate the position, and forget epochs that are void."""
        leader = view.leader(partition.tp)
        if leader is None:
            return
        if partition.needs_validation(leader.leader_epoch):
            self._state.request_validation(partition, is_start=is_start)
        elif partition.knows_void_epochs(leader.leader_epoch, leader.void_epoch):
            log.warning(
                "%s: the leader epoch in the metadata went back from %s to %s. The topic was "
                "recreated, or the cluster was restored. Reading continues at offset %s",
                partition.tp,
                leader.void_epoch,
                leader.leader_epoch,
                partition.position,
            )
            self._state.forget_epochs(partition, leader.void_epoch)

    def wake(self) -> None:
        self._wake.set()

    def _partition_changed(self, partition: Cursor) -> None:
        if partition.place is Place.UNPOSITIONED:
            self._wake.set()

    async def run(self) -> Never:
        while True:
            self._wake.clear()
            await self._wake.wait(self._resolve_once())

    def _searches(self) -> dict[Sought, list[Search]]:
        searches: dict[Sought, list[Search]] = {}
        for cursor in self._state.assignment.values():
            search = cursor.search
            if (
                search is not None
                and cursor.place is Place.UNPOSITIONED
                and search not in self._starts
                # The listener may ask for the position of a revoking one.
                and not (cursor.is_withheld and cursor.is_found)
            ):
                searches.setdefault(search.sought, []).append(search)
        return searches

    def _resolve_once(self) -> float | None:
        """Send the requests that are possible now, and return when to look again."""
        searches = self._searches()
        reading = self._reading_committed
        if searches.get(Sought.COMMITTED) and (reading is None or reading.done()):
            self._reading_committed = self._scope.supervise(
                self._start_from_committed, name="read committed offsets"
            )
        checks, resets = searches.get(Sought.VALIDATION, ()), searches.get(Sought.RESET, ())
        retries = (
            self._checks.advance({s: (s.cursor.tp, s.cursor.newest_epoch) for s in checks}),
            self._resets.advance(
                {s: (s.cursor.tp, s.timestamp) for s in resets if s.timestamp is not None}
            ),
        )
        return min((at for at in retries if at is not None), default=None)

    async def _start_from_committed(self) -> None:
        backoff = self._core.new_backoff()
        while searches := self._searches().get(Sought.COMMITTED):
            tps = [search.cursor.tp for search in searches]
            try:
                committed = {} if self._committed is None else await self._committed.positions(tps)
            except KafkaError as error:
                if error.retriable:
                    raise  # the scope restarts the task
                self._gate.post(error)
                await asyncio.sleep(backoff.next_delay_s())
                continue
            is_complete = True
            for search in searches:
                answer = committed.get(search.cursor.tp)
                if not search.is_current:
                    continue
                if isinstance(answer, KafkaError):
                    is_complete = False
                    self._note_failure(search.cursor, answer)
                else:
                    self._start(search, answer)
            if not is_complete:
                await asyncio.sleep(backoff.next_delay_s())

    def _start(self, search: Search, committed: CommittedOffset | None) -> None:
        partition = search.cursor
        if committed is None and search.replaced is not None:
            self._state.start_at(partition, search.replaced)
            return
        if committed is None:
            error = NoOffsetForPartitionError(
                f"no offset is committed for {partition.tp} and auto_offset_reset is none: "
                "seek to an offset"
            )
            self.reset_by_policy(partition, error, NOTHING_COMMITTED)
            return
        self._state.start_at(partition, committed.offset, committed.leader_epoch)
        topic_id = self._cluster.view.topic_id(partition.tp.topic)
        finished = decode(topic_id or ZERO_UUID, committed.offset, committed.metadata)
        if finished is not None:
            self._state.start_behind(partition, finished.ranges, finished.leader_epoch)
        self._compare_epochs(partition, self._cluster.view, is_start=True)

    def reset_by_policy(self, partition: Cursor, error: KafkaError, reason: str) -> None:
        """Look up the position by auto_offset_reset. With "none", reads raise `error`."""
        timestamp = self._config.reset_timestamp
        if timestamp == LATEST and self._topic_changes.came_later(partition.tp):
            timestamp = EARLIEST
        timestamp = self._state.reset_timestamp(partition.tp, timestamp)
        if timestamp is not None:
            self._state.request_reset(partition, timestamp, reason=reason)
        else:
            self._give_up(partition, error)

    def _give_up(self, partition: Cursor, error: KafkaError) -> None:
        self._buffer.put_error(
            partition, error.at(partition.tp, partition.position), is_sticky=True
        )

    # --- Validation -----------------------------------------------------------------------
    def _checked(self, search: Search, end: EpochEnd, leader_epoch: int) -> None:
        if search.is_current:
            self._judge(search.cursor, end, leader_epoch)

    def _not_checked(self, search: Search, error: KafkaError) -> None:
        partition = search.cursor
        if not search.is_current:
            return
        if isinstance(error, UnsupportedVersionError):
            # The broker is too old for this check (Java does the same).
            self._state.validated(partition, self._epoch_ends.leader_epoch(partition.tp))
            return
        self._note_failure(partition, error)

    def _note_failure(self, partition: Cursor, error: KafkaError) -> None:
        partition.note_reason(type(error).__name__)
        if not (error.retriable or error.invalid_metadata):
            self._buffer.put_error(partition, error)

    def _judge(self, partition: Cursor, end: EpochEnd, current_epoch: int) -> None:
        """Decide, by the end of the position's epoch, whether the log was truncated before it."""
        position = partition.position
        assert position is not None  # noqa: S101 -- it is what is compared
        asked = partition.newest_epoch
        is_known = end.is_defined and end.leader_epoch == asked
        has_ahead = partition.progress is not None and partition.progress.has_ahead
        self._state.verify_ahead(partition, end.end_offset if is_known else None, current_epoch)
        # A position without an epoch is compared by the epoch of finished records behind it:
        # records before them are not of a newer epoch. After a seek they prove nothing.
        has_epoch = partition.leader_epoch != NO_EPOCH
        if has_epoch and partition.newest_epoch != asked:
            return
        if not (has_epoch or (end.is_defined and has_ahead)):
            self._state.validated(partition, current_epoch)
            return
        if not end.is_defined:
            text = (
                f"it is unknown whether {partition.tp} was truncated below offset {position}, "
                f"because the leader does not know leader epoch {asked}"
            )
            self.reset_by_policy(partition, LogTruncationError(text), TRUNCATED)
            return
        if end.end_offset >= position:
            self._state.validated(partition, current_epoch)
            return
        text = (
            f"the log of {partition.tp} was truncated to offset {end.end_offset}, which is below "
            f"the consumer's position {position}"
        )
        if self._state.reset_timestamp(partition.tp, self._config.reset_timestamp) is None:
            error = LogTruncationError(text, divergent_offset=end.end_offset)
            self._give_up(partition, error)
            return
        log.warning("%s. Reading continues at offset %d", text, end.end_offset)
        partition.truncated(end.end_offset)
        self._state.start_at(partition, end.end_offset, end.leader_epoch, current_epoch)
        self._publish_reset(partition.tp, position, end.end_offset, TRUNCATED)

    # --- Reset ----------------------------------------------------------------------------
    def _found(self, search: Search, start: Start, leader_epoch: int) -> None:
        is_found_by_all = (
            search.reason == NOTHING_COMMITTED and self._config.reset_timestamp == EARLIEST
        )
        if self._start_commits is None or not search.reason or is_found_by_all:
            self._take(search, start, leader_epoch)
            return
        self._starts[search] = start, leader_epoch
        if self._committing is None or self._committing.done():
            self._committing = self._scope.spawn(self._take_committed(), name="commit starts")

    async def _take_committed(self) -> None:
        while self._starts:
            starts = dict(self._starts)
            offsets = {
                search.cursor.tp: self._finished.start_to_commit(search.cursor, start.offset.offset)
                for search, (start, _) in starts.items()
                if search.is_current
            }
            current = {tp: offset for tp, offset in offsets.items() if offset is not None}
            try:
                if current and self._start_commits is not None:
                    await self._start_commits.commit_by_itself(current)
            finally:
                for search in starts:
                    del self._starts[search]
            for search, (start, leader_epoch) in starts.items():
                self._take(search, start, leader_epoch)

    def _take(self, search: Search, start: Start, leader_epoch: int) -> None:
        if not search.is_current:
            return
        partition = search.cursor
        before, reason, offset = search.replaced, search.reason, start.offset
        if reason:  # records from there on may be of another epoch
            partition.truncated(offset.offset)
        # The leader has just returned the offset, so it is valid in its epoch.
        self._state.start_at(partition, offset.offset, offset.leader_epoch, leader_epoch)
        if reason:
            self._publish_reset(partition.tp, before, offset.offset, reason, start.log_start)

    def _not_found(self, search: Search, error: KafkaError) -> None:
        if search.is_current:
            self._note_failure(search.cursor, error)

    async def _ask_for_starts(
        self, node_id: int, timestamps: Mapping[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, Start], dict[TopicPartition, KafkaError]]:
        found, failures = await self._lookup.ask(node_id, timestamps)
        if quiet := {tp: timestamps[tp] for tp, offset in found.items() if offset.offset < 0}:
            ends, failed = await self._ends_of_quiet(node_id, quiet)
            found = {tp: offset for tp, offset in found.items() if tp not in quiet} | ends
            failures = {**failures, **failed}
        log_starts = await self._log_starts(node_id, found)
        starts = {tp: Start(offset, log_starts.get(tp)) for tp, offset in found.items()}
        return starts, failures

    async def _log_starts(
        self, node_id: int, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        timestamps = {
            tp: EARLIEST
            for tp in partitions
            if (partition := self._state.assignment.get(tp)) is not None
            and (search := partition.search) is not None
            and search.reason
            and search.replaced is not None
            and search.timestamp != EARLIEST
        }
        if not timestamps:
            return {}
        found, _ = await self._lookup.ask(node_id, timestamps)
        return {tp: start.offset for tp, start in found.items()}

    def _publish_reset(
        self,
        tp: TopicPartition,
        before: int | None,
        after: int,
        reason: str,
        log_start: int | None = None,
    ) -> None:
        """Without `log_start`, the log starts at the new position, or its start is unknown."""
        events = self._events
        lost = skipped = None
        if before is not None and before < after:
            lost = OffsetRange(before, after)
            log.warning(
                "%s: offsets %s to %s will not be read, because the position was reset (%s)",
                tp,
                before,
                after - 1,
                reason,
            )
            if log_start is not None and log_start < after:
                skipped = OffsetRange(max(before, log_start), after)
            events.count_lost(lost.offset_count, 0 if skipped is None else skipped.offset_count)
        events.publish(OffsetReset(tp, before, after, reason, lost, skipped))

    async def _ends_of_quiet(
        self, node_id: int, timestamps: Mapping[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, FoundOffset], dict[TopicPartition, KafkaError]]:
        """Find the ends of logs that have no record at or after a time (by_duration)."""
        latest = dict.fromkeys(timestamps, LATEST)
        ends, failures = await self._lookup.ask(node_id, latest)
        if not ends:
            return ends, failures
        # Records may have been written in between.
        again, failed = await self._lookup.ask(node_id, {tp: timestamps[tp] for tp in ends})
        found = {tp: ends[tp] if offset.offset < 0 else offset for tp, offset in again.items()}
        return found, {**failures, **failed}


TICK_S: Final = 5.0
# Without a position for longer, the resolver is woken.
LONG_S: Final = 5.0
# In one turn of the loop.
MOST_AT_ONCE: Final = 1_000
# Older log ends are looked up again.
STALE_S: Final = 10.0
# At a time: more would block the loop. The others follow later.
MOST_ASKED: Final = 500


class LogEnds(LeaderRequests[Cursor, int, FoundOffset]):
    """Looks up the log ends of partitions that are not being fetched, for their lag.

    Paused partitions, and those of which enough is buffered or being handled, are not fetched.
    """

    def __init__(
        self,
        core: Core,
        cluster: Cluster,
        lookup: OffsetLookup,
        fetches: Sources,
        scope: TaskScope,
    ) -> None:
        kind = RequestKind("look log ends up at", lookup.ask, self._note_end)
        super().__init__(kind, cluster, scope, core.rng, core.config.retry_backoff_s)
        self._is_stable = core.config.is_read_committed
        self._fetches = fetches

    def is_stale(self, cursor: Cursor, now: float) -> bool:
        heard_at = cursor.last_fetch_at
        is_old = heard_at is None or now - heard_at > STALE_S
        return is_old and cursor.search is None and not self._fetches.is_asking_for(cursor)

    def ask(self, stale: list[Cursor]) -> None:
        view = self._cluster.view
        self.advance(
            {
                cursor: (cursor.tp, LATEST)
                for cursor in self._rng.sample(stale, min(len(stale), MOST_ASKED))
                if view.leader(cursor.tp) is not None
            }
        )

    def _note_end(self, cursor: Cursor, end: FoundOffset, _: int) -> None:
        now = self._loop.time()
        if cursor.is_assigned and self.is_stale(cursor, now):
            cursor.log_ends_at(end.offset, now, is_stable=self._is_stable)


class Standstill(NamedTuple):
    offset: int
    since: float


class Watchdog:
    """Detects partitions that make no progress, for `health`.

    Every five seconds it notes since when partitions, assigned and not paused, have no validated
    position, or have the same first unfinished offset, though the log has records from there on. It
    wakes the position resolver, looks up log ends, and has the pool retry lost brokers that are no
    longer used, so that `health` does not report them forever.
    """

    def __init__(
        self, core: Core, cluster: Cluster, log_ends: LogEnds, resolver: PositionResolver
    ) -> None:
        self._state, self._reads = core.state, core.reads
        self._cluster = cluster
        self._log_ends = log_ends
        self._resolver = resolver
        self._loop = asyncio.get_running_loop()
        # Loop times since when.
        self._without_position: dict[Cursor, float] = {}
        # Of partitions with unfinished records.
        self._standstills: dict[Cursor, Standstill] = {}

    @property
    def assigned_without_position_s(self) -> float:
        """The longest time of a partition without a position, up to a tick too short."""
        now = self._loop.time()
        return max((now - at for at in self._without_position.values()), default=0.0)

    def standstill_s(self, cursor: Cursor, now: float) -> float:
        """Return how long no record of a partition was finished, up to a tick too short."""
        noted = self._standstills.get(cursor)
        return 0.0 if noted is None or noted.offset != cursor.finished_to else now - noted.since

    async def run(self) -> Never:
        while True:
            await asyncio.sleep(TICK_S)
            await self._look()

    async def _look(self) -> None:
        self._cluster.pool.try_lost()
        now, cursors = self._loop.time(), tuple(self._state.assignment.values())
        without_position: dict[Cursor, float] = {}
        standstills: dict[Cursor, Standstill] = {}
        stale: list[Cursor] = []
        for first in range(0, len(cursors), MOST_AT_ONCE):
            if first:
                await asyncio.sleep(0)
            self._reads.settle()
            for cursor in cursors[first : first + MOST_AT_ONCE]:
                if not cursor.is_assigned:
                    continue
                if self._log_ends.is_stale(cursor, now):
                    stale.append(cursor)
                processing = self._reads.processing
                if cursor.is_paused or (processing is not None and processing.is_delaying(cursor)):
                    continue
                if cursor.search is not None and not (cursor.is_withheld and cursor.is_found):
                    without_position[cursor] = self._without_position.get(cursor, now)
                if (standstill := self._standstill(cursor, now)) is not None:
                    standstills[cursor] = standstill
        self._without_position, self._standstills = without_position, standstills
        if self.assigned_without_position_s > LONG_S:
            self._resolver.wake()
        self._log_ends.ask(stale)

    def _standstill(self, cursor: Cursor, now: float) -> Standstill | None:
        end = cursor.high_watermark
        offset = cursor.finished_to
        if end is None or offset is None or offset >= end:
            return None
        noted = self._standstills.get(cursor)
        return noted if noted is not None and noted.offset == offset else Standstill(offset, now)
