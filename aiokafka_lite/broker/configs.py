"""The settings of topics, groups and brokers: definitions, and values with their sources (KIP-226).

All names of Kafka 4.3 are accepted and stored, so that unchanged programs can create their topics.
The topic settings with an effect are the attributes of `TopicConfig`. Brokers also store settings
of other names, whose values are hidden.

A value comes from the resource's own setting, then from the broker setting that is its default: for
the node, for all nodes, at the start, in Kafka. Error messages are Kafka's, for which users search.

Kafka: org.apache.kafka.common.config.ConfigDef, LogConfig, ServerTopicConfigSynonyms,
DynamicBrokerConfig, GroupConfig, ConfigHelper."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias, TypedDict, TypeVar, cast

from aiokafka_lite._arguments import TEXT, expected, is_number
from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.log.partition_log import LOG_APPEND_TIME, TopicConfig
from aiokafka_lite.broker.topics import Node
from aiokafka_lite.errors import InvalidConfigurationError
from aiokafka_lite.protocol.messages.configs import DescribeConfigsSynonym

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1

Value: TypeAlias = "int | float | bool | str | list[str]"


class ConfigType(enum.IntEnum):
    """The type of a setting, as in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


class ConfigSource(enum.IntEnum):
    """The source of a value (DescribeConfigsResponse.ConfigSource)."""

    TOPIC = 1
    NODE = 2  # set for one node at run time
    CLUSTER = 3  # set for all nodes at run time
    STATIC = 4
    DEFAULT = 5
    GROUP = 8


Check: TypeAlias = Callable[[str, Value], None]
"""Takes a setting's name and value. Raises InvalidConfigurationError."""


def in_range(lowest: float, highest: float = math.inf, also: int | None = None) -> Check:
    """Allow numbers from `lowest` to `highest`, and `also`."""

    def check(name: str, value: Value) -> None:
        number = cast("float", value)
        is_low = number < lowest
        if number == also or not (is_low or number > highest):
            return
        legal = f"at least {lowest}" if is_low else f"no more than {highest}"
        if also is not None:
            legal = f"between {lowest} and {highest} or equal to {also}"
        raise invalid(name, value, f"Value must be {legal}")

    return check


def one_of(*words: str) -> Check:
    def check(name: str, value: Value) -> None:
        for item in value if isinstance(value, list) else [value]:
            if item not in words:
                raise invalid(name, item, f"String must be one of: {', '.join(words)}")

    return check


@dataclass(frozen=True)
class ConfigDef:
    """One setting."""

    name: str
    kind: ConfigType
    default: str | None
    check: Check | None = None
    broker_name: str = ""  # the broker's setting that is the default of a topic's or group's, or ""
    is_dynamic: bool = True  # may change while brokers run

    @property
    def is_sensitive(self) -> bool:
        """The value is never returned."""
        return self.kind is ConfigType.PASSWORD

    def parse(self, text: str) -> Value:
        """Return the parsed value, or raise InvalidConfigurationError."""
        value = _parsed(self.name, self.kind, text.strip())
        if self.check is not None:
            self.check(self.name, value)
        return value


def by_name(defs: Iterable[ConfigDef]) -> Mapping[str, ConfigDef]:
    return {each.name: each for each in sorted(defs, key=lambda each: each.name)}


def split_list(text: str) -> list[str]:
    return [item.strip() for item in text.split(",")] if text.strip() else []


def _parsed(name: str, kind: ConfigType, text: str) -> Value:
    match kind:
        case ConfigType.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise invalid(name, text, "Expected value to be either true or false")
            return text.lower() == "true"
        case ConfigType.INT | ConfigType.SHORT | ConfigType.LONG:
            bits = {ConfigType.SHORT: 15, ConfigType.INT: 31, ConfigType.LONG: 63}[kind]
            try:
                number: int | None = int(text)
            except ValueError:
                number = None
            if number is None or not -(1 << bits) <= number < 1 << bits or "_" in text:
                raise invalid(name, text, f"Not a number of type {kind.name}")
            return number
        case ConfigType.DOUBLE:
            try:
                return float(text)
            except ValueError:
                raise invalid(name, text, f"Not a number of type {kind.name}") from None
        case ConfigType.LIST:
            return split_list(text)
        case _:
            return text


