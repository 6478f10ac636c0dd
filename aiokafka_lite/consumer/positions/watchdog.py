"""Detects partitions that make no progress; `health` reports them.

Every five seconds it notes the partitions, assigned and not paused, since when

- there is no position, or none that the leader has validated
- the first unfinished offset is the same, though the log has records from there on

It wakes the position resolver, looks up log ends (log_ends.py), and has the pool retry lost brokers
that are no longer used, so that `health` does not report them forever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from aiokafka_lite._compat import Never
from aiokafka_lite.client import Cluster
from aiokafka_lite.consumer.assignment.assignment import Assignment
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.assignment.reads import Reads
from aiokafka_lite.consumer.positions.log_ends import LogEnds

TICK_S: Final = 5.0
# Without a position for longer, the resolver is woken.
LONG_S: Final = 5.0
# In one turn of the loop.
MOST_AT_ONCE: Final = 1_000


class Standstill(NamedTuple):
    """The first unfinished offset of a partition, and since when."""

    offset: int
    since: float


class Watchdog:
    """Watches the assignment; the task "watchdog" runs `run`."""

    def __init__(
        self,
        state: Assignment,
        reads: Reads,
        cluster: Cluster,
        log_ends: LogEnds,
        wake_resolver: Callable[[], None],
    ) -> None:
        self._state = state
        self._reads = reads
        self._cluster = cluster
        self._log_ends = log_ends
        self._wake_resolver = wake_resolver
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
        """Check all partitions, some at a time."""
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
                if cursor.is_paused:
                    continue
                if cursor.search is not None and not (
                    cursor.is_revoking and cursor.position is not None
                ):
                    without_position[cursor] = self._without_position.get(cursor, now)
                if (standstill := self._standstill(cursor, now)) is not None:
                    standstills[cursor] = standstill
        self._without_position, self._standstills = without_position, standstills
        if self.assigned_without_position_s > LONG_S:
            self._wake_resolver()
        self._log_ends.ask(stale)

    def _standstill(self, cursor: Cursor, now: float) -> Standstill | None:
        """Return the standstill of a partition; None: all its records are finished."""
        end = cursor.high_watermark
        offset = cursor.finished_to
        if end is None or offset is None or offset >= end:
            return None
        noted = self._standstills.get(cursor)
        return noted if noted is not None and noted.offset == offset else Standstill(offset, now)
