"""Records that cannot be delivered, and the decision about them: `on_bad_record`.

A record is bad if a deserialiser rejects it. A batch is bad if its checksum is wrong, its codec is
unknown, its decompressed size exceeds the limit, or it does not fit into a fetch response.
"""

# No annotations from __future__: NamedTuple's constructors would have unreadable strings.
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from aiokafka_lite._compat import KT, VT
from aiokafka_lite.errors import DeserializationError, KafkaError
from aiokafka_lite.structs import ConsumerRecord, TopicPartition

__all__ = ["BadRecord", "BadRecordHandler", "OnBadRecord", "RawRecord", "Verdict"]


class BadRecord(NamedTuple):
    """A record, or a whole batch, that cannot be delivered.

    Attributes:
        offset: Of a batch the first unreadable one.
        next_offset: The position after a skip: the next record, or the end of the batch.
        error: The reason. ``error.__cause__`` is the exception of a deserialiser.
        timestamp: Milliseconds since the epoch. None for a batch, and for messages of magic 0.
        headers: Pairs of name and value. Empty for a batch.
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
        """Whether it is a whole batch, without a readable record."""
        return not isinstance(self.error, DeserializationError)


class RawRecord(ConsumerRecord[KT, VT]):
    """A record whose key and value are bytes, because they could not be deserialised.

    Test with isinstance: the consumer's type promises other types.

    Attributes:
        error: The reason.
    """

    error: KafkaError
    if TYPE_CHECKING:
        key: bytes | None  # type: ignore[assignment]  # not KT, which is why it is raw
        value: bytes | None  # type: ignore[assignment]


Verdict: TypeAlias = Literal["raise", "skip", "raw"] | ConsumerRecord[object, object]
"""The decision about a bad record. A record to deliver instead has its partition and offset."""

BadRecordHandler: TypeAlias = Callable[[BadRecord], Verdict | Awaitable[Verdict]]
"""A sync or async callable that decides about each bad record."""

OnBadRecord: TypeAlias = Literal["raise", "skip", "raw"] | BadRecordHandler
"""The consumer's argument: a decision about all bad records, or a callable about each."""
