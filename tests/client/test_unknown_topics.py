"""A topic that does not exist: the log and the errors name it, and the topic that was meant."""

from __future__ import annotations

import asyncio
import logging

import pytest

from aiokafka_lite import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka_lite.broker import Broker
from aiokafka_lite.client.watched_topics import CREATION_S, UnknownTopics
from aiokafka_lite.errors import UnknownTopicOrPartitionError
from tests.support.cluster import KafkaHandle
from tests.support.waiting import until

WHO = "aiokafka_lite.client.cluster"


async def test_consumer_and_producer_warn_of_a_wrong_name_at_the_first_answer(
    kafka: KafkaHandle, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await kafka.create_topic()
    wrong = f"{topic[:-1]}x{topic[-1]}"
    text = f"topic {wrong!r} does not exist; did you mean {topic!r}?"
    settings = {"bootstrap_servers": kafka.bootstrap_servers, "request_timeout_ms": 300}
    consumer = AIOKafkaConsumer(wrong, allow_auto_create_topics=False, **settings)  # type: ignore[arg-type]
    with pytest.raises(UnknownTopicOrPartitionError) as caught:
        await consumer.start()
    assert f"({text})" in str(caught.value)
    assert [each for each in caplog.record_tuples if each[0] == WHO] == [
        (WHO, logging.WARNING, text)
    ]
    caplog.clear()
    async with AIOKafkaProducer(allow_auto_create_topics=False, **settings) as producer:  # type: ignore[arg-type]
        with pytest.raises(UnknownTopicOrPartitionError) as caught:
            await producer.send(wrong, b"v")
    assert f"({text})" in str(caught.value)
    assert [each for each in caplog.record_tuples if each[0] == WHO] == [
        (WHO, logging.WARNING, text)
    ]


async def test_health_says_that_the_topic_does_not_exist_until_it_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, WHO)
    async with Broker(auto_create_topics=False) as broker:
        broker.create_topic("orders")
        consumer = AIOKafkaConsumer(
            "ordres", bootstrap_servers=broker.bootstrap_servers, allow_auto_create_topics=False
        )
        starting = asyncio.ensure_future(consumer.start())
        text = "topic 'ordres' does not exist; did you mean 'orders'?"
        # In plain Python, the first consumer of a process has logged another warning before.
        await until(lambda: (WHO, logging.WARNING, text) in caplog.record_tuples)
        assert text in " ".join(consumer.health().reasons)
        broker.create_topic("ordres")
        await starting
        await consumer.stop()
    assert [each[2] for each in caplog.record_tuples if each[0] == WHO] == [
        text, "topic 'ordres' exists now"
    ]  # fmt: skip


def test_a_topic_that_is_being_created_is_not_reported_and_one_report_is_enough(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, WHO)
    unknown = UnknownTopics()
    assert unknown.update({"a", "b"}, 10.0, may_create=True) == []
    assert unknown.update({"b"}, 10.0 + CREATION_S / 2, may_create=True) == []
    assert unknown.update({"b", "c"}, 10.0 + CREATION_S, may_create=True) == ["b"]
    unknown.report("b", ["no", "names"])
    assert unknown.update({"b"}, 20.0, may_create=True) == []
    assert unknown.text({"a", "b"}) == "topic 'b' does not exist"
    assert unknown.update(set(), 21.0, may_create=True) == []
    assert unknown.text({"a", "b"}) is None
    assert [each.message for each in caplog.records] == [
        "topic 'b' does not exist", "topic 'b' exists now"
    ]  # fmt: skip