def invalid(name: str, value: Value, complaint: str) -> InvalidConfigurationError:
    shown = f"[{', '.join(value)}]" if isinstance(value, list) else value
    return InvalidConfigurationError(f"Invalid value {shown} for configuration {name}: {complaint}")


CODECS: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")

_BOOLEAN, _STRING, _INT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT
_LONG, _DOUBLE, _LIST = ConfigType.LONG, ConfigType.DOUBLE, ConfigType.LIST
_NATURAL, _POSITIVE = in_range(0), in_range(1)
_OR_MINUS_ONE, _OR_MINUS_TWO = in_range(-1), in_range(-2)
DEAD_LETTER_PREFIX: Final = "dlq."
READ_UNCOMMITTED: Final = "read_uncommitted"
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


TOPIC_CONFIGS: Final = by_name(
    [
        ConfigDef(
            "cleanup.policy", _LIST, "delete", one_of("compact", "delete"), "log.cleanup.policy",
        ),
        ConfigDef(
            "compression.gzip.level", _INT, "-1", in_range(1, 9, also=-1), "compression.gzip.level",
        ),
        ConfigDef("compression.lz4.level", _INT, "9", in_range(1, 17), "compression.lz4.level"),
        ConfigDef("compression.type", _STRING, "producer", one_of(*CODECS), "compression.type"),
        ConfigDef(
            "compression.zstd.level", _INT, "3", in_range(-131_072, 22), "compression.zstd.level",
        ),
        ConfigDef(
            "delete.retention.ms", _LONG, "86400000", _NATURAL, "log.cleaner.delete.retention.ms",
        ),
        ConfigDef("errors.deadletterqueue.group.enable", _BOOLEAN, "false"),
        ConfigDef("file.delete.delay.ms", _LONG, "60000", _NATURAL, "log.segment.delete.delay.ms"),
        ConfigDef("flush.messages", _LONG, str(LONG_MAX), _POSITIVE, "log.flush.interval.messages"),
        ConfigDef("flush.ms", _LONG, str(LONG_MAX), _NATURAL, "log.flush.interval.ms"),
        ConfigDef("follower.replication.throttled.replicas", _LIST, "", _check_replicas),
        ConfigDef("index.interval.bytes", _INT, "4096", _NATURAL, "log.index.interval.bytes"),
        ConfigDef("leader.replication.throttled.replicas", _LIST, "", _check_replicas),
        ConfigDef("local.retention.bytes", _LONG, "-2", _OR_MINUS_TWO, "log.local.retention.bytes"),
        ConfigDef("local.retention.ms", _LONG, "-2", _OR_MINUS_TWO, "log.local.retention.ms"),
        ConfigDef(
            "max.compaction.lag.ms", _LONG, str(LONG_MAX), _POSITIVE,
            "log.cleaner.max.compaction.lag.ms",
        ),
        ConfigDef("max.message.bytes", _INT, "1048588", _NATURAL, "message.max.bytes"),
        ConfigDef(
            "message.timestamp.after.max.ms", _LONG, "3600000", _NATURAL,
            "log.message.timestamp.after.max.ms",
        ),
        ConfigDef(
            "message.timestamp.before.max.ms", _LONG, str(LONG_MAX), _NATURAL,
            "log.message.timestamp.before.max.ms",
        ),
        ConfigDef(
            "message.timestamp.type", _STRING, "CreateTime", one_of("CreateTime", LOG_APPEND_TIME),
            "log.message.timestamp.type",
        ),
        ConfigDef(
            "min.cleanable.dirty.ratio", _DOUBLE, "0.5", in_range(0, 1),
            "log.cleaner.min.cleanable.ratio",
        ),
        ConfigDef(
            "min.compaction.lag.ms", _LONG, "0", _NATURAL, "log.cleaner.min.compaction.lag.ms",
        ),
        ConfigDef("min.insync.replicas", _INT, "1", _POSITIVE, "min.insync.replicas"),
        ConfigDef("preallocate", _BOOLEAN, "false", None, "log.preallocate"),
        ConfigDef("remote.log.copy.disable", _BOOLEAN, "false"),
        ConfigDef("remote.log.delete.on.disable", _BOOLEAN, "false"),
        ConfigDef("remote.storage.enable", _BOOLEAN, "false"),
        ConfigDef("retention.bytes", _LONG, "-1", _OR_MINUS_ONE, "log.retention.bytes"),
        ConfigDef("retention.ms", _LONG, "604800000", _OR_MINUS_ONE, "log.retention.ms"),
        ConfigDef("segment.bytes", _INT, str(1 << 30), in_range(1 << 20), "log.segment.bytes"),
        ConfigDef("segment.index.bytes", _INT, "10485760", in_range(4), "log.index.size.max.bytes"),
        ConfigDef("segment.jitter.ms", _LONG, "0", _NATURAL, "log.roll.jitter.ms"),
        ConfigDef("segment.ms", _LONG, "604800000", _POSITIVE, "log.roll.ms"),
        ConfigDef(
            "unclean.leader.election.enable", _BOOLEAN, "false", None,
            "unclean.leader.election.enable",
        ),
    ]
)  # fmt: skip
"""Every setting of a topic, by name."""


