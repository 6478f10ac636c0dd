"""The settings of topics as Kafka 4.3 has them: definitions, checks, effective values.

All names are accepted and stored, so that unchanged programs can create their topics. The settings
with an effect are the attributes of `TopicConfig`.

Kafka: org.apache.kafka.storage.internals.log.LogConfig, ServerTopicConfigSynonyms.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, TypeAlias

from aiokafka_lite._arguments import TEXT, expected, is_number
from aiokafka_lite.broker.configs.definition import (
    LONG_MAX,
    ConfigDef,
    ConfigType,
    Value,
    by_name,
    in_range,
    invalid,
    one_of,
    split_list,
)
from aiokafka_lite.broker.log.partition_log import TopicConfig
from aiokafka_lite.errors import InvalidConfigurationError

LOG_APPEND_TIME: Final = "LogAppendTime"
CODECS: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")

_BOOLEAN, _STRING, _INT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT
_LONG, _DOUBLE, _LIST = ConfigType.LONG, ConfigType.DOUBLE, ConfigType.LIST
_NATURAL, _POSITIVE = in_range(0), in_range(1)
_OR_MINUS_ONE, _OR_MINUS_TWO = in_range(-1), in_range(-2)
_REPLICA: Final = re.compile("([0-9]+:[0-9]+)?")


def _check_replicas(name: str, value: Value) -> None:
    """Allow pairs of partition and broker, or a star for all."""
    items = value if isinstance(value, list) else [str(value)]
    if items != ["*"] and not all(_REPLICA.fullmatch(item) for item in items):
        raise invalid(
            name,
            items,
            f"{name} must be the literal '*' or a list of replicas in the following format: "
            "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
        )


def _throttled(name: str) -> ConfigDef:
    what = "The replicas whose replication traffic is throttled."
    return ConfigDef(name, _LIST, "", _check_replicas, what)


TOPIC_CONFIGS: Final = by_name(
    [
        ConfigDef(
            "cleanup.policy", _LIST, "delete", one_of("compact", "delete"),
            "Whether old segments are deleted, compacted, both, or neither.",
            "log.cleanup.policy",
        ),
        ConfigDef(
            "compression.gzip.level", _INT, "-1", in_range(1, 9, also=-1),
            "The compression level when the broker compresses with gzip.", "compression.gzip.level",
        ),
        ConfigDef(
            "compression.lz4.level", _INT, "9", in_range(1, 17),
            "The compression level when the broker compresses with lz4.", "compression.lz4.level",
        ),
        ConfigDef(
            "compression.type", _STRING, "producer", one_of(*CODECS),
            "The compression codec of stored batches ('producer': as the producer sent them).",
            "compression.type",
        ),
        ConfigDef(
            "compression.zstd.level", _INT, "3", in_range(-131_072, 22),
            "The compression level when the broker compresses with zstd.", "compression.zstd.level",
        ),
        ConfigDef(
            "delete.retention.ms", _LONG, "86400000", _NATURAL,
            "How long compaction keeps tombstones.", "log.cleaner.delete.retention.ms",
        ),
        ConfigDef(
            "file.delete.delay.ms", _LONG, "60000", _NATURAL,
            "How long deleted files stay on the disk.", "log.segment.delete.delay.ms",
        ),
        ConfigDef(
            "flush.messages", _LONG, str(LONG_MAX), _POSITIVE,
            "The number of records after which the log is synced to disk (fsync).",
            "log.flush.interval.messages",
        ),
        ConfigDef(
            "flush.ms", _LONG, str(LONG_MAX), _NATURAL,
            "The time after which the log is synced to disk (fsync).", "log.flush.interval.ms",
        ),
        _throttled("follower.replication.throttled.replicas"),
        ConfigDef(
            "index.interval.bytes", _INT, "4096", _NATURAL,
            "The number of bytes in the log between two entries of the offset index.",
            "log.index.interval.bytes",
        ),
        _throttled("leader.replication.throttled.replicas"),
        ConfigDef(
            "local.retention.bytes", _LONG, "-2", _OR_MINUS_TWO,
            "The size limit of a tiered log on local disk (-2: the value of retention.bytes).",
            "log.local.retention.bytes",
        ),
        ConfigDef(
            "local.retention.ms", _LONG, "-2", _OR_MINUS_TWO,
            "The retention time of a tiered log on local disk (-2: the value of retention.ms).",
            "log.local.retention.ms",
        ),
        ConfigDef(
            "max.compaction.lag.ms", _LONG, str(LONG_MAX), _POSITIVE,
            "The longest time that a record stays uncompacted.",
            "log.cleaner.max.compaction.lag.ms",
        ),
        ConfigDef(
            "max.message.bytes", _INT, "1048588", _NATURAL,
            "The largest batch accepted.", "message.max.bytes",
        ),
        ConfigDef(
            "message.timestamp.after.max.ms", _LONG, "3600000", _NATURAL,
            "How far ahead of the broker's clock a record's timestamp may be.",
            "log.message.timestamp.after.max.ms",
        ),
        ConfigDef(
            "message.timestamp.before.max.ms", _LONG, str(LONG_MAX), _NATURAL,
            "How far behind the broker's clock a record's timestamp may be.",
            "log.message.timestamp.before.max.ms",
        ),
        ConfigDef(
            "message.timestamp.type", _STRING, "CreateTime", one_of("CreateTime", LOG_APPEND_TIME),
            "Whether the producer or the broker sets the timestamps of records.",
            "log.message.timestamp.type",
        ),
        ConfigDef(
            "min.cleanable.dirty.ratio", _DOUBLE, "0.5", in_range(0, 1),
            "A log is compacted when at least this share of its bytes is uncompacted.",
            "log.cleaner.min.cleanable.ratio",
        ),
        ConfigDef(
            "min.compaction.lag.ms", _LONG, "0", _NATURAL,
            "The shortest time that a record stays uncompacted.",
            "log.cleaner.min.compaction.lag.ms",
        ),
        ConfigDef(
            "min.insync.replicas", _INT, "1", _POSITIVE,
            "How many replicas must be in sync for writes with acks=all.", "min.insync.replicas",
        ),
        ConfigDef(
            "preallocate", _BOOLEAN, "false", None,
            "Whether a new segment reserves its full size on the disk.", "log.preallocate",
        ),
        ConfigDef(
            "remote.log.copy.disable", _BOOLEAN, "false", None,
            "Whether copying to the remote tier is disabled, so that its data is read-only.",
        ),
        ConfigDef(
            "remote.log.delete.on.disable", _BOOLEAN, "false", None,
            "Whether the data in the remote tier is deleted when remote storage is disabled.",
        ),
        ConfigDef(
            "remote.storage.enable", _BOOLEAN, "false", None,
            "Whether closed segments are also stored in a remote tier (KIP-405).",
        ),
        ConfigDef(
            "retention.bytes", _LONG, "-1", _OR_MINUS_ONE,
            "The partition size above which old segments are deleted (-1: no limit).",
            "log.retention.bytes",
        ),
        ConfigDef(
            "retention.ms", _LONG, "604800000", _OR_MINUS_ONE,
            "The age above which segments are deleted (-1: no limit).", "log.retention.ms",
        ),
        ConfigDef(
            "segment.bytes", _INT, str(1 << 30), in_range(1 << 20),
            "The size of a segment.", "log.segment.bytes",
        ),
        ConfigDef(
            "segment.index.bytes", _INT, "10485760", in_range(4),
            "The size of a segment's index.", "log.index.size.max.bytes",
        ),
        ConfigDef(
            "segment.jitter.ms", _LONG, "0", _NATURAL,
            "The maximum of the random time that is subtracted from segment.ms, so that segments "
            "are closed at different times.",
            "log.roll.jitter.ms",
        ),
        ConfigDef(
            "segment.ms", _LONG, "604800000", _POSITIVE,
            "The age at which a segment is closed, even if the segment is not full.", "log.roll.ms",
        ),
        ConfigDef(
            "unclean.leader.election.enable", _BOOLEAN, "false", None,
            "Whether an out-of-sync replica may become leader if no in-sync replica is available.",
            "unclean.leader.election.enable",
        ),
    ]
)  # fmt: skip
"""Every setting of a topic, by name."""


ConfigValue: TypeAlias = str | float | bool
"""A topic's configuration, as a test may write it."""


def parse_topic_config(overrides: Mapping[str, str], defaults: Mapping[str, str]) -> TopicConfig:
    """Return a topic's effective configuration. Raises as `check_topic_configs`.

    `defaults` are the cluster's, by topic setting, if they differ from Kafka's.
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
    """Return configurations as Kafka's text: 1000 is "1000", and True is "true"."""
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
    """Raise InvalidConfigurationError if Kafka does not accept a name or a value."""
    for name in overrides:
        if name not in TOPIC_CONFIGS:
            raise InvalidConfigurationError(f"Unknown topic config name: {name}")
    for name, text in overrides.items():
        if TOPIC_CONFIGS[name].parse(text) is True and name == "remote.storage.enable":
            raise InvalidConfigurationError(
                "Tiered Storage functionality is disabled in the broker. "
                "Topic cannot be configured with remote log storage."
            )
