"""The handlers of `consumer.run`: several by topic, in every kind, each with what it asks for."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from aiokafka_lite import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka_lite._compat import timeout
from aiokafka_lite.consumer.processing.handlers import Handlers
from aiokafka_lite.errors import IllegalStateError, NoHandlerError
from aiokafka_lite.processing import DeadLetters, Retry, Router
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.consumer.processing.running import PATIENCE_S, running
from tests.support.cluster import KafkaHandle, unique
from tests.support.rows import rows
from tests.support.waiting import until

Record = ConsumerRecord[bytes | None, bytes | None]


class Noted:
    """Handlers by name, and the offsets that each was called with."""

    def __init__(self) -> None:
        self.offsets: dict[str, list[int]] = defaultdict(list)
        self.copies = unique("copies")
        self.failures: dict[str, list[Exception]] = {}

    def handler(self, name: str) -> Any:
        async def handle(given: Record | list[Record], *outputs: Any) -> None:
            records = given if isinstance(given, list) else [given]
            if failures := self.failures.get(name):
                raise failures.pop()
            for record in records:
                for each in outputs:
                    each.send(self.copies, b"%s %d" % (name.encode(), record.offset))
            self.offsets[name] += [record.offset for record in records]

        return handle

    @property
    def count(self) -> int:
        return sum(map(len, self.offsets.values()))


def member(kafka: KafkaHandle, *topics: str, **settings: Any) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        *topics,
        bootstrap_servers=kafka.bootstrap_servers,
        **{
            "group_id": unique("handlers"),
            "auto_offset_reset": "earliest",
            "fetch_max_wait_ms": 50,
            "auto_commit_interval_ms": 50,
            **settings,
        },
    )


@pytest.fixture
async def topic(kafka: KafkaHandle) -> str:
    """A topic of one partition with ten records."""
    topic = await kafka.create_topic(partitions=1)
    await kafka.produce(topic, 0, rows(0, 10))
    return topic


@pytest.fixture
async def other(kafka: KafkaHandle) -> str:
    """Another one, with five records."""
    other = await kafka.create_topic(partitions=1)
    await kafka.produce(other, 0, rows(0, 5))
    return other


# --- Which handler ------------------------------------------------------------------------------
def test_a_topic_has_the_handler_of_its_name_then_of_a_pattern_then_the_default() -> None:
    async def exact(record: object) -> None: ...
    async def first(record: object) -> None: ...
    async def second(record: object) -> None: ...
    async def others(record: object) -> None: ...

    router = Router({re.compile("ord"): first, "orders": exact}, default=others)
    assert router.on(re.compile("orders|pay"))(second) is second
    assert router.names is None
    found = [router.find(topic) for topic in ("orders", "orders-eu", "pay", "my-orders")]
    assert found == [exact, first, second, others]
    assert Router({"a": first, re.compile("b"): second}).find("c") is None
    assert Router({"a": first, "b": second}).names == {"a", "b"}
    assert "'a'" in repr(Router({"a": first}))
    assert "default" in repr(router)
    for topics, error, words in (
        (("a", "a"), ValueError, "has a handler already"),
        ((re.compile(b"a"),), ValueError, "non-empty string"),
        ((5,), ValueError, "non-empty string"),
        (("",), ValueError, "non-empty string"),
        ((("a", "b"),), TypeError, "must be a string"),
    ):
        with pytest.raises(error, match=words):
            Router().on(*topics)(first)
    for given, kind, words in (
        ({}, ValueError, "at least one handler"),
        ({"a": first, "b": None}, TypeError, "handler must"),
        ({"a": first, "b": lambda record, outputs: None}, TypeError, "handler must"),
        (Router(default=5), TypeError, "handler must"),  # type: ignore[arg-type]
    ):
        with pytest.raises(kind, match=words):
            Handlers(given, 0)


@pytest.mark.real_if_long
@pytest.mark.parametrize("batch_size", [None, 4])
async def test_each_topic_has_its_handler(
    kafka: KafkaHandle, topic: str, other: str, batch_size: int | None
) -> None:
    """Without a subscription, `run` subscribes to the topics. No list has records of two."""
    noted = Noted()
    noted.failures["b"] = [ValueError("once")]
    consumer = member(kafka)
    handlers = {topic: noted.handler("a"), other: noted.handler("b")}
    async with running(consumer, handlers, batch_size=batch_size, retry=2, breaker=None):
        await until(lambda: noted.count == 15)
        assert consumer.subscription() == {topic, other}
        handlers.clear()  # `run` has its own
        await kafka.produce(topic, 0, rows(0, 1))
        await until(lambda: noted.count == 16)
    assert [sorted(noted.offsets[name]) for name in "ab"] == [[*range(11)], [*range(5)]]


async def test_outputs_of_handlers_by_topic_are_written_in_transactions(
    kafka: KafkaHandle, topic: str, other: str
) -> None:
    noted = Noted()
    copies = await kafka.create_topic(noted.copies, partitions=1)
    async with (
        AIOKafkaProducer(
            bootstrap_servers=kafka.bootstrap_servers, transactional_id=unique("tx")
        ) as producer,
        member(kafka, copies, isolation_level="read_committed") as reader,
    ):
        router = Router({re.compile(".*"): noted.handler("b"), topic: noted.handler("a")})
        async with running(member(kafka, topic, other), router, transactions=producer):
            values = [(await reader.getone()).value for _ in range(15)]
    wanted = [b"a %d" % i for i in range(10)] + [b"b %d" % i for i in range(5)]
    assert sorted(value or b"" for value in values) == wanted


@pytest.mark.real_if_long
async def test_a_topic_without_a_handler_is_an_error_before_the_first_record(
    kafka: KafkaHandle, topic: str, other: str
) -> None:
    noted = Noted()
    handlers = {topic: noted.handler("a")}
    async with member(kafka, topic, other) as consumer:
        with pytest.raises(ValueError, match=rf"no[ne]* for {other}"):
            await consumer.run(handlers)
    async with member(kafka) as consumer:
        with pytest.raises(IllegalStateError, match="Not subscribed"):
            await consumer.run(Router(handlers, default=noted.handler("b")))
        consumer.assign([TopicPartition(topic, 0), TopicPartition(other, 0)])
        with pytest.raises(ValueError, match=other):
            await consumer.run(handlers)
        consumer.assign([TopicPartition(topic, 0)])
        task = asyncio.ensure_future(consumer.run(handlers))
        await until(lambda: noted.count == 10)
        await consumer.stop()
        await task


@pytest.mark.real_if_long
@pytest.mark.parametrize("batch_size", [None, 4])
async def test_a_record_without_a_handler_ends_run_and_is_kept(
    kafka: KafkaHandle, topic: str, other: str, batch_size: int | None
) -> None:
    """Also with retries and dead letters: it is not the record's fault."""
    noted = Noted()
    letters = DeadLetters(await kafka.create_topic(partitions=1))
    retry = Retry(on=Exception, stop=ZeroDivisionError)
    async with timeout(PATIENCE_S), member(kafka) as consumer:
        task = asyncio.ensure_future(
            consumer.run(
                {topic: noted.handler("a")}, batch_size=batch_size, retry=retry, dead_letter=letters
            )
        )
        await until(lambda: noted.count == 10)
        consumer.subscribe([topic, other])
        with pytest.raises(NoHandlerError, match=f"'{other}'.*no handler"):
            await task
        await consumer.commit()
        assert await consumer.committed(TopicPartition(other, 0)) in (None, 0)
        assert await consumer.committed(TopicPartition(topic, 0)) == 10


