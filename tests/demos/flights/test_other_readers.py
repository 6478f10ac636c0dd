"""Other people's clients read the topic that the job has loaded and left up."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer

from tests.support.java import JavaTools
from tests.support.ports import free_port
from tests.support.programs import started_and_awaited
from tests.support.rounds import LONG

FLIGHTS = 336_776 if LONG else 5_000
TOPIC = "flights"


@pytest.fixture(scope="module")
def kept_broker() -> Iterator[str]:
    """The job run with --keep, as a user runs it; the address of its broker."""
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-u", "-m", "demos", "flights", "--keep", "--no-plot",
               "--listen", address, "--limit", str(FLIGHTS)]  # fmt: skip
    with started_and_awaited(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        shown = ""
        for line in process.stdout:
            shown += line
            if "Ctrl-C" in line:
                break
        assert re.search(rf"Checked.*{FLIGHTS:,}", shown), shown
        yield address
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)


async def test_aiokafka_reads_them_all_in_a_group(kept_broker: str) -> None:
    consumer = AIOKafkaConsumer(
        TOPIC, bootstrap_servers=kept_broker, group_id="aiokafka", auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        count = 0
        while count < FLIGHTS:
            batches = await asyncio.wait_for(consumer.getmany(timeout_ms=5_000), 20)
            assert batches, f"nothing came after {count} records"
            count += sum(map(len, batches.values()))
        assert count == FLIGHTS
        assert not await consumer.getmany(timeout_ms=300)
    finally:
        await consumer.stop()


def test_confluent_kafka_reads_them_all_in_a_group(kept_broker: str) -> None:
    consumer = Consumer(
        {"bootstrap.servers": kept_broker, "group.id": "confluent", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([TOPIC])
    try:
        count = 0
        while count < FLIGHTS:
            messages = consumer.consume(10_000, timeout=10)
            assert messages, f"nothing came after {count} records"
            assert all(message.error() is None for message in messages)
            count += len(messages)
        assert count == FLIGHTS
        assert not consumer.consume(1, timeout=0.3)
    finally:
        consumer.close()


@pytest.mark.java
async def test_javas_consumer_performance_reads_them_all_in_a_group(
    kept_broker: str, java_tools: JavaTools
) -> None:
    result = await java_tools.run(
        "org.apache.kafka.tools.ConsumerPerformance", "--bootstrap-server", kept_broker,
        "--topic", TOPIC, "--group", "java", "--num-records", str(FLIGHTS), "--timeout", "20000",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    header, row = [line.split(", ") for line in result.stdout.splitlines() if ", " in line]
    assert dict(zip(header, row, strict=True))["data.consumed.in.nMsg"] == str(FLIGHTS)
