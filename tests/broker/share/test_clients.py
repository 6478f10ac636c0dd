"""Share consumers of other people read from both brokers."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from confluent_kafka import AcknowledgeType, ShareConsumer

from tests.broker.share.requests import ShareGroup
from tests.support.cluster import KafkaHandle
from tests.support.java_runner import JavaRunner

COUNT = 500
TIMEOUT_S = 60


async def fill(kafka: KafkaHandle) -> str:
    """Return a topic of `COUNT` records in two partitions."""
    topic = await kafka.create_topic(None, 2)
    for first in range(0, COUNT, 50):
        rows = [(None, b"%d" % number) for number in range(first, first + 50)]
        await kafka.produce(topic, first // 50 % 2, rows)
    return topic


async def new_group(kafka: KafkaHandle, topic: str) -> ShareGroup:
    group = ShareGroup(kafka, topic, b"")
    await group.configure(
        auto_offset_reset="earliest", assignment_interval_ms=0, heartbeat_interval_ms=5_000
    )
    return group


def read_with_confluent(address: str, group_id: str, topic: str, mode: str) -> list[bytes]:
    """Read all records. In the explicit mode, each fifth is released once."""
    read: list[bytes] = []
    released = set()
    settings = {
        "bootstrap.servers": address,
        "group.id": group_id,
        "share.acknowledgement.mode": mode,
    }
    with ShareConsumer(settings) as consumer:
        consumer.subscribe([topic])
        while len(read) < COUNT:
            for message in consumer.poll(timeout=TIMEOUT_S):
                assert message.error() is None, message.error()
                value = message.value()
                assert value is not None
                if mode == "explicit":
                    number = int(value)
                    if not number % 5 and number not in released:
                        released.add(number)
                        consumer.acknowledge(message, AcknowledgeType.RELEASE)
                        continue
                    consumer.acknowledge(message)
                read.append(value)
            assert not [error for error in consumer.commit_sync().values() if error]
    return read


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
async def test_confluent_kafka_reads_each_record_once(cluster: KafkaHandle, mode: str) -> None:
    topic = await fill(cluster)
    group = await new_group(cluster, topic)
    read = await asyncio.wait_for(
        asyncio.to_thread(
            read_with_confluent, cluster.bootstrap_servers, group.group_id, topic, mode
        ),
        TIMEOUT_S,
    )
    assert Counter(read) == Counter(b"%d" % number for number in range(COUNT))


@pytest.mark.parametrize("option", ["", "--release"])
async def test_javas_console_consumer_reads_each_record(
    cluster: KafkaHandle, java_runner: JavaRunner, option: str
) -> None:
    topic = await fill(cluster)
    group = await new_group(cluster, topic)
    # A record that is released is printed for each of its five deliveries.
    deliveries = 5 if option else 1
    result = await asyncio.to_thread(
        java_runner.run,
        "console-share-consumer", "--bootstrap-server", cluster.bootstrap_servers,
        "--topic", topic, "--group", group.group_id, "--max-messages", str(COUNT * deliveries),
        "--timeout-ms", "30000", *([option] if option else []),
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    read = Counter(result.stdout.split())
    assert read == Counter({str(number): deliveries for number in range(COUNT)})


async def test_javas_tool_describes_resets_and_deletes_offsets(
    cluster: KafkaHandle, java_runner: JavaRunner
) -> None:
    topic = await fill(cluster)
    group = await new_group(cluster, topic)

    async def tool(*arguments: str) -> str:
        result = await asyncio.to_thread(
            java_runner.run,
            "share-groups", "--bootstrap-server", cluster.bootstrap_servers,
            "--group", group.group_id, *arguments,
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        return result.stdout

    result = await asyncio.to_thread(
        java_runner.run,
        "console-share-consumer", "--bootstrap-server", cluster.bootstrap_servers,
        "--topic", topic, "--group", group.group_id, "--max-messages", str(COUNT),
        "--timeout-ms", "30000",
    )  # fmt: skip
    assert len(result.stdout.split()) == COUNT, result.stderr
    lags = [line.split()[-1] for line in (await tool("--describe")).splitlines() if topic in line]
    assert lags == ["0", "0"]
    await tool("--reset-offsets", "--topic", topic, "--to-earliest", "--execute")
    lags = [line.split()[-1] for line in (await tool("--describe")).splitlines() if topic in line]
    assert lags == [str(COUNT // 2)] * 2
    await tool("--delete-offsets", "--topic", topic)
    assert topic not in await tool("--describe")
