"""The awaitable of a record, for the compiled `async for`; compiled in place (next_record.pxd)."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from aiokafka_lite._compat import Self
from aiokafka_lite.consumer.buffer.waiter import RecordWaiter

if TYPE_CHECKING:
    from aiokafka_lite.consumer.buffer.chunk import Record
    from aiokafka_lite.consumer.delivery.record_cursor import RecordCursor
    from aiokafka_lite.consumer.delivery.steady import SteadyGets

# The stages of an awaitable.
FRESH: Final = 0  # before the first send
RUNNING: Final = 1  # inside the coroutine
SUSPENDED: Final = 2  # the coroutine waits
WAITING: Final = 3  # a steady read waits for records, without a coroutine
DONE: Final = 4


class Iteration:
    """An iterator of records. `cursor` has ready ones, `spare` is the latest unused awaitable."""

    cursor: RecordCursor
    spare: NextRecord | None

    def _next_record(self) -> Coroutine[Any, Any, Record]:
        raise NotImplementedError

    def begin_read(self) -> Coroutine[Any, Any, Record]:
        return self._next_record()

    def let_go(self, awaitable: NextRecord) -> None:
        """Note that an awaitable waits: it references this object."""
        if self.spare is awaitable:
            self.spare = None


class NextRecord:
    """An awaitable of one record, with the methods of a coroutine.

    It returns a ready record at the first send. If there is none, it waits like a steady read, or
    creates the coroutine `_next_record()` of the iterator, and forwards to it.
    """

    __name__ = "__anext__"
    __qualname__ = "AIOKafkaConsumer.__anext__"

    # None when it is not needed any more: the iterator references this object.
    _iteration: Iteration

    def __init__(self) -> None:
        # The iterator's `_next_record()`, while it runs or waits.
        self._coroutine: Coroutine[Any, Any, Record] | None = None
        # Set while a steady read waits. The iterator may get another cursor in the meantime.
        self._waiter: RecordWaiter | None = None
        self._steady: SteadyGets | None = None
        self._stage = FRESH

    def renew(self, iteration: Iteration) -> None:
        """Become an awaitable that was not awaited yet."""
        self._iteration = iteration
        self._stage = FRESH

    # --- Steps ----------------------------------------------------------------------------
    def begin(self, value: object) -> object:
        """Return a record or an awaited future; None: the coroutine has to run."""
        if self._stage == FRESH:
            if value is not None:
                raise TypeError("can't send non-None value to a just-started coroutine")
            record = self._iteration.cursor.take()
            if record is None:
                return self._begin_steady()
            self._stage = DONE
            self._iteration = None  # type: ignore[assignment] # see above
            return record
        return self._woken() if self._stage == WAITING else None

    def _begin_steady(self) -> object:
        steady = self._iteration.cursor.steady
        return self._go_on(steady) if steady is not None and steady.begin() else None

    def _woken(self) -> object:
        steady, waiter = self._steady, self._waiter
        assert steady is not None  # noqa: S101 -- it waits
        assert waiter is not None  # noqa: S101 -- it waits
        steady.woken(waiter)
        self._waiter = self._steady = None
        self._stage = FRESH
        return self._go_on(steady)

    def _go_on(self, steady: SteadyGets) -> object:
        """Take a record, or wait. None: the steady read has ended."""
        found = steady.go_on()
        if isinstance(found, RecordWaiter):
            self._iteration.let_go(self)
            self._waiter = found
            self._steady = steady
            self._stage = WAITING
        elif found is not None:
            self.finish()
        return found

    def _stop_waiting(self) -> None:
        """End a waiting steady read, as before the first send."""
        steady, waiter = self._steady, self._waiter
        assert steady is not None  # noqa: S101 -- it waits
        assert waiter is not None  # noqa: S101 -- it waits
        self._waiter = self._steady = None
        self._stage = FRESH
        steady.give_up(waiter)

    def enter(self) -> Coroutine[Any, Any, Record]:
        """Begin to run the coroutine, which is created when it is first needed."""
        if self._stage == DONE:
            raise RuntimeError("cannot reuse already awaited AIOKafkaConsumer.__anext__()")
        if self._stage == RUNNING:
            raise ValueError("coroutine already executing")
        if self._stage == FRESH:
            self._coroutine = self._iteration.begin_read()
            self._iteration.let_go(self)
            self._iteration = None  # type: ignore[assignment] # see above
        self._stage = RUNNING
        assert self._coroutine is not None  # noqa: S101 -- it is suspended, or was just created
        return self._coroutine

    def suspend(self) -> None:
        self._stage = SUSPENDED

    def finish(self) -> None:
        self._stage = DONE
        self._coroutine = None
        self._iteration = None  # type: ignore[assignment] # see above

    # --- The methods of a coroutine -------------------------------------------------------
    def __await__(self) -> Self:
        return self

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> object:
        return self.send(None)

    def send(self, value: object) -> object:
        """Take the record or wait for it: return an awaited future, or raise StopIteration."""
        found = self.begin(value)
        if found is None:
            coroutine = self.enter()
            try:
                awaited = coroutine.send(value)
            except BaseException:  # also the StopIteration with the record
                self.finish()
                raise
            self.suspend()
            return awaited
        if self._stage == WAITING:
            return found
        raise StopIteration(found)

    def throw(self, *exception: Any) -> object:
        """Raise an exception in the waiting read."""
        if self._stage == WAITING:
            self._stop_waiting()
        coroutine = self.enter()
        try:
            awaited = coroutine.throw(*exception)
        except BaseException:
            self.finish()
            raise
        self.suspend()
        return awaited

    def close(self) -> None:
        """Stop waiting; no record is lost."""
        if self._stage == RUNNING:
            raise ValueError("coroutine already executing")
        if self._stage == WAITING:
            self._stop_waiting()
        coroutine = self._coroutine
        self.finish()
        if coroutine is not None:
            coroutine.close()

    def __del__(self) -> None:
        if self._stage == WAITING:
            self._stop_waiting()

    # --- For asyncio, inspect and debuggers -----------------------------------------------
    @property
    def cr_running(self) -> bool:
        return self._stage == RUNNING

    @property
    def cr_suspended(self) -> bool:
        return self._stage in {SUSPENDED, WAITING}

    @property
    def cr_await(self) -> object:
        if self._stage == WAITING:
            return self._waiter
        return getattr(self._coroutine, "cr_await", None)

    @property
    def cr_code(self) -> object:
        return getattr(self._coroutine, "cr_code", None)

    @property
    def cr_frame(self) -> object:
        return getattr(self._coroutine, "cr_frame", None)
