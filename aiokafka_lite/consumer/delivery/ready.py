"""The records of one chunk, which reads return one by one; compiled in place (ready.pxd)."""

from __future__ import annotations

from asyncio import get_running_loop
from math import inf
from typing import TYPE_CHECKING, Final

from aiokafka_lite._virtual import simulation_of
from aiokafka_lite.consumer.delivery.record_cursor import RecordCursor
from aiokafka_lite.consumer.delivery.steady import SteadyGets

if TYPE_CHECKING:
    from aiokafka_lite.consumer.assignment.cursor import Cursor
    from aiokafka_lite.consumer.buffer.buffer import Taken, Wanted
    from aiokafka_lite.consumer.buffer.chunk import Chunk, Record
    from aiokafka_lite.consumer.core import Core

# The body of the loop blocked: the next record is not given before the clock was looked at.
STALL_S: Final = 0.01


class ReadyRecords:
    """A sink with the decoded records of one chunk, which are returned one by one.

    The chunk stays in the buffer, which calls `close` before another read takes records.
    """

    # A record counts as taken when the application has it.
    count: Final = 0
    is_for_one: Final = True
    decodes: Final = False

    def __init__(self, core: Core) -> None:
        loop, reads, buffer = get_running_loop(), core.reads, core.buffer
        # The time of a block is real, so it must not matter in a simulation.
        stall_s = STALL_S if simulation_of(loop) is None else inf
        # All that the per-message path needs.
        self.cursor = RecordCursor(loop.time, buffer.decoder.slice.length_s, stall_s)
        self._chunk: Chunk | None = None
        # Whether a chunk is open.
        self.is_full = False
        self._settled_count = 0
        self._reads = reads
        self._buffer = buffer
        self._queue = buffer.queue
        self._slice = buffer.decoder.slice
        self.cursor.belong_to(SteadyGets(reads, core.gate, buffer, self))
        reads.set_settler(self.settle, self.close)
        core.observers.discarded.add(self._discard)
        core.observers.partition_changed.add(self._park_if_paused)
        core.gate.on_change(self.close)

    # --- What the buffer asks -------------------------------------------------------------
    def take(self, chunk: Chunk, limit: int | None) -> Taken | None:
        if chunk.decoded:
            self._chunk = chunk
            self.is_full = True
            self.cursor.open(chunk.decoded, self._slice.begin())
        return None

    def finish(self) -> None: ...

    def clear(self) -> None:
        self._chunk = None
        self.is_full = False
        self._settled_count = 0
        self.cursor.close()

    # --- What the gets ask ----------------------------------------------------------------
    def next(self, wanted: Wanted) -> Record | None:
        """Return the next record, unless it is of another partition or the time is up."""
        return None if wanted and not self._is_of(wanted) else self.cursor.take()

    def has_rest(self, wanted: Wanted) -> bool:
        """Whether records of a wanted partition are left, even if the time is up."""
        return self.cursor.has_rest() and (not wanted or self._is_of(wanted))

    def _is_of(self, wanted: Wanted) -> bool:
        return self._chunk is not None and self._chunk.partition.tp in wanted

    async def go_on(self) -> None:
        """Yield to the loop, and continue in a new time slice."""
        self.settle()
        try:
            await self._buffer.let_others_run()
        finally:  # the next get is in a new slice, also when this was cancelled
            self.cursor.go_on(self._slice.begin())

    # --- How far the application got ------------------------------------------------------
    def settle(self) -> None:
        """Move position and processed offset to the application's progress."""
        chunk = self._chunk
        taken_count = self.cursor.taken_count
        if chunk is None or taken_count == self._settled_count:
            return
        self._reads.record_count += taken_count - self._settled_count
        self._settled_count = taken_count
        decoded = chunk.decoded
        # The latest read returned this one. All before it are processed.
        latest_offset = decoded[taken_count - 1].offset
        is_all = taken_count == len(decoded)
        if self._reads.readers is None:  # otherwise the task has read already
            self._reads.begin_get()
        self._reads.hand_out(
            chunk.partition,
            latest_offset,
            chunk.position_after() if is_all else latest_offset + 1,
            chunk.epochs,
        )

    def close(self) -> None:
        """Settle, and give the chunk with its remaining records back to the buffer."""
        self.settle()
        chunk, count = self._chunk, self._settled_count
        if chunk is not None:
            self.clear()
            self._queue.give_back(chunk, count)

    def _discard(self, partition: Cursor) -> None:
        # Positions were settled before the partition's tag changed.
        if self._chunk is not None and self._chunk.partition is partition:
            self.clear()

    def _park_if_paused(self, partition: Cursor) -> None:
        if partition.is_paused and self._chunk is not None and self._chunk.partition is partition:
            self.close()
