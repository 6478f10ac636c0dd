"""read_committed against transactions of librdkafka's producer, on a real Kafka."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.cluster import KafkaHandle
from tests.support.reading import offsets_read, reading
from tests.support.transactions import write_transactions


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
