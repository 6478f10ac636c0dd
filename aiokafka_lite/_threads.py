"""The package's own threads, for work that would block the event loop.

Workers of the loop's default executor, the application's, may never end, or wait for this consumer.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future as ConcurrentFuture
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TypeVar

from aiokafka_lite._virtual import simulation_of

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

T = TypeVar("T")
AddressInfo = tuple[Any, Any, int, str, tuple[Any, ...]]

# Resolving a name may take long, which then delays only other names.
COMPUTING_THREADS: Final = max(2, min(4, os.cpu_count() or 1))
RESOLVING_THREADS: Final = 4
NO_LIMIT: Final = 2**31 - 1
# A computation that no thread begins within this time is done on the loop.
BEGIN_S: Final = 0.1

_executors: Final[dict[str, ThreadPoolExecutor]] = {}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_executors.clear)  # its threads are the parent's


def _executor(name: str, most: int) -> ThreadPoolExecutor:
    executor = _executors.get(name)
    if executor is None:
        executor = _executors.setdefault(name, _new_executor(name, most))
    return executor


def _new_executor(name: str, most: int) -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor  # costs imports: only once it is needed

    return ThreadPoolExecutor(most, thread_name_prefix=f"aiokafka_lite-{name}")


async def resolve(host: str, port: int) -> list[AddressInfo]:
    """Return getaddrinfo's result for TCP."""
    loop = asyncio.get_running_loop()
    if simulation_of(loop) is not None:
        return await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    # The loop's own method would use the application's executor.
    executor = _executor("resolve", RESOLVING_THREADS)
    work = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    return await loop.run_in_executor(executor, work)


def aside(loop: asyncio.AbstractEventLoop, work: Callable[[], T]) -> asyncio.Future[T]:
    """Do work in a thread of the loop's executor. On a simulated loop, do it in a later step."""
    if simulation_of(loop) is None:
        return loop.run_in_executor(None, work)
    done: asyncio.Future[T] = loop.create_future()

    def do() -> None:
        if done.done():
            return
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 -- whoever waits for it raises it
            done.set_exception(error)
        else:
            done.set_result(result)

    loop.call_soon(do)
    return done


def _once(work: Callable[[], T]) -> tuple[Callable[[], None], ConcurrentFuture[T]]:
    """Return a function whose first call, in any thread, does the work, and the outcome."""
    outcome: ConcurrentFuture[T] = ConcurrentFuture()
    left = [(work, outcome)]

    def do() -> None:
        try:
            work, outcome = left.pop()
        except IndexError:
            return
        if outcome.set_running_or_notify_cancel():
            try:
                outcome.set_result(work())
            except BaseException as error:  # noqa: BLE001 -- whoever waits for it raises it
                outcome.set_exception(error)
                del outcome  # it has the error, whose traceback has this frame

    return do, outcome


class OwnThreads:
    """Threads of one owner, for work that may take any time: one for each work at the same time.

    The end of the program does not wait for them.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._threads: list[threading.Thread] = []
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._running: dict[asyncio.Future[Any], None] = {}
        self._is_closed = False

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Do work in a thread. On a simulated loop, do it in a later step.

        Without a further thread, the work waits for another one.

        Raises:
            RuntimeError: No thread can be started, or the threads have been ended. The work is
                not done.
        """
        if self._is_closed:
            raise RuntimeError("the threads have been ended")
        if simulation_of(self._loop) is not None:
            done = aside(self._loop, work)
        else:
            if len(self._running) >= len(self._threads):
                self._start_thread()
            do, outcome = _once(work)
            done = asyncio.wrap_future(outcome, loop=self._loop)
            self._queue.put(do)
        self._running[done] = None
        done.add_done_callback(self._ended)
        return done

    def _start_thread(self) -> None:
        name = f"aiokafka_lite-{self._name}_{len(self._threads)}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            if not self._threads:
                raise
        else:
            self._threads.append(thread)

    def _work(self) -> None:
        while (do := self._queue.get()) is not None and not self._is_closed:
            do()

    def _ended(self, done: asyncio.Future[Any]) -> None:
        self._running.pop(done, None)
        if not done.cancelled():
            done.exception()  # nobody may be waiting for it

    def close(self) -> int:
        """End the threads. Return how many still do work, and end with it."""
        self._is_closed = True
        left = [*self._running]
        for done in left:
            done.cancel()  # the loop may be closed when its thread ends
        for _ in self._threads:
            self._queue.put(None)
        if not left:
            for thread in self._threads:
                thread.join()
        return len(left)


def wait_in_thread(work: Callable[[], None], *, name: str) -> None:
    """Do work that may wait long in a daemon thread, or at once if there can be none."""
    if simulation_of(asyncio.get_running_loop()) is None:
        with suppress(RuntimeError):  # no thread can be started
            threading.Thread(target=work, name=f"aiokafka_lite-{name}", daemon=True).start()
            return
    work()


def outcome(work: ConcurrentFuture[T]) -> asyncio.Future[T]:
    """Return a future of the running loop for work that a thread does for any number of loops."""
    return asyncio.wrap_future(work)


def compute(work: Callable[[], T]) -> asyncio.Future[T]:
    """Do work in a thread, or on the running loop if no thread begins soon.

    If the waiting task is cancelled, a thread that has begun continues.
    """
    loop = asyncio.get_running_loop()
    if simulation_of(loop) is not None:
        return aside(loop, work)
    do, outcome = _once(work)
    done = asyncio.wrap_future(outcome, loop=loop)
    try:
        _executor("compute", COMPUTING_THREADS).submit(do)
    except RuntimeError:  # no thread can be started
        do()
    else:
        timer = loop.call_later(BEGIN_S, do)
        done.add_done_callback(lambda _: timer.cancel())
    return done
