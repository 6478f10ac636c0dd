"""Decodes some records at a time, with pauses between, and decides on those that are bad.

A pause is due at the end of the time slice, when a worker thread has to decompress a large batch,
and when the application is awaited: asynchronous deserialisers and a callable `on_bad_record`.

Only a read without records to return awaits the application, so a cancelled one has moved no
position. Other reads of the chunk wait for that read.

Every read raises an error, and no position moves, until the application seeks or the log is fixed.
`on_bad_record` changes that:

    covered by on_bad_record                  decided
    a key or value that a deserialiser        "skip" and "raw": at decoding, so that bad
    refuses                                   records do not shorten lists
    a batch: corrupt also when fetched        when all records ahead are returned: fetching
    again, of an unknown format or codec,     continues behind it
    too large decompressed, or to be fetched
    both, by a callable                       when all records ahead are returned, awaited by
                                              the read that reaches it

The position passes a bad record only with the records behind it, or with the skip.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from aiokafka_lite._tasks import Event
from aiokafka_lite._threads import compute
from aiokafka_lite.consumer.assignment.assignment import SubscriptionState
from aiokafka_lite.consumer.assignment.reads import Reads
from aiokafka_lite.consumer.buffer.chunk import PACKED, Chunk, Record
from aiokafka_lite.consumer.buffer.time_slice import TimeSlice
from aiokafka_lite.consumer.caller import lend
from aiokafka_lite.consumer.gate import Gate
from aiokafka_lite.errors import (
    CorruptRecordException,
    DecompressionLimitError,
    DeserializationError,
    IllegalStateError,
    KafkaError,
    RecordTooLargeError,
    UnsupportedCodecError,
    UnsupportedMagicError,
)
from aiokafka_lite.structs import ConsumerRecord, TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.bad_records import BadRecord, BadRecordHandler, OnBadRecord, Verdict
    from aiokafka_lite.consumer.buffer.deserialising import AwaitedDeserialising
    from aiokafka_lite.consumer.config import ConsumerConfig
    from aiokafka_lite.consumer.events import Events
    from aiokafka_lite.records.decoders import Columns

log = logging.getLogger(__name__)

# How long a partition that stays corrupt is not fetched.
CORRUPT_PAUSE_S: Final = 0.5

WORDS: Final = ("raise", "skip", "raw")
BAD_BATCHES: Final = (
    CorruptRecordException,
    UnsupportedMagicError,
    UnsupportedCodecError,
    DecompressionLimitError,
    RecordTooLargeError,
)


class BadRecords:
    __slots__ = ("_events", "handler", "word")

    def __init__(self, on_bad_record: OnBadRecord, events: Events) -> None:
        self._events = events
        #: Decides unless there is a `handler`.
        self.word = on_bad_record if isinstance(on_bad_record, str) else "raise"
        self.handler: BadRecordHandler | None = None
        if not isinstance(on_bad_record, str):
            self.handler = on_bad_record

    def decides(self, error: KafkaError) -> bool:
        if (self.word == "raise" and self.handler is None) or error.next_offset is None:
            return False
        if isinstance(error, DeserializationError):
            return not error.retriable
        # An unreadable batch has no records to return raw.
        return isinstance(error, BAD_BATCHES) and self.word != "raw"

    def skipped(self, error: KafkaError) -> None:
        from aiokafka_lite.events import RecordSkipped

        assert error.tp is not None  # noqa: S101 -- `decides` is asked first
        assert error.offset is not None  # noqa: S101
        self._events.publish(
            RecordSkipped(error.tp, error.offset, error, next_offset=error.next_offset)
        )

    def raw_record(self, record: Record, error: KafkaError) -> Record:
        from aiokafka_lite.bad_records import RawRecord

        raw = RawRecord(*(getattr(record, field) for field in ConsumerRecord.__match_args__))
        raw.error = error
        return raw


def check_on_bad_record(given: object) -> None:
    if isinstance(given, str):
        if given not in WORDS:
            raise ValueError(
                f"on_bad_record must be one of {', '.join(WORDS)}, or a callable, not {given!r}"
            )
    elif not callable(given):
        raise TypeError(f"on_bad_record must be a str or a callable, not {given!r}")


def describe(error: KafkaError) -> BadRecord:
    from aiokafka_lite.bad_records import BadRecord

    assert error.tp is not None  # noqa: S101 -- `decides` is asked first
    assert error.offset is not None  # noqa: S101
    assert error.next_offset is not None  # noqa: S101
    bad = BadRecord(error.tp, error.offset, error.next_offset, error)
    record = error.record if isinstance(error, DeserializationError) else None
    if not isinstance(record, ConsumerRecord):
        return bad
    return bad._replace(
        timestamp=record.timestamp, headers=record.headers, key=record.key, value=record.value
    )


def check_verdict(verdict: object, bad: BadRecord) -> Verdict:
    """Return a callable's verdict, or raise TypeError or ValueError if it does not fit."""
    if isinstance(verdict, ConsumerRecord):
        tp = TopicPartition(verdict.topic, verdict.partition)
        if tp != bad.tp or not bad.offset <= verdict.offset < bad.next_offset:
            raise ValueError(
                f"on_bad_record was called for offset {bad.offset} of {bad.tp}, but returned a "
                f"record with offset {verdict.offset} of {tp}: the returned record must keep the "
                "partition and the offset"
            )
        return verdict
    if verdict == "raw" and bad.is_batch:
        raise TypeError(
            "on_bad_record returned 'raw' for a batch that cannot be read. Such a batch has no "
            "raw records: return 'skip' or 'raise'"
        )
    if verdict == "raise" or verdict == "skip" or verdict == "raw":
        return verdict
    raise TypeError(
        f"on_bad_record returned {verdict!r}: it must return 'raise', 'skip', 'raw', or a record"
    )


