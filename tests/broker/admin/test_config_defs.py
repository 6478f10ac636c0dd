"""Values of settings are read as Kafka reads them."""

from __future__ import annotations

import pytest

from aiokafka_lite.broker.configs.broker_defs import BROKER_CONFIGS, GROUP_CONFIGS
from aiokafka_lite.broker.configs.definition import ConfigDef, ConfigType, Value
from aiokafka_lite.broker.configs.topic_defs import TOPIC_CONFIGS
from aiokafka_lite.errors import InvalidConfigurationError

KINDS = {bool: ConfigType.BOOLEAN, float: ConfigType.DOUBLE, list: ConfigType.LIST}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("retention.ms", " -1 ", -1),
        ("retention.ms", "9223372036854775807", 2**63 - 1),
        ("segment.bytes", "1048576", 1 << 20),
        ("preallocate", "TRUE", True),
        ("min.cleanable.dirty.ratio", "1", 1.0),
        ("cleanup.policy", "compact, delete", ["compact", "delete"]),
        ("cleanup.policy", "", []),
        ("compression.gzip.level", "-1", -1),
        ("leader.replication.throttled.replicas", "0:1,1:2", ["0:1", "1:2"]),
        ("leader.replication.throttled.replicas", "*", ["*"]),
    ],
)
def test_values_are_read(name: str, text: str, value: Value) -> None:
    assert TOPIC_CONFIGS[name].parse(text) == value


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("retention.ms", "soon", "Invalid value soon for configuration retention.ms: Not a number"),
        ("retention.ms", "9223372036854775808", "Not a number of type LONG"),
        ("retention.ms", "1_000", "Not a number of type LONG"),
        ("retention.ms", "-2", "Value must be at least -1"),
        ("segment.bytes", "2147483648", "Not a number of type INT"),
        ("compression.lz4.level", "18", "Value must be no more than 17"),
        ("compression.gzip.level", "0", "between 1 and 9 or equal to -1"),
        ("preallocate", "maybe", "Expected value to be either true or false"),
        ("min.cleanable.dirty.ratio", "x", "Not a number of type DOUBLE"),
        ("cleanup.policy", "delete,none", "Invalid value none for configuration cleanup.policy"),
        ("compression.type", "zip", "String must be one of: uncompressed, zstd"),
        ("leader.replication.throttled.replicas", "0-1", r"Invalid value \[0-1\] for"),
    ],
)
def test_wrong_values_are_refused_in_kafkas_words(name: str, text: str, reason: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=reason):
        TOPIC_CONFIGS[name].parse(text)


@pytest.mark.parametrize(
    "definition", [*TOPIC_CONFIGS.values(), *BROKER_CONFIGS.values(), *GROUP_CONFIGS.values()]
)
def test_every_default_is_a_legal_value(definition: ConfigDef) -> None:
    if definition.default is not None:
        value = definition.parse(definition.default)
        assert KINDS.get(type(value), definition.kind) is definition.kind


def test_topics_and_groups_take_their_defaults_from_known_broker_settings() -> None:
    for definition in (*TOPIC_CONFIGS.values(), *GROUP_CONFIGS.values()):
        if definition.broker_name:
            assert BROKER_CONFIGS[definition.broker_name].kind is definition.kind
