"""Produce: the same outcome on the embedded broker and on a real one."""

from __future__ import annotations

import time

import pytest

from aiokafka_lite import records
from aiokafka_lite.errors import (
    CorruptRecordException,
    InvalidProducerEpoch,
    InvalidRecordError,
    InvalidRequiredAcksError,
    InvalidTimestampError,
    InvalidTopicError,
    MessageSizeTooLargeError,
    OutOfOrderSequenceNumber,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    UnsupportedCompressionTypeError,
)
from aiokafka_lite.protocol import framing
from aiokafka_lite.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from aiokafka_lite.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from aiokafka_lite.records.batch import reseal
from tests.broker.batches import NOW, batch
from tests.broker.wire import (
    fetch,
    fetch_partition,
    list_offset,
    new_producer_id,
    produce,
    topic_id,
    until_closed,
)
from tests.support.cluster import KafkaHandle, unique
from tests.support.wire import RawClient

HOUR_MS = 3_600_000


async def test_every_version_appends_and_says_where(kafka: KafkaHandle) -> None:
    for version in range(3, 14):
        topic = await kafka.create_topic()
        async with kafka.raw() as client:
            by_id = await topic_id(client, topic) if version >= 13 else bytes(16)
            for expected in (0, 3):
                result = await produce(client, topic, batch(3), version=version, topic_id=by_id)
                assert (result.error_code, result.base_offset) == (0, expected)
                assert result.log_append_time_ms == -1
                assert result.log_start_offset == (0 if version >= 5 else -1)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_batch_is_kept_as_the_producer_built_it(kafka: KafkaHandle, codec: str) -> None:
    topic = await kafka.create_topic()
    sent = batch(20, codec=codec)
    async with kafka.raw() as client:
        await produce(client, topic, batch(2))
        await produce(client, topic, sent)
        data = await fetch(client, topic, fetch_partition(offset=2))
    kept = bytes(data.records or b"")
    # Base offset and leader epoch are the broker's; the rest, and its checksum, the producer's.
    assert kept[16:] == sent[16:]
    ((header, _),) = records.iter_batches(memoryview(kept))
    assert (header.base_offset, header.leader_epoch) == (2, 0)


@pytest.mark.parametrize("acks", [2, -2, 100])
async def test_acks_other_than_0_1_and_all_are_refused(kafka: KafkaHandle, acks: int) -> None:
    topic = await kafka.create_topic()
    async with kafka.raw() as client:
        result = await produce(client, topic, batch(), acks=acks)
        assert (result.error_code, result.base_offset) == (InvalidRequiredAcksError.errno, -1)
        assert (await list_offset(client, topic, -1)).offset == 0


async def test_acks_0_is_not_answered_and_the_next_request_is(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    async with kafka.raw() as client:
        await client.send(_without_acks(topic, batch(5)))
        assert (await list_offset(client, topic, -1)).offset == 5


async def test_acks_0_that_fails_closes_the_connection(kafka: KafkaHandle) -> None:
    async with kafka.raw() as client:
        await client.send(_without_acks(unique("missing"), batch()))
        await until_closed(client)


def _without_acks(topic: str, sent: bytes) -> bytes:
    data = TopicProduceData(
        name=topic, partition_data=[PartitionProduceData(index=0, records=sent)]
    )
    request = ProduceRequest(acks=0, timeout_ms=1000, topic_data=[data])
    return framing.encode_request(request, 9, 1, "raw")


async def test_unknown_topic_and_partition_are_refused_and_not_created(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    async with kafka.raw() as client:
        unknown = await produce(client, unique("missing"), batch())
        beyond = await produce(client, topic, batch(), partition=1)
        by_id = await produce(client, "", batch(), version=13, topic_id=b"0123456789abcdef")
    assert unknown.error_code == UnknownTopicOrPartitionError.errno
    assert beyond.error_code == UnknownTopicOrPartitionError.errno
    assert by_id.error_code == UnknownTopicIdError.errno


async def test_internal_topic_is_refused(kafka: KafkaHandle) -> None:
    async with kafka.raw() as client:
        await _ensure_offsets_topic(client)
        result = await produce(client, "__consumer_offsets", batch())
    assert result.error_code == InvalidTopicError.errno


async def _ensure_offsets_topic(client: RawClient) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="__consumer_offsets")])
    for _ in range(200):
        (topic,) = (await client.request(request)).topics
        if topic.error_code == 0 and all(p.leader_id >= 0 for p in topic.partitions):
            return
    raise TimeoutError("no __consumer_offsets")


def _flip(sent: bytes, position: int) -> bytes:
    changed = bytearray(sent)
    changed[position] ^= 0x01
    return bytes(changed)


def _resealed(sent: bytes, position: int, value: bytes) -> bytes:
    changed = bytearray(sent)
    changed[position : position + len(value)] = value
    reseal(memoryview(changed))
    return bytes(changed)


