"""Keys and values in ``__transaction_state``, as in group_records.py. The only type is 0."""

from __future__ import annotations

from typing import Final

from aiokafka_lite.protocol.fields import array, int8, int16, int32, int64, string
from aiokafka_lite.protocol.schema import Blob, RecordKey, Struct


class TransactionLogKey(RecordKey, record_type=0):
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


KEY_CLASSES: Final = {TransactionLogKey.record_type: TransactionLogKey}
