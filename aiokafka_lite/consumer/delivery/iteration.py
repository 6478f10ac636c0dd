"""The records that `async for` and `getone` hand out one by one, from a list decoded in one go.

Per message only a cursor over that list moves, and looks at the clock now and then; which of its
two implementations runs is found out here. How far the application got is worked out from the
cursor when somebody asks (`settle`), and whatever makes the records worthless, or not to be handed
out now, closes it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.assignment.observers import Observers
from aiokafka_lite.consumer.assignment.reads import Reads
from aiokafka_lite.consumer.buffer.buffer import Buffer, Taken, Wanted
from aiokafka_lite.consumer.buffer.chunk import Chunk, Record
from aiokafka_lite.consumer.buffer.decode import TIME_SLICE_S, ChunkDecoder
from aiokafka_lite.consumer.gate import Gate

try:
    from aiokafka_lite.consumer.delivery._iteration import RecordCursor, RecordIterator
except ModuleNotFoundError:  # the extension is not built: the same classes in plain Python
    from aiokafka_lite.consumer.delivery._iteration_py import RecordCursor, RecordIterator

__all__ = ["ReadyRecords", "RecordCursor", "RecordIterator"]

# The body of the loop blocked: the next record is not given before the clock was looked at.
STALL_S: Final = 0.01


class ReadyRecords:
    """A sink: what one chunk has decoded, while it is handed out message by message.

    The chunk stays in the buffer, which has it brought back (`close`) before another get takes
    anything.
    """

    __slots__ = (
        "_buffer",
        "_chunk",
        "_reads",
        "_settled_count",
        "cursor",
        "is_full",
    )

    # Nothing counts as taken before the application has been handed it.
    count: Final = 0
    is_for_one: Final = True
    decodes: Final = False

    def __init__(self, reads: Reads, buffer: Buffer, gate: Gate, observers: Observers) -> None:
        # The per-message path knows nothing but this.
        self.cursor = RecordCursor(asyncio.get_running_loop().time, TIME_SLICE_S, STALL_S)
        self._chunk: Chunk | None = None
        # Whether a chunk is open.
        self.is_full = False
        self._settled_count = 0
        self._reads = reads
        self._buffer = buffer
        self.cursor.belong_to(reads, gate, buffer, self)
        buffer.on_take(self.close)
        reads.set_settler(self.settle, self.close)
        observers.on_discard(self._discard)
        observers.on_partition_change(self._park_if_paused)
        gate.on_change(self.close)

    # --- What the buffer asks -------------------------------------------------------------
    def take(self, chunk: Chunk, limit: int | None, decoder: ChunkDecoder) -> Taken | None:
        """Hand out what a chunk has decoded, until the time slice ends."""
        if chunk.decoded:
            self._chunk = chunk
            self.is_full = True
            self.cursor.open(chunk.decoded, decoder.begin_slice())
        return None

    def finish(self) -> None:
        """Do nothing: the chunk is open."""

    def clear(self) -> None:
        """Forget the chunk."""
        self._chunk = None
        self.is_full = False
        self._settled_count = 0
        self.cursor.close()

    # --- What the gets ask ----------------------------------------------------------------
    def next(self, wanted: Wanted) -> Record | None:
        """Return the next record, if it is of a wanted partition and the time is not up."""
        return None if wanted and not self._is_of(wanted) else self.cursor.take()

    def has_rest(self, wanted: Wanted) -> bool:
        """Whether records of a wanted partition are left, though perhaps no time."""
        return self.cursor.has_rest and (not wanted or self._is_of(wanted))

    def _is_of(self, wanted: Wanted) -> bool:
        return self._chunk is not None and self._chunk.partition.tp in wanted

    async def go_on(self) -> None:
        """Let others run, and go on with what is open in a new time slice."""
        self.settle()
        try:
            await self._buffer.let_others_run()
        finally:  # the next get is in a new slice, also when this was cancelled
            self.cursor.go_on(self._buffer.decoder.begin_slice())

    # --- How far the application got ------------------------------------------------------
    def settle(self) -> None:
        """Move position and processed offset to where the application got."""
        chunk = self._chunk
        taken_count = self.cursor.taken_count
        if chunk is None or taken_count == self._settled_count:
            return
        self._reads.record_count += taken_count - self._settled_count
        self._settled_count = taken_count
        decoded = chunk.decoded
        # The latest get returned this one; all before it has been processed.
        latest = decoded[taken_count - 1]
        is_all = taken_count == len(decoded)
        if not self._reads.has_several_readers:  # otherwise the task has come back already
            self._reads.begin_get()
        self._reads.hand_out(
            chunk.partition,
            latest.offset,
            chunk.position_after if is_all else latest.offset + 1,
            chunk.epochs,
        )

    def close(self) -> None:
        """Settle, and give the chunk back to the buffer with what was not handed out."""
        self.settle()
        chunk, count = self._chunk, self._settled_count
        if chunk is not None:
            self.clear()
            self._buffer.give_back(chunk, count)

    def _discard(self, partition: Cursor) -> None:
        # Positions were settled before the partition's tag changed.
        if self._chunk is not None and self._chunk.partition is partition:
            self.clear()

    def _park_if_paused(self, partition: Cursor) -> None:
        if partition.is_paused and self._chunk is not None and self._chunk.partition is partition:
            self.close()
