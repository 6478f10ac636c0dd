"""Defines Work: records whose completion is not implied by the next read.

It is an open batch (batches.py), the records of `consumer.run`'s handlers, or records that wait for
acknowledgement (processing/). Rebalances and stops wait for it until a limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from typing import Any, Final, Protocol

from aiokafka_lite.consumer.assignment.cursor import Cursor, Range
from aiokafka_lite.consumer.assignment.delivery import HeldRecord
from aiokafka_lite.structs import TopicPartition

PROCESSING_COUNTS: Final = (
    "at_work", "ready", "waiting_for_retry", "in_outbox", "uncommitted"
)  # fmt: skip
"""Where records may be. See `Processing.counts`."""


class Work(Protocol):
    """Records from their read to their completion."""

    @property
    def hold_s(self) -> float | None:
        """How long it may delay a rebalance; None: as long as reads."""

    @property
    def is_open(self) -> bool:
        """Whether any record may be unfinished."""

    def partitions(self) -> Set[TopicPartition]: ...

    def undone(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Range]:
        """Return the unfinished records that a rebalance waits for."""

    def is_wanted_by(self, until: float) -> None:
        """Note that a rebalance or the stop waits for it, until a loop time."""

    def give_up(self, partitions: Collection[TopicPartition], now: float) -> None:
        """Note a revocation: another member may process the unfinished records from now on."""

    def is_of(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether it cannot end while this task waits."""

    def is_ending(self, partitions: Collection[TopicPartition]) -> bool:
        """Whether it still winds up records that it has given up."""


class Processing(Work, Protocol):
    """`consumer.run`, or acknowledging reads: all returned records belong to it."""

    @property
    def is_always_asking(self) -> bool:
        """Whether it counts as reading all the time, for `max_poll_interval_ms`."""

    @property
    def is_paused(self) -> bool: ...

    def takes(self, sink: object) -> bool:
        """Whether a read with this sink may have records."""

    def own_records(self) -> Mapping[Cursor, Mapping[int, object]] | None:
        """Return the current task's records with holders; None: commits finish all."""

    async def end(self, until: float) -> None:
        """Start no more records. Cancel those still processed at the deadline."""

    def receipts(self) -> Iterable[HeldRecord]:
        """Return the records that the application is processing.

        Raises:
            IllegalOperation: Handlers have them.
        """

    def troubles(self, now: float) -> Iterator[str]: ...

    def explain(self, cursor: Cursor, now: float) -> str:
        """Describe the records being processed, and why a commit is delayed."""

    def counts(self) -> dict[str, int]:
        """Return counts by the names of `PROCESSING_COUNTS`."""
