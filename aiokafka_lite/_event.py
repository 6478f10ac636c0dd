"""An event for tasks to wait for, small enough for the dozen that each consumer has."""

from __future__ import annotations

import asyncio


class Event:
    """As asyncio.Event, whose queue of waiters takes 600 bytes also while nobody waits."""

    __slots__ = ("_is_set", "_waiters")

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: list[asyncio.Future[None]] = []

    def is_set(self) -> bool:
        """Whether a wait ends at once."""
        return self._is_set

    def set(self) -> None:
        """Wake whoever waits, and keep nobody waiting until it is cleared."""
        self._is_set = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def clear(self) -> None:
        """Clear it: whoever comes from now on waits."""
        self._is_set = False

    async def wait(self) -> None:
        """Wait until it is set, also if it is cleared before this task runs."""
        if self._is_set:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            self._waiters.remove(waiter)
