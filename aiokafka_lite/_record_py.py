"""ConsumerRecord in plain Python: the fallback, and the model the extension type is held to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, Protocol

from aiokafka_lite._compat import KT, VT


@dataclass
class ConsumerRecord(Generic[KT, VT]):
    """One record as it was read from a partition.

    Key and value are of the types that the consumer's deserialisers make, and without one bytes, or
    None: `ConsumerRecord` alone means `ConsumerRecord[bytes | None, bytes | None]`.

    Attributes:
        topic: The topic it was read from.
        partition: The partition of that topic.
        offset: Its position in the partition.
        timestamp: Milliseconds since the epoch; None from brokers older than 0.10 (magic 0).
        timestamp_type: 0 when the producer set the timestamp, 1 when the broker did at append.
        key: The key; without a deserialiser None if there is none.
        value: The value; without a deserialiser None for null (a tombstone in a compacted topic).
        checksum: The CRC of messages older than magic 2, else None.
        serialized_key_size: The key's size on the wire in bytes, -1 without a key.
        serialized_value_size: The value's size on the wire in bytes, -1 without a value.
        headers: Pairs of name and value.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: KT
    value: VT
    checksum: int | None
    serialized_key_size: int
    serialized_value_size: int
    headers: Sequence[tuple[str, bytes]]

    def ack(self) -> bool:
        """Say that the record is processed: for a consumer with ``ack_mode="explicit"``.

        In any order, and at any time; no request is sent. What is acknowledged is committed soon.

        Returns:
            False where it counts no more: the record is acknowledged already, or its partition was
            taken away since, so that others may have it.

        Raises:
            RuntimeError: It was not handed out by such a consumer.
            WrongLoopError: Another thread calls it.
        """
        return receipt_of(self).ack()

    def nack(self, delay_ms: float = 0) -> bool:
        """Have the record returned again, by a read after so many milliseconds.

        Other records of its partition go on; nothing is fetched for it. Without a delay the first
        refusal returns it at once. From the second on the record waits, for 0.1 s, then twice as
        long each time, 30 s at most.

        Returns:
            False where it counts no more, as with `ack`.

        Raises:
            RuntimeError: It was not handed out by a consumer with ``ack_mode="explicit"``.
            ValueError: The delay is negative.
            WrongLoopError: Another thread calls it.
        """
        return receipt_of(self).nack(delay_ms)


class Receipt(Protocol):
    """What a record is acknowledged by."""

    def ack(self) -> bool: ...

    def nack(self, delay_ms: float) -> bool: ...


# Finds what a transaction commits of a record that the current call of a handler has, if it is one.
HANDLED: ContextVar[Callable[[Any], Any]] = ContextVar("HANDLED")


def record_delivery(record: object) -> Any:
    """Return what a transaction commits of a record.

    Raises:
        RuntimeError: Its consumer does not finish records one by one.
    """
    receipt: Any = getattr(record, RECEIPT, None)
    if receipt is not None:
        return receipt.delivery()
    find = HANDLED.get(None)
    if find is None:
        raise RuntimeError(
            "a single record can be committed only in a handler of consumer.run(), or with "
            'ack_mode="explicit". Otherwise commit a batch, or the consumer itself'
        )
    return find(record)


# Under which name a record has it among the attributes that may be set.
RECEIPT = "_receipt"


def receipt_of(record: object) -> Receipt:
    """Return what a record is acknowledged by.

    Raises:
        RuntimeError: Nothing.
    """
    receipt: Receipt | None = getattr(record, RECEIPT, None)
    if receipt is None:
        raise RuntimeError(
            'records are acknowledged one by one if their consumer has ack_mode="explicit"'
        )
    return receipt


# Both classes are found under their public name, so that a record pickled by an interpreter with
# the extension is read by one without it, and the other way round.
ConsumerRecord.__module__ = "aiokafka_lite.structs"
