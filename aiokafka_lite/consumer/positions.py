"""The position resolver: gives every assigned partition a position to fetch from.

    INITIALIZING --committed offset--> FETCHING
    INITIALIZING --none committed--> AWAIT_RESET      (auto_offset_reset; "none": raised, sticky)
    AWAIT_RESET  --ListOffsets answer--> FETCHING

One task does it, woken when partitions come or change. What it learns is applied only if the
partition is still what it was when it was asked about: a seek or a revocation meanwhile wins.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from aiokafka_lite._compat import timeout_at
from aiokafka_lite.client import ClusterView
from aiokafka_lite.client.backoff import Backoff
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.fetch_queue import FetchQueue
from aiokafka_lite.consumer.offsets import OffsetLookup
from aiokafka_lite.consumer.state import FetchState, PartitionState, SubscriptionState
from aiokafka_lite.errors import KafkaError, NoOffsetForPartitionError
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition

log = logging.getLogger(__name__)

LAST_BACKOFF_S: Final = 1.0

CommittedLookup = Callable[
    [Iterable[TopicPartition]], Awaitable[Mapping[TopicPartition, OffsetAndMetadata | None]]
]


class PositionResolver:
    """Owns partitions that are awaiting a position."""

    def __init__(
        self,
        config: ConsumerConfig,
        state: SubscriptionState,
        queue: FetchQueue,
        lookup: OffsetLookup,
        committed: CommittedLookup,
        on_error: Callable[[KafkaError], None],
        rng: random.Random,
    ) -> None:
        self._config = config
        self._state = state
        self._queue = queue
        self._lookup = lookup
        self._committed = committed
        self._on_error = on_error
        self._wake = asyncio.Event()
        self._backoff = Backoff(config.retry_backoff_s, LAST_BACKOFF_S, rng)
        # Partitions whose failure is with the application: left alone until it seeks.
        self._given_up: set[PartitionState] = set()
        state.on_assignment_change(self._wake.set)
        state.on_partition_change(self._partition_changed)

    def view_changed(self, view: ClusterView) -> None:
        """Look again at once: leaders that were missing may be known now."""
        self._wake.set()

    def _partition_changed(self, partition: PartitionState) -> None:
        if partition.fetch_state is not FetchState.FETCHING:
            self._wake.set()

    async def run(self) -> None:
        """Resolve positions until cancelled."""
        while True:
            self._wake.clear()
            try:
                is_done = await self._resolve_once()
            except KafkaError as error:
                if not error.retriable:
                    self._on_error(error)
                log.warning("looking up positions failed, is retried: %s", error)
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
        self._given_up = {partition for partition in self._given_up if partition.is_assigned}
        return [
            partition
            for partition in self._state.assignment.values()
            if partition.fetch_state is fetch_state
            and not partition.is_revoking
            and partition not in self._given_up
        ]

    async def _resolve_once(self) -> bool:
        """Resolve what can be; False if something has to be tried again."""
        initializing = self._awaiting(FetchState.INITIALIZING)
        if initializing:
            await self._start_from_committed(initializing)
        awaiting = self._awaiting(FetchState.AWAIT_RESET)
        return await self._reset(awaiting) if awaiting else True

    async def _start_from_committed(self, partitions: list[PartitionState]) -> None:
        tags = {partition: partition.tag for partition in partitions}
        committed = await self._committed([partition.tp for partition in partitions])
        for partition, tag in tags.items():
            if partition.tag != tag or partition.fetch_state is not FetchState.INITIALIZING:
                continue
            offset = committed.get(partition.tp)
            if offset is not None:
                self._state.seek(partition, offset.offset)
            else:
                self._reset_by_policy(partition)

    def _reset_by_policy(self, partition: PartitionState) -> None:
        timestamp = self._config.reset_timestamp
        if timestamp is not None:
            self._state.request_reset(partition, timestamp)
            return
        self._given_up.add(partition)
        error = NoOffsetForPartitionError(
            f"no offset is committed for {partition.tp} and auto_offset_reset is none: "
            "seek to an offset"
        ).at(partition.tp)
        self._queue.put_error(partition, error, is_sticky=True)

    async def _reset(self, partitions: list[PartitionState]) -> bool:
        asked = {
            partition.tp: (partition, partition.tag, partition.reset_timestamp)
            for partition in partitions
        }
        found, failures = await self._lookup.try_once(
            {tp: timestamp for tp, (_, _, timestamp) in asked.items() if timestamp is not None}
        )
        for tp, offset in found.items():
            partition, tag, _ = asked[tp]
            if partition.tag == tag and partition.fetch_state is FetchState.AWAIT_RESET:
                self._state.seek(partition, offset.offset, offset.leader_epoch)
        for tp, error in failures.items():
            partition, tag, _ = asked[tp]
            partition.retry_reason = type(error).__name__
            is_passing = error.retriable or error.invalid_metadata
            if not is_passing and partition.tag == tag:
                self._queue.put_error(partition, error)
        return not failures
