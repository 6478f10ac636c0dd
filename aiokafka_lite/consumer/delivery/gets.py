"""The application's side of the fetch buffer: a batch at a time, or record by record.

Every get may be cancelled at any await: what it had prepared is found by the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from aiokafka_lite.consumer.assignment.subscription import SubscriptionState
from aiokafka_lite.consumer.buffer.buffer import Buffer
from aiokafka_lite.consumer.buffer.chunk import Record
from aiokafka_lite.consumer.buffer.line import Wanted
from aiokafka_lite.consumer.delivery.ready import ReadyRecords
from aiokafka_lite.structs import TopicPartition

# Records made in one go that are still in the caches when the application reads them: with
# 100-byte values, 20,000 at a time cost twice as much a record as 1,000 to 2,000.
CACHED_BYTES: Final = 800_000
MOST_CACHED_RECORDS: Final = 2_000
# What a record weighs beside its key and value: the objects that it is made of.
RECORD_BYTES: Final = 300


class Gets:
    """What `poll`, `getmany`, `getone` and `async for` do."""

    def __init__(
        self,
        state: SubscriptionState,
        buffer: Buffer,
        ready: ReadyRecords,
        raise_in_poll: Callable[[], None] | None = None,
    ) -> None:
        self._state = state
        self._buffer = buffer
        self._ready = ready
        self._raise_in_poll = raise_in_poll
        self._loop = asyncio.get_running_loop()
        self._cached_records = MOST_CACHED_RECORDS

    async def some(
        self, timeout_s: float | None, max_records: int | None, max_of_each: int | None = None
    ) -> dict[TopicPartition, list[Record]]:
        """Like `many` of all partitions; without a limit, as many as the caches hold."""
        found = await self.many(
            (), timeout_s, max_records or self._cached_records, max_of_each, self._raise_in_poll
        )
        for records in found.values():
            self._fit_to_caches(records[-1])
            break
        return found

    def _fit_to_caches(self, sample: Record) -> None:
        """Decode from now on as many records of this size in one go as the caches hold."""
        size_bytes = sample.serialized_key_size + sample.serialized_value_size + RECORD_BYTES
        self._cached_records = max(1, min(CACHED_BYTES // size_bytes, MOST_CACHED_RECORDS))

    async def many(
        self,
        wanted: Wanted,
        timeout_s: float | None,
        max_records: int | None,
        max_of_each: int | None = None,
        also_raise: Callable[[], None] | None = None,
    ) -> dict[TopicPartition, list[Record]]:
        """Return what is buffered, up to `max_records` in all; {} when the time is up first.

        {} as well when the last of the partitions was taken away meanwhile. No more than
        `max_of_each` records are of one partition.
        """
        loop = self._loop
        deadline = None if timeout_s is None else loop.time() + timeout_s
        self._ready.close()
        self._state.enter_get()
        try:
            is_brief = timeout_s is not None and timeout_s <= 0
            if is_brief and not self._buffer.line.is_any_served(wanted):
                # A loop of gets that never wait must not keep the fetchers from working.
                await asyncio.sleep(0)
            # A get that does not wait returns all that is buffered: only decoding takes time.
            decode_until = deadline if timeout_s else None
            # What was lost before may come back, and a get of it alone takes its time.
            is_lost = not self._state.has_any(wanted)
            while await self._buffer.wait(wanted, deadline, also_raise, may_be_lost=is_lost):
                await self._buffer.decode(wanted, max_records, decode_until, max_of_each)
                # Another task's get may have opened a share meanwhile.
                self._ready.close()
                records = self._buffer.pop(wanted, max_records, max_of_each)
                if records:
                    return records
            return {}
        finally:
            self._state.leave_get(loop.time())

    async def one(self, wanted: Wanted) -> Record:
        """Return the next record, waiting for it.

        Raises:
            IllegalStateError: The last of the partitions was taken away meanwhile.
        """
        record = self._ready.take(wanted)
        if record is not None:
            return record
        self._ready.settle()
        self._state.enter_get()
        try:
            while record is None:
                if self._ready.has_rest(wanted):  # but the time slice is used up
                    try:
                        await self._buffer.time_slice.let_others_run()
                    finally:  # the next get is in a new slice, also when this was cancelled
                        self._ready.go_on(self._buffer.time_slice.begin())
                else:
                    await self._open_next(wanted)
                record = self._ready.take(wanted)
            return record
        finally:
            self._state.leave_get(self._loop.time())

    async def _open_next(self, wanted: Wanted) -> None:
        """Wait for records and make them ready; perhaps there are none yet."""
        self._ready.close()
        if not await self._buffer.wait(wanted, None):
            for tp in wanted:  # none of them is assigned any more
                self._state.partition(tp)
        part = await self._buffer.decode_next(wanted, self._cached_records)
        if part is not None:
            self._fit_to_caches(part.decoded[-1])
            self._ready.open(part, self._buffer.time_slice.begin())
