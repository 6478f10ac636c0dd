"""A topic's configuration: checked, and completed from the cluster's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from aiokafka_lite._arguments import TEXT, expected, is_number
from aiokafka_lite.broker.configs.definition import split_list
from aiokafka_lite.broker.configs.topic_defs import LOG_APPEND_TIME, TOPIC_CONFIGS
from aiokafka_lite.broker.log.topic_config import TopicConfig
from aiokafka_lite.errors import InvalidConfigurationError

ConfigValue: TypeAlias = str | float | bool
"""A topic's configuration, as a test may write it."""


def parse_topic_config(overrides: Mapping[str, str], defaults: Mapping[str, str]) -> TopicConfig:
    """Check a topic's configuration and fill in what it leaves open.

    Args:
        overrides: What was set for the topic.
        defaults: The cluster's, by the names that topics have for them, where they are not
            Kafka's own.

    Raises:
        InvalidConfigurationError: A name or a value is not one of Kafka's.
    """
    check_topic_configs(overrides)

    def value_of(name: str) -> str:
        for values in (overrides, defaults):
            if name in values:
                return values[name].strip()
        return TOPIC_CONFIGS[name].default or ""

    policies = split_list(value_of("cleanup.policy"))
    lags_ms = [int(value_of(f"{bound}.compaction.lag.ms")) for bound in ("min", "max")]
    if lags_ms[0] > lags_ms[1]:
        raise InvalidConfigurationError(
            f"conflict topic config setting min.compaction.lag.ms ({lags_ms[0]}) > "
            f"max.compaction.lag.ms ({lags_ms[1]})"
        )
    is_compacted = "compact" in policies
    segment_ms, max_lag_ms = int(value_of("segment.ms")), lags_ms[1]
    return TopicConfig(
        overrides=dict(overrides),
        max_message_bytes=int(value_of("max.message.bytes")),
        segment_bytes=int(value_of("segment.bytes")),
        min_insync_replicas=int(value_of("min.insync.replicas")),
        is_log_append_time=value_of("message.timestamp.type") == LOG_APPEND_TIME,
        timestamp_after_max_ms=int(value_of("message.timestamp.after.max.ms")),
        is_compacted=is_compacted,
        is_deleted_by_retention="delete" in policies,
        retention_ms=int(value_of("retention.ms")),
        retention_bytes=int(value_of("retention.bytes")),
        segment_ms=min(segment_ms, max_lag_ms) if is_compacted else segment_ms,
        min_cleanable_dirty_ratio=float(value_of("min.cleanable.dirty.ratio")),
        min_compaction_lag_ms=lags_ms[0],
        max_compaction_lag_ms=max_lag_ms,
        delete_retention_ms=int(value_of("delete.retention.ms")),
    )


def config_texts(configs: Mapping[str, ConfigValue] | None) -> dict[str, str]:
    """Return configurations as Kafka's text: 1000 is "1000", and True is "true".

    Raises:
        TypeError: They are not a dict of names and strings, numbers or flags.
    """
    if configs is not None and not isinstance(configs, Mapping):
        raise TypeError(
            expected("configs", "a dict such as {'cleanup.policy': 'compact'}", configs)
        )
    texts = {}
    for name, value in (configs or {}).items():
        TEXT.check("a name in configs", name)
        if isinstance(value, bool):
            texts[name] = str(value).lower()
        elif isinstance(value, str) or is_number(value):
            texts[name] = str(value)
        else:
            raise TypeError(expected(f"configs[{name!r}]", "a str, a number or a bool", value))
    return texts


def check_topic_configs(overrides: Mapping[str, str]) -> None:
    """Check each setting of a topic by itself.

    Raises:
        InvalidConfigurationError: A name or a value is not one of Kafka's.
    """
    for name in overrides:
        if name not in TOPIC_CONFIGS:
            raise InvalidConfigurationError(f"Unknown topic config name: {name}")
    for name, text in overrides.items():
        if TOPIC_CONFIGS[name].parse(text) is True and name == "remote.storage.enable":
            raise InvalidConfigurationError(
                "Tiered Storage functionality is disabled in the broker. "
                "Topic cannot be configured with remote log storage."
            )
