"""The order in which reads serve partitions; compiled in place (chunk_queue.pxd)."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Collection
from typing import TYPE_CHECKING

from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.assignment.reads import Reads
from aiokafka_lite.consumer.buffer.budget import ByteBudget
from aiokafka_lite.consumer.buffer.chunk import EXHAUSTED, Chunk, FetchedResponse, ResponseSource
from aiokafka_lite.consumer.gate import Gate
from aiokafka_lite.structs import TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.consumer.buffer.buffer import Taken


class ChunkQueue:
    """Partitions with buffered chunks (`Cursor.chunks`), in the order of their turns.

    Attributes:
        order: The partitions, as the keys of a dictionary.
        lent: The chunk that is read record by record. Its partition may have been dropped since.
        untaken: By source, the response that no read has asked for yet. A read that asks for it
            lets the source send its next request.
    """

    def __init__(
        self, reads: Reads, loop: AbstractEventLoop, gate: Gate, budget: ByteBudget
    ) -> None:
        self._reads = reads
        self._loop = loop
        self._gate = gate
        self._budget = budget
        self.order: dict[Cursor, None] = {}
        self.lent: Chunk | None = None
        self.untaken: dict[ResponseSource, FetchedResponse] = {}

    def add(self, chunk: Chunk) -> None:
        self.append(chunk)
        chunk.partition.buffered(chunk.end_offset, is_sticky=chunk.is_sticky)

    def append(self, chunk: Chunk) -> None:
        """Append a chunk; the caller moves the cursor on."""
        partition = chunk.partition
        partition.add_chunk(chunk)
        self.order.setdefault(partition)

    def remove_first(self, partition: Cursor) -> None:
        partition.remove_chunk()
        if not partition.chunks:
            del self.order[partition]

    def drop(self, partition: Cursor) -> None:
        chunks = partition.drop_chunks()
        self.order.pop(partition, None)
        for chunk in chunks:
            response = chunk.response
            chunk.close()
            if response is not None and not response.is_open:
                self.release_source(response)

    def end_turn(self, partition: Cursor) -> None:
        if partition in self.order:
            del self.order[partition]
            self.order[partition] = None

    def in_order(self, wanted: Collection[TopicPartition], most: int | None) -> list[Cursor]:
        """Return the first `most` wanted partitions that may be served (empty: all are wanted).

        If memory is short, only those that need no decompression, or else one.
        """
        found: list[Cursor] = []
        if self._gate.holds:
            return found
        # It is never tight without compressed batches, as for most consumers.
        is_tight = bool(self._budget.headroom_bytes) and self._budget.is_tight
        for partition in self.order:
            if partition.is_paused or partition.has_enough:
                continue
            if not wanted or partition.tp in wanted:
                found.append(partition)
                if len(found) == most and not is_tight:
                    break
        if is_tight:
            light = [each for each in found if each.chunks[0].is_light]
            return (light or found[:1])[:most]
        return found

    def has_decoded(self, wanted: Collection[TopicPartition]) -> bool:
        for partition in self.order:
            chunk = partition.chunks[0]
            is_free = not (partition.is_paused or partition.has_enough)
            if chunk.decoded and is_free and (not wanted or partition.tp in wanted):
                return True
        return False

    def move_positions(self, taken: list[tuple[Chunk, Taken | None]]) -> None:
        """Move the positions of partitions whose records a read has taken."""
        for chunk, span in taken:
            if span is not None:
                if chunk.response is not None and not chunk.response.is_taken:
                    self.mark_taken(chunk.response)
                first_offset, position = span
                self._reads.hand_out(chunk.partition, first_offset, position, chunk.epochs)
            if chunk.state is EXHAUSTED and not chunk.decoded:
                self.finish(chunk)

    # --- A chunk that is read record by record -----------------------------------------------
    def lend(self, chunk: Chunk | None) -> None:
        self.lent = chunk

    def give_back(self, chunk: Chunk, count: int) -> None:
        """End `lend`: `count` records of the chunk were returned."""
        self.lent = None
        chunk.pop(count)
        if chunk.state is EXHAUSTED and not chunk.decoded:
            self.finish(chunk)

    def finish(self, chunk: Chunk) -> None:
        """Close and remove an exhausted chunk, the first of its partition."""
        partition, response = chunk.partition, chunk.response
        self.remove_first(partition)
        if partition.position != chunk.position_after():
            self._reads.pass_over(partition, chunk.position_after(), chunk.epochs)
        chunk.close()
        if response is not None and not response.is_taken and not response.is_open:
            self.mark_taken(response)  # none of it is left to take
        partition.chunks_changed()

    # --- Responses that no read has asked for ------------------------------------------------
    def hold(self, response: FetchedResponse) -> None:
        """Note a response that no read has asked for."""
        self.untaken[response.source] = response

    def mark_all_taken(self) -> None:
        for response in tuple(self.untaken.values()):
            self.mark_taken(response)

    def mark_taken(self, response: FetchedResponse) -> None:
        """Let the source of a response send its next request, because a read has asked for it."""
        if self._take(response):
            response.source.response_taken()

    def release_source(self, response: FetchedResponse) -> None:
        """Let a source send its next request soon, although no read has asked for its response."""
        if self._take(response):
            self._loop.call_soon(response.source.response_taken)

    def _take(self, response: FetchedResponse) -> bool:
        response.is_taken = True
        if self.untaken.get(response.source) is not response:
            return False
        del self.untaken[response.source]
        return True
