"""Slow disk work in one thread, in the order it was asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from aiokafka_lite.errors import KafkaStorageError

_NOTHING: Final[Future[None]] = Future()
_NOTHING.set_result(None)


class DiskQueue:
    """Flushes, checkpoints and deletions, kept off the event loop.

    One thread, so that what was asked for first is on the disk first. The first failure is kept;
    everyone who waits for the disk is told of it from then on.
    """

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._latest: Future[None] = _NOTHING
        self._failure: OSError | None = None

    def submit(self, work: Callable[[], None]) -> None:
        """Have work done after all that was submitted before."""
        if self._executor is None:  # no thread unless there is a disk
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="broker-disk")
        self._latest = self._executor.submit(self._run, work)

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except OSError as error:
            self._failure = self._failure or error

    async def settled(self) -> None:
        """Wait until all work submitted so far is done.

        Raises:
            KafkaStorageError: Some of it failed, now or earlier.
        """
        if not self._latest.done():
            await asyncio.wrap_future(self._latest)
        if self._failure is not None:
            raise KafkaStorageError(f"the disk failed: {self._failure}") from self._failure

    async def close(self) -> None:
        """Wait for the work and end the thread.

        Raises:
            KafkaStorageError: See `settled`.
        """
        try:
            await self.settled()
        finally:
            if self._executor is not None:
                self._executor.shutdown()
                self._executor = None
