"""Keys and values in ``__transaction_state``.

A key starts with the type of the record, which is always 0, a value with its version, two bytes
each. A null value is a tombstone: the transactional id expired.
"""

from __future__ import annotations

import struct
from typing import ClassVar, Final

from aiokafka_lite._compat import Buffer
from aiokafka_lite.errors import KafkaProtocolError
from aiokafka_lite.protocol.codec import decode, encode
from aiokafka_lite.protocol.schema import Blob, Struct, array, int8, int16, int32, int64, string

_INT16: Final = struct.Struct(">h")


class TransactionLogKey(Blob, versions="0"):
    record_type: ClassVar[int] = 0

    transactional_id: str = string("0")


class PartitionsSchema(Struct):
    topic: str = string("0+")
    partition_ids: list[int] = array(int32, "0+")


class TransactionLogValue(Blob, versions="0-1", flexible="1+"):
    producer_id: int = int64("0+")
    previous_producer_id: int = int64("1+", default=-1, tag=0)  # KIP-890
    next_producer_id: int = int64("1+", default=-1, tag=1)  # KIP-890
    producer_epoch: int = int16("0+")
    next_producer_epoch: int = int16("1+", default=-1, tag=3)  # KIP-939
    transaction_timeout_ms: int = int32("0+")
    transaction_status: int = int8("0+")
    transaction_partitions: list[PartitionsSchema] | None = array(
        PartitionsSchema, "0+", nullable="0+"
    )
    transaction_last_update_timestamp_ms: int = int64("0+")
    transaction_start_timestamp_ms: int = int64("0+")
    client_transaction_version: int = int16("1+", default=0, tag=2)  # KIP-890


def encode_key(key: TransactionLogKey) -> bytes:
    """Encode a key after its record type."""
    return _INT16.pack(key.record_type) + encode(key, 0)


def decode_key(data: Buffer) -> TransactionLogKey | None:
    """Decode a key; None for unknown types.

    Raises:
        KafkaProtocolError: The bytes are not such a key.
    """
    view = memoryview(data)
    if len(view) < _INT16.size:
        raise KafkaProtocolError(
            f"a transaction record's key of {len(view)} bytes is too short for a record type"
        )
    (record_type,) = _INT16.unpack_from(view)
    if record_type != TransactionLogKey.record_type:
        return None
    return decode(TransactionLogKey, 0, view[_INT16.size :])
