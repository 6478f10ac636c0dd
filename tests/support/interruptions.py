"""Interrupts an operation at each of its suspensions in turn.

An operation is driven by hand, inside the task that awaits it: what it yields to the loop is
counted and passed on. At the suspension asked for, the task is cancelled, or its timeout expires:

- AT_ONCE: as soon as the operation suspends; nothing that it waits for has happened.
- ON_WAKING: when what it waited for has happened, and before it has noticed. This is the moment
  in which a result gets lost.
- TIMEOUT: its timeout passes as it suspends, and is noticed one turn of the loop later.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Generator
from typing import Generic, TypeVar

from aiokafka_lite import _compat

T = TypeVar("T")

# More suspensions than any operation here has: a test that gets there runs for ever.
MOST_SUSPENSIONS = 2_000


class How(enum.Enum):
    """In which way an operation is interrupted."""

    AT_ONCE = enum.auto()
    ON_WAKING = enum.auto()
    TIMEOUT = enum.auto()


class Interrupted(Exception):
    """The operation ended as it should when it was interrupted."""


class Stepped(Generic[T]):
    """An awaitable around an operation that counts suspensions and interrupts at some of them."""

    def __init__(self, operation: Awaitable[T], at: Callable[[int], bool], how: How) -> None:
        self.count = 0
        self.is_interrupted = False
        self._operation = operation
        self._at = at
        self._how = how
        self._expire: Callable[[], None] | None = None

    async def run(self) -> T:
        """Run the operation.

        Raises:
            Interrupted: It was interrupted and said so.
            AssertionError: It was interrupted and kept it to itself.
        """
        task = asyncio.current_task()
        assert task is not None
        wanted = asyncio.CancelledError
        if self._how is How.TIMEOUT:
            wanted = asyncio.TimeoutError  # type: ignore[assignment]
        try:
            result = await self._timed()
        except wanted as error:
            if not self.is_interrupted:
                raise
            # As asyncio.timeout does it, from Python 3.11 on: the test is not cancelled itself.
            uncancel: Callable[[], int] = getattr(task, "uncancel", lambda: 0)
            while self._how is not How.TIMEOUT and uncancel() > 0:
                pass
            raise Interrupted from error
        except asyncio.CancelledError:  # by somebody else: a timeout around this one
            raise
        except BaseException as error:
            if self.is_interrupted:
                text = f"interrupted at {self.count}, it raised {error!r}"
                raise AssertionError(text) from error
            raise
        assert not self.is_interrupted, f"interrupted at {self.count}, it returned {result!r}"
        return result

    async def _timed(self) -> T:
        if self._how is not How.TIMEOUT:
            return await self
        loop = asyncio.get_running_loop()
        async with _compat.timeout(3600) as limit:
            # async-timeout, before Python 3.11, has another name for it.
            reschedule = getattr(limit, "reschedule", None) or limit.update
            self._expire = lambda: reschedule(loop.time())
            result = await self
            # What arrived in the rest of that turn was returned before the loop noticed.
            expired = limit.expired
            if not (expired() if callable(expired) else expired):
                self.is_interrupted = False
            return result

    def __await__(self) -> Generator[object, object, T]:
        iterator = self._operation.__await__()
        step: Callable[[], object] = lambda: next(iterator)  # noqa: E731
        while True:
            try:
                yielded = step()
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            self.count += 1
            assert self.count < MOST_SUSPENSIONS, "it never ends"
            if self._at(self.count):
                self._interrupt(yielded)
            try:
                yield yielded
            except BaseException as error:  # noqa: BLE001 -- whatever it is, it is not ours
                step = lambda error=error: iterator.throw(error)  # type: ignore[misc] # noqa: E731
            else:
                step = lambda: next(iterator)  # noqa: E731

    def _interrupt(self, awaited: object) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._how is How.TIMEOUT:
            assert self._expire is not None
            if not self.is_interrupted:
                self._expire()
        elif self._how is How.ON_WAKING and isinstance(awaited, asyncio.Future):
            # Called before the task is woken by the same future.
            awaited.add_done_callback(lambda _: task.cancel())
        else:
            task.cancel()
        self.is_interrupted = True


async def interrupted(operation: Awaitable[object], at: int, how: How) -> bool:
    """Interrupt an operation at its `at`-th suspension; False if it had fewer, and is done."""
    try:
        await Stepped(operation, lambda count: count == at, how).run()
    except Interrupted:
        return True
    return False
