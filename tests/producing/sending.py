"""Producers for tests, and what the log holds of what they wrote."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.producing import AIOKafkaProducer
from aiokafka_lite.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from aiokafka_lite.structs import ConsumerRecord, RecordMetadata, TopicPartition
from tests.support.cluster import KafkaHandle
from tests.support.wire import RawClient

Records = Sequence[ConsumerRecord[bytes | None, bytes | None]]


def producer_of(kafka: KafkaHandle | Broker | str, **settings: object) -> AIOKafkaProducer:
    """A producer that is not started, and in a hurry to try again."""
    servers = kafka if isinstance(kafka, str) else kafka.bootstrap_servers
    arguments: dict[str, object] = {
        "bootstrap_servers": servers,
        "retry_backoff_ms": 10,
        **settings,
    }
    return AIOKafkaProducer(**arguments)  # type: ignore[arg-type]


async def read_all(
    kafka: KafkaHandle | Broker, topic: str, *, isolation_level: str = "read_uncommitted"
) -> Mapping[int, Records]:
    """Everything that a topic holds now, by partition; no transaction stays open there.

    A broker answers EndTxn before all logs have the markers, so the ends are those of all records.
    """
    consumer = AIOKafkaConsumer(
        bootstrap_servers=kafka.bootstrap_servers,
        enable_auto_commit=False,
        isolation_level=isolation_level,
    )
    async with consumer, timeout(20):
        tps = [TopicPartition(topic, index) for index in range(await _count(kafka, topic))]
        consumer.assign(tps)
        await consumer.seek_to_beginning(*tps)
        ends = await _ends(kafka, tps)
        found: dict[int, list[ConsumerRecord[bytes | None, bytes | None]]] = {}
        while any([await consumer.position(tp) < ends[tp] for tp in tps]):
            for tp, records in (await consumer.getmany(timeout_ms=200)).items():
                found.setdefault(tp.partition, []).extend(records)
    return found


async def _ends(
    kafka: KafkaHandle | Broker, tps: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    async with AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap_servers) as consumer:
        return await consumer.end_offsets(tps)


async def _count(kafka: KafkaHandle | Broker, topic: str) -> int:
    if isinstance(kafka, Broker):
        return kafka.known_topic(topic).partition_count
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
    async with RawClient(kafka.bootstrap_servers) as client:
        return len((await client.request(request)).topics[0].partitions)


async def values_in(
    kafka: KafkaHandle | Broker,
    topic: str,
    partition: int = 0,
    *,
    isolation_level: str = "read_uncommitted",
) -> list[bytes | None]:
    """The values of a partition, in order."""
    found = await read_all(kafka, topic, isolation_level=isolation_level)
    return [record.value for record in found.get(partition, ())]


async def send_numbers(
    producer: AIOKafkaProducer, topic: str, numbers: range, partition: int | None = 0
) -> list[asyncio.Future[RecordMetadata]]:
    """Send each number as a value, waiting for none."""
    return [await producer.send(topic, b"%d" % n, partition=partition) for n in numbers]


def as_values(numbers: range) -> list[bytes]:
    """The values that `send_numbers` writes."""
    return [b"%d" % number for number in numbers]
