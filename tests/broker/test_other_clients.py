"""Unchanged clients of other people against the embedded broker."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import aiokafka
import confluent_kafka
import confluent_kafka.admin
import pytest
from confluent_kafka.cimpl import NewPartitions, NewTopic

from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.thread import BrokerThread
from tests.broker.wire import eventually
from tests.support.java import JavaTools

with warnings.catch_warnings():  # its import uses what Python has deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka as kafka_python

OWN_WARNINGS = pytest.mark.filterwarnings("ignore::DeprecationWarning:kafka", "ignore:read_text")

COUNT = 500


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    """A broker for blocking clients."""
    with BrokerThread() as thread:
        yield thread
    thread.raise_if_failed()


def values(count: int = COUNT) -> list[bytes]:
    return [b"value %d" % number for number in range(count)]


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
async def test_aiokafka_writes_and_reads(codec: str | None) -> None:
    async with Broker() as broker:
        address = broker.bootstrap_servers
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=address, compression_type=codec, linger_ms=5
        ) as producer:
            sent = [await producer.send("t", value, partition=0) for value in values()]
            offsets = [(await each).offset for each in sent]
        assert offsets == list(range(COUNT))
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=address, auto_offset_reset="earliest"
        )
        consumer.assign([aiokafka.TopicPartition("t", 0)])
        async with consumer:
            read = [await consumer.getone() for _ in range(COUNT)]
            assert [record.value for record in read] == values()
            tp = aiokafka.TopicPartition("t", 0)
            assert await consumer.end_offsets([tp]) == {tp: COUNT}
            found = await consumer.offsets_for_times({tp: read[40].timestamp})
            assert found[tp].offset <= 40
    assert broker.failure is None


@pytest.mark.parametrize("acks", [0, 1, "all"])
async def test_aiokafka_acknowledgements_and_idempotence(acks: int | str) -> None:
    async with Broker() as broker:
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap_servers,
            acks=acks,
            enable_idempotence=acks == "all",
        ) as producer:
            for value in values(20):
                await producer.send_and_wait("t", value)
        partition = broker.topics["t"].partitions[0]
        await eventually(lambda: partition.high_watermark == 20)  # acks=0 may still travel


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_confluent_kafka_writes_and_reads(broker: BrokerThread, codec: str) -> None:
    failures: list[object] = []

    def delivered(error: object, message: object) -> None:
        if error is not None:
            failures.append(error)

    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "compression.type": codec,
            "enable.idempotence": True,
        }
    )
    for value in values():
        producer.produce("t", value, on_delivery=delivered)
    assert producer.flush(20) == 0
    assert failures == []
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "unused"}
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition("t", 0, 0)])
        read: list[bytes | None] = []
        while len(read) < COUNT:
            batch = consumer.consume(COUNT, timeout=5)
            assert batch, "no records for five seconds"
            read += [message.value() for message in batch]
        assert read == values()
        tp = confluent_kafka.TopicPartition("t", 0)
        assert consumer.get_watermark_offsets(tp, timeout=5) == (0, COUNT)
    finally:
        consumer.close()


def test_confluent_kafka_administers_topics(broker: BrokerThread) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    topic = NewTopic("t", num_partitions=2, replication_factor=1)
    admin.create_topics([topic])["t"].result(5)
    admin.create_partitions([NewPartitions("t", 4)])["t"].result(5)
    described = admin.list_topics(timeout=5)
    assert len(described.topics["t"].partitions) == 4
    cluster = admin.describe_cluster().result(5)
    assert cluster.cluster_id == broker.broker.cluster_id
    with pytest.raises(confluent_kafka.KafkaException, match="exists"):
        admin.create_topics([topic])["t"].result(5)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
    for value in values(10):
        producer.produce("t", value, partition=0)
    producer.flush(5)
    tp = confluent_kafka.TopicPartition("t", 0, 4)
    assert admin.delete_records([tp])[tp].result(5).low_watermark == 4
    admin.delete_topics(["t"])["t"].result(5)
    assert "t" not in broker.topics


@OWN_WARNINGS
@pytest.mark.parametrize("codec", [None, "gzip"])  # it needs more packages for the others
def test_kafka_python_writes_and_reads(broker: BrokerThread, codec: str | None) -> None:
    producer = kafka_python.KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers, compression_type=codec
    )
    for value in values():
        producer.send("t", value)
    producer.flush(20)
    producer.close()
    consumer = kafka_python.KafkaConsumer(
        bootstrap_servers=broker.bootstrap_servers, consumer_timeout_ms=10_000
    )
    tp = kafka_python.TopicPartition("t", 0)
    consumer.assign([tp])
    consumer.seek_to_beginning(tp)
    read: list[bytes] = []
    for record in consumer:
        read.append(record.value)
        if len(read) == COUNT:
            break
    consumer.close()
    assert read == values()


@OWN_WARNINGS
def test_kafka_python_administers_topics(broker: BrokerThread) -> None:
    admin = kafka_python.KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    try:
        admin.create_topics(["t"])
        assert "t" in admin.list_topics()
        assert len(admin.describe_cluster()["brokers"]) == 1
        admin.delete_topics(["t"])
        assert "t" not in admin.list_topics()
    finally:
        admin.close()


@pytest.mark.java
@pytest.mark.slow  # clients/test_java_tools.py and test_java_load.py run these tools in one JVM
async def test_java_tools_write_and_read(java_tools: JavaTools) -> None:
    async with Broker() as broker:
        address = broker.bootstrap_servers
        broker.create_topic("t", 2)
        written = await java_tools.run(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", "t", "--num-records", "5000", "--record-size", "100"),
            *("--throughput", "-1", "--producer-props", f"bootstrap.servers={address}"),
        )
        assert written.returncode == 0, written.stderr
        ends = [partition.high_watermark for partition in broker.topics["t"].partitions]
        assert sum(ends) == 5000
        read = await java_tools.run(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", address, "--topic", "t", "--partition", "0"),
            *("--offset", "earliest", "--max-messages", str(ends[0]), "--timeout-ms", "20000"),
        )
        assert read.stdout.count("\n") == ends[0], read.stderr
        described = await java_tools.run(
            "org.apache.kafka.tools.TopicCommand",
            *("--bootstrap-server", address, "--create", "--topic", "made-by-java"),
            *("--partitions", "3", "--config", "retention.ms=1000"),
        )
        assert described.returncode == 0, described.stderr
        assert broker.topics["made-by-java"].partition_count == 3
    assert broker.failure is None
