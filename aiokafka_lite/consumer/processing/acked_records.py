"""Records that `async for` and `getone` return singly, to be acknowledged singly.

A cursor moves over a list of one partition, as in delivery/gets.py: decoded records of a chunk, or
refused records. The open list is in the table of unfinished records. Closing it removes the records
that were not returned.
"""

from __future__ import annotations

from asyncio import get_running_loop
from typing import TYPE_CHECKING, Final

from aiokafka_lite._compat import override
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.buffer.buffer import Taken, Wanted
from aiokafka_lite.consumer.buffer.chunk import Chunk
from aiokafka_lite.consumer.core import Core
from aiokafka_lite.consumer.delivery.ready import ReadyRecords

if TYPE_CHECKING:
    from aiokafka_lite.consumer.processing.acks import Acks, RecordReceipt

# Records at a time: about as many as a time slice is enough for, as an early close wastes receipts.
MOST_AT_A_TIME: Final = 256


class AckedRecords(ReadyRecords):
    """A sink: the ready records of one partition, while they are returned one by one."""

    def __init__(self, core: Core, acks: Acks) -> None:
        self._acks = acks
        self._clock = get_running_loop().time
        # The partition of the open list.
        self.partition: Cursor | None = None
        self._receipts: list[RecordReceipt] = []
        # Records of the open chunk before those of the list, which were finished earlier.
        self._passed_over_count = 0
        # When the time slice began in which records are returned.
        self._began_at = 0.0
        super().__init__(core)

    # --- The open list ----------------------------------------------------------------------
    @override
    def take(self, chunk: Chunk, limit: int | None) -> Taken | None:
        """Open the decoded records of a chunk, up to the next one that was finished earlier."""
        if chunk.decoded:
            self.close()
            passed_over_count, receipts = self._acks.prepare(chunk, MOST_AT_A_TIME)
            self._chunk = chunk
            self.is_full = True
            self._passed_over_count = passed_over_count
            self.open(chunk.partition, receipts)
        return None

    def open(self, partition: Cursor, receipts: list[RecordReceipt]) -> None:
        self.partition = partition
        self._receipts = receipts
        self._began_at = self._clock()
        records = [receipt.record for receipt in receipts if receipt.record is not None]
        self.cursor.open(records, self._slice.begin())

    @override
    def clear(self) -> None:
        super().clear()
        self.partition = None
        self._receipts = []

    @override
    def _is_of(self, wanted: Wanted) -> bool:
        return self.partition is not None and self.partition.tp in wanted

    @override
    async def go_on(self) -> None:
        """Let other tasks run, and continue in a new time slice."""
        try:
            await super().go_on()
        finally:
            self._began_at = self._clock()

    # --- Progress ---------------------------------------------------------------------------
    @override
    def settle(self) -> None:
        partition, chunk = self.partition, self._chunk
        settled_count, taken_count = self._settled_count, self.cursor.taken_count
        for receipt in self._receipts[settled_count:taken_count]:
            receipt.handed_out_at = self._began_at
        self._settled_count = taken_count
        self._reads.record_count += taken_count - settled_count
        if chunk is None or partition is None:
            return
        count = self._passed_over_count + taken_count
        decoded = chunk.decoded
        # Up to the next record: the offsets between are never returned, and acknowledgements have
        # passed them over already.
        position = decoded[count].offset if count < len(decoded) else chunk.position_after()
        if count and position != partition.position:
            # Without unfinished records, all before the position was finished earlier.
            self._reads.hand_out(partition, position, position, chunk.epochs)

    @override
    def close(self) -> None:
        """Settle, and put back the records that were not returned."""
        self.settle()
        count = self._passed_over_count + self._settled_count
        if (chunk := self._put_back()) is not None:
            self._queue.give_back(chunk, count)

    def _put_back(self) -> Chunk | None:
        left, chunk = self._receipts[self._settled_count :], self._chunk
        self.clear()
        if chunk is None:
            self._acks.put_back(left)
        else:
            self._acks.take_back(left)
        return chunk

    @override
    def _discard(self, partition: Cursor) -> None:
        # Positions were settled before the partition's tag changed.
        if self.partition is partition:
            self._put_back()

    @override
    def _park_if_paused(self, partition: Cursor) -> None:
        if partition.is_paused and self.partition is partition:
            self.close()
