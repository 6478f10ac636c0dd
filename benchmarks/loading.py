"""Make the topics that are read, with librdkafka's admin client and producer."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from benchmarks.topics import Topic

_TIMEOUT_S: Final = 120.0
_CONNECT_TIMEOUT_S: Final = 10.0
# librdkafka writes each lost connection to stderr, and there will be some when Kafka is stopped.
QUIET: Final = {"log_level": 2}
_PAUSE_S: Final = 0.1
_READ_RECORDS: Final = 10_000
_LARGEST_BATCH_BYTES: Final = 1_000_000
# The records stay as long as the topic; and a broker that holds thousands of partitions reserves
# no megabytes of index for each.
_TOPIC_SETTINGS: Final = {"retention.ms": "-1", "segment.index.bytes": "102400"}


class TopicError(Exception):
    """A topic could not be made, or does not hold what it must."""


def ensure_topics(
    bootstrap_servers: str,
    topics: Sequence[Topic],
    connect_timeout_s: float = _CONNECT_TIMEOUT_S,
) -> None:
    """Make sure that topics of these names are there and hold their records; loads them if not.

    Raises:
        TopicError: The cluster cannot be reached, or a topic cannot be made or loaded.
    """
    try:
        _ensure_topics(bootstrap_servers, topics, connect_timeout_s)
    except KafkaException as error:
        raise TopicError(f"{bootstrap_servers}: {error.args[0].str()}") from error


def _ensure_topics(
    bootstrap_servers: str, topics: Sequence[Topic], connect_timeout_s: float
) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, **QUIET})
    admin.list_topics(timeout=connect_timeout_s)
    missing = [topic for topic in topics if not _is_there(admin, topic)]
    if not missing:
        return
    count = sum(topic.partition_count for topic in missing)
    print(f"creating {len(missing)} topics with {count:,} partitions …", file=sys.stderr)
    drop_topics(bootstrap_servers, [topic.name for topic in missing])
    for topic in missing:
        _create(admin, topic)
    for topic in missing:
        if topic.records:
            print(f"loading {topic.title} …", file=sys.stderr)
            _load(bootstrap_servers, topic)
            if not _is_there(admin, topic):
                raise TopicError(f"{topic.name} does not hold what it was loaded with")


def read_once(
    bootstrap_servers: str, topics: Sequence[Topic], timeout_s: float = _TIMEOUT_S
) -> None:
    """Read all records of topics, so that no client waits for the disk or pays for cold pages.

    Raises:
        TopicError: A record is missing, or the cluster cannot be reached.
    """
    left = sum(topic.records for topic in topics)
    settings = {"group.id": "bench-read-once", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, **QUIET, **settings})
    try:
        consumer.assign(
            [
                TopicPartition(topic.name, number, OFFSET_BEGINNING)
                for topic in topics
                for number in range(topic.partition_count)
            ]
        )
        while left > 0:
            messages = consumer.consume(min(left, _READ_RECORDS), timeout_s)
            failed = [message.error() for message in messages if message.error() is not None]
            if failed or not messages:
                raise TopicError(f"{failed[:1] or f'{left} records are missing'}")
            left -= len(messages)
    except KafkaException as error:
        raise TopicError(f"{bootstrap_servers}: {error.args[0].str()}") from error
    finally:
        consumer.close()


def drop_topics(bootstrap_servers: str, names: Sequence[str]) -> None:
    """Delete topics; ones that are not there are passed over."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, **QUIET})
    for future in admin.delete_topics(list(names), operation_timeout=_TIMEOUT_S).values():
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise


@contextmanager
def written_topic(bootstrap_servers: str, topic: Topic) -> Iterator[Topic]:
    """Give an empty topic of this shape, under a name of its own, and drop it in the end.

    Raises:
        TopicError: The cluster cannot be reached, or does not make it.
    """
    written = replace(topic, use=f"written-{uuid.uuid4().hex[:8]}")
    try:
        _create(AdminClient({"bootstrap.servers": bootstrap_servers, **QUIET}), written)
        yield written
        drop_topics(bootstrap_servers, [written.name])
    except KafkaException as error:
        raise TopicError(f"{bootstrap_servers}: {error.args[0].str()}") from error


def count_records(bootstrap_servers: str, topic: Topic) -> int:
    """Return how many records a topic was written."""
    return _count(AdminClient({"bootstrap.servers": bootstrap_servers, **QUIET}), topic)


def _create(admin: AdminClient, topic: Topic) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        new = NewTopic(topic.name, topic.partition_count, config=_TOPIC_SETTINGS)
        try:
            admin.create_topics([new], operation_timeout=_TIMEOUT_S)[topic.name].result()
        except KafkaException as error:
            still_going = error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
            if not still_going or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_S)
        else:
            return


def _load(bootstrap_servers: str, topic: Topic) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            **QUIET,
            "compression.type": topic.codec,
            "batch.size": topic.batch_bytes
            if topic.batch_records is None
            else _LARGEST_BATCH_BYTES,
            "batch.num.messages": topic.batch_records or 1_000_000,
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

    for key, value, partition in topic.rows():
        while True:
            try:
                producer.produce(topic.name, value, key, partition=partition, on_delivery=delivered)
            except BufferError:
                producer.poll(0.1)
            else:
                break
        producer.poll(0)
    if producer.flush(_TIMEOUT_S) or failures:
        raise TopicError(f"loading {topic.name}: {failures[:1] or 'not all acknowledged'}")


def _is_there(admin: AdminClient, topic: Topic) -> bool:
    """Whether there is a topic of this name, shape and number of records."""
    # Of all topics: to ask for one by its name would create it.
    known = admin.list_topics(timeout=_TIMEOUT_S).topics.get(topic.name)
    if known is None or len(known.partitions) != topic.partition_count:
        return False
    return not topic.records or _count(admin, topic) == topic.records


def _count(admin: AdminClient, topic: Topic) -> int:
    asked = {
        TopicPartition(topic.name, number): OffsetSpec.latest()  # type: ignore[no-untyped-call]
        for number in range(topic.partition_count)
    }
    answers = admin.list_offsets(asked, isolation_level=IsolationLevel.READ_UNCOMMITTED)
    return sum(answer.result(_TIMEOUT_S).offset for answer in answers.values())
