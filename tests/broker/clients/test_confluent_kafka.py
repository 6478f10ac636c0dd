"""confluent-kafka's admin and group consumer, on the embedded broker and on Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.support.cluster import unique

COUNT = 50
ANSWER_TIME_S = 20


@pytest.fixture
def admin(address: str, topic: str) -> Iterator[AdminClient]:
    client = AdminClient({"bootstrap.servers": address})
    client.create_topics([NewTopic(topic, num_partitions=2, replication_factor=1)])[topic].result(
        ANSWER_TIME_S
    )
    soon(lambda: topic in client.list_topics(timeout=ANSWER_TIME_S).topics)
    yield client
    client.delete_topics([topic])[topic].result(ANSWER_TIME_S)


def soon(condition: Callable[[], bool]) -> None:
    """Ask until it is so: Kafka's brokers hear of changes a moment after the controller."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it never came true"


def produce(address: str, topic: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "linger.ms": 1})
    for number in range(COUNT):
        producer.produce(topic, b"value %d" % number, partition=number % 2)
    assert producer.flush(ANSWER_TIME_S) == 0


def values_of(admin: AdminClient, resource: ConfigResource) -> dict[str, ConfigEntry]:
    described = admin.describe_configs([resource])[resource].result(ANSWER_TIME_S)
    assert isinstance(described, dict)
    return described


def offset_of(admin: AdminClient, tp: confluent_kafka.TopicPartition, which: str) -> int:
    spec = getattr(OffsetSpec, which)()
    found = admin.list_offsets({tp: spec})[tp].result(ANSWER_TIME_S)
    return int(found.offset)


def test_topics_grow_and_are_described(admin: AdminClient, topic: str) -> None:
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(ANSWER_TIME_S)

    def leaders() -> list[int]:
        asked = confluent_kafka.TopicCollection([topic])
        described = admin.describe_topics(asked)[topic].result(ANSWER_TIME_S)
        return [partition.leader.id for partition in described.partitions]

    soon(lambda: leaders() == [1, 1, 1])
    for count, reason in ((3, "already has 3"), (1, "would not be an increase")):
        with pytest.raises(confluent_kafka.KafkaException, match=reason):
            admin.create_partitions([NewPartitions(topic, count)])[topic].result(ANSWER_TIME_S)
    with pytest.raises(confluent_kafka.KafkaException, match="already exists"):
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(ANSWER_TIME_S)


def test_configs_change_one_by_one(admin: AdminClient, topic: str) -> None:
    asked = ConfigResource(ResourceType.TOPIC, topic)
    for operation, value, expected in (
        (AlterConfigOpType.SET, "compact", "compact"),
        (AlterConfigOpType.APPEND, "delete", "compact,delete"),
        (AlterConfigOpType.SUBTRACT, "compact", "delete"),
    ):
        change = ConfigEntry("cleanup.policy", value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(ANSWER_TIME_S)
        soon(lambda: values_of(admin, asked)["cleanup.policy"].value == expected)  # noqa: B023 — called at once
        found = values_of(admin, asked)["cleanup.policy"]
        assert (found.is_default, found.is_read_only) == (False, False)
    reset = ConfigEntry("cleanup.policy", None, incremental_operation=AlterConfigOpType.DELETE)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[reset])
    admin.incremental_alter_configs([resource])[resource].result(ANSWER_TIME_S)
    soon(lambda: values_of(admin, asked)["cleanup.policy"].is_default)


def test_brokers_are_described(admin: AdminClient) -> None:
    entries = values_of(admin, ConfigResource(ResourceType.BROKER, "1"))
    assert entries["node.id"].value == "1"
    assert entries["node.id"].is_read_only
    assert not entries["log.retention.ms"].is_read_only
    assert "PLAINTEXT://127.0.0.1:" in str(entries["advertised.listeners"].value)
    cluster = admin.describe_cluster().result(ANSWER_TIME_S)
    assert [node.id for node in cluster.nodes] == [1]


def test_groups_are_listed_described_altered_and_deleted(
    admin: AdminClient, address: str, topic: str
) -> None:
    produce(address, topic)
    group = unique("group")
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest",
         "client.id": "reader", "enable.auto.commit": False}
    )  # fmt: skip
    consumer.subscribe([topic])
    read: list[bytes | None] = []
    while len(read) < COUNT:
        batch = consumer.consume(COUNT, timeout=ANSWER_TIME_S)
        assert batch, "no records"
        read += [message.value() for message in batch]
    assert sorted(filter(None, read)) == sorted(b"value %d" % number for number in range(COUNT))
    consumer.commit(asynchronous=False)
    described = admin.describe_consumer_groups([group])[group].result(ANSWER_TIME_S)
    assert described.state is confluent_kafka.ConsumerGroupState.STABLE
    (member,) = described.members
    assert member.client_id == "reader"
    assert [tp.partition for tp in member.assignment.topic_partitions] == [0, 1]
    consumer.close()
    listed = admin.list_consumer_groups().result(ANSWER_TIME_S)
    assert group in [each.group_id for each in listed.valid]
    tps = [confluent_kafka.TopicPartition(topic, 0, 5)]
    wanted = confluent_kafka.ConsumerGroupTopicPartitions(group, tps)
    admin.alter_consumer_group_offsets([wanted])[group].result(ANSWER_TIME_S)
    asked = confluent_kafka.ConsumerGroupTopicPartitions(group)
    found = admin.list_consumer_group_offsets([asked])[group].result(ANSWER_TIME_S)
    assert {tp.partition: tp.offset for tp in found.topic_partitions} == {0: 5, 1: COUNT // 2}
    admin.delete_consumer_groups([group])[group].result(ANSWER_TIME_S)
    listed = admin.list_consumer_groups().result(ANSWER_TIME_S)
    assert group not in [each.group_id for each in listed.valid]


def test_offsets_are_listed_and_records_deleted(
    admin: AdminClient, address: str, topic: str
) -> None:
    produce(address, topic)
    tp = confluent_kafka.TopicPartition(topic, 1)
    assert [offset_of(admin, tp, which) for which in ("earliest", "latest")] == [0, COUNT // 2]
    up_to = confluent_kafka.TopicPartition(topic, 1, 7)
    assert admin.delete_records([up_to])[up_to].result(ANSWER_TIME_S).low_watermark == 7
    assert offset_of(admin, tp, "earliest") == 7
