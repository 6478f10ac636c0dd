"""A real broker takes the batches built here, and Kafka's own consumer reads them."""

from __future__ import annotations

import asyncio

import pytest

from aiokafka_lite import records
from tests.support.cluster import KafkaHandle, unique
from tests.support.java_runner import JavaRunner

COUNT = 2000  # with this many, LZ4 and snappy write several blocks


@pytest.mark.real_kafka
@pytest.mark.java
async def test_java_consumer_reads_batches_of_every_codec(
    real_kafka: str, java_runner: JavaRunner
) -> None:
    kafka = KafkaHandle("real", real_kafka)
    topic = await kafka.create_topic(unique("built"))
    expected: list[str] = []
    for codec in records.Codec:
        name = codec.name.lower()
        rows = [(b"%s-%d" % (name.encode(), n), b"value of %d, " % n * 9) for n in range(COUNT)]
        # The broker decompresses what it is sent and checks each record.
        await kafka.produce(topic, 0, rows, codec=name, headers=[("h", b"x"), ("none", None)])
        expected += [f"{key.decode()}\t{value.decode()}" for key, value in rows]
    result = await asyncio.to_thread(
        java_runner.run,
        "console-consumer",
        "--bootstrap-server", real_kafka,
        "--topic", topic,
        "--from-beginning",
        "--max-messages", str(len(expected)),
        "--timeout-ms", "20000",
        "--formatter-property", "print.key=true",
    )  # fmt: skip
    await kafka.delete_topic(topic)
    assert result.stdout.splitlines() == expected, result.stderr