# --- An order by a function ---------------------------------------------------------------------
def customer(record: Record) -> bytes | None:
    """Return the first letter of the value, or None without one."""
    return record.value[:1] if record.value else None


def unhashable(record: Record) -> Any:
    return [record.value] if record.value == b"bad" else None


def failing(record: Record) -> None:
    if record.value == b"bad":
        raise ZeroDivisionError


@pytest.mark.real_if_long
async def test_records_are_in_order_by_a_function(kafka: KafkaHandle) -> None:
    """Within a partition, and also if lists are tried again, or outputs written."""
    for options in ({}, {"batch_size": 3}, {"transactions": 1}, {"dead_letter": 1, "retry": 2}):
        await check_order(kafka, options)


async def check_order(kafka: KafkaHandle, options: dict[str, Any]) -> None:
    topic = await kafka.create_topic(partitions=2)
    values = [b"a1", b"b1", b"", b"a2", b"c1", b"b2", b"a3"]
    for partition in range(2):
        await kafka.produce(topic, partition, [(b"%d" % i, v) for i, v in enumerate(values)])
    done: list[tuple[int, bytes]] = []
    failures = {b"a1": 1, b"b2": 1} if "dead_letter" in options else {}
    gate = asyncio.Event()
    begun: set[tuple[int, bytes]] = set()

    async def handle(given: Record | list[Record], *_: object) -> None:
        for record in given if isinstance(given, list) else [given]:
            value = record.value or b""
            begun.add((record.partition, value))
            if failures.get(value, 0) and record.partition == 0:
                failures[value] -= 1
                raise ValueError(value)
            if value == b"a1" and record.partition == 0 and "batch_size" not in options:
                await gate.wait()
            done.append((record.partition, value))

    async with AsyncExitStack() as stack:
        if "transactions" in options:
            producer = AIOKafkaProducer(
                bootstrap_servers=kafka.bootstrap_servers, transactional_id=unique("tx")
            )
            options = {"transactions": await stack.enter_async_context(producer)}
        if "dead_letter" in options:
            options = {**options, "dead_letter": await kafka.create_topic(partitions=1)}
        await stack.enter_async_context(
            running(member(kafka, topic), handle, order=customer, breaker=None, **options)
        )
        if "batch_size" not in options:
            await until(lambda: len(done) == 11)
            assert {(0, b"a2"), (0, b"a3")}.isdisjoint(begun)
        gate.set()
        await until(lambda: len(done) == 14)
    for partition in range(2):
        for letter in (b"a", b"b"):
            own = [v for p, v in done if p == partition and v[:1] == letter]
            assert own == sorted(own)


