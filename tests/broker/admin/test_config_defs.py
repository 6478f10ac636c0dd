"""Values of settings are read as Kafka reads them."""

from __future__ import annotations

import pytest

from aiokafka_lite.broker.configs import (
    BROKER_CONFIGS,
    GROUP_CONFIGS,
    TOPIC_CONFIGS,
    ConfigDef,
    ConfigType,
    ConfigValue,
    Value,
    config_texts,
    parse_topic_config,
)
from aiokafka_lite.errors import InvalidConfigurationError
from tests.support.for_each import for_each

CONFIGS = {**BROKER_CONFIGS, **TOPIC_CONFIGS}
KINDS = {bool: ConfigType.BOOLEAN, float: ConfigType.DOUBLE, list: ConfigType.LIST}


@for_each(
    [
        ("retention.ms", " -1 ", -1),
        ("retention.ms", "9223372036854775807", 2**63 - 1),
        ("segment.bytes", "1048576", 1 << 20),
        ("preallocate", "TRUE", True),
        ("min.cleanable.dirty.ratio", "1", 1.0),
        ("cleanup.policy", "compact, delete", ["compact", "delete"]),
        ("cleanup.policy", "", []),
        ("compression.gzip.level", "-1", -1),
        ("compression.gzip.level", "1", 1),
        ("compression.gzip.level", "9", 9),
        ("compression.lz4.level", "17", 17),
        ("compression.zstd.level", "-131072", -131_072),
        ("offsets.topic.replication.factor", "-32768", -(2**15)),
        ("offsets.topic.replication.factor", "32767", 2**15 - 1),
        ("leader.replication.throttled.replicas", "0:1,1:2", ["0:1", "1:2"]),
        ("leader.replication.throttled.replicas", "*", ["*"]),
    ]
)
def test_values_are_read(name: str, text: str, value: Value) -> None:
    assert CONFIGS[name].parse(text) == value


@for_each(
    [
        ("retention.ms", "soon", "Invalid value soon for configuration retention.ms: Not a number"),
        ("retention.ms", "9223372036854775808", "Not a number of type LONG"),
        ("retention.ms", "1_000", "Not a number of type LONG"),
        ("retention.ms", "-2", "Value must be at least -1"),
        ("retention.ms", "-9223372036854775808", "Value must be at least -1"),
        ("retention.ms", "-9223372036854775809", "Not a number of type LONG"),
        ("offsets.topic.replication.factor", "32768", "Not a number of type SHORT"),
        ("offsets.topic.replication.factor", "-32769", "Not a number of type SHORT"),
        ("segment.bytes", "2147483648", "Not a number of type INT"),
        ("compression.lz4.level", "18", "Value must be no more than 17"),
        ("compression.lz4.level", "0", "Value must be at least 1"),
        ("compression.zstd.level", "-131073", "Value must be at least -131072"),
        ("compression.gzip.level", "10", "between 1 and 9 or equal to -1"),
        ("compression.gzip.level", "-2", "between 1 and 9 or equal to -1"),
        ("compression.gzip.level", "0", "between 1 and 9 or equal to -1"),
        ("preallocate", "maybe", "Expected value to be either true or false"),
        ("min.cleanable.dirty.ratio", "x", "Not a number of type DOUBLE"),
        ("cleanup.policy", "delete,none", "Invalid value none for configuration cleanup.policy"),
        ("compression.type", "zip", "String must be one of: uncompressed, zstd"),
        ("leader.replication.throttled.replicas", "0-1", r"Invalid value \[0-1\] for"),
    ]
)
def test_wrong_values_are_refused_in_kafkas_words(name: str, text: str, reason: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=reason):
        CONFIGS[name].parse(text)


@for_each(
    [
        ({"preallocate": "true", "remote.storage.enable": "false"}, None),
        ({"remote.storage.enable": "true"}, "Tiered Storage functionality is disabled"),
        ({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"}, None),
        ({"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"}, r"\(6\) > .* \(5\)"),
        ({"max.compaction.lag.ms": "5", "no.such": "1"}, "Unknown topic config name: no.such"),
    ]
)
def test_settings_of_a_topic_go_together(settings: dict[str, str], reason: str | None) -> None:
    if reason is None:
        assert parse_topic_config(settings, {}).overrides == settings
    else:
        with pytest.raises(InvalidConfigurationError, match=reason):
            parse_topic_config(settings, {})


def test_settings_may_be_given_as_python_has_them() -> None:
    given: dict[str, ConfigValue] = {"a": True, "b": False, "c": 1, "d": 0.5, "e": "x"}
    texts = {"a": "true", "b": "false", "c": "1", "d": "0.5", "e": "x"}
    assert (config_texts(given), config_texts(None)) == (texts, {})


@for_each([*TOPIC_CONFIGS.values(), *BROKER_CONFIGS.values(), *GROUP_CONFIGS.values()], "{0.name}")
def test_every_default_is_a_legal_value(definition: ConfigDef) -> None:
    if definition.default is not None:
        value = definition.parse(definition.default)
        assert KINDS.get(type(value), definition.kind) is definition.kind


def test_topics_and_groups_take_their_defaults_from_known_broker_settings() -> None:
    for definition in (*TOPIC_CONFIGS.values(), *GROUP_CONFIGS.values()):
        if definition.broker_name:
            assert BROKER_CONFIGS[definition.broker_name].kind is definition.kind
