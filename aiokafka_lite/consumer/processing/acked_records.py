"""Records that `async for` and `getone` return one by one, to be acknowledged one by one.

As in delivery/gets.py a cursor moves over a list, and how far it got is worked out when
somebody asks. Here each record has a receipt before it is returned, and the whole list is in the
table of unfinished records (assignment/progress.py) while it is open, so that neither a read nor an
acknowledgement has to do more than its own. What was not returned is taken out of the table when
the list is closed. Until then such records are not in hand: their receipts have no time.

The list is of one partition: what a chunk has decoded, or refused records that are due.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiokafka_lite._compat import override
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.assignment.observers import Observers
from aiokafka_lite.consumer.assignment.reads import Reads
from aiokafka_lite.consumer.buffer.buffer import Buffer, Taken, Wanted
from aiokafka_lite.consumer.buffer.chunk import Chunk
from aiokafka_lite.consumer.buffer.decode import ChunkDecoder
from aiokafka_lite.consumer.delivery.gets import ReadyRecords
from aiokafka_lite.consumer.gate import Gate

if TYPE_CHECKING:
    from aiokafka_lite.consumer.processing.acks import Acks, RecordReceipt

# Records at a time: a list that is closed early has made receipts for nothing. It is about as many
# as a time slice is enough for.
MOST_AT_A_TIME: Final = 256


class AckedRecords(ReadyRecords):
    """A sink: what one partition has ready, while it is returned record by record."""

    __slots__ = ("_acks", "_began_at", "_passed_over_count", "_receipts", "partition")

    #: Records of the open chunk before those that are returned: they were finished before.
    _passed_over_count: int

    def __init__(
        self,
        reads: Reads,
        buffer: Buffer,
        gate: Gate,
        observers: Observers,
        acks: Acks,
    ) -> None:
        self._acks = acks
        # Whose records are open; None: nothing is.
        self.partition: Cursor | None = None
        self._receipts: list[RecordReceipt] = []
        # When the time slice began in which records are returned.
        self._began_at = 0.0
        super().__init__(reads, buffer, gate, observers)

    # --- What is open -----------------------------------------------------------------------
    @override
    def take(self, chunk: Chunk, limit: int | None, decoder: ChunkDecoder) -> Taken | None:
        """Open what a chunk has decoded, up to the next record that was finished before."""
        if chunk.decoded:
            self.close()
            passed_over_count, receipts = self._acks.prepare(chunk, MOST_AT_A_TIME)
            self._chunk = chunk
            self.is_full = True
            self._passed_over_count = passed_over_count
            self._open(chunk.partition, receipts, decoder)
        return None

    def open_refused(self, partition: Cursor, receipts: list[RecordReceipt]) -> None:
        """Open refused records of a partition."""
        self._open(partition, receipts, self._buffer.decoder)

    def _open(
        self, partition: Cursor, receipts: list[RecordReceipt], decoder: ChunkDecoder
    ) -> None:
        self.partition = partition
        self._receipts = receipts
        self._began_at = self._acks.now()
        records = [receipt.record for receipt in receipts if receipt.record is not None]
        self.cursor.open(records, decoder.begin_slice())

    @override
    def clear(self) -> None:
        """Forget what is open."""
        super().clear()
        self.partition = None
        self._receipts = []

    @override
    def _is_of(self, wanted: Wanted) -> bool:
        return self.partition is not None and self.partition.tp in wanted

    @override
    async def go_on(self) -> None:
        """Let others run, and go on with what is open in a new time slice."""
        try:
            await super().go_on()
        finally:
            self._began_at = self._acks.now()

    # --- How far the application got ------------------------------------------------------
    @override
    def settle(self) -> None:
        """Note what was returned, and move the position behind it."""
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
        # Up to the next record: what lies between is never returned, and acknowledgements have
        # passed it over already.
        position = decoded[count].offset if count < len(decoded) else chunk.position_after
        if count and position != partition.position:
            # If nothing is in work, all before the position was finished before.
            self._reads.hand_out(partition, position, position, chunk.epochs)

    @override
    def close(self) -> None:
        """Settle, and give back what was not returned."""
        self.settle()
        chunk, settled_count = self._chunk, self._settled_count
        left = self._receipts[settled_count:]
        self.clear()
        if chunk is None:
            self._acks.put_back(left)
            return
        self._acks.take_back(left)
        self._buffer.give_back(chunk, self._passed_over_count + settled_count)

    @override
    def _discard(self, partition: Cursor) -> None:
        # Positions were settled before the partition's tag changed.
        if self.partition is not partition:
            return
        left, chunk = self._receipts[self._settled_count :], self._chunk
        self.clear()
        if chunk is None:
            self._acks.put_back(left)
        else:
            self._acks.take_back(left)

    @override
    def _park_if_paused(self, partition: Cursor) -> None:
        if partition.is_paused and self.partition is partition:
            self.close()
