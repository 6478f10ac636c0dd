"""Reads without a coroutine, for the compiled `async for`; compiled in place (steady.pxd)."""

from __future__ import annotations

from asyncio import _get_running_loop, get_running_loop
from typing import TYPE_CHECKING, Final

from aiokafka_lite.consumer.buffer.buffer import Limits
from aiokafka_lite.consumer.buffer.waiter import RecordWaiter
from aiokafka_lite.consumer.caller import callbacks

if TYPE_CHECKING:
    from aiokafka_lite.consumer.assignment.cursor import Cursor
    from aiokafka_lite.consumer.assignment.reads import Reads
    from aiokafka_lite.consumer.buffer.buffer import Buffer
    from aiokafka_lite.consumer.buffer.chunk import Record
    from aiokafka_lite.consumer.delivery.ready import ReadyRecords
    from aiokafka_lite.consumer.gate import Gate

ALL: Final = Limits()


class SteadyGets:
    """Reads of one record of any partition that find a decoded chunk, or wait.

    This is the short way of `Buffer.take`: the previous chunk is closed, and the first in turn is
    opened, or the read waits. Deserialisers that need no await are called. All other cases (an
    error, a hold, decoding, another read, a listener's callback, a lack of memory) are left to
    `take`, before any change that it would not make. Tests compare both ways.
    """

    def __init__(self, reads: Reads, gate: Gate, buffer: Buffer, ready: ReadyRecords) -> None:
        self.reads = reads
        self.loop = get_running_loop()
        self._buffer = buffer
        self._ready = ready
        self._cursor = ready.cursor
        self._gate = gate
        self._budget = buffer.budget
        self._slice = buffer.decoder.slice
        self._clock = self.loop.time
        self._queue = buffer.queue
        self._waiters = buffer.waiters
        # Running callbacks of listeners.
        self._callbacks = callbacks

    def _can_go_on(self) -> bool:
        """Whether a read may be steady, at its beginning or later."""
        return not (
            self._gate.is_troubled
            or self._gate.holds
            or self._callbacks
            or self._waiters.sought
            or self._budget.headroom_bytes
        )

    def begin(self) -> bool:
        """Begin a read if it may be steady: close the previous chunk, and move the positions."""
        reads = self.reads
        if (
            _get_running_loop() is not self.loop
            or reads.in_progress
            or reads.readers is not None
            or reads.processing is not None
            or not self._can_go_on()
        ):
            return False
        if self._queue.lent is not None:
            if self._cursor.has_rest():
                return False  # its time slice is over
            self._ready.close()
        reads.begin_get()
        reads.resume_get()
        return True

    def go_on(self) -> Record | RecordWaiter | None:
        """Return a record, or what to wait for; None: the read has ended, use `take`."""
        if self._can_go_on():
            if not self._queue.order:
                return self._wait()
            if self._open_first():
                return self._cursor.take()
        self.reads.leave_get(self._clock())
        return None

    def _open_first(self) -> bool:
        """Open the first chunk in turn; False if it needs more than that."""
        for cursor in self._queue.order:
            return self._open(cursor)
        return False

    def _open(self, cursor: Cursor) -> bool:
        if cursor.is_paused or cursor.has_enough or self.reads.readers is not None:
            return False
        chunk = cursor.chunks[0]
        if chunk.response is not None and not chunk.response.is_taken:
            return False
        if chunk.decoded:
            self._ready.take(chunk, None)
            self._queue.lend(chunk)
            if len(self._queue.order) > 1:
                self._queue.end_turn(cursor)
        elif not chunk.raw or not self._deserialise():
            return False
        self.reads.leave_get(self._cursor.looked_at)
        return True

    def _deserialise(self) -> bool:
        """Let the buffer open the first chunk; False if it has to wait or to raise an error."""
        try:
            return self._buffer.take_first(self._ready, ALL)
        except BaseException:  # for example, sys.exit() in a deserialiser
            self.reads.leave_get(self._clock())
            raise

    def _wait(self) -> RecordWaiter:
        """Return a waiter for records."""
        if self._queue.untaken:
            self._queue.mark_all_taken()
        waiter = RecordWaiter(self.loop)
        self._waiters.add(waiter, ())
        return waiter

    def woken(self, waiter: RecordWaiter) -> None:
        """Note that a read waits no more."""
        self._waiters.remove(waiter)
        self._slice.renew()
        if self._waiters.sought:
            self._buffer.wait_ended()

    def give_up(self, waiter: RecordWaiter) -> None:
        """End a waiting read."""
        self.woken(waiter)
        self.reads.leave_get(self._clock())