ConfigValue: TypeAlias = str | float | bool
"""A topic's configuration, as a test may write it."""


def parse_topic_config(overrides: Mapping[str, str], defaults: Mapping[str, str]) -> TopicConfig:
    """Return a topic's effective configuration. Raises as `check_topic_configs`."""
    check_topic_configs(overrides)
    values = {}
    for field in fields(TopicConfig)[1:]:
        definition = TOPIC_CONFIGS[field.name.replace("_", ".")]
        name = definition.name
        text = overrides.get(name, defaults.get(name, definition.default)) or ""
        values[field.name] = _parsed(name, definition.kind, text.strip())
    config = TopicConfig(dict(overrides), **values)  # type: ignore[arg-type]  # the kind's types
    min_lag_ms, max_lag_ms = config.min_compaction_lag_ms, config.max_compaction_lag_ms
    if min_lag_ms > max_lag_ms:
        raise InvalidConfigurationError(
            f"conflict topic config setting min.compaction.lag.ms ({min_lag_ms}) > "
            f"max.compaction.lag.ms ({max_lag_ms})"
        )
    if config.is_compacted:
        return replace(config, segment_ms=min(config.segment_ms, max_lag_ms))
    return config


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
    ("errors.deadletterqueue.auto.create.topics.enable", _BOOLEAN, "false", ""),
    ("errors.deadletterqueue.topic.name.prefix", _STRING, DEAD_LETTER_PREFIX, ""),
    ("fetch.max.bytes", _INT, "57671680", "fetch_max_bytes"),
    ("group.consumer.heartbeat.interval.ms", _INT, "5000", "group_consumer_heartbeat_interval_ms"),
    ("group.consumer.max.size", _INT, str(INT_MAX), "group_consumer_max_size"),
    ("group.consumer.migration.policy", _STRING, "bidirectional", ""),
    ("group.consumer.session.timeout.ms", _INT, "45000", "group_consumer_session_timeout_ms"),
    ("group.initial.rebalance.delay.ms", _INT, "3000", "group_initial_rebalance_delay_ms"),
    ("group.max.session.timeout.ms", _INT, "1800000", "group_max_session_timeout_ms"),
    ("group.max.size", _INT, str(INT_MAX), "group_max_size"),
    ("group.min.session.timeout.ms", _INT, "6000", "group_min_session_timeout_ms"),
    ("group.share.delivery.count.limit", _INT, "5", "group_share_delivery_count_limit"),
    ("group.share.heartbeat.interval.ms", _INT, "5000", "group_share_heartbeat_interval_ms"),
    ("group.share.max.share.sessions", _INT, "2000", "group_share_max_share_sessions"),
    ("group.share.max.size", _INT, "200", "group_share_max_size"),
    (
        "group.share.partition.max.record.locks", _INT, "2000",
        "group_share_partition_max_record_locks",
    ),
    ("group.share.record.lock.duration.ms", _INT, "30000", "group_share_record_lock_duration_ms"),
    ("group.share.session.timeout.ms", _INT, "45000", "group_share_session_timeout_ms"),
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
)  # fmt: skip

