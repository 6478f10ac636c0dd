"""Looks up the log ends of partitions that are not being fetched, for their lag.

Paused partitions, and those of which enough is buffered or being handled, are not fetched.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.config import LATEST_TIMESTAMP, ConsumerConfig
from aiokafka_lite.consumer.positions.leader_lookup import FoundOffset, OffsetLookup
from aiokafka_lite.consumer.positions.leader_requests import LeaderRequests
from aiokafka_lite.errors import KafkaError

# Older log ends are looked up again.
STALE_S: Final = 10.0
# At a time: more would block the loop. The others follow later.
MOST_ASKED: Final = 500


class LogEnds:
    """Keeps log ends up to date; the watchdog finds the stale ones."""

    __slots__ = (
        "_cluster",
        "_config",
        "_is_asked",
        "_lookup",
        "_requests",
        "_rng",
        "_scope",
    )

    def __init__(
        self,
        config: ConsumerConfig,
        cluster: Cluster,
        lookup: OffsetLookup,
        is_asked: Callable[[Cursor], bool],
        *,
        scope: TaskScope,
        rng: random.Random,
    ) -> None:
        self._config = config
        self._cluster = cluster
        self._lookup = lookup
        self._is_asked = is_asked
        self._scope = scope
        self._rng = rng
        # Created for the first stale log end.
        self._requests: LeaderRequests[Cursor, int, FoundOffset] | None = None

    def is_stale(self, cursor: Cursor, now: float) -> bool:
        """Whether a log end is unknown or too old."""
        heard_at = cursor.last_fetch_at
        is_old = heard_at is None or now - heard_at > STALE_S
        return is_old and cursor.search is None and not self._is_asked(cursor)

    def ask(self, stale: list[Cursor]) -> None:
        """Look up the ends of logs that have a leader."""
        view = self._cluster.view
        wanted = {
            cursor: (cursor.tp, LATEST_TIMESTAMP)
            for cursor in self._rng.sample(stale, min(len(stale), MOST_ASKED))
            if view.leader(cursor.tp) is not None
        }
        if self._requests is None and wanted:
            self._requests = LeaderRequests(
                self._cluster,
                self._scope,
                self._rng,
                name="look log ends up at",
                first_delay_s=self._config.retry_backoff_s,
                ask=self._lookup.ask,
                on_answer=self._found,
                on_failure=_not_found,
                on_end=_ended,
            )
        if self._requests is not None:
            self._requests.advance(wanted)

    def _found(self, cursor: Cursor, found: FoundOffset, leader_epoch: int) -> None:
        now = asyncio.get_running_loop().time()
        if cursor.is_assigned and self.is_stale(cursor, now):
            is_stable = self._config.is_read_committed
            cursor.log_ends_at(found.offset, now, is_stable=is_stable)


def _not_found(cursor: Cursor, error: KafkaError) -> None:
    """Do nothing: the next look asks again."""


def _ended() -> None:
    """Do nothing."""
