"""Deserialisers that know more than bytes, may wait, or work on many records at a time.

A plain callable of the bytes, as in aiokafka, is the fastest; for null it is called with None.
Whoever needs topic and headers, or has to ask a schema registry, subclasses one of these and gives
an instance as `key_deserializer` or `value_deserializer`. Which kind it is follows from the class
alone. What it makes is said to type checkers: with a ``Deserializer[Order]`` a record's value is an
Order, or None for null.

What a deserialiser raises is about its record: the get that comes to the record raises
`DeserializationError`, unless `on_bad_record` says otherwise. Exceptions that say "not now"
instead (a `KafkaError` that is `retriable`, ConnectionError, TimeoutError) are no verdict on the
record: the get raises `DeserializerUnavailableError`, `on_bad_record` is not asked, and the next
get tries again.
"""

# No annotations from __future__: NamedTuple's constructors would have strings that nobody can read.
import abc
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

__all__ = [
    "AsyncDeserializer",
    "BatchDeserializer",
    "Deserializer",
    "Serialized",
    "Undeserializable",
]


Made_co = TypeVar("Made_co", covariant=True)


class Serialized(NamedTuple):
    """A key or a value as it was read, and where it stood.

    Attributes:
        payload: The bytes. Null is not given to deserialisers: it stays None.
        is_key: Whether it is a key; one deserialiser may serve both.
        topic: The record's topic.
        partition: The record's partition.
        offset: The record's offset.
        timestamp: Milliseconds since the epoch.
        headers: Pairs of name and value.
    """

    payload: bytes
    is_key: bool
    topic: str
    partition: int
    offset: int
    timestamp: int
    headers: Sequence[tuple[str, bytes]]


class DeserializerOf(abc.ABC, Generic[Made_co]):
    """What the three kinds have in common: the type of a record's key or value. Not to subclass."""


class Deserializer(DeserializerOf[Made_co | None], Generic[Made_co]):
    """Makes a key or value of bytes, topic and headers; called for each record."""

    @abc.abstractmethod
    def deserialize(self, item: Serialized) -> Made_co:
        """Return what `item.payload` means.

        Raises:
            Exception: Whatever is wrong with it.
        """


class AsyncDeserializer(DeserializerOf[Made_co | None], Generic[Made_co]):
    """Like `Deserializer`, but may wait; awaited for one record after the other, in order.

    It runs within the application's get. Is that cancelled, so is this, and the next get calls
    it again for the same record.
    """

    @abc.abstractmethod
    async def deserialize(self, item: Serialized) -> Made_co:
        """Return what `item.payload` means.

        Raises:
            Exception: Whatever is wrong with it.
        """


class BatchDeserializer(DeserializerOf[Made_co | None], Generic[Made_co]):
    """Makes keys or values of many records of a partition at once, and may wait.

    So what they need in common, as schemas, is fetched once for all. It runs within the
    application's get. Is that cancelled, so is this, and the next get calls it again for the same
    records.

    Attributes:
        max_items: The most items of one call. What a call does without waiting holds up the
            event loop.
    """

    max_items: int = 100

    @abc.abstractmethod
    async def deserialize_batch(
        self, items: Sequence[Serialized]
    ) -> Sequence["Made_co | Undeserializable"]:
        """Return what the payloads mean, in their order: as many objects as there are items.

        In the place of one that is bad `Undeserializable(error)` may stand. A call that raises is
        repeated with half the items, until it succeeds or the bad one is found.

        Raises:
            Exception: Whatever is wrong with one of them.
        """


class Undeserializable(NamedTuple):
    """Stands for a payload that cannot be deserialised, in what `deserialize_batch` returns."""

    error: Exception
