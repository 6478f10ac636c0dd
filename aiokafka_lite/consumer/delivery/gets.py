"""`poll`, `getmany`, `getone` and `async for`. Cancelled at any await they lose no records.

`async for` and `getone` return records one by one from a list decoded in one go. Per message only a
cursor over that list moves. The application's progress is computed from it on demand (`settle`).
Anything that makes the records invalid, or withholds them, closes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from aiokafka_lite._compat import override, task_of
from aiokafka_lite.consumer.assignment.cursor import Cursor, Epochs
from aiokafka_lite.consumer.buffer.buffer import Limits, Taken, Wanted
from aiokafka_lite.consumer.buffer.chunk import Chunk, Record
from aiokafka_lite.consumer.core import Core
from aiokafka_lite.consumer.delivery.ready import ReadyRecords
from aiokafka_lite.structs import TopicPartition

try:
    from aiokafka_lite.consumer.delivery._iteration import RecordIterator
except ModuleNotFoundError:  # the extension is not built: the same in plain Python
    from aiokafka_lite.consumer.delivery._iteration_py import RecordIterator

__all__ = ["Gets", "Lists", "OneByOne", "RecordIterator"]

# Records made in one go that are still in the caches when the application reads them: with
# 100-byte values, 20,000 at a time cost twice as much a record as 1,000 to 2,000.
CACHED_BYTES: Final = 800_000
MOST_CACHED_RECORDS: Final = 2_000
# Decoded in one go where several tasks take one each.
FOR_ONE_OF_SEVERAL: Final = 64
# The size of a record's objects, without key and value.
RECORD_BYTES: Final = 300


class Lists:
    """A sink with a list of each chunk's records."""

    is_full: Final = False
    is_for_one: Final = False
    decodes: Final = False

    def __init__(self) -> None:
        self.taken: list[tuple[Cursor, list[Record], Epochs]] = []
        self.count = 0

    def take(self, chunk: Chunk, limit: int | None) -> Taken | None:
        if not chunk.decoded or limit == 0:
            return None
        records = chunk.pop(limit)
        self.count += len(records)
        self.taken.append((chunk.partition, records, chunk.epochs))
        return Taken(
            records[0].offset, records[-1].offset + 1 if chunk.decoded else chunk.position_after()
        )

    def finish(self) -> None: ...

    def clear(self) -> None:
        self.taken.clear()
        self.count = 0


class OneByOne(Lists):
    """A sink whose records become jobs or receipts in the same step in which positions move."""

    def __init__(
        self,
        accept: Callable[[Cursor, list[Record], Epochs], None],
        admit: Callable[[Cursor, list[Record]], int] | None = None,
    ) -> None:
        super().__init__()
        self._accept = accept
        # Returns how many of some records may be taken, at least one.
        self._admit = admit

    @override
    def take(self, chunk: Chunk, limit: int | None) -> Taken | None:
        if self._admit is not None and chunk.decoded and limit != 0:
            limit = self._admit(chunk.partition, chunk.decoded[:limit])
        return super().take(chunk, limit)

    @override
    def finish(self) -> None:
        taken, self.taken = self.taken, []
        for cursor, records, epochs in taken:
            self._accept(cursor, records, epochs)


class Gets:
    def __init__(self, core: Core, ready: ReadyRecords) -> None:
        self._state, self._reads, self._buffer = core.state, core.reads, core.buffer
        self._gate, self._ready = core.gate, ready
        self._loop = asyncio.get_running_loop()
        self._cached_records = MOST_CACHED_RECORDS
        # Of a get of one record of any partition.
        self._one_of_all = Limits(max_records=MOST_CACHED_RECORDS)

    async def some(
        self, timeout_s: float | None, max_records: int | None, max_of_each: int | None = None
    ) -> dict[TopicPartition, list[Record]]:
        """Like `many` of all partitions, by default as many records as fit into the caches."""
        limits = Limits((), timeout_s, max_records or self._cached_records, max_of_each)
        return await self._lists(limits, self._gate.check_poll)

    async def _lists(
        self, limits: Limits, raise_in_poll: Callable[[], None] | None = None
    ) -> dict[TopicPartition, list[Record]]:
        lists = Lists()
        await self._buffer.take(lists, limits, raise_in_poll)
        found: dict[TopicPartition, list[Record]] = {}
        for cursor, records, _ in lists.taken:
            if (earlier := found.get(cursor.tp)) is None:
                found[cursor.tp] = records
            else:
                earlier += records  # a list of the sink: its records are not copied
        if lists.taken:
            self._fit_to_caches(lists.taken[0][1][-1])
        return found

    def _fit_to_caches(self, sample: Record) -> None:
        size_bytes = sample.serialized_key_size + sample.serialized_value_size + RECORD_BYTES
        cached_records = max(1, min(CACHED_BYTES // size_bytes, MOST_CACHED_RECORDS))
        if cached_records != self._cached_records:
            self._cached_records = cached_records
            self._one_of_all = Limits(max_records=cached_records)

    async def many(
        self,
        wanted: Wanted,
        timeout_s: float | None,
        max_records: int | None,
        max_of_each: int | None = None,
    ) -> dict[TopicPartition, list[Record]]:
        """Return buffered records, or {} after the timeout or when the last partition is revoked.

        By default, at most as many of each partition as fit into the caches.
        """
        if max_records is None and max_of_each is None:
            max_of_each = self._cached_records
        return await self._lists(Limits(wanted, timeout_s, max_records, max_of_each))

    async def one(self, wanted: Wanted) -> Record:
        """Return the next record. IllegalStateError if the last of the partitions is revoked."""
        ready, reads = self._ready, self._reads
        reader = reads.reader
        if reader is None or reader() is not task_of(self._loop):
            reads.note_reader()
        record = ready.next(wanted)
        while record is None:
            if ready.has_rest(wanted):  # but the time slice is used up
                await ready.go_on()
            elif not await self._buffer.take(ready, self._limits_of_one(wanted)):
                for tp in wanted:  # they are not assigned any more
                    self._state.partition(tp)
            record = ready.next(wanted)
            if record is not None:
                self._fit_to_caches(record)
        if reads.readers is not None and reads.are_several_reading():
            ready.close()  # the next record may be another task's
        return record

    def _limits_of_one(self, wanted: Wanted) -> Limits:
        if self._reads.readers is not None:
            return Limits(wanted, None, FOR_ONE_OF_SEVERAL)
        return Limits(wanted, None, self._cached_records) if wanted else self._one_of_all
