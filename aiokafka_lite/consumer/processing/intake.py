"""A sink for records that are finished one by one (buffer/buffer.py says what a sink is)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from aiokafka_lite.consumer.assignment.cursor import Cursor, Epochs
from aiokafka_lite.consumer.buffer.buffer import Taken

if TYPE_CHECKING:
    from aiokafka_lite.consumer.buffer.chunk import Chunk, Record
    from aiokafka_lite.consumer.buffer.decode import ChunkDecoder


class OneByOne:
    """A sink: what gets take becomes jobs, in the same moment in which positions move."""

    is_full: Final = False
    is_for_one: Final = False
    decodes: Final = False

    def __init__(
        self,
        accept: Callable[[Cursor, list[Record], Epochs], None],
        admit: Callable[[Cursor, list[Record]], int] | None = None,
    ) -> None:
        self._accept = accept
        # How many of some records may be taken, one at least; None: all.
        self._admit = admit
        self._taken: list[tuple[Cursor, list[Record], Epochs]] = []
        self.count = 0

    def take(self, chunk: Chunk, limit: int | None, decoder: ChunkDecoder) -> Taken | None:
        """Take up to `limit` decoded records of a chunk."""
        if not chunk.decoded or limit == 0:
            return None
        if self._admit is not None:
            limit = self._admit(chunk.partition, chunk.decoded[:limit])
        records = chunk.pop(limit)
        self.count += len(records)
        self._taken.append((chunk.partition, records, chunk.epochs))
        return Taken(
            records[0].offset, records[-1].offset + 1 if chunk.decoded else chunk.position_after
        )

    def finish(self) -> None:
        """Make jobs of what was taken."""
        taken, self._taken = self._taken, []
        for cursor, records, epochs in taken:
            self._accept(cursor, records, epochs)

    def clear(self) -> None:
        """Drop all."""
        self._taken.clear()
        self.count = 0
