"""Watches that partitions do not stand still for long without a word.

Every five seconds it looks at the cursors that are assigned and not paused, and notes since when

    there is no position, or none that the leader has validated
    the first unfinished offset is the same, though the log has records from there on

`health` reads both. When there is no position for long it wakes the position resolver. It also asks
the pool to try lost brokers again that nobody may need any more: otherwise `health` would say for
ever that they are away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from aiokafka_lite._compat import Never
from aiokafka_lite.client import Cluster
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.assignment.subscription import SubscriptionState

TICK_S: Final = 5.0
# Without a position for longer, the position resolver is woken.
LONG_S: Final = 5.0


class Standstill(NamedTuple):
    """The first unfinished offset of a partition, and since when it is that."""

    offset: int
    since: float


class Watchdog:
    """Looks after what is assigned; the task "watchdog" runs `run`."""

    def __init__(
        self,
        state: SubscriptionState,
        cluster: Cluster,
        wake_resolver: Callable[[], None],
    ) -> None:
        self._state = state
        self._cluster = cluster
        self._wake_resolver = wake_resolver
        self._loop = asyncio.get_running_loop()
        # Since when, in loop time.
        self._without_position: dict[Cursor, float] = {}
        # Of partitions with unfinished records.
        self._standstills: dict[Cursor, Standstill] = {}

    @property
    def assigned_without_position_s(self) -> float:
        """How long the partition that waits longest has had no position; 0: all have one.

        From the first look that found it so: up to a tick less than it is.
        """
        now = self._loop.time()
        return max((now - at for at in self._without_position.values()), default=0.0)

    def standstill_s(self, cursor: Cursor, now: float) -> float:
        """Return how long nothing of a partition was finished, though there are records.

        From the first look that found it so: up to a tick less than it is.
        """
        noted = self._standstills.get(cursor)
        return 0.0 if noted is None or noted.offset != cursor.finished_to else now - noted.since

    async def run(self) -> Never:
        """Look every tick."""
        while True:
            await asyncio.sleep(TICK_S)
            self._look()

    def _look(self) -> None:
        now = self._loop.time()
        self._note_standstills(now)
        before = self._without_position
        self._without_position = {
            cursor: before.get(cursor, now)
            for cursor in self._state.assignment.values()
            if cursor.search is not None
            and not cursor.is_paused
            and not (cursor.is_revoking and cursor.position is not None)
        }
        if self.assigned_without_position_s > LONG_S:
            self._wake_resolver()
        self._cluster.pool.try_lost()

    def _note_standstills(self, now: float) -> None:
        self._state.settle()
        before, self._standstills = self._standstills, {}
        for cursor in self._state.assignment.values():
            offset, end = cursor.finished_to, cursor.high_watermark
            if offset is None or end is None or offset >= end or cursor.is_paused:
                continue
            noted = before.get(cursor)
            if noted is None or noted.offset != offset:
                noted = Standstill(offset, now)
            self._standstills[cursor] = noted
