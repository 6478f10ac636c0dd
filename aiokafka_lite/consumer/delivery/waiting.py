"""The gets that wait for something to hand out, and what wakes them."""

from __future__ import annotations

import asyncio


class WaitingGets:
    """Futures of the gets that wait, and the one timer that serves all their deadlines."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiters: list[asyncio.Future[None]] = []
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

    def add(self) -> asyncio.Future[None]:
        """Return what a get awaits; it hands it to `discard` then, whatever happened."""
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        return waiter

    def discard(self, waiter: asyncio.Future[None]) -> None:
        """Forget a get that waits no more."""
        self._waiters.remove(waiter)

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
