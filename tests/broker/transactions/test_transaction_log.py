"""The records of ``__transaction_state``: Kafka's, to the byte."""

from __future__ import annotations

import pytest

from aiokafka_lite.broker.topics import TRANSACTION_STATE_TOPIC, partition_for
from aiokafka_lite.broker.transactions.coordinator import (
    TransactionRecord,
    decode_record,
    encode_record,
)
from aiokafka_lite.broker.transactions.machine import (
    TransactionState,
    TransactionValue,
    TransactionVersion,
)
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.protocol.codec import encode_versioned
from aiokafka_lite.protocol.messages.coordinator_records import TransactionLogValue
from aiokafka_lite.records import RecordSet
from aiokafka_lite.structs import TopicPartition
from tests.broker.transactions.requests import (
    PRODUCE_THAT_ADDS,
    VERSION_1,
    VERSION_2,
    Producer,
)
from tests.broker.wire import fetch, fetch_partition
from tests.support.cluster import KafkaHandle, unique
from tests.support.wire import RawClient

PARTITIONS = 50
NEWEST = TransactionVersion.EPOCH_PER_TRANSACTION


async def stored(client: RawClient, transactional_id: str) -> list[tuple[bytes, bytes | None]]:
    """Return the records about an id, which is one that nobody had before."""
    partition, offset = partition_for(transactional_id, PARTITIONS), 0
    found: list[tuple[bytes, bytes | None]] = []
    while True:
        data = await fetch(client, TRANSACTION_STATE_TOPIC, fetch_partition(partition, offset))
        assert data.error_code == 0
        batches = memoryview(data.records or b"")
        if not batches:
            return found
        records = RecordSet(TRANSACTION_STATE_TOPIC, partition, batches, fetch_offset=offset)
        found += [
            (record.key, record.value)
            for record in records.take(1_000_000)
            if record.key is not None and record.key.endswith(transactional_id.encode())
        ]
        offset = records.next_offset


async def live(producer: Producer, topic: str) -> None:
    """Go through every state that is stored."""
    await producer.init()
    await producer.add(topic)
    await producer.produce(topic)
    await producer.end(commit=True, version=VERSION_1)
    await producer.until_state("CompleteCommit")
    await producer.init((producer.producer_id, producer.epoch))
    await producer.produce(topic, version=PRODUCE_THAT_ADDS)
    await producer.end(commit=False, version=VERSION_2)
    await producer.until_state("CompleteAbort")
    await producer.produce(topic, version=PRODUCE_THAT_ADDS)
    await producer.init()


async def test_life_is_stored_as_kafka_stores_it(cluster: KafkaHandle, client: RawClient) -> None:
    topic = await cluster.create_topic()
    producer = Producer(client, unique("stored"))
    await live(producer, topic)
    written = await stored(client, producer.transactional_id)
    lines = []
    for key, value in written:
        record = decode_record(key, value)
        assert record is not None
        assert encode_record(record, NEWEST) == (key, value)
        assert record.value is not None
        kept = record.value
        assert {kept.producer_id, kept.previous_producer_id} <= {producer.producer_id, -1}
        lines.append(
            (kept.state.name, kept.epoch, kept.previous_producer_id >= 0, len(kept.partitions),
             kept.started_ms >= 0, kept.client_version, kept.next_producer_id)
        )  # fmt: skip
    # What a real Kafka writes: state, epoch, whether there was a producer id before, partitions,
    # whether there is a transaction, its version, the next producer id.
    assert lines == [
        ("Empty", 0, True, 0, False, 0, -1),
        ("Ongoing", 0, True, 1, True, 0, -1),
        ("PrepareCommit", 0, True, 1, True, 0, -1),
        ("CompleteCommit", 0, True, 0, True, 0, -1),
        ("Empty", 1, True, 0, False, 0, -1),
        ("Ongoing", 1, True, 1, True, 2, -1),
        ("PrepareAbort", 2, True, 1, True, 2, -1),
        ("CompleteAbort", 2, True, 0, True, 2, -1),
        ("Ongoing", 2, True, 1, True, 2, -1),
        ("PrepareAbort", 3, True, 1, True, 2, -1),
        ("CompleteAbort", 3, True, 0, True, 2, -1),
        ("Empty", 4, True, 0, False, 2, -1),
    ]


VALUE = TransactionValue(
    producer_id=7,
    epoch=3,
    timeout_ms=60_000,
    previous_producer_id=6,
    next_producer_id=8,
    state=TransactionState.Ongoing,
    partitions=(TopicPartition("a", 1), TopicPartition("a", 0), TopicPartition("b", 2)),
    started_ms=5,
    updated_ms=6,
    client_version=NEWEST,
)


def test_record_comes_back_as_it_was() -> None:
    record = TransactionRecord("txn", VALUE)
    assert decode_record(*encode_record(record, NEWEST)) == record
    tombstone = TransactionRecord("txn", None)
    assert decode_record(*encode_record(tombstone, NEWEST)) == tombstone
    for version in (TransactionVersion.FLEXIBLE_RECORDS, NEWEST):
        assert (encode_record(record, version)[1] or b"")[:2] == b"\x00\x01"


def test_old_layout_has_no_place_for_newer_fields() -> None:
    key, value = encode_record(TransactionRecord("txn", VALUE), TransactionVersion.ORIGINAL)
    assert value is not None
    assert value[:2] == b"\x00\x00"
    assert decode_record(key, value) == (
        "txn",
        VALUE._replace(
            previous_producer_id=-1,
            next_producer_id=-1,
            client_version=TransactionVersion.ORIGINAL,
        ),
    )


def test_record_of_an_unknown_type_is_passed_over() -> None:
    assert decode_record(b"\x00\x05whatever", b"") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b""),
        (b"\x00", b""),
        (b"\x00\x00\x00\x01a", b"\x00\x09"),
        (
            b"\x00\x00\x00\x01a",
            encode_versioned(
                TransactionLogValue(
                    producer_id=1,
                    producer_epoch=0,
                    transaction_timeout_ms=1,
                    transaction_status=99,
                    transaction_partitions=None,
                    transaction_last_update_timestamp_ms=0,
                    transaction_start_timestamp_ms=0,
                ),
                0,
            ),
        ),
    ],
)
def test_bytes_that_are_no_record_are_an_error(key: bytes | None, value: bytes) -> None:
    with pytest.raises(KafkaError):
        decode_record(key, value)
