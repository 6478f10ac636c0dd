"""Dead letters in a topic: what is written, and that nothing is lost where nothing can be."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aiokafka_lite import AIOKafkaConsumer, processing
from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer.buffer.chunk import serialized
from aiokafka_lite.deserializers import AsyncDeserializer, Serialized
from aiokafka_lite.errors import (
    IllegalStateError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.processing import DeadLetters, DeadRecord, Retry
from aiokafka_lite.producing import AIOKafkaProducer
from aiokafka_lite.protocol.messages.produce import ProduceRequest
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.consumer.processing.running import member
from tests.support.cluster import KafkaHandle, unique
from tests.support.reading import consumer_of
from tests.support.real_kafka import KafkaUnavailableError, RealKafka
from tests.support.required import unavailable
from tests.support.waiting import eventually, until

PATIENCE_S = 20.0
BAD = b'{"n": 2}'
# When a broker looks for what is older than its topic keeps.
SOON = {"log.retention.check.interval.ms": "500", "log.initial.task.delay.ms": "500"}


class Later(AsyncDeserializer[object]):
    """Reads JSON, and may wait."""

    async def deserialize(self, item: Serialized) -> object:
        await asyncio.sleep(0)
        return json.loads(item.payload)


async def refuse_two(record: ConsumerRecord[object, object]) -> None:
    value = json.loads(record.value) if isinstance(record.value, bytes) else record.value
    if value is not None and value["n"] == 2:  # type: ignore[index]
        raise ValueError("two is no number: " + "x" * 5000)


@asynccontextmanager
async def running(
    kafka: KafkaHandle, topic: str, group: str, dead_letters: DeadLetters, **settings: object
) -> AsyncIterator[AIOKafkaConsumer]:
    arguments: dict[str, object] = {
        "bootstrap_servers": kafka.bootstrap_servers,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "fetch_max_wait_ms": 50,
        **settings,
    }
    async with timeout(PATIENCE_S), AIOKafkaConsumer(topic, **arguments) as consumer:  # type: ignore[arg-type]
        task = asyncio.create_task(
            consumer.run(refuse_two, retry=Retry(dead=ValueError), dead_letter=dead_letters)
        )
        try:
            yield consumer
        finally:
            await consumer.stop()
            await asyncio.wait([task])
    await task


async def fill(kafka: KafkaHandle, topic: str) -> None:
    """Five records in partition 1: one has a bad value, one none."""
    values = [b'{"n": 0}', b'{"n": 1}', BAD, None, b'{"n": 4}']
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        for n, value in enumerate(values):
            await producer.send_and_wait(
                topic,
                value,
                key=b'"k%d"' % n,
                partition=1,
                timestamp_ms=1_700_000_000_000 + n,
                headers=[("own", b"\xff"), ("own", b""), ("__dlq.errors.topic", b"before")],
            )


async def letters(kafka: KafkaHandle, topic: str, count: int) -> list[ConsumerRecord]:
    """Return the first dead letters of a topic."""
    found: list[ConsumerRecord] = []
    async with (
        timeout(PATIENCE_S),
        AIOKafkaConsumer(
            topic, bootstrap_servers=kafka.bootstrap_servers, auto_offset_reset="earliest"
        ) as reader,
    ):
        while len(found) < count:
            found.append(await reader.getone())
    return found


@pytest.mark.parametrize("deserializer", [None, json.loads, Later()])
async def test_a_dead_letter_is_the_record_as_it_was_and_says_why(
    kafka: KafkaHandle, deserializer: object
) -> None:
    topic, dead = await kafka.create_topic(partitions=2), await kafka.create_topic(partitions=2)
    await fill(kafka, topic)
    group = unique("dead")
    settings = {"value_deserializer": deserializer, "key_deserializer": deserializer}
    if deserializer is json.loads:
        settings["value_deserializer"] = lambda data: None if data is None else json.loads(data)
    async with running(kafka, topic, group, DeadLetters(dead), **settings) as consumer:
        tp = TopicPartition(topic, 1)
        await eventually(lambda: consumer.committed(tp), 5)
        assert consumer.metrics()["processing_dead_total"] == 1
    (letter,) = await letters(kafka, dead, 1)
    assert (letter.key, letter.value, letter.partition) == (b'"k2"', BAD, 1)
    assert abs(letter.timestamp / 1000 - time.time()) < 100
    assert list(letter.headers[:2]) == [("own", b"\xff"), ("own", b"")]
    why = dict(letter.headers[2:])
    message = why.pop("__dlq.errors.message")
    assert message.startswith(b"two is no number: xxx")
    assert len(message) == 1000
    assert why == {
        "__dlq.errors.topic": topic.encode(),
        "__dlq.errors.partition": b"1",
        "__dlq.errors.offset": b"2",
        "__dlq.errors.timestamp": b"1700000000002",
        "__dlq.errors.group": group.encode(),
        "__dlq.errors.delivery.count": b"1",
        "__dlq.errors.exception": b"builtins.ValueError",
    }


@pytest.mark.real_if_long
@pytest.mark.parametrize("kind", ["plain", "waits"])
async def test_what_cannot_be_deserialised_is_a_dead_letter(kafka: KafkaHandle, kind: str) -> None:
    topic, dead = await kafka.create_topic(), await kafka.create_topic()
    await kafka.produce(topic, 0, [(b"k", b'{"n": %d}' % n if n % 2 else b"{") for n in range(6)])
    deserializer = json.loads if kind == "plain" else Later()
    group, tp = unique("dead"), TopicPartition(topic, 0)
    settings = {"value_deserializer": deserializer}
    async with running(kafka, topic, group, DeadLetters(dead), **settings) as consumer:
        await eventually(lambda: consumer.committed(tp), 6)
        assert consumer.metrics()["processing_finished_total"] == 3
    found = await letters(kafka, dead, 3)
    assert [letter.value for letter in found] == [b"{"] * 3
    why = [dict(letter.headers) for letter in found]
    assert [each["__dlq.errors.offset"] for each in why] == [b"0", b"2", b"4"]
    assert why[0]["__dlq.errors.exception"].endswith(b"DeserializationError")


@pytest.mark.real_if_long
async def test_with_fewer_partitions_those_of_a_partition_stay_together(
    kafka: KafkaHandle,
) -> None:
    topic, dead = await kafka.create_topic(partitions=2), await kafka.create_topic(partitions=1)
    await fill(kafka, topic)
    async with running(kafka, topic, unique("dead"), DeadLetters(dead)):
        (letter,) = await letters(kafka, dead, 1)
    assert letter.partition == 0


async def test_without_its_topic_run_does_not_begin(
    kafka: KafkaHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processing, "LONGEST_LOOK_S", 0.25)
    topic = await kafka.create_topic()
    missing = unique("missing")
    letters = DeadLetters(missing, producer=None)
    async with AIOKafkaConsumer(topic, bootstrap_servers=kafka.bootstrap_servers) as consumer:
        for _ in range(2):
            with pytest.raises(UnknownTopicOrPartitionError, match=f"no topic '{missing}'"):
                await consumer.run(refuse_two, dead_letter=letters)
        assert (await consumer.getmany()) == {}


@pytest.mark.virtual_time
@pytest.mark.parametrize("name", [None, "txn"])
async def test_brokers_without_a_response_are_not_taken_for_a_missing_topic(
    name: str | None,
) -> None:
    async def refuse(record: Any, outputs: object = None) -> None:
        await refuse_two(record)

    async with Broker() as broker:
        for topic in ("t", "dead"):
            broker.create_topic(topic)
        at = broker.bootstrap_servers
        async with (
            consumer_of(broker, "t", group_id="g") as consumer,
            AIOKafkaProducer(bootstrap_servers=at, transactional_id=name) as producer,
        ):
            letters = DeadLetters("dead", producer=None if name else producer)
            lent: Any = producer if name else None
            with (
                broker.on("Metadata").silence(times=None),
                pytest.raises(KafkaTimeoutError, match="'dead' within 5 s: check the brokers"),
            ):
                await consumer.run(refuse, dead_letter=letters, transactions=lent)


@pytest.mark.real_if_long
async def test_one_is_for_one_run_and_for_nobody_else(kafka: KafkaHandle) -> None:
    topic, dead = await kafka.create_topic(), await kafka.create_topic()
    dead_letters = DeadLetters(dead)
    with pytest.raises(ValueError, match="name of a topic"):
        DeadLetters("")
    async with running(kafka, topic, unique("dead"), dead_letters) as consumer:
        await kafka.produce(topic, 0, [(b"k", b'{"n": 0}')])
        await until(lambda: consumer.metrics()["processing_finished_total"] == 1)
        async with AIOKafkaConsumer(topic, bootstrap_servers=kafka.bootstrap_servers) as other:
            with pytest.raises(IllegalStateError, match="another run"):
                await other.run(refuse_two, dead_letter=dead_letters)
        assert consumer.health().is_ok


async def test_without_a_run_it_refuses_records_and_says_so() -> None:
    record: ConsumerRecord[bytes, bytes] = ConsumerRecord(
        "t", 0, 3, 0, 0, b"k", b"v", None, 1, 1, ()
    )
    with pytest.raises(IllegalStateError, match=r"is not open: pass the object to consumer.run"):
        await DeadLetters("dead")(DeadRecord(record, ValueError("bad"), 1, None))


@pytest.mark.parametrize("timestamp", [None, 0, 5])
def test_a_dead_letter_has_the_timestamp_if_its_record_has_one(timestamp: int | None) -> None:
    """A message of magic 0 has none."""
    record: ConsumerRecord = ConsumerRecord(
        "t", 0, 3, timestamp, None, b"k", b"v", None, 1, 1, ()  # type: ignore[arg-type]
    )  # fmt: skip
    headers = dict(DeadLetters("dead")._headers(DeadRecord(record, ValueError("bad"), 1, None)))
    found = headers.get("__dlq.errors.timestamp")
    assert found == (None if timestamp is None else b"%d" % timestamp)


@pytest.mark.real_if_long
async def test_a_producer_that_is_given_is_used_and_stays_started(kafka: KafkaHandle) -> None:
    topic, dead = await kafka.create_topic(partitions=2), await kafka.create_topic()
    await fill(kafka, topic)
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        dead_letters = DeadLetters(dead, producer=producer)
        async with running(kafka, topic, unique("dead"), dead_letters):
            await letters(kafka, dead, 1)
        await producer.send_and_wait(dead, b"still there")


async def test_a_letter_that_is_refused_keeps_its_record_until_it_is_taken() -> None:
    async with Broker() as broker:
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        topic, dead = await kafka.create_topic(partitions=2), await kafka.create_topic()
        await fill(kafka, topic)
        refusal = broker.on(ProduceRequest).fail(MessageSizeTooLargeError, times=None)
        group, tp = unique("dead"), TopicPartition(topic, 1)
        async with running(kafka, topic, group, DeadLetters(dead)) as consumer:
            await until(lambda: not consumer.health().is_ok)
            assert "dead letters cannot be written" in " ".join(consumer.health().reasons)
            await eventually(lambda: consumer.committed(tp), 2)
            assert "waits for its dead letter to be written" in consumer.explain(tp)
            refusal.remove()
            await eventually(lambda: consumer.committed(tp), 5)
            assert consumer.health().is_ok
        assert len(await letters(kafka, dead, 1)) == 1


async def test_records_keep_no_bytes_for_dead_letters_after_a_run() -> None:
    handled: list[object] = []

    async def handle(record: ConsumerRecord[object, object]) -> None:
        handled.append(record.value)

    async def drop(dead: DeadRecord) -> None:
        """Drop it."""

    async with Broker() as broker:
        broker.create_topic("t")
        broker.produce("t", b"1")
        async with consumer_of(broker, "t", value_deserializer=json.loads) as consumer:
            run = asyncio.create_task(consumer.run(handle, dead_letter=drop))
            await until(lambda: handled == [1])
            run.cancel()
            await asyncio.wait([run])
            broker.produce("t", b"2")
            record = await consumer.getone()
    assert serialized(record) == (None, record.value)


# --- What is too large, or old -------------------------------------------------------------------
async def running_with_large(
    kafka: KafkaHandle, dead: str, letters: DeadLetters, *, value: bytes, key: bytes = b"k"
) -> None:
    """Let one record die that is too large, and another one behind it."""
    topic = await kafka.create_topic(configs={"max.message.bytes": "10000000"})
    bad = b'{"n": 2, "x": "' + value + b'"}'
    async with AIOKafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers, max_request_size=10_000_000
    ) as producer:
        for each in (bad, BAD):
            await producer.send_and_wait(topic, each, key=key, headers=[("own", b"h")])
    settings = {"fetch_max_bytes": 10_000_000, "max_partition_fetch_bytes": 10_000_000}
    async with running(kafka, topic, unique("dead"), letters, **settings) as consumer:
        tp = TopicPartition(topic, 0)
        await eventually(lambda: consumer.committed(tp), 2)
        # The broker may have committed what the producer has no answer to yet.
        await until(lambda: consumer.metrics()["processing_dead_total"] == 2)


@pytest.mark.parametrize("transactional_id", [None, "letters"])
async def test_a_letter_is_as_large_as_its_topic_allows(
    kafka: KafkaHandle, transactional_id: str | None
) -> None:
    dead = await kafka.create_topic(configs={"max.message.bytes": "10000000"})
    name = None if transactional_id is None else unique(transactional_id)
    dead_letters = DeadLetters(dead, transactional_id=name)
    await running_with_large(kafka, dead, dead_letters, value=b"x" * 3_000_000)
    first, second = await letters(kafka, dead, 2)
    assert first.value is not None
    assert len(first.value) > 3_000_000
    assert second.value == BAD


@pytest.mark.real_if_long
@pytest.mark.parametrize("transactional_id", [None, "letters"])
async def test_what_is_too_large_for_its_topic_is_dropped_if_so_wished(
    kafka: KafkaHandle, transactional_id: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    dead = await kafka.create_topic(configs={"max.message.bytes": "8000"})
    name = None if transactional_id is None else unique(transactional_id)
    dead_letters = DeadLetters(dead, transactional_id=name, too_large="drop")
    await running_with_large(kafka, dead, dead_letters, value=b"x" * 20_000)
    (letter,) = await letters(kafka, dead, 1)
    assert letter.value == BAD
    assert 'offset 0 is dropped (too_large="drop"), because its dead letter' in caplog.text


@pytest.mark.real_if_long
@pytest.mark.parametrize("transactional_id", [None, "letters"])
@pytest.mark.parametrize("key", [b"k", b"k" * 9_000])
async def test_what_is_too_large_for_its_topic_leaves_a_stub_if_so_wished(
    kafka: KafkaHandle, transactional_id: str | None, key: bytes
) -> None:
    dead = await kafka.create_topic(configs={"max.message.bytes": "8000"})
    name = None if transactional_id is None else unique(transactional_id)
    dead_letters = DeadLetters(dead, transactional_id=name, too_large="stub")
    await running_with_large(kafka, dead, dead_letters, value=b"x" * 20_000, key=key)
    stub, second = await letters(kafka, dead, 2)
    bad = b'{"n": 2, "x": "' + b"x" * 20_000 + b'"}'
    fits = len(key) == 1
    assert (stub.key, stub.value) == (key if fits else None, None)
    headers = dict(stub.headers)
    assert headers["own"] == b"h"
    assert headers["__dlq.errors.value.size"] == b"%d" % len(bad)
    assert headers["__dlq.errors.value.sha256"] == hashlib.sha256(bad).hexdigest().encode()
    assert second.value == (BAD if fits else None)


async def test_what_to_do_with_too_large_letters_is_one_of_three() -> None:
    with pytest.raises(ValueError, match='"keep", "drop" or "stub"'):
        DeadLetters("dead", too_large="cut")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must be a positive number"):
        DeadLetters("dead", transaction_timeout_ms=0)
    DeadLetters("dead", transaction_timeout_ms=1)


@pytest.mark.real_if_long
async def test_a_second_death_has_the_headers_of_the_second_only(kafka: KafkaHandle) -> None:
    topic, dead = await kafka.create_topic(partitions=2), await kafka.create_topic()
    await fill(kafka, topic)
    async with running(kafka, topic, unique("dead"), DeadLetters(dead)):
        (letter,) = await letters(kafka, dead, 1)
    names = [name for name, _ in letter.headers]
    assert names.count("__dlq.errors.topic") == 1
    assert dict(letter.headers)["__dlq.errors.topic"] == topic.encode()


@pytest.mark.real_kafka
@pytest.mark.slow
@pytest.mark.timeout(200)
async def test_the_letter_of_an_old_record_outlives_the_retention_of_its_topic() -> None:
    old_ms = int(time.time() * 1000) - 8 * 24 * 3_600_000
    try:
        real = RealKafka(1, properties=SOON)
    except KafkaUnavailableError as error:
        unavailable(error)
    with real as started:
        kafka = KafkaHandle("real", started.bootstrap_servers)
        topic = await kafka.create_topic(partitions=2, configs={"retention.ms": "-1"})
        dead, control = await kafka.create_topic(), await kafka.create_topic()
        async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
            for name, value in ((topic, BAD), (control, b"old")):
                await producer.send_and_wait(name, value, partition=0, timestamp_ms=old_ms)
        async with running(kafka, topic, unique("dead"), DeadLetters(dead)) as consumer:
            tp = TopicPartition(topic, 0)
            await eventually(lambda: consumer.committed(tp), 1)
            gone = TopicPartition(control, 0)
            await eventually(lambda: beginning(consumer, gone), 1)
            assert await beginning(consumer, TopicPartition(dead, 0)) == 0
        (letter,) = await letters(kafka, dead, 1)
    assert dict(letter.headers)["__dlq.errors.timestamp"] == b"%d" % old_ms


async def beginning(consumer: AIOKafkaConsumer, tp: TopicPartition) -> int:
    return (await consumer.beginning_offsets([tp]))[tp]


async def test_a_run_that_would_read_its_own_dead_letters_is_refused(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(unique("orders"))
    delayed, dead_letters = await kafka.create_topic(f"{topic}.1"), f"{topic}.dead"
    consumer = member(kafka, topic, unique("g"))
    async with timeout(PATIENCE_S), consumer:
        for each in (topic, DeadLetters(topic), {ValueError: topic}, delayed):
            with pytest.raises(IllegalStateError, match="its own dead letters"):
                await consumer.run(
                    refuse_two, dead_letter=each, retry=Retry(topic=topic, delays=[1])
                )
        consumer.unsubscribe()
        consumer.subscribe(pattern=topic)
        with pytest.raises(IllegalStateError, match=r"a pattern that does not match"):
            await consumer.run(refuse_two, dead_letter=dead_letters)


async def test_dead_letters_of_a_run_may_have_the_topic_of_an_earlier_subscription(
    kafka: KafkaHandle,
) -> None:
    topic, dead_letters = await kafka.create_topic(), await kafka.create_topic(unique("dead"))
    async with timeout(PATIENCE_S), member(kafka, dead_letters, unique("g")) as consumer:
        await consumer.run(refuse_two, until="end")
        consumer.subscribe([topic])
        await consumer.run(refuse_two, until="end", dead_letter=dead_letters)


async def test_letters_are_written_to_a_topic_that_has_fewer_partitions_now(
    kafka: KafkaHandle,
) -> None:
    topic, dead_letters = await kafka.create_topic(partitions=2), unique("dead")
    await kafka.create_topic(dead_letters, 2)
    async with running(kafka, topic, unique("g"), DeadLetters(dead_letters)) as consumer:
        await kafka.produce(topic, 1, [(None, BAD)])
        await until(lambda: consumer.metrics()["processing_dead_total"] == 1)
        await kafka.delete_topic(dead_letters)
        await kafka.create_topic(dead_letters, 1)
        await kafka.produce(topic, 1, [(None, BAD)])
        await until(lambda: consumer.metrics()["processing_dead_total"] == 2)
    (letter,) = await letters(kafka, dead_letters, 1)
    assert (letter.value, letter.partition) == (BAD, 0)


class WithoutTextError(Exception):
    def __str__(self) -> str:
        return str(self.args[1])

    __repr__ = __str__


async def test_an_error_without_a_text_is_a_dead_letter(kafka: KafkaHandle) -> None:
    topic, dead_letters = await kafka.create_topic(), await kafka.create_topic()
    await kafka.produce(topic, 0, [(None, b"v")])

    async def fail(record: ConsumerRecord) -> None:
        raise WithoutTextError

    async with timeout(PATIENCE_S), member(kafka, topic, unique("g")) as consumer:
        await consumer.run(fail, dead_letter=dead_letters, breaker=None, until="end")
    (letter,) = await letters(kafka, dead_letters, 1)
    text = b"WithoutTextError, whose text fails with IndexError"
    assert dict(letter.headers)["__dlq.errors.message"] == text
