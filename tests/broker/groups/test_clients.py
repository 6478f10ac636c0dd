"""Other people's consumers in groups of the embedded broker, unchanged."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections import Counter
from collections.abc import AsyncIterator

import aiokafka
import confluent_kafka
import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.topics import GROUP_METADATA_TOPIC, partition_for
from tests.support.cluster import KafkaHandle
from tests.support.group_requests import GroupRequests, await_coordinator
from tests.support.java import JavaTools
from tests.support.java_runner import JavaRunner

with warnings.catch_warnings():  # it warns of its own use of importlib.resources
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka as kafka_python

# aiokafka can leave a socket to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

PARTITIONS = 4
RECORDS_EACH = 25
VALUES = Counter(f"{p}-{n}".encode() for p in range(PARTITIONS) for n in range(RECORDS_EACH))


@pytest.fixture
async def broker() -> AsyncIterator[KafkaHandle]:
    async with Broker() as broker:
        yield KafkaHandle("embedded", broker.bootstrap_servers)


@pytest.fixture
async def topic(broker: KafkaHandle) -> str:
    name = await broker.create_topic(partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        rows = [(None, f"{partition}-{n}".encode()) for n in range(RECORDS_EACH)]
        await broker.produce(name, partition, rows)
    return name


async def committed(broker: KafkaHandle, group_id: str, topic: str) -> list[int]:
    group = GroupRequests(broker, group_id)
    found = [await group.fetch(topic, partition) for partition in range(PARTITIONS)]
    return [partition.committed_offset for partition in found]


# -- aiokafka ------------------------------------------------------------------------------------


def aiokafka_consumer(broker: KafkaHandle, topic: str) -> aiokafka.AIOKafkaConsumer:
    return aiokafka.AIOKafkaConsumer(
        topic,
        bootstrap_servers=broker.bootstrap_servers,
        group_id="aiokafka",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=50,
        session_timeout_ms=10_000,
        retry_backoff_ms=10,
    )


async def test_two_aiokafka_members_share_a_topic_and_commit(
    broker: KafkaHandle, topic: str
) -> None:
    consumers = [aiokafka_consumer(broker, topic) for _ in range(2)]
    for consumer in consumers:
        await consumer.start()
    seen: Counter[bytes] = Counter()
    try:
        while any(len(c.assignment()) != PARTITIONS // 2 for c in consumers):
            await asyncio.gather(*(c.getmany(timeout_ms=20, max_records=1) for c in consumers))
        for consumer in consumers:
            await consumer.seek_to_beginning()
        while sum(seen.values()) < sum(VALUES.values()):
            for consumer in consumers:
                for records in (await consumer.getmany(timeout_ms=20)).values():
                    seen.update(record.value for record in records)
        for consumer in consumers:
            await consumer.commit()
    finally:
        for consumer in consumers:
            await consumer.stop()
    assert seen == VALUES
    assert await committed(broker, "aiokafka", topic) == [RECORDS_EACH] * PARTITIONS


async def test_aiokafka_resumes_where_it_committed(broker: KafkaHandle, topic: str) -> None:
    async with aiokafka_consumer(broker, topic) as consumer:
        first = [await consumer.getone() for _ in range(30)]
        await consumer.commit()
    async with aiokafka_consumer(broker, topic) as consumer:
        rest = [await consumer.getone() for _ in range(sum(VALUES.values()) - 30)]
    assert Counter(record.value for record in first + rest) == VALUES


# -- confluent-kafka, kafka-python --------------------------------------------------------------


def consume_with_confluent(broker: KafkaHandle, topic: str) -> tuple[Counter[bytes], int]:
    consumers = [
        confluent_kafka.Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": "confluent",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "heartbeat.interval.ms": 50,
                "session.timeout.ms": 10_000,
            }
        )
        for _ in range(2)
    ]
    seen: Counter[bytes] = Counter()
    try:
        for consumer in consumers:
            consumer.subscribe([topic])
        while any(len(c.assignment()) != PARTITIONS // 2 for c in consumers):
            for consumer in consumers:
                consumer.poll(0.01)
        # What came before the group had settled comes again.
        for consumer in consumers:
            for tp in consumer.assignment():
                consumer.seek(confluent_kafka.TopicPartition(tp.topic, tp.partition, 0))
        while any(seen[value] == 0 for value in VALUES):
            for consumer in consumers:
                for message in consumer.consume(100, 0.01):
                    assert message.error() is None
                    seen[message.value() or b""] += 1
        for consumer in consumers:
            consumer.commit(asynchronous=False)
        committed = consumers[0].committed(
            [confluent_kafka.TopicPartition(topic, p) for p in range(PARTITIONS)], timeout=5
        )
        return Counter(set(seen)), sum(tp.offset for tp in committed)
    finally:
        for consumer in consumers:
            consumer.close()


async def test_two_confluent_members_share_a_topic_and_commit(
    broker: KafkaHandle, topic: str
) -> None:
    seen, total = await asyncio.to_thread(consume_with_confluent, broker, topic)
    assert seen == VALUES
    assert total == sum(VALUES.values())
    assert await committed(broker, "confluent", topic) == [RECORDS_EACH] * PARTITIONS


def consume_with_kafka_python(broker: KafkaHandle, topic: str, count: int) -> Counter[bytes]:
    consumer = kafka_python.KafkaConsumer(
        topic,
        bootstrap_servers=broker.bootstrap_servers,
        group_id="kafka-python",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=50,
        session_timeout_ms=10_000,
    )
    try:
        seen = Counter(record.value for _, record in zip(range(count), consumer, strict=False))
        consumer.commit()
        return seen
    finally:
        consumer.close()


async def test_kafka_python_consumes_and_commits(broker: KafkaHandle, topic: str) -> None:
    total = sum(VALUES.values())
    seen = await asyncio.to_thread(consume_with_kafka_python, broker, topic, total)
    assert seen == VALUES
    assert await committed(broker, "kafka-python", topic) == [RECORDS_EACH] * PARTITIONS


# -- Kafka's own tools --------------------------------------------------------------------------

GROUP_COMMAND = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
PERFORMANCE = "org.apache.kafka.tools.ConsumerPerformance"
OFFSETS_FORMATTER = "org.apache.kafka.tools.consumer.OffsetsMessageFormatter"


@pytest.mark.java
@pytest.mark.slow  # clients/test_java_tools.py runs this tool in one JVM with others
async def test_consumer_group_command(
    broker: KafkaHandle, topic: str, java_tools: JavaTools
) -> None:
    await await_coordinator(broker)
    group = GroupRequests(broker, "jvm-admin")
    assert await group.commit(topic, 5) == 0
    at = ("--bootstrap-server", broker.bootstrap_servers)
    listed = await java_tools.run(GROUP_COMMAND, *at, "--list")
    assert (listed.returncode, listed.stdout.split()) == (0, ["jvm-admin"]), listed.stderr
    described = await java_tools.run(GROUP_COMMAND, *at, "--describe", "--group", "jvm-admin")
    assert described.returncode == 0, described.stderr
    assert [topic, "0", "5", str(RECORDS_EACH), str(RECORDS_EACH - 5)] in [
        line.split()[1:6] for line in described.stdout.splitlines()
    ]
    deleted = await java_tools.run(GROUP_COMMAND, *at, "--delete", "--group", "jvm-admin")
    assert deleted.returncode == 0, deleted.stderr
    assert await group.listed() is None


@pytest.mark.java
@pytest.mark.slow  # clients/test_java_load.py runs this tool in one JVM with others
async def test_consumer_performance_in_a_group(
    broker: KafkaHandle, topic: str, java_tools: JavaTools
) -> None:
    total = str(sum(VALUES.values()))
    result = await java_tools.run(
        PERFORMANCE, "--bootstrap-server", broker.bootstrap_servers, "--topic", topic,
        "--group", "jvm-perf", "--num-records", total, "--timeout", "20000",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    header, row = [line.split(", ") for line in result.stdout.splitlines() if ", " in line]
    assert dict(zip(header, row, strict=True))["data.consumed.in.nMsg"] == total
    assert await committed(broker, "jvm-perf", topic) == [RECORDS_EACH] * PARTITIONS


@pytest.mark.java
async def test_kafkas_formatter_prints_our_records(
    broker: KafkaHandle, topic: str, java_runner: JavaRunner
) -> None:
    await await_coordinator(broker)
    group = GroupRequests(broker, "formatted")
    assert await group.commit(topic, 5, metadata="from here", leader_epoch=2) == 0
    partition = partition_for(group.group_id, 50)
    result = await asyncio.to_thread(
        java_runner.run, "console-consumer", "--bootstrap-server", broker.bootstrap_servers,
        "--topic", GROUP_METADATA_TOPIC, "--partition", str(partition), "--offset", "earliest",
        "--formatter", OFFSETS_FORMATTER, "--max-messages", "1", "--timeout-ms", "20000",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    printed = json.loads(result.stdout)
    assert printed["key"] == {
        "type": 1, "data": {"group": "formatted", "topic": topic, "partition": 0},
    }  # fmt: skip
    assert printed["value"]["version"] == 4
    stored = printed["value"]["data"]
    assert (stored["offset"], stored["leaderEpoch"], stored["metadata"]) == (5, 2, "from here")
