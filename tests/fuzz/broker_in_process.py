"""The embedded broker on a simulated loop, with connections whose bytes a target writes."""

from __future__ import annotations

import asyncio
import selectors
import struct
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from aiokafka_lite._compat import override
from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.topics import Partition
from aiokafka_lite.protocol.encoding import Part
from aiokafka_lite.simulation import simulate
from aiokafka_lite.structs import TopicPartition

T = TypeVar("T")
# The virtual time after which a request is not waited for any longer.
PATIENCE_S: Final = 70.0


class _Selector(selectors.SelectSelector):
    """Passes virtual time instead of waiting, and measures the time between two calls."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.longest_s = 0.0
        self._returned_at: float | None = None

    @override
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._returned_at is not None:
            self.longest_s = max(self.longest_s, time.thread_time() - self._returned_at)
        found = super().select(0)
        if not found:
            if timeout is None:
                raise RuntimeError("the loop waits for an event that never occurs")
            self.now += max(0.0, timeout)
        self._returned_at = time.thread_time()
        return found


class _Listening:
    """A server without a socket."""

    sockets = ()

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def get_loop(self) -> Loop:
        return self._loop

    def close(self) -> None:
        pass


class Loop(asyncio.SelectorEventLoop):
    """A simulated loop. `failures` are the exceptions that no task has handled.

    With `is_timed` the processor time passes on its clock, too. The broker divides long work by the
    clock, and so the length of a step is right only then. Runs are not quite the same each time.
    """

    def __init__(self, *, is_timed: bool) -> None:
        self.selector = _Selector()
        self._began = time.thread_time() if is_timed else None
        super().__init__(self.selector)
        simulate(self, 1)
        self.failures: list[BaseException] = []
        self.accept: Callable[[], asyncio.BufferedProtocol] | None = None
        self.set_exception_handler(self._note)

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.failures.append(context.get("exception") or RuntimeError(str(context["message"])))

    @override
    def time(self) -> float:
        if self._began is None:
            return self.selector.now
        return self.selector.now + time.thread_time() - self._began

    @override
    async def create_server(  # type: ignore[override]
        self, factory: Any, *args: Any, **more: Any
    ) -> Any:
        self.accept = factory
        return _Listening(self)


class Transport(asyncio.Transport):
    """Keeps the frames that the broker writes."""

    def __init__(self, loop: Loop) -> None:
        super().__init__({"peername": ("127.0.0.1", 7)})
        assert loop.accept is not None
        self._loop = loop
        self._received = bytearray()
        self.frames: list[bytes] = []
        self.is_ended = False
        self._has_given_up = False
        self._news: asyncio.Future[None] | None = None
        self.protocol = loop.accept()
        self.protocol.connection_made(self)

    # The broker's side

    @override
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    @override
    def write(self, data: Part) -> None:
        self._received += data
        while len(self._received) >= 4:
            (size,) = struct.unpack_from(">i", self._received)
            if len(self._received) < 4 + size:
                break
            self.frames.append(bytes(self._received[4 : 4 + size]))
            del self._received[: 4 + size]
            self._notify()

    @override
    def pause_reading(self) -> None:
        pass

    @override
    def resume_reading(self) -> None:
        pass

    @override
    def is_closing(self) -> bool:
        return self.is_ended

    @override
    def close(self) -> None:
        if not self.is_ended:
            self.is_ended = True
            self._notify()
            self._loop.call_soon(self.protocol.connection_lost, None)

    abort = close

    # The client's side

    def send(self, data: bytes) -> None:
        """Have the broker receive bytes, in pieces of the size that it asks for."""
        view = memoryview(data)
        while view and not self.is_ended:
            room = memoryview(self.protocol.get_buffer(-1))
            piece = view[: len(room)]
            room[: len(piece)] = piece
            self.protocol.buffer_updated(len(piece))
            view = view[len(piece) :]

    async def until(self, is_over: Callable[[], bool]) -> None:
        """Let the loop run until a condition holds, the connection ends, or time is up."""
        timer = self._loop.call_later(PATIENCE_S, self._give_up)
        self._has_given_up = False
        while not (is_over() or self.is_ended or self._has_given_up):
            self._news = self._loop.create_future()
            await self._news
        timer.cancel()

    def _give_up(self) -> None:
        self._has_given_up = True
        self._notify()

    def _notify(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def ask(self, frame: bytes) -> bytes | None:
        """Send a frame with its size, and return the response's frame, if there is one."""
        count = len(self.frames)
        self.send(frame)
        await self.until(lambda: len(self.frames) > count)
        return self.frames[-1] if len(self.frames) > count else None


def run(
    make: Callable[[Loop], Coroutine[None, None, T]], *, is_timed: bool = False
) -> tuple[T, float]:
    """Run a coroutine function on a new loop. Return also the longest step of the loop.

    Raises the first exception that no task has handled.
    """
    loop = Loop(is_timed=is_timed)
    try:
        result = loop.run_until_complete(make(loop))
    finally:
        loop.close()
    if loop.failures:
        raise loop.failures[0]
    return result, loop.selector.longest_s


def tp_of(partition: Partition) -> TopicPartition:
    return TopicPartition(partition.topic, partition.index)


async def pass_time(seconds: float) -> None:
    """Let timers fire, such as those of sessions."""
    await asyncio.sleep(seconds)


async def with_broker(broker: Broker, use: Callable[[Broker], Awaitable[T]]) -> T:
    """Start a broker, use it, and stop it. Raises the exception of a handler."""
    async with broker:
        result = await use(broker)
    if broker.failure is not None:
        raise broker.failure
    return result