BROKER_CONFIGS: Final = by_name(
    [
        *(_of_topic(each, each.broker_name) for each in TOPIC_CONFIGS.values() if each.broker_name),
        ConfigDef("group.consumer.assignment.interval.ms", _INT, "1000", _NATURAL),
        ConfigDef("group.share.assignment.interval.ms", _INT, "1000", _NATURAL),
        *(ConfigDef(name, kind, default, is_dynamic=False) for name, kind, default, _ in _FIXED),
    ]
)
"""The settings of brokers, by name."""

BY_DURATION: Final = "by_duration:"
# ISO 8601, as in java.time.Duration.
_DURATION: Final = re.compile(
    r"P(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:[.,](\d{0,9}))?S)?)?", re.I | re.A
)


def _duration_ms(reset: str) -> int | None:
    """Return the duration of "by_duration:PT1H", None for another reset."""
    text = reset.removeprefix(BY_DURATION)
    found = _DURATION.fullmatch(text) if reset.startswith(BY_DURATION) else None
    if found is None or found.lastindex is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups()[:4])
    milliseconds = int((found[5] or "").ljust(3, "0")[:3])
    return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + milliseconds


def _check_dead_letter_topic(name: str, value: Value) -> None:
    if str(value).startswith("__"):
        raise InvalidConfigurationError(f"{name}: DLQ topic name must not start with '__'")


def _check_reset(name: str, value: Value) -> None:
    reset = str(value)
    if reset not in ("earliest", "latest") and _duration_ms(reset) is None:
        raise invalid(
            name,
            value,
            f"Invalid value `{value}` for configuration {name}. The value must be either "
            f"'earliest', 'latest' or of the format '{BY_DURATION}<PnDTnHnMn.nS>'.",
        )


_ASSIGNMENT_INTERVAL: Final = ("assignment.interval.ms", "1000", _NATURAL)
_HEARTBEAT_INTERVAL: Final = ("heartbeat.interval.ms", "5000", _POSITIVE)
_SESSION_TIMEOUT: Final = ("session.timeout.ms", "45000", _POSITIVE)
_NUMBERS_OF_GROUPS: Final[Mapping[str, Sequence[tuple[str, str, Check]]]] = {
    "consumer": (_ASSIGNMENT_INTERVAL, _HEARTBEAT_INTERVAL, _SESSION_TIMEOUT),
    "share": (
        _ASSIGNMENT_INTERVAL,
        _HEARTBEAT_INTERVAL,
        _SESSION_TIMEOUT,
        ("delivery.count.limit", "5", in_range(2)),
        ("partition.max.record.locks", "2000", in_range(100)),
        ("record.lock.duration.ms", "30000", in_range(1000)),
    ),
}

GROUP_CONFIGS: Final = by_name(
    [
        *(
            ConfigDef(f"{kind}.{name}", _INT, default, check, broker_name=f"group.{kind}.{name}")
            for kind, numbers in _NUMBERS_OF_GROUPS.items()
            for name, default, check in numbers
        ),
        ConfigDef("errors.deadletterqueue.copy.record.enable", _BOOLEAN, "false"),
        ConfigDef("errors.deadletterqueue.topic.name", _STRING, None, _check_dead_letter_topic),
        ConfigDef("share.auto.offset.reset", _STRING, "latest", _check_reset),
        ConfigDef(
            "share.isolation.level", _STRING, READ_UNCOMMITTED,
            one_of("read_committed", READ_UNCOMMITTED),
        ),
        ConfigDef("share.renew.acknowledge.enable", _BOOLEAN, "true"),
    ]
)  # fmt: skip
"""The settings of KIP-848 groups and share groups, by name."""

# Limits of a group's settings: group.consumer.min.*, group.share.max.* and so on.
_BOUNDS: Final[Mapping[str, tuple[int, int]]] = {
    "assignment.interval.ms": (0, 15_000),
    "heartbeat.interval.ms": (5_000, 15_000),
    "session.timeout.ms": (45_000, 60_000),
    "delivery.count.limit": (2, 10),
    "partition.max.record.locks": (100, 4_000),
    "record.lock.duration.ms": (15_000, 60_000),
}