class ChunkErrors:
    """Raises chunks' errors, or continues behind them; `add` replaces a partition's records."""

    def __init__(
        self, state: SubscriptionState, reads: Reads, add: Callable[[Chunk], None]
    ) -> None:
        self._state = state
        self._reads = reads
        self._add = add
        self._loop = asyncio.get_running_loop()

    def raise_error(self, chunk: Chunk, error: KafkaError) -> None:
        """Raise a chunk's error, but first fetch a corrupt batch again."""
        chunk.raised()
        if isinstance(error, CorruptRecordException):
            if self._fetch_again(chunk, error):
                return
            # It may be fixed in the log, but a loop of reads must not ask without a pause.
            partition = chunk.partition
            partition.back_off(self._loop.time() + CORRUPT_PAUSE_S, type(error).__name__)
            self._state.refetch(partition)
        self._reads.note_raised(error)
        raise error.with_traceback(None)

    async def decide(self, chunk: Chunk, error: KafkaError) -> None:
        """Ask `on_bad_record` about an error. A chunk dropped since ignores the verdict."""
        if isinstance(error, CorruptRecordException) and self._fetch_again(chunk, error):
            return
        bad = describe(error)
        handler = chunk.delivery.bad.handler
        verdict: Verdict = "skip" if handler is None else await _ask(handler, bad)
        if chunk.failure is not error:
            return
        if verdict == "raise":
            chunk.fail()
        elif not bad.is_batch:
            chunk.settle_bad_record(verdict, error)
        elif isinstance(verdict, ConsumerRecord):
            self._replace_batch(chunk, bad.next_offset, verdict)
        else:
            chunk.delivery.bad.skipped(error)
            self._reads.pass_over(chunk.partition, bad.next_offset)
            self._state.refetch(chunk.partition)

    def _fetch_again(self, chunk: Chunk, error: CorruptRecordException) -> bool:
        """Fetch a corrupt batch once more; False: that was done already."""
        partition = chunk.partition
        offset = partition.position if error.offset is None else error.offset
        if partition.corrupt_at == offset:
            return False
        partition.corrupt_at = -1 if offset is None else offset
        log.warning("%s (fetching it again)", error)
        self._state.refetch(partition)
        return True

    def _replace_batch(
        self, chunk: Chunk, next_offset: int, record: ConsumerRecord[object, object]
    ) -> None:
        self._state.refetch(chunk.partition)
        substitute = Chunk(chunk.partition, chunk.delivery, end_offset=next_offset)
        substitute.decoded.append(record)  # type: ignore[arg-type]  # of the application's types
        self._add(substitute)


async def _ask(handler: BadRecordHandler, bad: BadRecord) -> Verdict:
    answer = handler(bad)
    if isinstance(answer, Awaitable):
        answer = await answer
    return check_verdict(answer, bad)


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
        """Add rows to columns, and return how many. 0: a pause is due before further rows."""
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

        Raises IllegalStateError if the application reads again, and any error of `on_bad_record`.
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
