"""Watches that no partition is assigned for long without a position.

Every five seconds it notes which cursors are assigned, are not paused and have no position, or none
that the leader has validated, and since when; `health` reads it. When that gets long it wakes the
position resolver. It also asks the pool to try lost brokers again that nobody may need any more:
otherwise `health` would say for ever that they are away.

A cursor that has a position needs no watching: it is at one place, and the place has a keeper.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from aiokafka_lite._compat import Never
from aiokafka_lite.client import Cluster
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.assignment.subscription import SubscriptionState

TICK_S: Final = 5.0
# Without a position for longer, the position resolver is woken.
LONG_S: Final = 5.0


class Watchdog:
    """Looks after what is assigned; the task "watchdog" runs `run`."""

    def __init__(
        self, state: SubscriptionState, cluster: Cluster, wake_resolver: Callable[[], None]
    ) -> None:
        self._state = state
        self._cluster = cluster
        self._wake_resolver = wake_resolver
        self._loop = asyncio.get_running_loop()
        # Since when, in loop time.
        self._without_position: dict[Cursor, float] = {}

    @property
    def assigned_without_position_s(self) -> float:
        """How long the partition that waits longest has had no position; 0: all have one.

        From the first look that found it so: up to a tick less than it is.
        """
        now = self._loop.time()
        return max((now - at for at in self._without_position.values()), default=0.0)

    async def run(self) -> Never:
        """Look every tick."""
        while True:
            await asyncio.sleep(TICK_S)
            self._look()

    def _look(self) -> None:
        now = self._loop.time()
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
