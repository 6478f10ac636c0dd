"""The known settings of brokers and consumer groups (Kafka: DynamicBrokerConfig, GroupConfig).

As in Kafka, other names can be set and stored, but their values are hidden.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.configs.definition import (
    INT_MAX,
    ConfigDef,
    ConfigType,
    by_name,
    in_range,
)
from aiokafka_lite.broker.configs.topic_config import TOPIC_CONFIGS
from aiokafka_lite.broker.topics import Node

_BOOLEAN, _STRING, _INT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT
_LONG, _DOUBLE, _LIST = ConfigType.LONG, ConfigType.DOUBLE, ConfigType.LIST
_NATURAL, _POSITIVE = in_range(0), in_range(1)

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


# Fixed at the start of a broker: name, type, default, and the attribute of `BrokerConfig` if any.
_FIXED: Final[Sequence[tuple[str, ConfigType, str | None, str]]] = (
    ("advertised.listeners", _LIST, None, ""),
    ("auto.create.topics.enable", _BOOLEAN, "true", ""),
    ("broker.id", _INT, "-1", ""),
    ("broker.rack", _STRING, None, ""),
    ("connections.max.idle.ms", _LONG, "600000", ""),
    ("default.replication.factor", _INT, "1", "replication"),
    ("delete.topic.enable", _BOOLEAN, "true", ""),
    ("fetch.max.bytes", _INT, "57671680", "fetch_max_bytes"),
    ("group.consumer.heartbeat.interval.ms", _INT, "5000", "group_consumer_heartbeat_interval_ms"),
    ("group.consumer.max.size", _INT, str(INT_MAX), "group_consumer_max_size"),
    ("group.consumer.migration.policy", _STRING, "bidirectional", ""),
    ("group.consumer.session.timeout.ms", _INT, "45000", "group_consumer_session_timeout_ms"),
    ("group.initial.rebalance.delay.ms", _INT, "3000", "group_initial_rebalance_delay_ms"),
    ("group.max.session.timeout.ms", _INT, "1800000", "group_max_session_timeout_ms"),
    ("group.max.size", _INT, str(INT_MAX), "group_max_size"),
    ("group.min.session.timeout.ms", _INT, "6000", "group_min_session_timeout_ms"),
    ("listeners", _LIST, None, ""),
    ("log.cleaner.backoff.ms", _LONG, "15000", "log_cleaner_backoff_ms"),
    ("log.dirs", _LIST, None, ""),
    ("log.retention.check.interval.ms", _LONG, "300000", "log_retention_check_interval_ms"),
    ("log.retention.hours", _INT, "168", ""),
    ("log.roll.hours", _INT, "168", ""),
    ("max.connections", _INT, str(INT_MAX), "max_connections"),
    ("max.connections.per.ip", _INT, str(INT_MAX), "max_connections_per_ip"),
    ("max.incremental.fetch.session.cache.slots", _INT, "1000", "max_fetch_sessions"),
    ("node.id", _INT, None, ""),
    ("num.partitions", _INT, "1", "num_partitions"),
    ("offset.metadata.max.bytes", _INT, "4096", "offset_metadata_max_bytes"),
    ("offsets.retention.check.interval.ms", _LONG, "600000", "offsets_retention_check_interval_ms"),
    ("offsets.retention.minutes", _INT, "10080", "offsets_retention_minutes"),
    ("offsets.topic.num.partitions", _INT, "50", "offsets_topic_partitions"),
    ("offsets.topic.replication.factor", ConfigType.SHORT, "3", "replication"),
    ("process.roles", _LIST, "", ""),
    ("queued.max.requests", _INT, "500", "queued_max_requests"),
    ("socket.request.max.bytes", _INT, "104857600", "max_frame_bytes"),
    ("transaction.max.timeout.ms", _INT, "900000", "transaction_max_timeout_ms"),
    ("transaction.state.log.num.partitions", _INT, "50", "transaction_topic_partitions"),
    ("transaction.state.log.replication.factor", ConfigType.SHORT, "3", "replication"),
    ("transactional.id.expiration.ms", _INT, "604800000", "transactional_id_expiration_ms"),
)

BROKER_CONFIGS: Final = by_name(
    [
        *(_of_topic(each, each.broker_name) for each in TOPIC_CONFIGS.values() if each.broker_name),
        ConfigDef("group.consumer.assignment.interval.ms", _INT, "1000", _NATURAL),
        *(ConfigDef(name, kind, default, is_dynamic=False) for name, kind, default, _ in _FIXED),
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
        "group.consumer.assignment.interval.ms": str(config.group_consumer_assignment_interval_ms),
        "group.consumer.migration.policy": config.group_consumer_migration_policy,
        "log.dirs": "memory" if config.data_dir is None else str(config.data_dir.absolute()),
        "log.segment.bytes": str(config.segment_bytes),
        "message.max.bytes": str(config.message_max_bytes),
        "process.roles": "broker,controller",
        **{name: str(getattr(config, attr)) for name, _, _, attr in _FIXED if attr},
    }
    return {
        name: value for name, value in settings.items() if BROKER_CONFIGS[name].default != value
    }


def node_configs(node: Node, listeners: Mapping[str, Node]) -> Mapping[str, str]:
    listening = ",".join(f"{name}://{at.host}:{at.port}" for name, at in listeners.items())
    settings = {
        "advertised.listeners": listening,
        "broker.id": str(node.id),
        "listeners": listening,
        "node.id": str(node.id),
    }
    return settings if node.rack is None else {**settings, "broker.rack": node.rack}
