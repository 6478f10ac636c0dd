"""The records of `__transaction_state`, in Kafka's format (TransactionLog)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from aiokafka_lite.broker.groups.coordinator_log import InternalTopicLog
from aiokafka_lite.broker.topics import TRANSACTION_STATE_TOPIC
from aiokafka_lite.broker.transactions.machine import (
    EMPTY,
    TransactionState,
    TransactionValue,
    TransactionVersion,
)
from aiokafka_lite.errors import KafkaProtocolError
from aiokafka_lite.protocol.codec import decode_key, decode_versioned, encode_key, encode_versioned
from aiokafka_lite.protocol.messages.coordinator_records import (
    TRANSACTION_KEY_CLASSES,
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)
from aiokafka_lite.records import BatchHeader, build_batch
from aiokafka_lite.structs import TopicPartition


class TransactionRecord(NamedTuple):
    """One record of the log. Without a value, it ends a transactional id."""

    transactional_id: str
    value: TransactionValue | None


def encode_record(
    record: TransactionRecord, version: TransactionVersion
) -> tuple[bytes, bytes | None]:
    """Return key and value bytes in the layout of a transaction version."""
    key = encode_key(TransactionLogKey(transactional_id=record.transactional_id))
    value = record.value
    if value is None:
        return key, None
    stored = TransactionLogValue(
        producer_id=value.producer_id,
        producer_epoch=value.epoch,
        transaction_timeout_ms=value.timeout_ms,
        transaction_status=value.state,
        transaction_partitions=None if value.state is EMPTY else _by_topic(value.partitions),
        transaction_last_update_timestamp_ms=value.updated_ms,
        transaction_start_timestamp_ms=value.started_ms,
    )
    if version < TransactionVersion.FLEXIBLE_RECORDS:
        return key, encode_versioned(stored, 0)
    stored.previous_producer_id = value.previous_producer_id
    stored.next_producer_id = value.next_producer_id
    stored.client_transaction_version = value.client_version
    return key, encode_versioned(stored, 1)


def _by_topic(partitions: tuple[TopicPartition, ...]) -> list[PartitionsSchema]:
    topics: dict[str, PartitionsSchema] = {}
    for tp in partitions:
        topic = topics.setdefault(tp.topic, PartitionsSchema(topic=tp.topic, partition_ids=[]))
        topic.partition_ids.append(tp.partition)
    return list(topics.values())


def decode_record(key: bytes | None, value: bytes | None) -> TransactionRecord | None:
    """Return a record of the log, or None if its type is unknown (a newer Kafka's)."""
    if key is None:
        raise KafkaProtocolError(f"a record of {TRANSACTION_STATE_TOPIC} has no key")
    decoded = decode_key(TRANSACTION_KEY_CLASSES, key)
    if decoded is None:
        return None
    if value is None:
        return TransactionRecord(decoded.transactional_id, None)
    stored = decode_versioned(TransactionLogValue, value)
    try:
        state = TransactionState(stored.transaction_status)
        version = TransactionVersion(stored.client_transaction_version)
    except ValueError as error:
        raise KafkaProtocolError(
            f"cannot load the state of transactional id {decoded.transactional_id!r}: {error}"
        ) from None
    return TransactionRecord(
        decoded.transactional_id,
        TransactionValue(
            producer_id=stored.producer_id,
            epoch=stored.producer_epoch,
            timeout_ms=stored.transaction_timeout_ms,
            previous_producer_id=stored.previous_producer_id,
            next_producer_id=stored.next_producer_id,
            state=state,
            partitions=tuple(
                TopicPartition(topic.topic, partition)
                for topic in stored.transaction_partitions or ()
                for partition in topic.partition_ids
            ),
            started_ms=stored.transaction_start_timestamp_ms,
            updated_ms=stored.transaction_last_update_timestamp_ms,
            client_version=version,
        ),
    )


class TransactionLog(InternalTopicLog[TransactionRecord]):
    topic = TRANSACTION_STATE_TOPIC

    def append(self, record: TransactionRecord, version: TransactionVersion) -> None:
        key, value = encode_record(record, version)
        batch = build_batch([(self.clock(), key, value, ())])
        self.open_partition(self.partition_for(record.transactional_id)).append(batch)

    def _entries(
        self, partition: int, header: BatchHeader, batch: memoryview
    ) -> Iterator[TransactionRecord]:
        for record in self._records(partition, header, batch):
            decoded = decode_record(record.key, record.value)
            if decoded is not None:
                yield decoded
