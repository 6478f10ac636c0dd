"""Files that change atomically, and a queue that keeps slow disk work off the event loop."""

from __future__ import annotations

import asyncio
import os
from asyncio import _get_running_loop
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from aiokafka_lite._compat import Buffer
from aiokafka_lite._virtual import simulation_of
from aiokafka_lite.errors import KafkaStorageError

FILE_MODE: Final = 0o644


def replace_file(path: Path, contents: Buffer, mode: int = FILE_MODE) -> None:
    """Write a file, so that a crash leaves its old or its new contents."""
    temporary = path.with_name(path.name + ".new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with open(fd, "wb") as file:
        file.write(contents)
        file.flush()
        os.fsync(fd)
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make created, renamed and removed names durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


_NOTHING: Final[Future[None]] = Future()
_NOTHING.set_result(None)


class DiskQueue:
    """Writes, flushes and deletes small files in one thread, so that each lane keeps its order.

    Files that clients wait for precede flushes and deletions of logs, of which there may be more
    than the disk can handle. After the first failure, every wait raises it. A simulated loop does
    the work itself, in later steps.
    """

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._front = _Lane()
        self._back = _Lane()
        self._failure: OSError | None = None

    def submit(self, work: Callable[[], None]) -> None:
        self._enqueue(self._front, work)

    def submit_behind(self, work: Callable[[], None]) -> None:
        """Queue work that runs in order while no work of `submit` waits."""
        self._enqueue(self._back, work)

    def _enqueue(self, lane: _Lane, work: Callable[[], None]) -> None:
        loop = _get_running_loop()
        if loop is not None and simulation_of(loop) is not None:
            lane.append(work)
            loop.call_soon(self._run_next)
            return
        if self._executor is None:  # no thread without disk work
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="broker-disk")
        lane.append(work)
        self._executor.submit(self._run_next)

    def _run_next(self) -> None:
        work, done = (self._front.waiting or self._back.waiting).popleft()
        try:
            work()
        except OSError as error:
            self._failure = self._failure or error
        except BaseException as error:  # noqa: BLE001 — raised by the waiting method
            done.set_exception(error)
            return
        done.set_result(None)

    async def settled(self) -> None:
        """Wait for all work of `submit`. Raise KafkaStorageError if some failed, also earlier."""
        await self._until(self._front.latest)

    async def drained(self) -> None:
        """Wait for all work. Raises like `settled`."""
        await self._until(self._front.latest, self._back.latest)

    async def _until(self, *latest: Future[None]) -> None:
        for future in latest:
            if not future.done():
                await asyncio.wrap_future(future)
            future.result()
        if self._failure is not None:
            raise KafkaStorageError(
                f"the broker could not write to its data directory: {self._failure}"
            ) from self._failure

    async def close(self) -> None:
        """Wait for all work and end the thread. Raises like `settled`."""
        try:
            await self.drained()
        finally:
            if self._executor is not None:
                self._executor.shutdown()
                self._executor = None


class _Lane:
    """Work in FIFO order. The loop appends, the thread removes."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Callable[[], None], Future[None]]] = deque()
        self.latest = _NOTHING

    def append(self, work: Callable[[], None]) -> None:
        self.latest = Future()
        self.latest.set_running_or_notify_cancel()  # waiting methods cannot cancel it
        self.waiting.append((work, self.latest))
