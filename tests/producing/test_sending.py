"""What a producer writes, on both brokers, read back by three clients."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import aiokafka
import confluent_kafka
import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.errors import (
    IllegalStateError,
    InvalidRecordError,
    KafkaConnectionError,
    MessageSizeTooLargeError,
    ProducerClosed,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.producing import AIOKafkaProducer
from aiokafka_lite.protocol.messages.produce import ProduceRequest
from aiokafka_lite.records.partitioner import partition_for_key
from aiokafka_lite.structs import TopicPartition
from tests.producing.sending import (
    as_values,
    producer_of,
    read_all,
    send_numbers,
    values_in,
)
from tests.support.cluster import KafkaHandle, unique
from tests.support.ports import free_port


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as broker:
        yield broker
    assert broker.failure is None


async def test_a_record_is_where_its_metadata_says(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=2)
    async with producer_of(kafka) as producer:
        placed = await producer.send_and_wait(
            topic, b"v", b"k", 1, 1_700_000_000_123, [("h", b"x"), ("n", None)]
        )
    assert placed.topic_partition == TopicPartition(topic, 1) == placed[:2]
    assert (placed.offset, placed.timestamp, placed.timestamp_type) == (0, 1_700_000_000_123, 0)
    assert placed.log_start_offset == 0
    (record,) = (await read_all(kafka, topic))[1]
    assert (record.key, record.value, record.timestamp) == (b"k", b"v", 1_700_000_000_123)
    assert list(record.headers) == [("h", b"x"), ("n", None)]


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
async def test_every_codec_is_read_back_by_three_clients(
    kafka: KafkaHandle, codec: str | None
) -> None:
    topic = await kafka.create_topic()
    async with producer_of(kafka, compression_type=codec, linger_ms=5) as producer:
        placed = await asyncio.gather(*await send_numbers(producer, topic, range(200)))
    assert [each.offset for each in placed] == list(range(200))
    expected = as_values(range(200))
    assert await values_in(kafka, topic) == expected
    assert await values_by_aiokafka(kafka, topic, 200) == expected
    loop = asyncio.get_running_loop()
    assert await loop.run_in_executor(None, values_by_librdkafka, kafka, topic, 200) == expected


async def values_by_aiokafka(kafka: KafkaHandle, topic: str, count: int) -> list[bytes | None]:
    async with aiokafka.AIOKafkaConsumer(
        topic, bootstrap_servers=kafka.bootstrap_servers, auto_offset_reset="earliest"
    ) as consumer:
        return [(await consumer.getone()).value for _ in range(count)]


def values_by_librdkafka(kafka: KafkaHandle, topic: str, count: int) -> list[bytes | None]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": unique("g"),
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    try:
        return [message.value() for message in consumer.consume(count, timeout=20)]
    finally:
        consumer.close()


async def test_batches_form_while_earlier_ones_are_on_their_way(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=3)
    async with producer_of(kafka) as producer:
        futures = [
            await producer.send(topic, b"%d" % number, partition=number % 3)
            for number in range(3_000)
        ]
        await asyncio.gather(*futures)
    found = await read_all(kafka, topic)
    for partition in range(3):
        values = [record.value for record in found[partition]]
        assert values == [b"%d" % n for n in range(3_000) if n % 3 == partition]


async def test_keys_go_where_java_puts_them_and_keyless_records_stay_together(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic(partitions=5)
    async with producer_of(kafka) as producer:
        for number in range(40):
            key = b"key-%d" % number
            placed = await producer.send_and_wait(topic, b"v", key=key)
            assert placed.partition == partition_for_key(key, 5)
        few = {(await producer.send_and_wait(topic, b"v")).partition for _ in range(20)}
        assert len(few) == 1
        many = {(await producer.send_and_wait(topic, bytes(8_000))).partition for _ in range(60)}
        assert len(many) > 1


async def test_a_topic_is_waited_for_and_made(kafka: KafkaHandle) -> None:
    topic = unique("made")
    async with producer_of(kafka) as producer:
        assert (await producer.send_and_wait(topic, b"v")).offset == 0
        assert 0 in await producer.partitions_for(topic)
    (records,) = (await read_all(kafka, topic)).values()
    assert [record.value for record in records] == [b"v"]


async def test_a_topic_that_is_not_there_is_an_error_in_time(kafka: KafkaHandle) -> None:
    async with producer_of(
        kafka, allow_auto_create_topics=False, request_timeout_ms=400
    ) as producer:
        with pytest.raises(UnknownTopicOrPartitionError, match="request_timeout_ms=400"):
            await producer.send(unique("missing"), b"v")


@pytest.mark.real_if_long
async def test_a_partition_that_is_not_there_is_an_error(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=2)
    async with producer_of(kafka) as producer:
        for partition in (2, -1):
            with pytest.raises(
                UnknownTopicOrPartitionError, match="its highest partition number is 1"
            ):
                await producer.send(topic, b"v", partition=partition)


@pytest.mark.real_if_long
async def test_serializers_make_bytes(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()

    def as_json(value: object) -> bytes:
        return json.dumps(value).encode()

    async with AIOKafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers,
        key_serializer=str.encode,
        value_serializer=as_json,
    ) as producer:
        await producer.send_and_wait(topic, {"a": 1}, "k")
    (record,) = (await read_all(kafka, topic))[0]
    assert (record.key, record.value) == (b"k", b'{"a": 1}')


@pytest.mark.real_if_long
async def test_a_partitioner_of_ones_own_decides(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=3)
    asked = []

    def last(key: bytes | None, all_partitions: list[int], available: list[int]) -> int:
        asked.append((key, list(all_partitions), list(available)))
        return all_partitions[-1]

    async with producer_of(kafka, partitioner=last) as producer:
        assert (await producer.send_and_wait(topic, b"v", b"k")).partition == 2
        assert (await producer.send_and_wait(topic, b"v", partition=0)).partition == 0
    assert asked == [(b"k", [0, 1, 2], [0, 1, 2])]


async def test_a_record_without_a_timestamp_has_the_time_of_its_send(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    async with producer_of(kafka) as producer:
        before = int(time.time() * 1000)
        placed = await producer.send_and_wait(topic, b"v")
        assert before <= (placed.timestamp or 0) <= time.time() * 1000


async def test_the_brokers_time_is_told_where_the_topic_wants_it(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(configs={"message.timestamp.type": "LogAppendTime"})
    async with producer_of(kafka) as producer:
        placed = await producer.send_and_wait(topic, b"v", timestamp_ms=5)
        assert placed.timestamp_type == 1
        assert placed.timestamp != 5
    (record,) = (await read_all(kafka, topic))[0]
    assert record.timestamp == placed.timestamp


@pytest.mark.real_if_long
async def test_a_record_larger_than_a_request_is_refused_at_once(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    async with producer_of(kafka, max_request_size=10_000) as producer:
        with pytest.raises(MessageSizeTooLargeError, match="max_request_size"):
            await producer.send(topic, bytes(10_000))
        # Larger than a batch is no matter: it has one of its own.
        assert (await producer.send_and_wait(topic, bytes(9_000))).offset == 0


@pytest.mark.real_if_long
async def test_what_cannot_be_written_is_refused_and_holds_nothing_up(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    async with producer_of(kafka) as producer:
        await producer.partitions_for(topic)
        wrongs: list[tuple[dict[str, object], str]] = [
            ({"value": "text"}, "value_serializer"),
            ({"value": b"v", "key": 7}, "key_serializer"),
            ({"value": b"v", "timestamp_ms": "now"}, "timestamp"),
            ({"value": b"v", "headers": [("h", "text")]}, "header 'h' must be bytes .* encode the"),
            ({"value": b"v", "headers": [(b"h", b"x")]}, "name must be a str"),
            ({"value": b"v", "headers": {"a": b"x"}}, r"pairs, .* items\(\)"),
            ({"value": b"v", "headers": {"ab": b"x"}}, r"pairs, .* items\(\)"),
        ]
        for wrong, text in wrongs:
            with pytest.raises(TypeError, match=text):
                await producer.send(topic, **wrong)  # type: ignore[arg-type]
        assert (await producer.send_and_wait(topic, bytearray(b"v"))).offset == 0
        await producer.flush()


@pytest.mark.parametrize(
    ("timestamp", "error"),
    [
        (-1, ValueError),
        (-2, ValueError),
        (2**63, ValueError),
        (1.5, TypeError),
        (True, TypeError),
        ("1", TypeError),
    ],
)
async def test_a_timestamp_that_no_record_can_have_is_refused(
    timestamp: int, error: type[Exception]
) -> None:
    async with Broker() as broker, producer_of(broker) as producer:
        for send in (producer.send, producer.send_and_wait):
            for _ in range(2):  # before the topic is known, and after
                with pytest.raises(error, match="timestamp"):
                    await send("t", b"v", timestamp_ms=timestamp)
                await producer.partitions_for("t")
        batch = producer.create_batch()
        with pytest.raises(error, match="timestamp"):
            batch.append(timestamp=timestamp, key=None, value=b"v")
        assert batch.record_count() == 0
        await producer.flush()
        assert broker.end_offsets("t") == [0]
        assert (await producer.send_and_wait("t", b"v", timestamp_ms=0)).timestamp == 0


@pytest.mark.parametrize("partition", ["0", 0.0, True, b"0"])
async def test_a_partition_that_is_no_number_is_refused(partition: Any) -> None:
    async with Broker() as broker, producer_of(broker) as producer:
        for _ in range(2):  # before the topic is known, and after
            with pytest.raises(TypeError, match=r"^partition must be an int or None, not"):
                await producer.send("t", b"v", partition=partition)
            await producer.partitions_for("t")
        batch = producer.create_batch()
        batch.append(timestamp=None, key=None, value=b"v")
        with pytest.raises(TypeError, match=r"^partition must be an int or None, not"):
            await producer.send_batch(batch, "t", partition=partition)


@pytest.mark.parametrize("topic", [None, 5, b"t"])
async def test_a_topic_that_is_no_text_is_refused(topic: Any) -> None:
    async with Broker() as broker, producer_of(broker) as producer:
        with pytest.raises(TypeError, match=r"^a topic.s name must be a str, not"):
            await producer.send(topic, b"v")
        with pytest.raises(TypeError, match=r"^a topic.s name must be a str, not"):
            await producer.partitions_for(topic)


async def test_a_topic_that_no_request_can_name_is_refused_and_others_are_written() -> None:
    async with Broker() as broker, producer_of(broker) as producer:
        with pytest.raises(ValueError, match="UTF-8"):
            await producer.send("\ud800", b"v")
        with pytest.raises(ValueError, match="UTF-8"):
            await producer.partitions_for("\ud800")
        assert (await producer.send_and_wait("t", b"v")).offset == 0


async def test_large_records_that_fill_batches_do_not_wait_for_the_linger(
    broker: Broker,
) -> None:
    async with producer_of(broker, linger_ms=30_000, max_batch_size=16_384) as producer:
        sent = [await producer.send("t", bytes(10_000), partition=0) for _ in range(10)]
        # All but the last batch are full, as there is another record.
        placed = await asyncio.wait_for(asyncio.gather(*sent[:-1]), 10)
        assert [each.offset for each in placed] == list(range(9))
        assert not sent[-1].done()


async def test_no_request_exceeds_its_size_though_many_partitions_wait(broker: Broker) -> None:
    broker.create_topic("wide", partitions=10)
    async with producer_of(broker, max_request_size=2_000, linger_ms=20) as producer:
        sent = [await producer.send("wide", bytes(500), partition=index) for index in range(10)]
        await asyncio.gather(*sent)
    sizes = [
        sum(
            len(part.records or b"")
            for topic in request.topic_data
            for part in topic.partition_data
        )
        for each in broker.requests.of("Produce")
        if isinstance(request := each.request, ProduceRequest)
    ]
    assert max(sizes) <= 2_000
    assert len(sizes) < 10


@pytest.mark.parametrize("partitions", [1, 8])
async def test_a_leader_has_five_requests_in_flight_and_the_rest_shares_the_next(
    broker: Broker, partitions: int
) -> None:
    broker.create_topic("wide", partitions)
    async with producer_of(broker) as producer:
        await producer.send_and_wait("wide", b"v", partition=0)
        broker.requests.clear()
        sent = []
        with broker.on("Produce").hold():
            for index in range(8):
                sent.append(await producer.send("wide", b"v", partition=index % partitions))
                for _ in range(10):
                    await asyncio.sleep(0)
        await asyncio.gather(*sent)
    assert len(broker.requests.of("Produce")) == 6


async def test_a_record_that_is_too_large_fails_none_of_its_batch(broker: Broker) -> None:
    broker.create_topic("small", configs={"max.message.bytes": "2000"})
    async with producer_of(broker, linger_ms=20) as producer:
        sizes = [10, 10, 5_000, 10, 10]
        sent = [await producer.send("small", bytes(size), partition=0) for size in sizes]
        placed = await asyncio.gather(*sent, return_exceptions=True)
        assert [type(each) for each in placed].count(MessageSizeTooLargeError) == 1
        assert isinstance(placed[2], MessageSizeTooLargeError)
    assert await values_in(broker, "small") == [bytes(10)] * 4


async def test_a_batch_that_its_topic_finds_too_large_is_sent_in_parts(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(configs={"max.message.bytes": "4000"})
    async with producer_of(kafka, linger_ms=20) as producer:
        futures = [
            await producer.send(topic, b"%04d" % number + bytes(500), partition=0)
            for number in range(60)
        ]
        placed = await asyncio.gather(*futures)
        with pytest.raises(MessageSizeTooLargeError):
            await producer.send_and_wait(topic, bytes(5_000), partition=0)
        placed.append(await producer.send_and_wait(topic, b"0060", partition=0))
    assert [each.offset for each in placed] == list(range(61))
    values = await values_in(kafka, topic)
    assert [(value or b"")[:4] for value in values] == [b"%04d" % number for number in range(61)]


async def test_a_batch_of_ones_own_is_written_as_it_is(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=2)
    async with AIOKafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers, max_batch_size=1_000, key_serializer=str.encode
    ) as producer:
        batch = producer.create_batch()
        numbers = 0
        while batch.append(timestamp=5, key="k", value=b"%d" % numbers, headers=[("h", b"x")]):
            numbers += 1
        assert batch.closed()
        assert (batch.record_count(), batch.size() <= 1_000) == (numbers, True)
        first = await producer.send(topic, b"first", "k", partition=1)
        placed = await (await producer.send_batch(batch, topic, partition=1))
        assert (placed.offset, placed.timestamp, placed.partition) == (1, 5, 1)
        assert (await first).offset == 0
        with pytest.raises(ValueError, match="append a record"):
            await producer.send_batch(producer.create_batch(), topic, partition=0)
    records = (await read_all(kafka, topic))[1]
    assert [record.value for record in records] == [b"first", *as_values(range(numbers))]
    assert records[1].key == b"k"


@pytest.mark.real_if_long
async def test_a_batch_of_ones_own_may_leave_its_partition_to_the_producer(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic(partitions=3)
    async with producer_of(kafka, partitioner=lambda key, every, available: 2) as producer:
        batch = producer.create_batch()
        for number in range(3):
            batch.append(timestamp=None, key=b"k", value=b"%d" % number)
        future = await producer.send_batch(batch, topic, partition=None)
        assert batch.closed()
        placed = await future
        assert (placed.partition, placed.offset) == (2, 0)
    async with producer_of(kafka) as producer:
        batch = producer.create_batch()
        batch.append(timestamp=None, key=None, value=b"3")
        placed = await (await producer.send_batch(batch, topic, partition=None))
        assert placed.partition in range(3)
    assert [record.value for record in (await read_all(kafka, topic))[2]][:3] == as_values(range(3))


async def test_a_batch_of_ones_own_is_not_written_before_all_its_parts_are(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic(configs={"max.message.bytes": "1000"})
    async with producer_of(kafka) as producer:
        for size in (900, 2_000):
            batch = producer.create_batch()
            for value in (b"first", b"x" * size, b"last"):
                batch.append(timestamp=None, key=None, value=value)
            future = await producer.send_batch(batch, topic, partition=0)
            if size == 900:
                assert (await future).offset == 0
            else:
                with pytest.raises(MessageSizeTooLargeError):
                    await future
    values = [record.value for record in (await read_all(kafka, topic))[0]]
    assert values == [b"first", b"x" * 900, b"last", b"first", b"last"]


@pytest.mark.real_if_long
async def test_programs_find_what_they_ask_of_aiokafkas_client(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=2)
    async with producer_of(kafka, client_id="me") as producer:
        await producer.send_and_wait(topic, b"v")
        client = producer.client
        assert (client._bootstrap_servers, client._client_id) == (kafka.bootstrap_servers, "me")
        assert await client.force_metadata_update()
        assert client.cluster.partitions_for_topic(topic) == {0, 1}
        assert topic in client.cluster.topics()
        assert await client.ready(client.get_random_node())
    assert not await client.ready(1)
    assert not await client.force_metadata_update()


async def test_a_refusal_names_the_records_that_are_at_fault(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(configs={"cleanup.policy": "compact"})
    async with producer_of(kafka, linger_ms=20) as producer:
        futures = [
            await producer.send(topic, b"v", key=key, partition=0) for key in (b"k", None, b"l")
        ]
        named = "record 1 of the batch" if kafka.kind == "real" else ""
        for future in futures:
            with pytest.raises(InvalidRecordError, match=f"{topic}-0, 3 records.*{named}"):
                await future
        assert (await producer.send_and_wait(topic, b"v", key=b"k")).offset == 0


@pytest.mark.real_if_long
async def test_flush_waits_for_what_was_sent_and_sends_what_lingers(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    async with producer_of(kafka, linger_ms=60_000) as producer:
        futures = await send_numbers(producer, topic, range(10))
        await producer.flush()
        assert all(future.done() for future in futures)
        await producer.flush()  # with nothing to send


@pytest.mark.real_if_long
async def test_flush_returns_where_nothing_was_sent_or_all_has_its_outcome(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic()
    producer = producer_of(kafka, linger_ms=60_000)
    await producer.flush()
    await producer.start()
    future = await producer.send(topic, b"v", partition=0)
    await producer.stop()
    await producer.flush()
    assert (await future).offset == 0


async def test_a_program_that_flushes_and_stops_after_a_failed_start_can() -> None:
    producer = AIOKafkaProducer(bootstrap_servers=f"127.0.0.1:{free_port()}")
    with pytest.raises(KafkaConnectionError):
        await producer.start()
    await producer.flush()
    await producer.stop()
    await producer.flush()


async def test_stop_sends_what_is_buffered(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    producer = producer_of(kafka, linger_ms=60_000)
    await producer.start()
    futures = await send_numbers(producer, topic, range(10))
    await asyncio.gather(producer.stop(), producer.stop())
    assert [future.result().offset for future in futures] == list(range(10))
    assert await values_in(kafka, topic) == as_values(range(10))
    with pytest.raises(ProducerClosed, match="stopped"):
        await producer.send(topic, b"late")
    with pytest.raises(ProducerClosed, match="stopped"):
        await producer.start()


@pytest.mark.real_if_long
async def test_nothing_is_sent_before_the_start(kafka: KafkaHandle) -> None:
    producer = producer_of(kafka)
    with pytest.raises(IllegalStateError, match=r"await producer\.start"):
        await producer.send("t", b"v")
    await producer.stop()


@pytest.mark.real_if_long
async def test_a_send_that_is_on_its_way_is_not_unsent_by_cancelling_the_waiter(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic()
    async with producer_of(kafka, linger_ms=20) as producer:
        first = await producer.send(topic, b"0", partition=0)
        second = await producer.send(topic, b"1", partition=0)
        first.cancel()
        assert (await second).offset == 1
        assert (await producer.send_and_wait(topic, b"2", partition=0)).offset == 2
    assert await values_in(kafka, topic) == as_values(range(3))