def check_group_configs(settings: Mapping[str, str]) -> None:
    """Raise InvalidConfigurationError if Kafka does not accept a name or a value."""
    for name in settings:
        if name not in GROUP_CONFIGS:
            raise InvalidConfigurationError(f"Unknown group config name: {name}")
    for name, text in settings.items():
        value = GROUP_CONFIGS[name].parse(text)
        kind, _, plain_name = name.partition(".")
        if plain_name not in _BOUNDS:
            continue
        lowest, highest = _BOUNDS[plain_name]
        if isinstance(value, int) and not lowest <= value <= highest:
            end, bound = ("greater", "min") if value < lowest else ("less", "max")
            raise InvalidConfigurationError(
                f"{name} must be {end} than or equal to group.{kind}.{bound}.{plain_name}"
            )


@dataclass(frozen=True)
class GroupSettings:
    """The settings that KIP-848 groups and share groups have."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 0
    max_size: int = INT_MAX


@dataclass(frozen=True)
class ShareGroupSettings(GroupSettings):
    """The settings of a share group, named like the group's (`share.*`, `errors.*`)."""

    auto_offset_reset: str = "latest"
    isolation_level: str = READ_UNCOMMITTED
    renew_acknowledge_enable: bool = True
    delivery_count_limit: int = 5
    partition_max_record_locks: int = 2_000
    record_lock_duration_ms: int = 30_000
    deadletterqueue_topic_name: str = ""
    deadletterqueue_copy_record_enable: bool = False

    @property
    def reset_duration_ms(self) -> int | None:
        """How far before now the first offset is, None for "earliest" and "latest"."""
        return _duration_ms(self.auto_offset_reset)