@pytest.mark.real_if_long
@pytest.mark.parametrize("order", [unhashable, failing])
async def test_a_record_whose_order_is_not_known_is_a_bad_one(
    kafka: KafkaHandle, order: Callable[[Record], Any], caplog: pytest.LogCaptureFixture
) -> None:
    topic, letters = await kafka.create_topic(partitions=1), await kafka.create_topic(partitions=1)
    await kafka.produce(topic, 0, [(b"k", value) for value in (b"a", b"bad", b"b")])
    noted = Noted()
    consumer = member(kafka, topic, key_deserializer=bytes.decode)
    async with running(consumer, noted.handler("a"), order=order, dead_letter=letters, retry=5):
        await until(lambda: consumer.metrics()["processing_dead_total"] == 1)
        await until(lambda: noted.count == 2)
        await consumer.commit()
        assert await consumer.committed(TopicPartition(topic, 0)) == 3
    async with member(kafka, letters) as reader:
        letter = await reader.getone()
        assert (letter.key, letter.value) == (b"k", b"bad")
        assert dict(letter.headers)["__dlq.errors.delivery.count"] == b"0"
    delay = Retry(topic=unique("retry"), delays=[60])
    for name in delay.delay_topics:
        await kafka.create_topic(name, partitions=1)
    consumer = member(kafka, topic)
    async with running(consumer, noted.handler("a"), order=order, dead_letter=letters, retry=delay):
        await until(lambda: consumer.metrics()["processing_dead_total"] == 1)
        assert consumer.metrics()["processing_delayed_total"] == 0
    every_option: list[Any] = [
        {}, {"retry": delay}, {"dead_letter": letters, "retry": Retry(stop=Exception)}
    ]  # fmt: skip
    for options in every_option:
        async with member(kafka, topic) as consumer:
            with pytest.raises((TypeError, ZeroDivisionError)):
                await consumer.run(noted.handler("a"), order=order, **options)
            assert f"{topic}/0 offset 1: the function for order failed" in caplog.text
            with pytest.raises(ValueError, match="order must be"):
                await consumer.run(noted.handler("a"), order=noted.handler("b"))


async def test_lists_of_delayed_records_have_one_handler_too(
    kafka: KafkaHandle, topic: str, other: str
) -> None:
    """Although all wait in one delay topic."""
    retry = Retry(topic=unique("retry"), delays=[0.5], after=1)
    for name in retry.delay_topics:
        await kafka.create_topic(name, partitions=1)
    failed: set[tuple[str, int]] = set()
    done: list[tuple[str, int]] = []
    topics: list[set[str]] = []

    def handler_of(own: str) -> Callable[[list[Record]], object]:
        async def handle(records: list[Record]) -> None:
            topics.append({record.topic for record in records} | {own})
            places = {(own, record.offset) for record in records}
            if not places <= failed:
                failed.update(places)
                raise ValueError(own)
            done.extend(places)

        return handle

    handlers = {topic: handler_of(topic), other: handler_of(other)}
    options: dict[str, Any] = {"batch_size": 20, "retry": retry, "breaker": None, "order": None}
    for batch_by in (None, "partition"):
        failed.clear()
        done.clear()
        async with running(member(kafka), handlers, batch_by=batch_by, **options):
            await until(lambda: len(done) == 15)
    assert {len(each) for each in topics} == {1}
