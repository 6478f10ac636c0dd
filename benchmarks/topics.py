"""Write the topics that are read, with librdkafka's producer."""

from __future__ import annotations

import sys
import time
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.scenarios import BATCH_BYTES, PARTITION_COUNT, Scenario

_TIMEOUT_S: Final = 60.0
# librdkafka writes each lost connection to stderr, and there will be some when Kafka is stopped.
_QUIET: Final = {"log_level": 2}
_PAUSE_S: Final = 0.1


class TopicError(Exception):
    """A topic could not be made, or does not hold what it must."""


def ensure_topic(bootstrap_servers: str, scenario: Scenario) -> None:
    """Make sure that the scenario's topic holds its records; loads it when it does not."""
    if _count(bootstrap_servers, scenario.topic) == scenario.records:
        return
    print(f"loading {scenario.title} …", file=sys.stderr)
    _recreate(bootstrap_servers, scenario.topic)
    _load(bootstrap_servers, scenario)
    loaded = _count(bootstrap_servers, scenario.topic)
    if loaded != scenario.records:
        raise TopicError(f"{scenario.topic} holds {loaded} records, expected {scenario.records}")


def drop_topics(bootstrap_servers: str, topics: list[str]) -> None:
    """Delete topics; ones that are not there are passed over."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, **_QUIET})
    for future in admin.delete_topics(topics, operation_timeout=_TIMEOUT_S).values():
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise


def _recreate(bootstrap_servers: str, topic: str) -> None:
    drop_topics(bootstrap_servers, [topic])
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, **_QUIET})
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        new = NewTopic(topic, PARTITION_COUNT, config={"retention.ms": "-1"})
        try:
            admin.create_topics([new], operation_timeout=_TIMEOUT_S)[topic].result()
        except KafkaException as error:
            still_going = error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
            if not still_going or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_S)
        else:
            return


def _load(bootstrap_servers: str, scenario: Scenario) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            **_QUIET,
            "compression.type": scenario.codec,
            "batch.size": BATCH_BYTES,
            "batch.num.messages": 1_000_000,
            # Long enough to fill every batch: the end is flushed.
            "linger.ms": 2000,
            "enable.idempotence": True,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    failures: list[object] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failures.append(error)

    for key, value, partition in scenario.rows():
        while True:
            try:
                producer.produce(
                    scenario.topic, value, key, partition=partition, on_delivery=delivered
                )
            except BufferError:
                producer.poll(0.1)
            else:
                break
        producer.poll(0)
    if producer.flush(_TIMEOUT_S) or failures:
        raise TopicError(f"loading {scenario.topic}: {failures[:1] or 'not all acknowledged'}")


def _count(bootstrap_servers: str, topic: str) -> int:
    """Return how many records a topic holds; -1 when there is none, or of another shape."""
    settings = {
        **_QUIET,
        "bootstrap.servers": bootstrap_servers,
        "group.id": "aiokafka-lite-bench",
        "allow.auto.create.topics": False,
    }
    consumer = Consumer(settings)
    try:
        partitions = consumer.list_topics(topic, timeout=_TIMEOUT_S).topics[topic].partitions
        if len(partitions) != PARTITION_COUNT:
            return -1
        ranges = [
            consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=_TIMEOUT_S)
            for number in partitions
        ]
        return sum(high - low for low, high in ranges)
    finally:
        consumer.close()
