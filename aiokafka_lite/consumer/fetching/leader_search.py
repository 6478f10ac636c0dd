"""Looks for new leaders while a broker that partitions are read from is down.

The controller detects a dead leader after broker.session.timeout.ms (9 s), and only repeated
metadata requests find the new one. So their interval is short for the duration of an election.

A broker that hangs closes no connection. Long before the connection is given up, its overdue fetch
makes this search ask other brokers for the leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.client.connection import LATE_S

if TYPE_CHECKING:
    from aiokafka_lite.consumer.fetching.source import Source

# broker.session.timeout.ms by default, and the election on top.
SEARCH_S: Final = 12.0
SEARCH_INTERVAL_S: Final = 0.15
WATCH_INTERVAL_S: Final = 1.0


class LeaderSearch:
    def __init__(self, cluster: Cluster, watched: Callable[[], Iterable[Source]]) -> None:
        self._cluster = cluster
        self._watched = watched
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._leaderless_since: float | None = None
        self._is_closed = False

    def start(self) -> None:
        self._look_in(WATCH_INTERVAL_S)

    def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def note_leaderless(self, *, is_so: bool) -> None:
        if not is_so:
            self._leaderless_since = None
        elif self._leaderless_since is None:
            self._leaderless_since = self._loop.time()
            self.hurry()

    def hurry(self) -> None:
        """Look soon: a broker has failed."""
        self._look_in(SEARCH_INTERVAL_S)

    def _look_in(self, delay_s: float) -> None:
        if self._is_closed:
            return
        due = self._loop.time() + delay_s
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        if self._timer is not None and now > self._timer.when() + LATE_S:
            # The loop was blocked: answers may be in the socket.
            self._timer = None
            self._look_in(SEARCH_INTERVAL_S)
            return
        self._timer = None
        began = [self._leaderless_since]
        overdue = set()
        for node in self._watched():
            began.append(node.failing_since)
            if node.failing_since is None and node.is_overdue(now):
                overdue.add(node.node_id)
        is_searching = any(since is not None and now - since < SEARCH_S for since in began)
        self._cluster.pool.suspect(self, frozenset(overdue))
        if is_searching:
            self._cluster.look_for_leader()
        elif overdue:
            self._cluster.invalidate()
        self._look_in(SEARCH_INTERVAL_S if is_searching else WATCH_INTERVAL_S)
