"""Deserialises keys and values, with synchronous and asynchronous deserialisers.

Synchronous ones are called at decoding. If one of the two may wait, reads await both. The results
are put into the records in one step after the last await, so a read may be cancelled at any.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeGuard

from aiokafka_lite.deserializers import (
    AsyncDeserializer,
    BatchDeserializer,
    Deserializer,
    DeserializerOf,
    Serialized,
    Undeserializable,
)
from aiokafka_lite.errors import DeserializationError, DeserializerUnavailableError, KafkaError
from aiokafka_lite.structs import ConsumerRecord, TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.consumer.buffer.chunk import Chunk
    from aiokafka_lite.consumer.buffer.decode import ChunkDecoder

Record: TypeAlias = ConsumerRecord
Deserialize = Callable[[Record], None]
# Like aiokafka's they are called for null, too, with None. One that takes no None refuses it, as it
# does bad bytes.
AnyDeserializer: TypeAlias = Callable[[bytes], object] | DeserializerOf[object]
PlainDeserializer: TypeAlias = Callable[[bytes | None], object]

KINDS: Final = (Deserializer, AsyncDeserializer, BatchDeserializer)
# These blame the deserialiser, not the record.
PASSING: Final = (ConnectionError, TimeoutError, asyncio.TimeoutError)


def check_deserializer(name: str, given: AnyDeserializer | None) -> None:
    """Raise TypeError unless this is a deserialiser. Coroutines must not become values."""
    if given is None:
        return
    if isinstance(given, type) and issubclass(given, KINDS):
        raise TypeError(f"{name} must be an instance of {given.__name__}, not the class")
    if isinstance(given, BatchDeserializer):
        method: object = given.deserialize_batch
    elif isinstance(given, (AsyncDeserializer, Deserializer)):
        method = given.deserialize
    elif callable(given):
        method = None if isinstance(given, type) else getattr(given, "__call__", None)  # noqa: B004
    else:
        raise TypeError(
            f"{name} must be a function that takes bytes, or a Deserializer, AsyncDeserializer or "
            f"BatchDeserializer, not {given!r}"
        )
    is_async = inspect.iscoroutinefunction(method) or inspect.iscoroutinefunction(given)
    if is_async and not may_wait(given):
        raise TypeError(
            f"an async {name} must be an instance of AsyncDeserializer or BatchDeserializer, not "
            f"{given!r}"
        )
    if may_wait(given) and not is_async:
        raise TypeError(
            f"{name} must define deserialize or deserialize_batch with async def, but {given!r} "
            "does not"
        )


class Converted(NamedTuple):
    """The keys and values of the first records, and perhaps the error of the next one."""

    pairs: Sequence[tuple[object, object]]
    error: DeserializationError | None


class _Field(NamedTuple):
    """The same of one field. Even without an error there may be fewer values than records."""

    values: Sequence[object]
    error: Exception | None


class AwaitedDeserialising:
    def __init__(self, key: AnyDeserializer | None, value: AnyDeserializer | None) -> None:
        self._key = key
        self._value = value
        limits = [each.max_items for each in (key, value) if isinstance(each, BatchDeserializer)]
        #: How many records `convert` takes at once.
        self.max_records = max(1, min(limits, default=1))

    async def convert(self, records: Sequence[Record]) -> Converted:
        """Return the result of at least one record, unless that one is bad."""
        keys = await _convert_field(self._key, records, is_key=True)
        values = await _convert_field(self._value, records[: len(keys.values)], is_key=False)
        done = len(values.values)
        error = None
        if values.error is not None:
            error = bad_record(records[done], values.error)
        elif keys.error is not None and done == len(keys.values):
            error = bad_record(records[done], keys.error, is_key=True)
        return Converted(tuple(zip(keys.values[:done], values.values, strict=True)), error)


async def deserialise(chunk: Chunk, awaited: AwaitedDeserialising, decoder: ChunkDecoder) -> None:
    """Deserialise a chunk's records until an error, or until it has taken a time slice."""
    loop = asyncio.get_running_loop()
    while chunk.failure is None and chunk.raw:
        began = loop.time()
        converted = await awaited.convert(chunk.raw[: awaited.max_records])
        if not chunk.is_current:
            return
        chunk.accept(converted)
        now = loop.time()
        if chunk.decoded and now - began > decoder.slice.length_s:
            return  # those that are there need not wait for the others
        if now >= decoder.slice.begin():
            await decoder.let_others_run()


async def _convert_field(
    deserializer: AnyDeserializer | None, records: Sequence[Record], *, is_key: bool
) -> _Field:
    if isinstance(deserializer, BatchDeserializer):
        return await _convert_batch(deserializer, records, is_key=is_key)
    make = _of_record(deserializer, is_key=is_key)
    is_awaited = isinstance(deserializer, AsyncDeserializer)
    values: list[object] = []
    try:
        for record in records:
            value = make(record)
            if is_awaited and isinstance(value, Awaitable):  # null has no value to wait for
                value = await value
            values.append(value)
    except Exception as error:  # noqa: BLE001 -- whatever the user's code raises
        return _Field(values, error)
    return _Field(values, None)


