"""The gets that wait for something to hand out, and what wakes them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from aiokafka_lite.structs import TopicPartition

Wanted = Collection[TopicPartition]


class WaitingGets:
    """Futures of the gets that wait, and the one timer that serves all their deadlines."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        # With what each is about, none for all; the one that waits longest comes first.
        self._waiters: dict[asyncio.Future[None], Wanted] = {}
        # Moved only when it fires, so a get that does not wait to its deadline costs none.
        self._alarm: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Return how many gets wait."""
        return len(self._waiters)

    def wake(self) -> None:
        """Have all look again."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def wanted(self) -> list[TopicPartition]:
        """Return the partitions that gets wait for; empty also if one waits for whatever comes."""
        if not all(self._waiters.values()):
            return []
        return [tp for wanted in self._waiters.values() for tp in wanted]

    def add(self, wanted: Wanted) -> asyncio.Future[None]:
        """Return what a get awaits; it hands it to `discard` then, whatever happened."""
        waiter = self._loop.create_future()
        self._waiters[waiter] = wanted
        return waiter

    def discard(self, waiter: asyncio.Future[None]) -> None:
        """Forget a get that waits no more."""
        del self._waiters[waiter]

    def set_alarm(self, deadline: float) -> bool:
        """Have all woken by the deadline, a loop time; False if it has passed."""
        if self._loop.time() >= deadline:
            return False
        if self._alarm is not None:
            if self._alarm.when() <= deadline:
                return True
            self._alarm.cancel()
        self._alarm = self._loop.call_at(deadline, self._ring)
        return True

    def _ring(self) -> None:
        self._alarm = None
        self.wake()

    def cancel_alarm(self) -> None:
        """Leave no timer behind; gets that wait until a deadline must not come any more."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
