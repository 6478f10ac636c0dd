"""The position resolver: gives every assigned partition a position to fetch from.

    INITIALIZING --committed offset--> FETCHING
    INITIALIZING --none committed--> AWAIT_RESET      (auto_offset_reset; "none": raised, sticky)
    AWAIT_RESET  --ListOffsets answer--> FETCHING
    FETCHING     --leader of a newer epoch--> AWAIT_VALIDATION      (KIP-320)
    AWAIT_VALIDATION --the log has what was read--> FETCHING
    AWAIT_VALIDATION --the log was cut--> FETCHING from there       (policy "none": raised, sticky)
    AWAIT_VALIDATION --nobody knows--> AWAIT_RESET                  (likewise)

One task does it, woken when partitions come or change. What it learns is applied only if the
partition is still what it was when it was asked about: a seek or a revocation meanwhile wins.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from aiokafka_lite._compat import Never, timeout_at
from aiokafka_lite.client import Cluster, ClusterView
from aiokafka_lite.client.backoff import Backoff
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.delivery.fetch_queue import FetchQueue
from aiokafka_lite.consumer.partition import CommittedPosition
from aiokafka_lite.consumer.positions.epoch_ends import EpochEnd, EpochEndLookup
from aiokafka_lite.consumer.positions.offsets import FoundOffset, OffsetLookup
from aiokafka_lite.consumer.state import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    NO_EPOCH,
    FetchState,
    PartitionState,
    SubscriptionState,
)
from aiokafka_lite.errors import (
    FencedLeaderEpochError,
    KafkaError,
    LogTruncationError,
    NoOffsetForPartitionError,
    UnknownLeaderEpochError,
    UnsupportedVersionError,
)
from aiokafka_lite.structs import TopicPartition

log = logging.getLogger(__name__)

LAST_BACKOFF_S: Final = 1.0
NOTHING_COMMITTED: Final = "no committed offset"
TRUNCATED: Final = "truncated"
STALE_EPOCH: Final = (FencedLeaderEpochError, UnknownLeaderEpochError)

CommittedLookup = Callable[
    [Iterable[TopicPartition]], Awaitable[Mapping[TopicPartition, CommittedPosition | None]]
]


class PositionResolver:
    """Owns partitions that are awaiting a position."""

    def __init__(
        self,
        config: ConsumerConfig,
        state: SubscriptionState,
        queue: FetchQueue,
        cluster: Cluster,
        lookup: OffsetLookup,
        committed: CommittedLookup,
        on_error: Callable[[KafkaError], None],
        is_young: Callable[[TopicPartition], bool],
        rng: random.Random,
    ) -> None:
        self._config = config
        self._state = state
        self._queue = queue
        self._cluster = cluster
        self._lookup = lookup
        self._epoch_ends = EpochEndLookup(config, cluster)
        self._committed = committed
        self._on_error = on_error
        self._is_young = is_young
        self._wake = asyncio.Event()
        self._backoff = Backoff(config.retry_backoff_s, LAST_BACKOFF_S, rng)
        # Partitions whose failure is with the application, and their tags: left alone until it
        # seeks.
        self._given_up: dict[PartitionState, int] = {}
        state.observers.on_assignment_change(self._wake.set)
        state.observers.on_partition_change(self._partition_changed)

    def view_changed(self, view: ClusterView) -> None:
        """Look again at once: leaders may be known that were missing, or have changed."""
        for partition in self._state.assignment.values():
            leader = view.leader(partition.tp)
            if leader is not None and partition.needs_validation(leader.leader_epoch):
                self._state.request_validation(partition)
        self._wake.set()

    def wake(self) -> None:
        """Look again at once."""
        self._wake.set()

    def _partition_changed(self, partition: PartitionState) -> None:
        if partition.fetch_state is not FetchState.FETCHING:
            self._wake.set()

    async def run(self) -> Never:
        """Resolve positions until cancelled.

        Raises:
            KafkaError: What passes by itself: whoever runs this has it run again after a while.
        """
        while True:
            self._wake.clear()
            try:
                is_done = await self._resolve_once()
            except KafkaError as error:
                if error.retriable:
                    raise
                self._on_error(error)
                is_done = False
            if is_done:
                self._backoff.reset()
                await self._wake.wait()
                continue
            try:
                # Woken or not: what failed once is tried again after the backoff.
                async with timeout_at(
                    asyncio.get_running_loop().time() + self._backoff.next_delay_s()
                ):
                    await self._wake.wait()
            except asyncio.TimeoutError:
                pass

    def _awaiting(self, fetch_state: FetchState) -> list[PartitionState]:
        self._given_up = {p: tag for p, tag in self._given_up.items() if p.is_assigned}
        return [
            partition
            for partition in self._state.assignment.values()
            if partition.fetch_state is fetch_state
            # One that is given back needs a position if its listener asks for it.
            and not (partition.is_revoking and partition.position is not None)
            and self._given_up.get(partition) != partition.tag
        ]

    async def _resolve_once(self) -> bool:
        """Resolve what can be; False if something has to be tried again."""
        initializing = self._awaiting(FetchState.INITIALIZING)
        if initializing:
            await self._start_from_committed(initializing)
        unsure = self._awaiting(FetchState.AWAIT_VALIDATION)
        is_done = await self._validate(unsure) if unsure else True
        awaiting = self._awaiting(FetchState.AWAIT_RESET)
        return (await self._reset(awaiting) if awaiting else True) and is_done

    async def _start_from_committed(self, partitions: list[PartitionState]) -> None:
        tags = {partition: partition.tag for partition in partitions}
        committed = await self._committed([partition.tp for partition in partitions])
        for partition, tag in tags.items():
            if partition.tag != tag or partition.fetch_state is not FetchState.INITIALIZING:
                continue
            offset = committed.get(partition.tp)
            if offset is None:
                error = NoOffsetForPartitionError(
                    f"no offset is committed for {partition.tp} and auto_offset_reset is none: "
                    "seek to an offset"
                )
                self.reset_by_policy(partition, error, NOTHING_COMMITTED)
                continue
            self._state.seek(partition, offset.offset, offset.leader_epoch)
            if partition.needs_validation(self._leader_epoch(partition.tp)):
                self._state.request_validation(partition)

    def _leader_epoch(self, tp: TopicPartition) -> int:
        leader = self._cluster.view.leader(tp)
        return NO_EPOCH if leader is None else leader.leader_epoch

    def reset_by_policy(self, partition: PartitionState, error: KafkaError, reason: str) -> None:
        """Have the position looked up as auto_offset_reset says; if it says "none", raise `error`.

        "Latest" is that of the time when the consumer began: what came into being later is read
        from its beginning.
        """
        timestamp = self._config.reset_timestamp
        if timestamp == LATEST_TIMESTAMP and self._is_young(partition.tp):
            timestamp = EARLIEST_TIMESTAMP
        if timestamp is not None:
            self._state.request_reset(partition, timestamp, reason=reason)
        else:
            self._give_up(partition, error)

    def _give_up(self, partition: PartitionState, error: KafkaError) -> None:
        self._given_up[partition] = partition.tag
        self._queue.put_error(partition, error.at(partition.tp, partition.position), is_sticky=True)

    # --- Validation -----------------------------------------------------------------------
    async def _validate(self, partitions: list[PartitionState]) -> bool:
        """Compare positions with what their leaders have; False if some could not be."""
        asked = {
            partition.tp: (partition, partition.tag, self._leader_epoch(partition.tp))
            for partition in partitions
        }
        found, failures = await self._epoch_ends.try_once(
            {partition.tp: partition.leader_epoch for partition in partitions}
        )
        for tp, end in found.items():
            partition, tag, current_epoch = asked[tp]
            if partition.tag == tag and partition.fetch_state is FetchState.AWAIT_VALIDATION:
                self._judge(partition, end, current_epoch)
        for tp, error in failures.items():
            partition, tag, _ = asked[tp]
            if partition.tag != tag:
                continue
            partition.retry_reason = type(error).__name__
            if isinstance(error, STALE_EPOCH):
                self._cluster.invalidate()
            elif isinstance(error, UnsupportedVersionError):
                # A broker that cannot say where epochs end: as good as it gets (Java likewise).
                self._state.validated(partition, self._leader_epoch(tp))
            elif not (error.retriable or error.invalid_metadata):
                self._queue.put_error(partition, error)
        return not failures

    def _judge(self, partition: PartitionState, end: EpochEnd, current_epoch: int) -> None:
        """Decide by where the position's epoch ended whether the log was cut before it."""
        position = partition.position
        if position is None:
            raise AssertionError("a position was validated that there is not")
        if not end.is_defined:
            text = f"whether {partition.tp} was truncated below offset {position} is not known"
            self.reset_by_policy(partition, LogTruncationError(text), TRUNCATED)
            return
        if end.end_offset >= position:
            self._state.validated(partition, current_epoch)
            return
        text = (
            f"{partition.tp} was truncated to offset {end.end_offset}; "
            f"records up to {position} were read that are gone"
        )
        if self._config.reset_timestamp is None:
            error = LogTruncationError(text, divergent_offset=end.end_offset)
            self._give_up(partition, error)
            return
        log.warning("%s: reading goes on from there", text)
        self._state.seek(partition, end.end_offset, end.leader_epoch)
        partition.validated_epoch = current_epoch
        self._publish_reset(partition.tp, position, end.end_offset, TRUNCATED)

    # --- Reset ----------------------------------------------------------------------------

    async def _reset(self, partitions: list[PartitionState]) -> bool:
        asked = {
            partition.tp: (partition, partition.tag, partition.reset_timestamp)
            for partition in partitions
        }
        timestamps = {tp: at for tp, (_, _, at) in asked.items() if at is not None}
        found, failures = await self._lookup.try_once(timestamps)
        log_starts = await self._log_starts(asked[tp][0] for tp in found)
        if quiet := {tp: timestamps[tp] for tp, offset in found.items() if offset.offset < 0}:
            found = {**found, **await self._ends_of_quiet(quiet)}
        is_done = not failures
        for tp, offset in found.items():
            partition, tag, _ = asked[tp]
            if partition.tag == tag and partition.fetch_state is FetchState.AWAIT_RESET:
                if offset.offset < 0:
                    is_done = False
                    continue
                before, reason = partition.reset_from, partition.reset_reason
                self._state.seek(partition, offset.offset, offset.leader_epoch)
                # The leader itself has just said so.
                partition.validated_epoch = self._leader_epoch(tp)
                if reason:
                    self._publish_reset(tp, before, offset.offset, reason, log_starts.get(tp))
        for tp, error in failures.items():
            partition, tag, _ = asked[tp]
            partition.retry_reason = type(error).__name__
            is_passing = error.retriable or error.invalid_metadata
            if not is_passing and partition.tag == tag:
                self._queue.put_error(partition, error)
        return is_done

    async def _log_starts(self, partitions: Iterable[PartitionState]) -> dict[TopicPartition, int]:
        """Return where the logs begin of partitions whose reset may skip what is still there."""
        timestamps = {
            partition.tp: EARLIEST_TIMESTAMP
            for partition in partitions
            if partition.reset_reason
            and partition.reset_from is not None
            and partition.reset_timestamp != EARLIEST_TIMESTAMP
        }
        if not timestamps:
            return {}
        found, _ = await self._lookup.try_once(timestamps)
        return {tp: start.offset for tp, start in found.items()}

    def _publish_reset(
        self,
        tp: TopicPartition,
        before: int | None,
        after: int,
        reason: str,
        log_start: int | None = None,
    ) -> None:
        """Tell of a reset and of what will never be handed out because of it.

        Without `log_start` the log begins at the new position, or where that is not known.
        """
        from aiokafka_lite.consumer.monitoring.events import OffsetRange, OffsetReset

        events = self._state.events
        lost = skipped = None
        if before is not None and before < after:
            lost = OffsetRange(before, after)
            log.warning("%s: offsets %s to %s will not be read", tp, before, after - 1)
            if log_start is not None and log_start < after:
                skipped = OffsetRange(max(before, log_start), after)
            events.count_lost(lost.offset_count, 0 if skipped is None else skipped.offset_count)
        events.publish(OffsetReset(tp, before, after, reason, lost, skipped))

    async def _ends_of_quiet(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, FoundOffset]:
        """Return the ends of logs that have no record at or after a time (by_duration).

        The time is asked for again once the end is known: what was written meanwhile counts.
        """
        ends, _ = await self._lookup.try_once(dict.fromkeys(timestamps, LATEST_TIMESTAMP))
        again, _ = await self._lookup.try_once({tp: timestamps[tp] for tp in ends})
        return {tp: ends[tp] if found.offset < 0 else found for tp, found in again.items()}
