"""The watchdog: no partition is assigned and silent.

Every five seconds it looks whether each partition that is to be fetched is in a fetch or in a
back-off that has a name (`Sources.place`). One that is in neither at two looks in a row, or that is
marked as being given back while there is no rebalance, is put under its fetch task anew; that is
counted, published as FetchStalled, and logged. It is the consumer's own bug then, whatever it is:
an application should not have to notice it by the silence.

It also measures how long partitions are assigned without a position, and wakes whoever looks for
positions when that gets long; and it has brokers that were lost tried, which nobody may need any
more: otherwise health() would tell for ever that they are away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from aiokafka_lite._compat import Never
from aiokafka_lite.consumer.assignment.cursor import Cursor, FetchState
from aiokafka_lite.consumer.assignment.subscription import SubscriptionState
from aiokafka_lite.consumer.fetching.sources import Sources

TICK_S: Final = 5.0
# Some 2 us each; then others run.
PARTITIONS_AT_ONCE: Final = 200
# Without a position for longer, the position resolver is woken.
LONG_S: Final = 5.0


class Watchdog:
    """Looks after what is assigned; the task "watchdog" runs `run`.

    Attributes:
        stall_count: How often a partition was found in no fetch and in no back-off.
    """

    def __init__(
        self,
        state: SubscriptionState,
        sources: Sources,
        is_stable: Callable[[], bool],
        wake_resolver: Callable[[], None],
    ) -> None:
        self.stall_count = 0
        self._state = state
        self._sources = sources
        self._is_stable = is_stable
        self._wake_resolver = wake_resolver
        self._loop = asyncio.get_running_loop()
        # Since when, in loop time.
        self._suspects: dict[Cursor, float] = {}
        self._without_position: dict[Cursor, float] = {}

    @property
    def assigned_without_position_s(self) -> float:
        """How long the longest waiting of the assigned partitions has had no position; 0: none has.

        From the first look that found it so: up to a tick less than it is.
        """
        now = self._loop.time()
        return max((now - at for at in self._without_position.values()), default=0.0)

    async def run(self) -> Never:
        """Look every tick."""
        while True:
            await asyncio.sleep(TICK_S)
            await self._look()

    async def _look(self) -> None:
        looked_at = 0
        suspects, self._suspects = self._suspects, {}
        without_position, self._without_position = self._without_position, {}
        for partition in tuple(self._state.assignment.values()):
            looked_at += 1
            if looked_at % PARTITIONS_AT_ONCE == 0:
                await asyncio.sleep(0)
            if not partition.is_assigned or partition.is_paused:
                continue
            now = self._loop.time()
            if partition.fetch_state is FetchState.FETCHING:
                self._check(partition, suspects.get(partition), now)
            elif partition.position is None:
                self._without_position[partition] = without_position.get(partition, now)
        if self.assigned_without_position_s > LONG_S:
            self._wake_resolver()
        self._sources.cluster.pool.try_lost()

    def _check(self, partition: Cursor, since: float | None, now: float) -> None:
        explanation = self._complaint(partition, now)
        if explanation is None:
            return
        if since is None:
            self._suspects[partition] = now
            return
        self._heal(partition, now - since + TICK_S, explanation)

    def _complaint(self, partition: Cursor, now: float) -> str | None:
        """Say what is wrong; None: nothing."""
        if partition.is_revoking:
            if not self._is_stable():
                return None
            return "it is marked as being given back, but no rebalance is under way"
        place = self._sources.place(partition, now)
        if place.is_sound and not place.is_brief:
            return None
        # What is brief may be met once, right after it began; not at two looks.
        return place.text

    def _heal(self, partition: Cursor, stalled_s: float, explanation: str) -> None:
        """Fetch the partition as if it had just been assigned at its position."""
        from aiokafka_lite.consumer.events.kinds import FetchStalled

        self.stall_count += 1
        self._state.events.publish(FetchStalled(partition.tp, stalled_s, explanation))
        self._sources.place_anew(partition)
        self._state.keep(partition)
