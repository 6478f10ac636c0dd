"""kafka-python's admin and group consumer, on the embedded broker and on Kafka."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator

import pytest

from tests.support.cluster import unique

with warnings.catch_warnings():  # its import uses what Python has deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    from kafka import errors
    from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:kafka"),
    pytest.mark.filterwarnings("ignore:(read|open)_text"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

COUNT = 50


@pytest.fixture
def admin(address: str, topic: str) -> Iterator[kafka.KafkaAdminClient]:
    client = kafka.KafkaAdminClient(bootstrap_servers=address)
    yield client
    if topic in client.list_topics():
        client.delete_topics([topic])
    client.close()


def soon(condition: Callable[[], bool]) -> None:
    """Ask until it is so: Kafka's brokers hear of changes a moment after the controller."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it never came true"


def produce(address: str, topic: str, count: int = COUNT) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=address)
    for number in range(count):
        producer.send(topic, b"value %d" % number, partition=0)
    producer.flush(20)
    producer.close()


def test_topics_are_created_grown_and_described(admin: kafka.KafkaAdminClient, topic: str) -> None:
    new = NewTopic(topic, num_partitions=2, replication_factor=1)
    admin.create_topics([new], validate_only=True)
    assert topic not in admin.list_topics()
    admin.create_topics([new], wait_for_metadata=True)
    with pytest.raises(errors.TopicAlreadyExistsError):
        admin.create_topics([new])
    admin.create_partitions({topic: NewPartitions(total_count=4)})
    soon(lambda: len(admin.describe_topics([topic])[0]["partitions"]) == 4)
    with pytest.raises(errors.InvalidPartitionsError):
        admin.create_partitions({topic: NewPartitions(total_count=3)})
    page = admin.describe_topic_partitions([topic], response_partition_limit=3)
    assert [len(each["partitions"]) for each in page["topics"]] == [3]
    assert page["next_cursor"] == {"topic_name": topic, "partition_index": 3}
    admin.delete_topics([topic])
    soon(lambda: topic not in admin.list_topics())


def test_configs_are_described_and_altered(admin: kafka.KafkaAdminClient, topic: str) -> None:
    admin.create_topics([topic], wait_for_metadata=True)
    kind = ConfigResourceType.TOPIC
    admin.alter_configs([ConfigResource(kind, topic, {"retention.ms": "5000"})])
    asked = ConfigResource(kind, topic)

    def value() -> object:
        described = admin.describe_configs([asked], config_filter="all")["topic"][topic]
        return described["retention.ms"]["value"]

    soon(lambda: value() == "5000")
    (modified,) = admin.describe_configs([asked])["topic"][topic]
    assert modified == "retention.ms"
    admin.reset_configs([ConfigResource(kind, topic, ["retention.ms"])])
    soon(lambda: value() == "604800000")


def test_records_are_deleted_and_offsets_listed(
    admin: kafka.KafkaAdminClient, address: str, topic: str
) -> None:
    admin.create_topics([topic], wait_for_metadata=True)
    produce(address, topic)
    tp = kafka.TopicPartition(topic, 0)
    assert admin.delete_records({tp: 10})[tp]["low_watermark"] == 10
    consumer = kafka.KafkaConsumer(bootstrap_servers=address)
    assert consumer.beginning_offsets([tp]) == {tp: 10}
    assert consumer.end_offsets([tp]) == {tp: COUNT}
    consumer.close()


def test_a_group_is_joined_described_and_deleted(
    admin: kafka.KafkaAdminClient, address: str, topic: str
) -> None:
    admin.create_topics([topic], wait_for_metadata=True)
    produce(address, topic)
    group = unique("group")
    consumer = kafka.KafkaConsumer(
        topic, bootstrap_servers=address, group_id=group, client_id="reader",
        auto_offset_reset="earliest", consumer_timeout_ms=20_000, enable_auto_commit=False,
    )  # fmt: skip
    values = [record.value for _, record in zip(range(COUNT), consumer, strict=False)]
    assert values == [b"value %d" % number for number in range(COUNT)]
    consumer.commit()
    described = admin.describe_groups([group])[group]
    assert described["group_state"] == "Stable"
    (member,) = described["members"]
    assert member["client_id"] == "reader"
    consumer.close()
    offsets = admin.list_group_offsets([group])[group]
    assert offsets[kafka.TopicPartition(topic, 0)].offset == COUNT
    admin.delete_groups([group])
    assert group not in [each["group_id"] for each in admin.list_groups()]


def test_the_cluster_is_described(admin: kafka.KafkaAdminClient) -> None:
    cluster = admin.describe_cluster()
    assert cluster["controller_id"] == 1
