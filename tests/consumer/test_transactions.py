"""read_committed against transactions of librdkafka's producer, on a real Kafka."""

from __future__ import annotations

import asyncio

import pytest
from confluent_kafka import Producer

from tests.consumer.test_consumer import offsets_read, reading
from tests.support.cluster import KafkaHandle, unique


def write_transactions(bootstrap_servers: str, topic: str) -> None:
    """Leave committed, aborted, committed records, then some in an open transaction."""
    settings = {"bootstrap.servers": bootstrap_servers, "linger.ms": 0}
    producer = Producer({**settings, "transactional.id": unique("tx")})
    producer.init_transactions(10)
    for name, is_committed in (("a", True), ("b", False), ("c", True)):
        producer.begin_transaction()
        for i in range(5):
            producer.produce(topic, f"{name}{i}", partition=0)
        producer.flush(10)
        if is_committed:
            producer.commit_transaction(10)
        else:
            producer.abort_transaction(10)
    producer.begin_transaction()
    producer.produce(topic, "open", partition=0)
    producer.flush(10)


@pytest.mark.real_kafka
async def test_read_committed_gives_exactly_what_was_committed(real_kafka: str) -> None:
    kafka = KafkaHandle("real", real_kafka)
    topic = await kafka.create_topic()
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, write_transactions, real_kafka, topic)
    async with reading(kafka, topic, isolation_level="read_committed") as consumer:
        values: list[bytes | None] = []
        while len(values) < 10:
            for batch in (await consumer.poll(timeout_ms=10_000)).values():
                values += [record.value for record in batch]
        assert values == [b"%c%d" % (name, i) for name in b"ac" for i in range(5)]
        assert await consumer.poll(timeout_ms=200) == {}
        (tp,) = consumer.assignment()
        stable = consumer.last_stable_offset(tp)
        assert await consumer.end_offsets([tp]) == {tp: stable}
        assert stable is not None
        assert stable < (consumer.highwater(tp) or 0)
    async with reading(kafka, topic) as consumer:
        assert sum(map(len, (await offsets_read(consumer, 16)).values())) == 16