def static_configs(config: BrokerConfig) -> Mapping[str, str]:
    """Return the settings that `BrokerConfig` sets for every node, except Kafka's defaults."""
    settings = {
        "auto.create.topics.enable": str(config.auto_create_topics).lower(),
        "connections.max.idle.ms": str(int(config.connections_max_idle_s * 1000)),
        "group.consumer.assignment.interval.ms": str(config.group_consumer_assignment_interval_ms),
        "group.consumer.migration.policy": config.group_consumer_migration_policy,
        "group.share.assignment.interval.ms": str(config.group_share_assignment_interval_ms),
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


ALL_NODES: Final = ""

T = TypeVar("T")


class ResourceType(enum.IntEnum):
    """Resources with settings (org.apache.kafka.common.config.ConfigResource.Type)."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


class Setting(NamedTuple):
    """A setting and its sources. The first synonym counts."""

    definition: ConfigDef
    synonyms: list[DescribeConfigsSynonym]

    @property
    def value(self) -> str | None:
        """The effective value, None if not set or sensitive."""
        if self.synonyms:
            return self.synonyms[0].value
        return None if self.definition.is_sensitive else self.definition.default

    @property
    def source(self) -> ConfigSource:
        source = self.synonyms[0].source if self.synonyms else ConfigSource.DEFAULT
        return ConfigSource(source)


class StoredSettings(TypedDict):
    type: int
    name: str
    settings: dict[str, str]


class ClusterSettings:
    """All settings except topics' own, and the defaults of topics."""

    def __init__(self, config: BrokerConfig) -> None:
        # The node whose settings are defaults of topics and groups.
        self._only_node = str(config.node_id) if config.nodes == 1 else None
        self._static = static_configs(config)
        self._overrides: dict[tuple[ResourceType, str], Mapping[str, str]] = {}
        # Cached results of `of_groups`, "" for groups without settings of their own.
        self._of_groups: dict[tuple[str, Callable[[str], object]], object] = {}

    # Settings at run time

    def overrides(self, kind: ResourceType, name: str) -> Mapping[str, str]:
        return MappingProxyType(self._overrides.get((kind, name), {}))

    def put(self, kind: ResourceType, name: str, settings: Mapping[str, str]) -> None:
        """Replace a resource's own settings, unchecked."""
        self._of_groups.clear()
        if settings:
            self._overrides[kind, name] = dict(settings)
        else:
            self._overrides.pop((kind, name), None)

    def stored(self) -> list[StoredSettings]:
        return [
            StoredSettings(type=kind, name=name, settings=dict(settings))
            for (kind, name), settings in self._overrides.items()
        ]

    def restore(self, stored: list[StoredSettings]) -> None:
        """Restore stored settings, except of unknown resource types."""
        for resource in stored:
            if resource["type"] in tuple(ResourceType):
                self.put(ResourceType(resource["type"]), resource["name"], resource["settings"])

    # Effective values

    def topic_defaults(self) -> Mapping[str, str]:
        """Return the topic defaults that differ from Kafka's, by topic setting."""
        found = {}
        for topic in TOPIC_CONFIGS.values():
            synonyms = self._of_broker(topic.broker_name, self._only_node)
            if synonyms and synonyms[0].source != ConfigSource.DEFAULT:
                found[topic.name] = synonyms[0].value or ""
        return found

    def group_values(self, group_id: str, kind: str) -> dict[str, Value]:
        """Return a group's settings of a kind ("consumer", "share"), e.g. session_timeout_ms."""
        return {
            setting.definition.name.partition(".")[2].replace(".", "_"): (
                setting.definition.parse(setting.value or "")
            )
            for setting in self.of_group(group_id)
            if setting.definition.name.startswith(f"{kind}.")
        }

    def of_groups(self, group_id: str, make: Callable[[str], T]) -> T:
        """Return the function's result for a group, until a setting changes."""
        key = (group_id if (ResourceType.GROUP, group_id) in self._overrides else "", make)
        if key not in self._of_groups:
            self._of_groups[key] = make(group_id)
        return cast("T", self._of_groups[key])

    # Descriptions

    def of_topic(self, overrides: Mapping[str, str]) -> Iterator[Setting]:
        return self._of_resource(TOPIC_CONFIGS, overrides, ConfigSource.TOPIC)

    def of_group(self, group_id: str) -> Iterator[Setting]:
        overrides = self.overrides(ResourceType.GROUP, group_id)
        return self._of_resource(GROUP_CONFIGS, overrides, ConfigSource.GROUP)

    def of_node(self, node: Node, listeners: Mapping[str, Node]) -> Iterator[Setting]:
        static = {**self._static, **node_configs(node, listeners)}
        changed = [
            *self.overrides(ResourceType.BROKER, str(node.id)),
            *self.overrides(ResourceType.BROKER, ALL_NODES),
        ]
        for name in sorted({*BROKER_CONFIGS, *changed}):
            yield Setting(_broker_config(name), self._of_broker(name, str(node.id), static))

    def of_all_nodes(self) -> Iterator[Setting]:
        for name, value in sorted(self.overrides(ResourceType.BROKER, ALL_NODES).items()):
            definition = _broker_config(name)
            yield Setting(definition, [_synonym(definition, value, ConfigSource.CLUSTER)])

    def _of_resource(
        self, table: Mapping[str, ConfigDef], overrides: Mapping[str, str], source: ConfigSource
    ) -> Iterator[Setting]:
        for definition in table.values():
            synonyms = self._of_broker(definition.broker_name, self._only_node)
            if not definition.broker_name and source is ConfigSource.GROUP:
                synonyms = [_synonym(definition, definition.default, ConfigSource.DEFAULT)]
            if definition.name in overrides:
                synonyms.insert(0, _synonym(definition, overrides[definition.name], source))
            yield Setting(definition, synonyms)

    def _of_broker(
        self, name: str, node_id: str | None, static: Mapping[str, str] | None = None
    ) -> list[DescribeConfigsSynonym]:
        """Return a broker setting's values, the effective one first."""
        definition = _broker_config(name)
        places = [
            (self.overrides(ResourceType.BROKER, ALL_NODES), ConfigSource.CLUSTER),
            (self._static if static is None else static, ConfigSource.STATIC),
        ]
        if node_id is not None:
            places.insert(0, (self.overrides(ResourceType.BROKER, node_id), ConfigSource.NODE))
        synonyms = [
            _synonym(definition, values[name], source)
            for values, source in places
            if name in values
        ]
        if definition.default is not None:
            synonyms.append(_synonym(definition, definition.default, ConfigSource.DEFAULT))
        return synonyms


def _broker_config(name: str) -> ConfigDef:
    return BROKER_CONFIGS.get(name) or ConfigDef(name, ConfigType.PASSWORD, None)


def _synonym(
    definition: ConfigDef, value: str | None, source: ConfigSource
) -> DescribeConfigsSynonym:
    shown = None if definition.is_sensitive else value
    return DescribeConfigsSynonym(name=definition.name, value=shown, source=source)