BAD_BATCHES = {
    "checksum": (_flip(batch(3), -1), CorruptRecordException),
    "no batch": (b"", InvalidRecordError),
    "two batches": (batch() + batch(), InvalidRecordError),
    "control": (batch(is_control=True), InvalidRecordError),
    "base offset": (batch(base_offset=7), InvalidRecordError),
    "magic 1": (batch()[:16] + b"\x01" + batch()[17:], InvalidRecordError),
    "too few offsets": (_resealed(batch(3), 23, (1).to_bytes(4, "big")), InvalidRecordError),
    "no records": (_resealed(batch(3), 57, bytes(4)), InvalidRecordError),
    "no sequence": (batch(producer_id=7, producer_epoch=0), InvalidRecordError),
    "too large": (batch(30_000), MessageSizeTooLargeError),
    "future": (batch(timestamp=NOW + 24 * HOUR_MS), InvalidTimestampError),
}


@pytest.mark.parametrize("fault", BAD_BATCHES)
async def test_bad_batch_is_refused_and_nothing_appended(kafka: KafkaHandle, fault: str) -> None:
    sent, error = BAD_BATCHES[fault]
    topic = await kafka.create_topic(configs={"max.message.bytes": "100000"})
    async with kafka.raw() as client:
        result = await produce(client, topic, sent)
        assert (result.error_code, result.base_offset) == (error.errno, -1)
        assert (await list_offset(client, topic, -1)).offset == 0
        assert (await produce(client, topic, batch())).base_offset == 0


async def test_zstd_is_refused_to_clients_that_cannot_know_it(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    async with kafka.raw() as client:
        old = await produce(client, topic, batch(codec="zstd"), version=6)
        new = await produce(client, topic, batch(codec="zstd"), version=7)
    assert (old.error_code, new.error_code) == (UnsupportedCompressionTypeError.errno, 0)


async def test_compacted_topic_wants_keys(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(configs={"cleanup.policy": "compact"})
    without_key = records.build_batch([(NOW, None, b"value", ())])
    async with kafka.raw() as client:
        assert (await produce(client, topic, without_key)).error_code == InvalidRecordError.errno
        assert (await produce(client, topic, batch())).error_code == 0


async def test_log_append_time_replaces_the_producers(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(configs={"message.timestamp.type": "LogAppendTime"})
    async with kafka.raw() as client:
        before = int(time.time() * 1000)
        result = await produce(client, topic, batch(3, timestamp=12345))
        after = int(time.time() * 1000)
        data = await fetch(client, topic, fetch_partition())
    assert before <= result.log_append_time_ms <= after
    read = records.decode_all(memoryview(data.records or b""))
    assert [record.timestamp for record in read] == [result.log_append_time_ms] * 3
    assert {record.timestamp_type for record in read} == {1}


async def test_more_insync_replicas_than_there_are_are_not_needed(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(configs={"min.insync.replicas": "2"})
    async with kafka.raw() as client:
        for acks in (1, -1):
            assert (await produce(client, topic, batch(), acks=acks)).error_code == 0


async def test_producer_ids_are_given_once(kafka: KafkaHandle) -> None:
    async with kafka.raw() as client:
        ids = [await new_producer_id(client) for _ in range(3)]
    assert len(set(ids)) == 3


async def test_repeated_batch_is_answered_with_its_first_offset(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    async with kafka.raw() as client:
        producer = await new_producer_id(client)
        sent = [
            batch(2, producer_id=producer, producer_epoch=0, base_sequence=2 * number)
            for number in range(5)
        ]
        first = [(await produce(client, topic, each)).base_offset for each in sent]
        again = [(await produce(client, topic, each)).base_offset for each in sent]
        assert first == again == [0, 2, 4, 6, 8]
        assert (await list_offset(client, topic, -1)).offset == 10


async def test_batch_behind_five_later_ones_is_out_of_order(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    async with kafka.raw() as client:
        producer = await new_producer_id(client)
        sent = [
            batch(2, producer_id=producer, producer_epoch=0, base_sequence=2 * number)
            for number in range(6)
        ]
        for each in sent:
            assert (await produce(client, topic, each)).error_code == 0
        # The broker does not answer DUPLICATE_SEQUENCE_NUMBER, although the batch is in its log.
        forgotten = await produce(client, topic, sent[0])
        assert forgotten.error_code == OutOfOrderSequenceNumber.errno
        assert [(await produce(client, topic, each)).base_offset for each in sent[1:]] == [
            2,
            4,
            6,
            8,
            10,
        ]
        assert (await list_offset(client, topic, -1)).offset == 12


async def test_sequence_gap_and_old_epoch_are_refused(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    steps = [  # epoch, sequence number, error
        (0, 0, 0),
        (0, 3, OutOfOrderSequenceNumber.errno),
        (1, 2, OutOfOrderSequenceNumber.errno),
        (1, 0, 0),
        (0, 2, InvalidProducerEpoch.errno),
        (1, 2, 0),
    ]
    async with kafka.raw() as client:
        producer = await new_producer_id(client)
        for epoch, sequence, expected in steps:
            sent = batch(2, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
            assert (await produce(client, topic, sent)).error_code == expected
