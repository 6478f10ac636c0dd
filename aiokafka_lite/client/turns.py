"""Sends credentials to one bootstrap server at a time, because wrong ones lock accounts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

from aiokafka_lite.client.wire import own_copy
from aiokafka_lite.errors import KafkaError


class Turns:
    """Lets one attempt at a time send credentials, until they are refused."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._refusal: KafkaError | None = None
        self._refusal_count = 0

    def ticket(self) -> Callable[[], AbstractAsyncContextManager[None]]:
        """Return a context for an attempt that begins now to send credentials.

        Entering it waits for the turn, and raises if credentials were refused since the ticket.
        """
        return partial(self._turn, self._refusal_count)

    @asynccontextmanager
    async def _turn(self, seen_count: int) -> AsyncIterator[None]:
        async with self._lock:
            if self._refusal is not None and self._refusal_count != seen_count:
                raise own_copy(self._refusal)
            try:
                yield
            except KafkaError as error:
                if not error.retriable:
                    self._refusal = error
                    self._refusal_count += 1
                raise
