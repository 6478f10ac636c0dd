"""Decides on errors behind records, and on those that `on_bad_record` covers.

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
from typing import TYPE_CHECKING, Final, TypeAlias

from aiokafka_lite.consumer.assignment.assignment import Assignment
from aiokafka_lite.consumer.assignment.reads import Reads
from aiokafka_lite.consumer.buffer.chunk import Chunk
from aiokafka_lite.errors import (
    CorruptRecordException,
    DecompressionLimitError,
    DeserializationError,
    KafkaError,
    RecordTooLargeError,
    UnsupportedCodecError,
    UnsupportedMagicError,
)
from aiokafka_lite.structs import ConsumerRecord, TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.bad_records import BadRecord, BadRecordHandler, OnBadRecord, Verdict
    from aiokafka_lite.consumer.events import Events

log = logging.getLogger(__name__)

Record: TypeAlias = ConsumerRecord

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
    """Raises the errors of chunks, or continues behind them.

    `add(chunk)` replaces the partition's buffered records.
    """

    def __init__(self, state: Assignment, reads: Reads, add: Callable[[Chunk], None]) -> None:
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
