"""Limits of the calls of `consumer.run` that are not by record: how many at once, and how often."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from aiokafka_lite._arguments import POSITIVE_INT

# The longest time without calls whose calls are made up for at once.
BURST_S: Final = 0.1
# Between two turns of workers that wait for a call: many calls a second begin some at a time.
LEAST_WAIT_S: Final = 0.002


class Concurrency:
    """The most concurrent calls of a handler, for `AIOKafkaConsumer.run`. It may change meanwhile.

    ::

        limit = Concurrency(50)
        await consumer.run(handle, concurrency=limit)

    Assign `limit.value` on the consumer's event loop, also while `run` is active. If it is lowered,
    running calls finish, and no call begins until fewer are running.

    Args:
        value: The number of calls. If several consumers share the object, each may make so many.

    Raises:
        ValueError: It is not a positive int.
    """

    def __init__(self, value: int) -> None:
        self._runs: dict[Callable[[], None], None] = {}
        self.value = value

    def __repr__(self) -> str:
        return f"Concurrency({self._value})"

    @property
    def value(self) -> int:
        """The number of calls."""
        return self._value

    @value.setter
    def value(self, value: int) -> None:
        POSITIVE_INT.check("concurrency", value)
        self._value = value
        for changed in tuple(self._runs):
            changed()

    @contextmanager
    def _watched_by(self, changed: Callable[[], None]) -> Iterator[None]:
        """Call a function after each change of `value`, in a block."""
        self._runs[changed] = None
        try:
            yield
        finally:
            del self._runs[changed]


class LetterSlots:
    """As asyncio.Semaphore: in as many blocks at once as a Concurrency allows, which may change."""

    def __init__(self, concurrency: Concurrency) -> None:
        self._concurrency = concurrency
        self._taken_count = 0
        self._waiters: deque[asyncio.Future[None]] = deque()

    def fill(self) -> None:
        """Let blocks begin that wait, as many as there is room for."""
        while self._waiters and self._taken_count < self._concurrency.value:
            waiter = self._waiters.popleft()
            if not waiter.done():
                self._taken_count += 1
                waiter.set_result(None)

    async def __aenter__(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self.fill()
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():  # it had its turn in the same step
                await self.__aexit__()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._taken_count -= 1
        self.fill()


class TokenBucket:
    """Limits calls a second, on a loop's clock. Each call takes a token."""

    def __init__(self, per_second: float, now: float) -> None:
        self._per_second: Final = per_second
        self._most: Final = max(1.0, BURST_S * per_second)
        self._tokens, self._counted_at = self._most, now

    def count(self, now: float) -> int:
        """Return how many calls may begin."""
        self._tokens += max(0.0, now - self._counted_at) * self._per_second
        self._tokens, self._counted_at = min(self._tokens, self._most), now
        return math.floor(self._tokens + 1e-6)

    def take(self) -> None:
        self._tokens -= 1

    @property
    def next_at(self) -> float:
        """When a call may begin, if none may now."""
        return self._counted_at + max((1 - self._tokens) / self._per_second, LEAST_WAIT_S)
