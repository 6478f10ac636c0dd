"""What cannot be delivered as it is, and what to do about it: `on_bad_record`.

A record is bad when a deserialiser refuses it. A batch is bad as a whole when its checksum is
wrong, its codec unknown, when it would be decompressed to more than is allowed, or is too large to
be fetched.
"""

# No annotations from __future__: NamedTuple's constructors would have strings that nobody can read.
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from aiokafka_lite._compat import KT, VT
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.structs import ConsumerRecord, TopicPartition

__all__ = ["BadRecord", "BadRecordHandler", "OnBadRecord", "RawRecord", "Verdict"]


class BadRecord(NamedTuple):
    """A record, or a whole batch, that cannot be delivered.

    Attributes:
        tp: Its partition.
        offset: Its offset; of a batch the first of those that are not to be had.
        next_offset: Where reading goes on if it is skipped: the next record, or behind the batch.
        error: Why it is bad; the cause, if a deserialiser raised it, is ``error.__cause__``.
        timestamp: Milliseconds since the epoch; None for a batch.
        headers: Pairs of name and value; none for a batch.
        key: The key's bytes, or None.
        value: The value's bytes, or None.
    """

    tp: TopicPartition
    offset: int
    next_offset: int
    error: KafkaError
    timestamp: int | None = None
    headers: Sequence[tuple[str, bytes]] = ()
    key: bytes | None = None
    value: bytes | None = None

    @property
    def is_batch(self) -> bool:
        """Whether it is a whole batch, of which there is no record to look at."""
        return self.timestamp is None


class RawRecord(ConsumerRecord[KT, VT]):
    """A record whose key and value are bytes, because they could not be deserialised.

    It stands where the consumer's type promises a key and value of other types: ask whether it is
    one, by isinstance, before you use them.

    Attributes:
        error: Why not.
    """

    error: KafkaError
    if TYPE_CHECKING:
        key: bytes | None  # type: ignore[assignment]  # not KT, which is why it is raw
        value: bytes | None  # type: ignore[assignment]


Verdict: TypeAlias = Literal["raise", "skip", "raw"] | ConsumerRecord[object, object]
"""What becomes of a bad record: a record to be delivered has its partition and its offset."""

BadRecordHandler: TypeAlias = Callable[[BadRecord], Verdict | Awaitable[Verdict]]
"""Decides on each; what it returns may have to be awaited."""

OnBadRecord: TypeAlias = Literal["raise", "skip", "raw"] | BadRecordHandler
"""The consumer's argument: the same for all, or a callable that decides on each."""
