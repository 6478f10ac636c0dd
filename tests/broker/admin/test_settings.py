"""Settings that change while the broker runs, and when that takes effect: at once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.configs import ALL_NODES, ConfigSource, ResourceType
from aiokafka_lite.broker.handlers.topics import Operation
from aiokafka_lite.errors import (
    InvalidConfigurationError,
    MessageSizeTooLargeError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.messages.group_members import ConsumerGroupHeartbeatRequest
from aiokafka_lite.protocol.messages.metadata import FindCoordinatorRequest
from aiokafka_lite.protocol.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from aiokafka_lite.records import build_batch
from tests.broker.admin.requests import (
    BROKER,
    TOPIC,
    Described,
    changing,
    describing,
    replacing,
    setting,
)
from tests.broker.wire import produce
from tests.support.cluster import KafkaHandle
from tests.support.wire import RawClient

DELETE = 1


async def described(client: RawClient, kind: int, name: str, key: str) -> Described:
    """Return one setting as it is described."""
    (result,) = (await client.request(describing(kind, name, [key]))).results
    assert result.error_code == 0, result.error_message
    (config,) = result.configs
    return config


async def described_as(client: RawClient, topic: str, key: str, value: str) -> Described:
    """Return a topic's setting once it has a value.

    Kafka's brokers hear of changes a moment after the controller made them.
    """
    deadline = asyncio.get_running_loop().time() + 10
    while True:
        found = await described(client, TOPIC, topic, key)
        if found.value == value or asyncio.get_running_loop().time() > deadline:
            assert found.value == value
            return found


def batch_of(size: int) -> bytes:
    return build_batch([(1, b"k", bytes(size), ())])


async def change(client: RawClient, kind: int, name: str, **values: str) -> None:
    (answer,) = (await client.request(setting(kind, name, **values))).responses
    assert answer.error_code == 0, answer.error_message


# --- Topics ----------------------------------------------------------------------------------
async def test_a_topics_largest_batch_changes_at_once(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    async with kafka.raw() as client:
        assert (await produce(client, topic, batch_of(5_000))).error_code == 0
        await change(client, TOPIC, topic, max_message_bytes="2000")
        refused = await produce(client, topic, batch_of(5_000))
        if kafka.kind == "real":  # its brokers hear of it a moment after the controller
            deadline = asyncio.get_running_loop().time() + 10
            while not refused.error_code and asyncio.get_running_loop().time() < deadline:
                refused = await produce(client, topic, batch_of(5_000))
        assert refused.error_code == MessageSizeTooLargeError.errno
        assert (await produce(client, topic, batch_of(1_000))).error_code == 0


async def test_settings_that_are_not_named_stay_or_go_back_to_the_default(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic(configs={"retention.ms": "1000", "flush.ms": "5"})
    async with kafka.raw() as client:
        await change(client, TOPIC, topic, retention_ms="2000")
        await client.request(replacing(TOPIC, topic, validate_only=True))
        await described_as(client, topic, "flush.ms", "5")
        await client.request(replacing(TOPIC, topic, ("retention.ms", "3000")))
        kept = await described_as(client, topic, "retention.ms", "3000")
        assert kept.config_source == ConfigSource.TOPIC
        reset = await described_as(client, topic, "flush.ms", str(2**63 - 1))
        assert reset.config_source == ConfigSource.DEFAULT


async def test_all_changes_of_a_resource_are_made_or_none(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    async with kafka.raw() as client:
        request = setting(TOPIC, topic, flush_ms="5", retention_ms="soon")
        request.resources += setting(TOPIC, "nope-" + topic, flush_ms="5").resources
        wrong, unknown = (await client.request(request)).responses
        assert wrong.error_code == InvalidConfigurationError.errno
        assert unknown.error_code == UnknownTopicOrPartitionError.errno
        await described_as(client, topic, "flush.ms", str(2**63 - 1))


async def test_new_segments_have_the_size_that_was_set() -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        handle = KafkaHandle("embedded", broker.bootstrap_servers)
        async with handle.raw() as client:
            await change(client, TOPIC, "t", segment_bytes=str(1 << 20))
            for _ in range(3):
                assert (await produce(client, "t", batch_of(700_000))).error_code == 0

            log = broker.partition("t", 0).log
            before = log.size
            up_to = DeleteRecordsPartition(partition_index=0, offset=2)
            topic = DeleteRecordsTopic(name="t", partitions=[up_to])
            await client.request(DeleteRecordsRequest(topics=[topic]))
            assert before > 2_100_000
            assert log.size < before - 1_400_000  # segments go as a whole


async def test_items_are_added_to_a_lists_default_and_taken_from_it() -> None:
    async with Broker() as broker, RawClient(broker.bootstrap_servers) as client:
        broker.create_topic("t")
        for operation, value, expected in (
            (Operation.APPEND, "compact,compact", "delete,compact"),
            (Operation.SUBTRACT, "delete", "compact"),
        ):
            request = changing(TOPIC, "t", ("cleanup.policy", operation, value))
            (answer,) = (await client.request(request)).responses
            assert answer.error_code == 0
            assert (await described(client, TOPIC, "t", "cleanup.policy")).value == expected


# --- Brokers ---------------------------------------------------------------------------------
async def test_topics_follow_what_is_set_for_all_brokers_unless_they_say_otherwise() -> None:
    async with Broker() as broker:
        broker.create_topic("own", configs={"max.message.bytes": "3000"})
        broker.create_topic("plain")
        async with RawClient(broker.bootstrap_servers) as client:
            await change(client, BROKER, ALL_NODES, message_max_bytes="2000")
            assert (await produce(client, "plain", batch_of(2_500))).error_code == (
                MessageSizeTooLargeError.errno
            )
            assert (await produce(client, "own", batch_of(2_500))).error_code == 0
            config = await described(client, TOPIC, "plain", "max.message.bytes")
            assert (config.value, config.config_source) == ("2000", ConfigSource.CLUSTER)
            assert [(s.name, s.value, s.source) for s in config.synonyms] == [
                ("message.max.bytes", "2000", ConfigSource.CLUSTER),
                ("message.max.bytes", "1048588", ConfigSource.DEFAULT),
            ]
            await change(client, BROKER, "1", message_max_bytes="9000")
            config = await described(client, TOPIC, "own", "max.message.bytes")
            assert [s.source for s in config.synonyms] == [1, 2, 3, 5]
            assert (await produce(client, "plain", batch_of(2_500))).error_code == 0
            for name in ("1", ALL_NODES):
                await client.request(changing(BROKER, name, ("message.max.bytes", DELETE, None)))
            config = await described(client, TOPIC, "plain", "max.message.bytes")
            assert config.config_source == ConfigSource.DEFAULT
    assert broker.failure is None


async def test_what_does_not_go_with_a_topic_is_not_set_for_brokers() -> None:
    async with Broker() as broker:
        broker.create_topic("t", configs={"min.compaction.lag.ms": "5000"})
        async with RawClient(broker.bootstrap_servers) as client:
            request = setting(BROKER, ALL_NODES, log_cleaner_max_compaction_lag_ms="1000")
            (answer,) = (await client.request(request)).responses
            assert answer.error_code == InvalidConfigurationError.errno
            config = await described(client, TOPIC, "t", "max.compaction.lag.ms")
            assert config.config_source == ConfigSource.DEFAULT


async def test_settings_that_nobody_knows_are_kept_and_told_to_nobody() -> None:
    async with Broker() as broker, RawClient(broker.bootstrap_servers) as client:
        await change(client, BROKER, "1", plugin_password="hunter2")
        config = await described(client, BROKER, "1", "plugin.password")
        assert (config.value, config.is_sensitive) == (None, True)
        assert [synonym.value for synonym in config.synonyms] == [None]


async def test_members_are_told_their_groups_own_heartbeat_interval() -> None:
    async with Broker() as broker, RawClient(broker.bootstrap_servers) as client:
        await client.request(FindCoordinatorRequest(coordinator_keys=["g"]))
        join = ConsumerGroupHeartbeatRequest(
            group_id="g", member_id="m", member_epoch=0, rebalance_timeout_ms=10_000,
            subscribed_topic_names=["t"], topic_partitions=[],
        )  # fmt: skip
        assert (await client.request(join)).heartbeat_interval_ms == 5_000
        await change(client, ResourceType.GROUP, "g", consumer_heartbeat_interval_ms="6000")
        assert (await client.request(join)).heartbeat_interval_ms == 6_000
        join.group_id = "h"
        assert (await client.request(join)).heartbeat_interval_ms == 5_000


async def test_unknown_setting_of_a_group_is_refused() -> None:
    async with Broker() as broker, RawClient(broker.bootstrap_servers) as client:
        request = setting(ResourceType.GROUP, "g", consumer_nope_ms="6000")
        (answer,) = (await client.request(request)).responses
        assert answer.error_code == InvalidConfigurationError.errno
        assert answer.error_message == "Unknown group config name: consumer.nope.ms"
    assert broker.failure is None


async def test_each_node_answers_for_itself() -> None:
    async with Broker(nodes=2, racks=("a", "b")) as broker:
        second = broker.nodes[2]
        async with RawClient(second.bootstrap_servers) as client:
            assert (await described(client, BROKER, "2", "broker.rack")).value == "b"
            (result,) = (await client.request(describing(BROKER, "1"))).results
            assert result.error_message == (
                "Unexpected broker id, expected 2 or empty string, but received 1"
            )


async def test_what_brokers_were_started_with_is_described() -> None:
    async with Broker(
        num_partitions=3,
        message_max_bytes=5_000,
        connections_max_idle_s=1.5,
        auto_create_topics=False,
        group_consumer_migration_policy="upgrade",
    ) as broker:
        broker.create_topic("t")
        async with RawClient(broker.bootstrap_servers) as client:
            for name, value in (
                ("auto.create.topics.enable", "false"),
                ("connections.max.idle.ms", "1500"),
                ("group.consumer.migration.policy", "upgrade"),
                ("log.dirs", "memory"),
            ):
                assert (await described(client, BROKER, "1", name)).value == value
            config = await described(client, BROKER, "1", "num.partitions")
            assert (config.value, config.read_only) == ("3", True)
            assert [s.source for s in config.synonyms] == [4, 5]
            config = await described(client, TOPIC, "t", "max.message.bytes")
            assert (config.value, config.config_source) == ("5000", ConfigSource.STATIC)


# --- Restarts --------------------------------------------------------------------------------
async def test_settings_survive_a_restart(tmp_path: Path) -> None:
    async with Broker(data_dir=tmp_path) as broker:
        broker.create_topic("t")
        async with RawClient(broker.bootstrap_servers) as client:
            await change(client, TOPIC, "t", retention_ms="5000")
            await change(client, BROKER, ALL_NODES, log_retention_bytes="7000")
            await change(client, ResourceType.GROUP, "g", consumer_session_timeout_ms="50000")
    async with Broker(data_dir=tmp_path) as broker:
        async with RawClient(broker.bootstrap_servers) as client:
            assert (await described(client, TOPIC, "t", "retention.ms")).value == "5000"
            config = await described(client, TOPIC, "t", "retention.bytes")
            assert (config.value, config.config_source) == ("7000", ConfigSource.CLUSTER)
        assert broker.catalog.settings.group_values("g", "consumer")["session_timeout_ms"] == 50_000


@pytest.mark.parametrize("version", range(1, 5))
async def test_every_version_describes(version: int) -> None:
    async with Broker() as broker:
        broker.create_topic("t", configs={"retention.ms": "5"})
        async with RawClient(broker.bootstrap_servers) as client:
            request = describing(TOPIC, "t")
            (result,) = (await client.request(request, version)).results
            (config,) = [each for each in result.configs if each.name == "retention.ms"]
            assert (config.value, config.config_source) == ("5", ConfigSource.TOPIC)
            assert len(config.synonyms) == 1
