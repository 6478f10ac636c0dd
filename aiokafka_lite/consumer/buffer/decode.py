"""Decodes some records at a time, with pauses between.

A pause is due at the end of the time slice, when a worker thread has to decompress a large batch,
and when the application is awaited: asynchronous deserialisers and a callable `on_bad_record`.

Only a read without records to return awaits the application, so a cancelled one has moved no
position. Other reads of the chunk wait for that read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from aiokafka_lite._tasks import Event
from aiokafka_lite._threads import compute
from aiokafka_lite.consumer.assignment.reads import Reads
from aiokafka_lite.consumer.buffer.bad_records import (
    BadRecords,
    ChunkErrors,
    check_on_bad_record,
)
from aiokafka_lite.consumer.buffer.chunk import PACKED, Chunk, Record
from aiokafka_lite.consumer.buffer.time_slice import TimeSlice
from aiokafka_lite.consumer.gate import Gate
from aiokafka_lite.consumer.lent import lend
from aiokafka_lite.errors import IllegalStateError

if TYPE_CHECKING:
    from aiokafka_lite.consumer.buffer.deserialising import AwaitedDeserialising
    from aiokafka_lite.consumer.config import ConsumerConfig
    from aiokafka_lite.consumer.events import Events
    from aiokafka_lite.records.decoders import Columns

Deserialize = Callable[[Record], None]

# Ready callbacks wait for the rest of the slice, a timer for most of the next one too. A round of
# asyncio's loop costs some 15 us, so shorter slices would cost more than 3 %.
TIME_SLICE_S: Final = 0.0005
# Records decoded between two looks at the clock: doubled while that takes less than a quarter of a
# time slice, halved when it takes more than half of one.
FIRST_RUN: Final = 256
SMALLEST_RUN: Final = 8
LARGEST_RUN: Final = 2_048
# With deserialisers, whose cost is the application's.
FIRST_DESERIALIZE_RUN: Final = 50
# So many rows cost about as much as a record.
ROWS_A_RECORD: Final = 4
# Batches that take longer than this are decompressed in a worker thread. Getting there and back
# costs some 0.1 ms, and the processor's caches.
INFLATE_ON_LOOP_S: Final = 0.0005


# --- What is called for each record --------------------------------------------------------
class Delivery:
    def __init__(
        self,
        bad: BadRecords,
        deserialize: Deserialize | None = None,
        awaited: AwaitedDeserialising | None = None,
    ) -> None:
        self.bad = bad
        self.deserialize = deserialize
        self.awaited = awaited
        self.has_deserializers = deserialize is not None or awaited is not None
        # Records keep the bytes of their keys and values, for dead letters.
        self.keeps_serialized = False

    @property
    def asks_application(self) -> bool:
        return self.awaited is not None or self.bad.handler is not None or self.bad.word == "skip"


def lend_delivery(delivery: Delivery, events: Events) -> Delivery:
    if delivery.bad.handler is None and not delivery.has_deserializers:
        return delivery
    # For records that arrive until its end is noticed: they are never read.
    return lend(delivery, Delivery(BadRecords("raise", events)))


def make_delivery(config: ConsumerConfig[object, object], events: Events) -> Delivery:
    check_on_bad_record(config.on_bad_record)
    bad = BadRecords(config.on_bad_record, events)
    if not config.has_deserializers:
        return Delivery(bad)
    # Imported where it is used: many consumers have no deserialisers.
    from aiokafka_lite.consumer.buffer import deserialising

    key, value = config.key_deserializer, config.value_deserializer
    deserialising.check_deserializer("key_deserializer", key)
    deserialising.check_deserializer("value_deserializer", value)
    if deserialising.may_wait(key) or deserialising.may_wait(value):
        return Delivery(bad, awaited=deserialising.AwaitedDeserialising(key, value))
    return Delivery(bad, deserialising.make_deserialize(key, value))


# --- Decoding ------------------------------------------------------------------------------
class ApplicationWork(NamedTuple):
    task: asyncio.Task[object] | None
    is_done: Event


class ChunkDecoder:
    """Decodes chunks within a time slice, and learns how many records fit between two looks."""

    def __init__(self, reads: Reads, gate: Gate, errors: ChunkErrors, delivery: Delivery) -> None:
        self._reads = reads
        self._errors = errors
        self._loop = asyncio.get_running_loop()
        self._run_length = FIRST_DESERIALIZE_RUN if delivery.has_deserializers else FIRST_RUN
        if delivery.awaited is not None:
            self._run_length = max(self._run_length, delivery.awaited.max_records)
        self.slice = TimeSlice(TIME_SLICE_S, self._loop.time, gate)
        # Loop time of the latest look at the clock.
        self.looked_at = 0.0

    async def let_others_run(self) -> None:
        try:
            await asyncio.sleep(0)
        finally:  # the loop has run also when this was cancelled
            self.slice.renew()

    # --- Decoding -------------------------------------------------------------------------
    def decode(self, chunk: Chunk, limit: int | None) -> None:
        """Decode some records of a chunk, which is to hold `limit` at most, after `needs_pause`."""
        before = len(chunk.decoded)
        length = self._run_length
        chunk.decode(length if limit is None else min(length, limit - before))
        self._fit(len(chunk.decoded) - before)

    def fill(self, chunk: Chunk, columns: Columns, max_rows: int) -> int:
        """Add rows to columns and return how many, 0 if a pause is due first.

        The first rows are added even at the end of the slice: the caller has paused if necessary.
        """
        if chunk.state is not PACKED:
            return 0
        if columns.rows:
            if self.needs_pause(chunk):
                return 0
        elif self._has_to_wait(chunk):
            return 0
        else:
            self.looked_at = self._loop.time()
        added = chunk.fill(columns, min(self._run_length * ROWS_A_RECORD, max_rows))
        self._fit(added // ROWS_A_RECORD)
        return added

    def _fit(self, count: int) -> None:
        length = self._run_length
        if count < length // 2:
            return  # too few to tell how long so many take
        took_s = self._loop.time() - self.looked_at
        if took_s > self.slice.length_s / 2:
            self._run_length = max(length // 2, SMALLEST_RUN)
        elif took_s < self.slice.length_s / 4:
            self._run_length = min(length * 2, LARGEST_RUN)

    # --- Pauses ---------------------------------------------------------------------------
    def needs_pause(self, chunk: Chunk) -> bool:
        """Whether the loop has to run first. Looks at the clock, and may begin a slice."""
        if self._has_to_wait(chunk):
            return True
        now = self.looked_at = self._loop.time()
        return self.slice.is_over(now)

    def _has_to_wait(self, chunk: Chunk) -> bool:
        if chunk.state is PACKED:
            return chunk.inflate_estimate_s > INFLATE_ON_LOOP_S
        return chunk.inflating is not None or chunk.needs_application

    async def pause(self, chunk: Chunk) -> None:
        """Wait for the application, for a decompressing thread, or for one round of the loop.

        Raises:
            IllegalStateError: The application's code, called from here, reads again.
            Exception: `on_bad_record` raised it. The next read calls it again.
        """
        if chunk.needs_application:
            # This time counts towards max_poll_interval_ms: it is no wait for records.
            self._reads.leave_get(self._loop.time())
            try:
                await self._await_application(chunk)
            finally:
                self._reads.resume_get()
        elif not self._has_to_wait(chunk):
            await self.let_others_run()
        else:
            if chunk.inflating is None:
                chunk.begin_inflating(compute(chunk.inflate))
            while (inflating := chunk.inflating) is not None:
                # Shielded: a cancelled get must not leave the thread working on a set that the
                # next get decodes. That one waits for the same future.
                await asyncio.shield(inflating)
                if chunk.inflating is inflating:
                    chunk.end_inflating()
                self.slice.renew()
        # The pause does not count as time of decoding.
        self.looked_at = self._loop.time()

    async def _await_application(self, chunk: Chunk) -> None:
        """Await the application for a chunk, or the read that already does."""
        task = asyncio.current_task()
        if chunk.work is not None:
            if chunk.work.task is task:
                raise IllegalStateError(
                    f"a deserialiser or on_bad_record must not read {chunk.partition.tp} while "
                    "it processes a record of that partition"
                )
            await chunk.work.is_done.wait()
            return
        work = chunk.work = ApplicationWork(task, Event())
        try:
            if (error := chunk.failure) is not None:
                chunk.begin_deciding()
                await self._errors.decide(chunk, error)
            elif (awaited := chunk.delivery.awaited) is not None:
                # Imported where it is used: few consumers have deserialisers that wait.
                from aiokafka_lite.consumer.buffer.deserialising import deserialise

                chunk.begin_deserialising()
                await deserialise(chunk, awaited, self)
        finally:
            chunk.end_work()
            work.is_done.set()
