"""Other people's transactional producers and readers of committed records, against this broker."""

from __future__ import annotations

import asyncio
import json

import aiokafka
import confluent_kafka
import pytest

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.thread import BrokerThread
from tests.support.cluster import KafkaHandle
from tests.support.java import ToolResult
from tests.support.java_runner import JavaRunner

COPIES = 300


async def read_committed(address: str, topic: str, count: int) -> list[bytes]:
    async with AIOKafkaConsumer(
        topic,
        bootstrap_servers=address,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    ) as consumer:
        return [(await consumer.getone()).value or b"" for _ in range(count)]


async def test_aiokafka_writes_and_reads_transactions(cluster: KafkaHandle) -> None:
    address, topic = cluster.bootstrap_servers, await cluster.create_topic()
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=address, transactional_id=topic)
    await producer.start()
    try:
        for number in range(6):
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"%d" % number)
            if number % 2:
                await producer.abort_transaction()
            else:
                await producer.commit_transaction()
    finally:
        await producer.stop()
    consumer = aiokafka.AIOKafkaConsumer(
        topic,
        bootstrap_servers=address,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    )
    await consumer.start()
    try:
        theirs = [(await consumer.getone()).value for _ in range(3)]
    finally:
        await consumer.stop()
    assert theirs == await read_committed(address, topic, 3) == [b"0", b"2", b"4"]


async def test_second_aiokafka_producer_fences_the_first(cluster: KafkaHandle) -> None:
    topic = await cluster.create_topic()

    def make() -> aiokafka.AIOKafkaProducer:
        return aiokafka.AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers, transactional_id=topic
        )

    first, second = make(), make()
    await first.start()
    try:
        await first.begin_transaction()
        await first.send_and_wait(topic, b"lost")
        await second.start()
        try:
            await second.begin_transaction()
            await second.send_and_wait(topic, b"kept")
            await second.commit_transaction()
            with pytest.raises(aiokafka.errors.ProducerFenced):
                await first.commit_transaction()
        finally:
            await second.stop()
    finally:
        await first.stop()
    assert await read_committed(cluster.bootstrap_servers, topic, 1) == [b"kept"]


def _copy_with_librdkafka(address: str, source: str, target: str, group_id: str) -> None:
    """Consume, produce and commit in transactions, of which every second is aborted first."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group_id,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": address, "transactional.id": group_id, "linger.ms": 0}
    )
    producer.init_transactions(30)
    consumer.subscribe([source])
    try:
        copied = 0
        while copied < COPIES:
            records = consumer.consume(50, 20.0)
            assert records, "nothing comes any more"
            for is_commit in (False, True):
                producer.begin_transaction()
                for record in records:
                    assert record.error() is None
                    producer.produce(target, record.value(), partition=copied % 2)
                producer.send_offsets_to_transaction(
                    consumer.position(consumer.assignment()),
                    consumer.consumer_group_metadata(),
                    30,
                )
                if is_commit:
                    producer.commit_transaction(30)
                else:
                    producer.abort_transaction(30)
            copied += len(records)
    finally:
        consumer.close()


def test_librdkafka_copies_exactly_once() -> None:
    with BrokerThread() as broker:
        address = broker.bootstrap_servers
        broker.create_topic("in", 1)
        broker.create_topic("out", 2)
        writer = confluent_kafka.Producer({"bootstrap.servers": address})
        for number in range(COPIES):
            writer.produce("in", b"%d" % number)
        assert writer.flush(20) == 0
        _copy_with_librdkafka(address, "in", "out", "copier")
        reader = confluent_kafka.Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "copier",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )
        try:
            seen: list[int] = []
            for partition in (0, 1):
                reader.assign([confluent_kafka.TopicPartition("out", partition, 0)])
                while True:
                    record = reader.poll(20)
                    assert record is not None
                    if record.error() is not None:
                        break
                    seen.append(int(record.value() or b""))
            (committed,) = reader.committed([confluent_kafka.TopicPartition("in", 0)], 20)
        finally:
            reader.close()
        assert sorted(seen) == list(range(COPIES))
        assert committed.offset == COPIES


@pytest.mark.java
# Level 0 is how the other clients copy above.
@pytest.mark.parametrize("version", [pytest.param(0, marks=pytest.mark.slow), 2])
async def test_java_copies_exactly_once(java_runner: JavaRunner, version: int) -> None:
    """With the feature at level 2 Java's clients leave it to the broker to add partitions."""
    async with Broker(transaction_version=version) as broker:
        address = broker.bootstrap_servers
        broker.create_topic("in", 1)
        broker.create_topic("out", 2)
        handle = KafkaHandle("embedded", address)
        await handle.produce("in", 0, [(None, b"%04d" % number) for number in range(COPIES)])
        copied = await asyncio.to_thread(
            java_runner.run,
            "transactional-message-copier",
            *("--broker-list", address, "--input-topic", "in", "--input-partition", "0"),
            *("--output-topic", "out", "--consumer-group", "g", "--transactional-id", "copier"),
            *("--transaction-size", "25", "--max-messages", str(COPIES)),
            *("--enable-random-aborts", "--group-mode"),
        )
        assert copied.returncode == 0, copied.stderr
        assert json.loads(copied.stdout.splitlines()[-1])["remaining"] == 0
        read = await asyncio.to_thread(
            java_runner.run,
            "console-consumer",
            *("--bootstrap-server", address, "--topic", "out", "--from-beginning"),
            *("--max-messages", str(COPIES), "--timeout-ms", "20000"),
            *("--command-property", "isolation.level=read_committed"),
        )
        assert sorted(read.stdout.split()) == [f"{number:04}" for number in range(COPIES)]
        (transaction,) = broker.node.transactions.transactions.values()
        assert transaction.state.name == "CompleteCommit"
        assert transaction.value.client_version == version
    assert broker.failure is None


@pytest.mark.java
async def test_java_administers_transactions(java_runner: JavaRunner) -> None:
    async with Broker() as broker:
        server = ("--bootstrap-server", broker.bootstrap_servers)

        async def transactions(*arguments: str) -> ToolResult:
            return await asyncio.to_thread(java_runner.run, "transactions", *server, *arguments)

        broker.create_topic("t", 1)
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap_servers, transactional_id="hanging"
        )
        await producer.start()
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"undecided")
        listed = await transactions("list")
        assert "Ongoing" in listed.stdout, listed.stderr
        described = await transactions("describe", "--transactional-id", "hanging")
        assert "t-0" in described.stdout, described.stderr
        log = broker.topics["t"].partitions[0].log
        assert log.last_stable_offset == 0
        aborted = await transactions(
            "abort", "--topic", "t", "--partition", "0", "--start-offset", "0"
        )
        assert aborted.returncode == 0, aborted.stderr
        assert log.last_stable_offset == log.log_end_offset == 2
        await producer.stop()
    assert broker.failure is None
