"""Deserialisers that need more than bytes, that await, or that convert many records at once.

A plain callable of the bytes, as in aiokafka, is the fastest. For null it is called with None.
Otherwise subclass one of these classes, and pass an instance as `key_deserializer` or
`value_deserializer`. For type checkers, a value with a ``Deserializer[Order]`` is an Order, or None
for null.

If a deserialiser raises, the read that reaches the record raises `DeserializationError`, unless
`on_bad_record` decides otherwise. After a temporary error (a `KafkaError` that is `retriable`,
ConnectionError, TimeoutError) the read raises `DeserializerUnavailableError`, and the next read
tries again. If a read is cancelled, so is an async call, and the next read repeats it.
"""

# No annotations from __future__: NamedTuple's constructors would have unreadable strings.
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
    """A key or a value in bytes, and its record.

    Attributes:
        payload: The bytes. Null is not deserialised: it stays None.
        is_key: Whether it is a key. One deserialiser may convert both.
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
    """The base of the three classes, with the type of the key or value. Do not subclass it."""


class Deserializer(DeserializerOf[Made_co | None], Generic[Made_co]):
    """Converts a key or value with its topic and headers. Called for each record."""

    @abc.abstractmethod
    def deserialize(self, item: Serialized) -> Made_co:
        """Return the value of `item.payload`, or raise if it is invalid."""


class AsyncDeserializer(DeserializerOf[Made_co | None], Generic[Made_co]):
    """An async `Deserializer`, awaited for one record after the other, in order."""

    @abc.abstractmethod
    async def deserialize(self, item: Serialized) -> Made_co:
        """Return the value of `item.payload`, or raise if it is invalid."""


class BatchDeserializer(DeserializerOf[Made_co | None], Generic[Made_co]):
    """Converts the keys or values of many records of a partition in one async call.

    Attributes:
        max_items: The most items of one call. Code between two awaits blocks the event loop.
    """

    max_items: int = 100

    @abc.abstractmethod
    async def deserialize_batch(
        self, items: Sequence[Serialized]
    ) -> Sequence["Made_co | Undeserializable"]:
        """Return the values of all payloads in order, one for each item.

        `Undeserializable(error)` may replace the value of a bad payload. A call that raises is
        repeated with half of the items, until it succeeds or the bad one is found.
        """


class Undeserializable(NamedTuple):
    """Replaces the value of a bad payload in the result of `deserialize_batch`."""

    error: Exception
