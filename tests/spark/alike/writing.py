"""What tests of sources write to Kafka: records and transactions, by librdkafka's producer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final, NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType

from aiokafka_lite._compat import Self
from tests.support.cluster import KafkaHandle, unique

TIMEOUT_S = 30.0
LONGEST_TRANSACTION: Final = "transaction.max.timeout.ms"
# What was written long ago by its timestamp would be deleted at once.
KEPT: Final = {"retention.ms": "-1"}
# The first record of a topic whose records tell the time, and from one to the next.
FIRST_MS = 1_700_000_000_000
STEP_MS = 1_000


class Record(NamedTuple):
    """A record to write."""

    value: bytes | None
    key: bytes | None = None
    partition: int = 0
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int = 0  # now


class Stored(NamedTuple):
    """A record in a log."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


def numbered(count: int, partition: int = 0, *, first: int = 0) -> list[Record]:
    """Records that each differ from every other, a second apart."""
    return [
        Record(
            b"value %d of %d" % (number, partition),
            b"key %d" % (number % 7),
            partition,
            timestamp_ms=FIRST_MS + number * STEP_MS,
        )
        for number in range(first, first + count)
    ]


class Writer:
    """Creates topics and fills them.

    Args:
        bootstrap_servers: Whose.
    """

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._handle = KafkaHandle("real", bootstrap_servers)
        self._producers: dict[tuple[str, int], Producer] = {}
        self._topics: set[str] = set()
        self._left_open: list[Producer] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def name(self, topic: str) -> str:
        """Return a name that nobody else uses, for a topic."""
        return unique(f"alike-{topic}")

    def create(
        self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> str:
        """Create a topic, wait until its partitions can be read, and return its name."""
        settings = {**KEPT, **(configs or {})}
        asyncio.run(self._handle.create_topic(topic, partitions, settings))
        self._topics.add(topic)
        return topic

    def add_partitions(self, topic: str, total: int) -> None:
        """Give a topic more partitions, and wait until they can be read."""
        asyncio.run(self._handle.add_partitions(topic, total))
        self._producers.clear()  # which may not have heard of it

    def delete(self, *topics: str) -> None:
        """Delete topics."""
        for topic in topics:
            asyncio.run(self._handle.delete_topic(topic))
            self._topics.discard(topic)
        self._producers.clear()

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        """Delete the records of partitions before an offset each."""
        for partition, offset in before.items():
            asyncio.run(self._handle.delete_records(topic, partition, offset))

    def write(
        self,
        topic: str,
        records: Iterable[Record],
        *,
        codec: str = "none",
        batch: int = 20,
    ) -> None:
        """Write records in batches of so many at most, and wait until all are acknowledged."""
        producer = self._producers.get((codec, batch))
        if producer is None:
            producer = self._producer({"compression.type": codec, "batch.num.messages": batch})
            self._producers[codec, batch] = producer
        _send(producer, topic, records)

    def write_transaction(self, topic: str, records: Iterable[Record], *, ends: str) -> None:
        """Write records in a transaction, which is then "committed", "aborted" or left "open"."""
        producer = self._producer(
            {
                "transactional.id": f"{topic}-{time.monotonic_ns()}",
                # Those that are left open stay so through a run, if the broker allows it.
                "transaction.timeout.ms": self._longest_transaction_ms(),
            }
        )
        _again(lambda: producer.init_transactions(TIMEOUT_S), "no transaction could begin")
        producer.begin_transaction()
        _send(producer, topic, records)
        if ends == "committed":
            producer.commit_transaction(TIMEOUT_S)
        elif ends == "aborted":
            producer.abort_transaction(TIMEOUT_S)
        else:
            self._left_open.append(producer)

    def _longest_transaction_ms(self) -> int:
        """Return how long the broker lets a transaction be open."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        node_id = min(admin.list_topics(timeout=TIMEOUT_S).brokers)
        broker = ConfigResource(ResourceType.BROKER, str(node_id))
        settings = admin.describe_configs([broker])[broker].result(TIMEOUT_S)
        return int(settings[LONGEST_TRANSACTION].value)

    def read(self, topic: str, partitions: int) -> list[Stored]:
        """Return all records there are."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "group.id": "reads",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "isolation.level": "read_uncommitted",
            }
        )
        try:
            consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(partitions)])
            found: list[Stored] = []
            ended = 0
            while ended < partitions:
                message = consumer.poll(TIMEOUT_S)
                assert message is not None, f"{topic} cannot be read"
                error = message.error()
                if error is None:
                    partition, offset = message.partition(), message.offset()
                    assert partition is not None
                    assert offset is not None
                    found.append(Stored(partition, offset, message.key(), message.value()))
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended += 1
                elif not error.retriable():
                    raise KafkaException(error)
            return found
        finally:
            consumer.close()

    def close(self) -> None:
        """Abort the transactions that were left open, and delete what was created."""
        while self._left_open:
            try:
                self._left_open.pop().abort_transaction(TIMEOUT_S)
            except KafkaException as error:
                # Kafka has aborted it: a long run takes longer than a transaction may.
                if error.args[0].code() != KafkaError._FENCED:
                    raise
        self.delete(*tuple(self._topics))

    def _producer(self, settings: Mapping[str, str | int]) -> Producer:
        config: dict[str, str | int] = {
            "bootstrap.servers": self.bootstrap_servers,
            "linger.ms": 5,
            "max.in.flight": 1,
            "topic.metadata.refresh.fast.interval.ms": 10,
            "retry.backoff.ms": 10,
            **settings,
        }
        return Producer(config)


def _send(producer: Producer, topic: str, records: Iterable[Record]) -> None:
    failures: list[str] = []

    def acknowledged(error: object, _: object) -> None:
        if error is not None:
            failures.append(str(error))

    for record in records:
        producer.produce(
            topic,
            value=record.value,
            key=record.key,
            partition=record.partition,
            headers=list(record.headers),
            timestamp=record.timestamp_ms,
            on_delivery=acknowledged,
        )
    left = producer.flush(TIMEOUT_S)
    assert not left, f"{left} records for {topic} were not acknowledged"
    assert not failures, failures[0]


def _again(attempt: Callable[[], object], failure: str) -> None:
    """Try again while Kafka is not ready for it yet: leaders and coordinators take a moment."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            attempt()
            return
        except KafkaException as error:
            if time.monotonic() > deadline:
                raise TimeoutError(failure) from error
        time.sleep(0.05)
