"""What the application is at work on: records that it finishes not by its next get.

That is a batch in whose block it is (batches.py), or what `consumer.run` has given to handlers,
or what waits for its acknowledgement (processing/). A rebalance that wants partitions of a work
waits for it, until a limit, and so does the stop.
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
"""Where records may be; see `Processing.counts`."""


class Work(Protocol):
    """Records that were handed out, from the get that brought them to their end."""

    @property
    def hold_s(self) -> float | None:
        """How long it may hold up a rebalance; None: as long as what gets have handed out."""

    @property
    def is_open(self) -> bool:
        """Whether anything may be left to do."""

    def partitions(self) -> Set[TopicPartition]:
        """Return the partitions of which it has records."""

    def undone(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Range]:
        """Return what is being worked on of these partitions, and is to be waited for."""

    def is_wanted_by(self, until: float) -> None:
        """Note that a rebalance or the stop waits for it, until a loop time at most."""

    def give_up(self, partitions: Collection[TopicPartition], now: float) -> None:
        """Note that partitions go: what is undone of them may be another member's from now on."""

    def is_of(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether it cannot end while this task waits."""

    def is_ending(self, partitions: Collection[TopicPartition]) -> bool:
        """Whether what was given up of these partitions is still coming to its end."""


class Processing(Work, Protocol):
    """`consumer.run`, or gets whose records are acknowledged: what is handed out is its."""

    @property
    def is_always_asking(self) -> bool:
        """Whether it asks for records all the time, as far as `max_poll_interval_ms` goes."""

    @property
    def is_paused(self) -> bool:
        """Whether a circuit breaker pauses the handlers."""

    def takes(self, sink: object) -> bool:
        """Whether a get may have records, by what it puts them into."""

    def own_records(self) -> Mapping[Cursor, Mapping[int, object]] | None:
        """Return the records that the current task processes, by offset, and their holders.

        Returns:
            A commit that names offsets finishes no others; None: it finishes all before them.
        """

    async def end(self, until: float) -> None:
        """Begin with nothing more, and wait for what is being worked on; then cut it off."""

    def receipts(self) -> Iterable[HeldRecord]:
        """Return what the application has in hand.

        Raises:
            IllegalOperation: Handlers have it, and a transaction commits it one by one.
        """

    def troubles(self, now: float) -> Iterator[str]:
        """Say what is wrong, at loop time `now`."""

    def explain(self, cursor: Cursor, now: float) -> str:
        """Say what of a partition is being worked on, and what holds its commit back."""

    def counts(self) -> dict[str, int]:
        """Return how many records are where, by name."""
