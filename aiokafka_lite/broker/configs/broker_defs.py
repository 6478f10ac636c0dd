"""The known settings of brokers and consumer groups (Kafka: DynamicBrokerConfig, GroupConfig).

As in Kafka, other names can be set and stored, but their values are hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.configs.definition import (
    INT_MAX,
    ConfigDef,
    ConfigType,
    ValueRange,
    by_name,
)
from aiokafka_lite.broker.configs.topic_config import TOPIC_CONFIGS
from aiokafka_lite.broker.topics import Node

_BOOLEAN, _STRING, _INT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT
_LONG, _DOUBLE, _LIST = ConfigType.LONG, ConfigType.DOUBLE, ConfigType.LIST
_NATURAL, _POSITIVE = ValueRange(0), ValueRange(1)
_read_only = partial(ConfigDef, is_dynamic=False)

# Without a default: a setting in hours determines the topics' default.
_IN_HOURS: Final = (
    "log.flush.interval.ms", "log.retention.ms", "log.roll.jitter.ms", "log.roll.ms",
)  # fmt: skip


def _of_topic(topic: ConfigDef, name: str) -> ConfigDef:
    is_in_hours = name in _IN_HOURS
    return replace(
        topic,
        name=name,
        broker_name="",
        default=None if is_in_hours else topic.default,
        check=None if is_in_hours else topic.check,
    )


BROKER_CONFIGS: Final = by_name(
    [
        *(_of_topic(each, each.broker_name) for each in TOPIC_CONFIGS.values() if each.broker_name),
        ConfigDef("group.consumer.assignment.interval.ms", _INT, "1000", _NATURAL),
        # Fixed at the start of a broker.
        _read_only("advertised.listeners", _LIST, None),
        _read_only("auto.create.topics.enable", _BOOLEAN, "true"),
        _read_only("broker.id", _INT, "-1"),
        _read_only("broker.rack", _STRING, None),
        _read_only("connections.max.idle.ms", _LONG, "600000"),
        _read_only("default.replication.factor", _INT, "1"),
        _read_only("delete.topic.enable", _BOOLEAN, "true"),
        _read_only("fetch.max.bytes", _INT, "57671680"),
        _read_only("group.consumer.heartbeat.interval.ms", _INT, "5000"),
        _read_only("group.consumer.max.size", _INT, str(INT_MAX)),
        _read_only("group.consumer.migration.policy", _STRING, "bidirectional"),
        _read_only("group.consumer.session.timeout.ms", _INT, "45000"),
        _read_only("group.initial.rebalance.delay.ms", _INT, "3000"),
        _read_only("group.max.session.timeout.ms", _INT, "1800000"),
        _read_only("group.max.size", _INT, str(INT_MAX)),
        _read_only("group.min.session.timeout.ms", _INT, "6000"),
        _read_only("listeners", _LIST, None),
        _read_only("log.cleaner.backoff.ms", _LONG, "15000"),
        _read_only("log.dirs", _LIST, None),
        _read_only("log.retention.check.interval.ms", _LONG, "300000"),
        _read_only("log.retention.hours", _INT, "168"),
        _read_only("log.roll.hours", _INT, "168"),
        _read_only("max.connections", _INT, str(INT_MAX)),
        _read_only("max.connections.per.ip", _INT, str(INT_MAX)),
        _read_only("max.incremental.fetch.session.cache.slots", _INT, "1000"),
        _read_only("node.id", _INT, None),
        _read_only("num.partitions", _INT, "1"),
        _read_only("offset.metadata.max.bytes", _INT, "4096"),
        _read_only("offsets.retention.check.interval.ms", _LONG, "600000"),
        _read_only("offsets.retention.minutes", _INT, "10080"),
        _read_only("offsets.topic.num.partitions", _INT, "50"),
        _read_only("offsets.topic.replication.factor", ConfigType.SHORT, "3"),
        _read_only("process.roles", _LIST, ""),
        _read_only("queued.max.requests", _INT, "500"),
        _read_only("socket.request.max.bytes", _INT, "104857600"),
        _read_only("transaction.max.timeout.ms", _INT, "900000"),
        _read_only("transaction.state.log.num.partitions", _INT, "50"),
        _read_only("transaction.state.log.replication.factor", ConfigType.SHORT, "3"),
        _read_only("transactional.id.expiration.ms", _INT, "604800000"),
    ]
)
"""The settings of brokers, by name."""

GROUP_CONFIGS: Final = by_name(
    ConfigDef(f"consumer.{name}", _INT, default, check, broker_name=f"group.consumer.{name}")
    for name, default, check in (
        ("assignment.interval.ms", "1000", _NATURAL),
        ("heartbeat.interval.ms", "5000", _POSITIVE),
        ("session.timeout.ms", "45000", _POSITIVE),
    )
)
"""The settings of consumer groups (KIP-848), by name."""

# Limits of a group's settings: group.consumer.min.* and group.consumer.max.*.
GROUP_BOUNDS: Final[Mapping[str, tuple[int, int]]] = {
    "assignment.interval.ms": (0, 15_000),
    "heartbeat.interval.ms": (5_000, 15_000),
    "session.timeout.ms": (45_000, 60_000),
}


def static_configs(config: BrokerConfig) -> Mapping[str, str]:
    """Return the settings that `BrokerConfig` sets for every node, except Kafka's defaults."""
    settings = {
        "auto.create.topics.enable": str(config.auto_create_topics).lower(),
        "connections.max.idle.ms": str(int(config.connections_max_idle_s * 1000)),
        "default.replication.factor": str(config.replication),
        "fetch.max.bytes": str(config.fetch_max_bytes),
        "group.consumer.assignment.interval.ms": str(config.group_consumer_assignment_interval_ms),
        "group.consumer.heartbeat.interval.ms": str(config.group_consumer_heartbeat_interval_ms),
        "group.consumer.max.size": str(config.group_consumer_max_size),
        "group.consumer.migration.policy": config.group_consumer_migration_policy,
        "group.consumer.session.timeout.ms": str(config.group_consumer_session_timeout_ms),
        "group.initial.rebalance.delay.ms": str(config.group_initial_rebalance_delay_ms),
        "group.max.session.timeout.ms": str(config.group_max_session_timeout_ms),
        "group.max.size": str(config.group_max_size),
        "group.min.session.timeout.ms": str(config.group_min_session_timeout_ms),
        "log.cleaner.backoff.ms": str(config.log_cleaner_backoff_ms),
        "log.dirs": "memory" if config.data_dir is None else str(config.data_dir.absolute()),
        "log.retention.check.interval.ms": str(config.log_retention_check_interval_ms),
        "log.segment.bytes": str(config.segment_bytes),
        "max.connections": str(config.max_connections),
        "max.connections.per.ip": str(config.max_connections_per_ip),
        "max.incremental.fetch.session.cache.slots": str(config.max_fetch_sessions),
        "message.max.bytes": str(config.message_max_bytes),
        "num.partitions": str(config.num_partitions),
        "offset.metadata.max.bytes": str(config.offset_metadata_max_bytes),
        "offsets.retention.check.interval.ms": str(config.offsets_retention_check_interval_ms),
        "offsets.retention.minutes": str(config.offsets_retention_minutes),
        "offsets.topic.num.partitions": str(config.offsets_topic_partitions),
        "offsets.topic.replication.factor": str(config.replication),
        "process.roles": "broker,controller",
        "queued.max.requests": str(config.queued_max_requests),
        "socket.request.max.bytes": str(config.max_frame_bytes),
        "transaction.max.timeout.ms": str(config.transaction_max_timeout_ms),
        "transaction.state.log.num.partitions": str(config.transaction_topic_partitions),
        "transaction.state.log.replication.factor": str(config.replication),
        "transactional.id.expiration.ms": str(config.transactional_id_expiration_ms),
    }
    return {
        name: value for name, value in settings.items() if BROKER_CONFIGS[name].default != value
    }


def node_configs(node: Node, listeners: Mapping[str, Node]) -> Mapping[str, str]:
    """Return the settings of one node with these listeners."""
    listening = ",".join(f"{name}://{at.host}:{at.port}" for name, at in listeners.items())
    settings = {
        "advertised.listeners": listening,
        "broker.id": str(node.id),
        "listeners": listening,
        "node.id": str(node.id),
    }
    return settings if node.rack is None else {**settings, "broker.rack": node.rack}
