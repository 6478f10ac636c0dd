"""Detects partitions that make no progress, for `health`.

Every five seconds it notes since when partitions, assigned and not paused, have no validated
position, or have the same first unfinished offset, though the log has records from there on. It
wakes the position resolver, looks up log ends, and has the pool retry lost brokers that are no
longer used, so that `health` does not report them forever.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from aiokafka_lite._compat import Never
from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.config import LATEST_TIMESTAMP
from aiokafka_lite.consumer.core import Core
from aiokafka_lite.consumer.positions.leader_requests import (
    FoundOffset,
    LeaderRequests,
    OffsetLookup,
    RequestKind,
)

if TYPE_CHECKING:
    from aiokafka_lite.consumer.fetching.sources import Sources
    from aiokafka_lite.consumer.positions.resolver import PositionResolver

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
                cursor: (cursor.tp, LATEST_TIMESTAMP)
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
                if cursor.is_paused:
                    continue
                if cursor.search is not None and not (
                    cursor.is_withheld and cursor.position is not None
                ):
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
