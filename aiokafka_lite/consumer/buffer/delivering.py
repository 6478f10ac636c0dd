"""What becomes of records between decoding and hand-out: deserialisers, and `on_bad_record`.

    covered by on_bad_record                  decided
    a key or value that a deserialiser        "skip" and "raw": where it is met, so that bad
    refuses                                   records do not cut lists short
    a batch: corrupt also when fetched        when all ahead of it was handed out: fetching goes
    again, of an unknown format or codec,     on behind it
    too large decompressed, or to be fetched
    both, by a callable                       when all ahead of it was handed out, awaited by the
                                              get that comes to it (application.py)

Whatever is decided, the position passes only with the records behind it, or with the skip.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

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
    from aiokafka_lite.consumer.buffer.deserialising import AwaitedDeserialising
    from aiokafka_lite.consumer.config import ConsumerConfig
    from aiokafka_lite.consumer.events.stream import Events

Record: TypeAlias = ConsumerRecord
Deserialize = Callable[[Record], None]

WORDS: Final = ("raise", "skip", "raw")
BAD_BATCHES: Final = (
    CorruptRecordException,
    UnsupportedMagicError,
    UnsupportedCodecError,
    DecompressionLimitError,
    RecordTooLargeError,
)


class BadRecords:
    """What `on_bad_record` says; tells of what is skipped."""

    __slots__ = ("_events", "handler", "word")

    def __init__(self, on_bad_record: OnBadRecord, events: Events) -> None:
        self._events = events
        #: What is done with each, unless `handler` decides.
        self.word = on_bad_record if isinstance(on_bad_record, str) else "raise"
        self.handler: BadRecordHandler | None = None
        if not isinstance(on_bad_record, str):
            self.handler = on_bad_record

    def decides(self, error: KafkaError) -> bool:
        """Whether an error is to be decided on before, or instead of, being raised."""
        if (self.word == "raise" and self.handler is None) or error.next_offset is None:
            return False
        if isinstance(error, DeserializationError):
            return not error.retriable
        # A batch that cannot be read has no records that could be handed out raw.
        return isinstance(error, BAD_BATCHES) and self.word != "raw"

    def skipped(self, error: KafkaError) -> None:
        """Tell that what an error is about is not delivered."""
        from aiokafka_lite.consumer.events.kinds import RecordSkipped

        if error.tp is None or error.offset is None:
            raise AssertionError("only what has a place can be skipped")
        self._events.publish(
            RecordSkipped(error.tp, error.offset, error, next_offset=error.next_offset)
        )


class AnyDelivery(Protocol):
    """How one consumer delivers; `deserialize` and `awaited` exclude each other."""

    @property
    def bad(self) -> BadRecords: ...

    @property
    def deserialize(self) -> Deserialize | None: ...

    @property
    def awaited(self) -> AwaitedDeserialising | None: ...

    @property
    def has_deserializers(self) -> bool: ...

    @property
    def asks_application(self) -> bool: ...


class Delivery:
    """What the application gave, and so often what knows the consumer."""

    __slots__ = ("__weakref__", "awaited", "bad", "deserialize")

    def __init__(
        self,
        bad: BadRecords,
        deserialize: Deserialize | None = None,
        awaited: AwaitedDeserialising | None = None,
    ) -> None:
        self.bad = bad
        self.deserialize = deserialize
        self.awaited = awaited

    @property
    def has_deserializers(self) -> bool:
        return self.deserialize is not None or self.awaited is not None

    @property
    def asks_application(self) -> bool:
        """Whether a share may need the application before more of it can be handed out."""
        return self.awaited is not None or self.bad.handler is not None or self.bad.word == "skip"


class LentDelivery:
    """A delivery that the consumer holds, and nothing of what keeps running without it."""

    __slots__ = ("_delivery", "_without")

    def __init__(self, delivery: Delivery, events: Events) -> None:
        self._delivery = weakref.ref(delivery)
        # For what comes in until its end is noticed: no get will ask for it.
        self._without = Delivery(BadRecords("raise", events))

    def _present(self) -> Delivery:
        return self._delivery() or self._without

    @property
    def bad(self) -> BadRecords:
        return self._present().bad

    @property
    def deserialize(self) -> Deserialize | None:
        return self._present().deserialize

    @property
    def awaited(self) -> AwaitedDeserialising | None:
        return self._present().awaited

    @property
    def has_deserializers(self) -> bool:
        """Whether keys or values are made of their bytes."""
        return self._present().has_deserializers

    @property
    def asks_application(self) -> bool:
        """Whether a share may need the application before more of it can be handed out."""
        return self._present().asks_application


def make_delivery(config: ConsumerConfig[object, object], events: Events) -> Delivery:
    """Return how a consumer with these arguments delivers.

    Raises:
        ValueError: `on_bad_record` is a word that means nothing.
        TypeError: It is neither a word nor callable; a deserialiser is none.
    """
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


def check_on_bad_record(given: object) -> None:
    """Refuse what `on_bad_record` cannot be.

    Raises:
        ValueError: It is a word that means nothing.
        TypeError: It is neither a word nor callable.
    """
    if isinstance(given, str):
        if given not in WORDS:
            raise ValueError(
                f"on_bad_record is one of {', '.join(WORDS)}, or a callable, not {given!r}"
            )
    elif not callable(given):
        raise TypeError(f"on_bad_record is a word or a callable, not {given!r}")


def describe(error: KafkaError) -> BadRecord:
    """Return what a callable is told of a record or batch that cannot be delivered."""
    from aiokafka_lite.bad_records import BadRecord

    if error.tp is None or error.offset is None or error.next_offset is None:
        raise AssertionError("it has no place")
    bad = BadRecord(error.tp, error.offset, error.next_offset, error)
    record = error.record if isinstance(error, DeserializationError) else None
    if not isinstance(record, ConsumerRecord):
        return bad
    return bad._replace(
        timestamp=record.timestamp, headers=record.headers, key=record.key, value=record.value
    )


def check_verdict(verdict: object, bad: BadRecord) -> Verdict:
    """Return a callable's verdict, if it is one.

    Raises:
        TypeError: It is something else, as None; or "raw" for a batch.
        ValueError: The record to deliver is of another place.
    """
    if isinstance(verdict, ConsumerRecord):
        tp = TopicPartition(verdict.topic, verdict.partition)
        if tp != bad.tp or not bad.offset <= verdict.offset < bad.next_offset:
            raise ValueError(
                f"on_bad_record was asked about offset {bad.offset} of {bad.tp}, and returned a "
                f"record with offset {verdict.offset} of {tp}: it has to keep its place"
            )
        return verdict
    if verdict == "raw" and bad.is_batch:
        raise TypeError("a batch that cannot be read has no raw records: return 'skip' or 'raise'")
    if verdict == "raise" or verdict == "skip" or verdict == "raw":
        return verdict
    raise TypeError(
        f"on_bad_record returned {verdict!r}: it returns 'raise', 'skip', 'raw', or a record"
    )


def raw_record(record: Record, error: KafkaError) -> Record:
    """Return a record as it was read, which says why it was not deserialised."""
    from aiokafka_lite.bad_records import RawRecord

    raw = RawRecord(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        record.timestamp_type,
        record.key,
        record.value,
        record.checksum,
        record.serialized_key_size,
        record.serialized_value_size,
        record.headers,
    )
    raw.error = error
    return raw
