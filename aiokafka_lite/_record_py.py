"""ConsumerRecord in plain Python: the fallback, and the model for the extension type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, Protocol

from aiokafka_lite._compat import KT, VT


@dataclass
class ConsumerRecord(Generic[KT, VT]):
    """One record of a partition.

    Attributes:
        topic: The topic.
        partition: The partition's number.
        offset: The offset in the partition.
        timestamp: Milliseconds since the epoch. None from brokers older than 0.10 (magic 0).
        timestamp_type: 0: the producer set the timestamp. 1: the broker did, at append.
        key: As the consumer's deserialiser returns it, by default bytes, or None without a key.
        value: As the consumer's deserialiser returns it, by default bytes, or None for null (a
            tombstone in a compacted topic).
        checksum: The CRC of messages older than magic 2, otherwise None.
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
        """Mark the record as processed: for a consumer with ``ack_mode="explicit"``.

        In any order, and at any time, without a request. A commit follows soon.

        Returns:
            False if it has no effect: the record is already acknowledged, or its partition was
            revoked.

        Raises:
            RuntimeError: The record is not from such a consumer.
            WrongLoopError: The call is in another thread.
        """
        return receipt_of(self).ack()

    def nack(self, delay_ms: float = 0) -> bool:
        """Have a later read return the record again, after `delay_ms` milliseconds.

        Other records of its partition continue to be returned. Without a delay, the first rejection
        returns it at once. From the second one on it waits 0.1 s, then twice as long each time, 30
        s at most. Result and errors are as those of `ack`.

        Raises:
            ValueError: The delay is negative.
        """
        return receipt_of(self).nack(delay_ms)

    def reject(self) -> bool:
        """Have the share group deliver the record to no member any more (KIP-932).

        Result and errors are as those of `ack`.

        Raises:
            RuntimeError: The record is not from an AIOKafkaShareConsumer with
                ``ack_mode="explicit"``.
        """
        return receipt_of(self).reject()

    @property
    def delivery_count(self) -> int:
        """How often a share group has delivered the record, this time included (KIP-932).

        1 without a share group. A process that dies, and a `nack`, add one. Retries of `run` do
        not.
        """
        count: int = getattr(self, DELIVERY_COUNT, 1)
        return count

    @property
    def lease_ms(self) -> float | None:
        """Milliseconds until the lock of the record ends, unless it is renewed before.

        None: the record is not from an AIOKafkaShareConsumer with ``ack_mode="explicit"``.
        """
        receipt: Receipt | None = getattr(self, RECEIPT, None)
        return None if receipt is None else receipt.lease_ms


class Receipt(Protocol):
    @property
    def lease_ms(self) -> float | None: ...

    def ack(self) -> bool: ...

    def nack(self, delay_ms: float) -> bool: ...

    def reject(self) -> bool: ...


# In a call of a handler, returns the value of one of its records that a transaction commits.
HANDLED: ContextVar[Callable[[Any], Any]] = ContextVar("HANDLED")


def record_delivery(record: object) -> Any:
    """Return the value of a record that a transaction commits."""
    receipt: Any = getattr(record, RECEIPT, None)
    if receipt is not None:
        return receipt.delivery()
    find = HANDLED.get(None)
    if find is None:
        raise RuntimeError(
            "a single record can be committed only in a handler of consumer.run(), or with "
            'ack_mode="explicit". Otherwise, pass the batch or the consumer instead of the record'
        )
    return find(record)


# Under which names a record has them among the attributes that may be set.
RECEIPT = "_receipt"
DELIVERY_COUNT = "_delivery_count"


def receipt_of(record: object) -> Receipt:
    receipt: Receipt | None = getattr(record, RECEIPT, None)
    if receipt is None:
        raise RuntimeError('ack(), nack() and reject() need a consumer with ack_mode="explicit"')
    return receipt


# Both classes are found under their public name, so that a record pickled by an interpreter with
# the extension is read by one without it, and the other way round.
ConsumerRecord.__module__ = "aiokafka_lite.structs"