async def _convert_batch(
    deserializer: BatchDeserializer[object],
    records: Sequence[Record],
    *,
    is_key: bool,
) -> _Field:
    payloads = [record.key if is_key else record.value for record in records]
    places = [place for place, payload in enumerate(payloads) if payload is not None]
    values: list[object] = [None] * len(records)
    if not places:
        return _Field(values, None)
    items = [_serialized(records[place], payloads[place] or b"", is_key) for place in places]
    size = len(items)
    while True:
        try:
            made = await deserializer.deserialize_batch(items[:size])
            break
        except Exception as error:  # noqa: BLE001 -- whatever the user's code raises
            if size == 1 or _is_passing(error):
                return _Field(values[: places[0]], error)
            size //= 2  # one of them is bad: those ahead of it are to be delivered first
    if len(made) != size:
        raise TypeError(
            f"{type(deserializer).__name__}.deserialize_batch returned {len(made)} objects for "
            f"{size} items: the method must return one object per item, in the order of the items"
        )
    for place, value in zip(places, made, strict=False):
        if isinstance(value, Undeserializable):
            return _Field(values[:place], value.error)
        values[place] = value
    return _Field(values if size == len(items) else values[: places[size]], None)


def _serialized(record: Record, payload: bytes, is_key: bool) -> Serialized:
    return Serialized(
        payload,
        is_key,
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        record.headers,
    )


# --- Without waiting -----------------------------------------------------------------------
def make_deserialize(
    key_deserializer: AnyDeserializer | None, value_deserializer: AnyDeserializer | None
) -> Deserialize:
    """Return a function that replaces a record's key and value, or raises and changes neither."""
    if is_plain(key_deserializer) and is_plain(value_deserializer):
        return _make_of_bytes(key_deserializer, value_deserializer)
    make_key = _of_record(key_deserializer, is_key=True)
    make_value = _of_record(value_deserializer, is_key=False)

    def deserialize(record: Record) -> None:
        try:
            key = make_key(record)
        except Exception as error:  # whatever the user's code raises
            raise bad_record(record, error, is_key=True) from error
        try:
            value = make_value(record)
        except Exception as error:  # whatever the user's code raises
            raise bad_record(record, error) from error
        # With deserialisers a record is of their types.
        record.key = key  # type: ignore[assignment]
        record.value = value  # type: ignore[assignment]

    return deserialize


def _make_of_bytes(
    key_deserializer: PlainDeserializer | None, value_deserializer: PlainDeserializer | None
) -> Deserialize:
    def deserialize(record: Record) -> None:
        key: object = record.key
        value: object = record.value
        try:
            if key_deserializer is not None:
                key = key_deserializer(record.key)
        except Exception as error:  # whatever the user's code raises
            raise bad_record(record, error, is_key=True) from error
        try:
            if value_deserializer is not None:
                value = value_deserializer(record.value)
        except Exception as error:  # whatever the user's code raises
            raise bad_record(record, error) from error
        record.key = key  # type: ignore[assignment]
        record.value = value  # type: ignore[assignment]

    return deserialize


def _of_record(deserializer: AnyDeserializer | None, *, is_key: bool) -> Callable[[Record], object]:
    def payload_of(record: Record) -> bytes | None:
        return record.key if is_key else record.value

    if isinstance(deserializer, (AsyncDeserializer, Deserializer)):
        of_item: Callable[[Serialized], object] = deserializer.deserialize

        def make(record: Record) -> object:
            payload = payload_of(record)
            return None if payload is None else of_item(_serialized(record, payload, is_key))

        return make
    assert is_plain(deserializer)  # noqa: S101 -- batches have their own way
    if deserializer is None:
        return payload_of
    of_bytes = deserializer
    return lambda record: of_bytes(payload_of(record))


# --- Which kind it is ----------------------------------------------------------------------
def is_plain(deserializer: AnyDeserializer | None) -> TypeGuard[PlainDeserializer | None]:
    return not isinstance(deserializer, KINDS)


def may_wait(deserializer: AnyDeserializer | None) -> bool:
    return isinstance(deserializer, (AsyncDeserializer, BatchDeserializer))


# --- Errors --------------------------------------------------------------------------------
def _is_passing(cause: BaseException) -> bool:
    return cause.retriable if isinstance(cause, KafkaError) else isinstance(cause, PASSING)


def bad_record(
    record: Record, cause: BaseException, *, is_key: bool = False
) -> DeserializationError:
    tp = TopicPartition(record.topic, record.partition)
    field = "key" if is_key else "value"
    where = f"{field} of record {tp.topic}/{tp.partition} at offset {record.offset}"
    if _is_passing(cause):
        error: DeserializationError = DeserializerUnavailableError(
            f"the {where} cannot be deserialised now: {cause!r}. The next read tries again"
        )
    else:
        error = DeserializationError(
            f"the {where} cannot be deserialised: {cause!r}. Seek past the record, fix "
            "the deserialiser, or set on_bad_record"
        )
    error.__cause__ = cause
    error.record = record
    error.is_key = is_key
    return error.at(tp, record.offset, record.offset + 1)
