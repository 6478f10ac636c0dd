"""Topic configurations: which there are, what values they take, what they default to.

Reference: org.apache.kafka.storage.internals.log.LogConfig. All names of Kafka 4.3 are accepted
and kept, so that unchanged programs can create their topics; the ones that change what this
broker does are the attributes of `TopicConfig`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from aiokafka_lite.errors import InvalidConfigurationError

LOG_APPEND_TIME: Final = "LogAppendTime"

_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1

Check = Callable[[str], None]


def _integer(lowest: int, highest: int) -> Check:
    def check(value: str) -> None:
        if not lowest <= int(value) <= highest:
            raise ValueError(f"must be {lowest} to {highest}")

    return check


def _number(lowest: float, highest: float) -> Check:
    def check(value: str) -> None:
        if not lowest <= float(value) <= highest:
            raise ValueError(f"must be {lowest} to {highest}")

    return check


def _one_of(*choices: str) -> Check:
    def check(value: str) -> None:
        if value not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")

    return check


def _list_of(*choices: str) -> Check:
    def check(value: str) -> None:
        for item in value.split(","):
            if item.strip() not in choices:
                raise ValueError(f"must list some of {', '.join(choices)}")

    return check


def _boolean(value: str) -> None:
    if value.lower() not in ("true", "false"):
        raise ValueError("must be true or false")


def _anything(value: str) -> None:
    pass


_POSITIVE_INT = _integer(1, _INT_MAX)
_NATURAL_INT = _integer(0, _INT_MAX)
_NATURAL_LONG = _integer(0, _LONG_MAX)
_LONG_OR_MINUS_ONE = _integer(-1, _LONG_MAX)
_LONG_OR_MINUS_TWO = _integer(-2, _LONG_MAX)

# name: (default, check of a value)
TOPIC_CONFIGS: Final[Mapping[str, tuple[str, Check]]] = {
    "cleanup.policy": ("delete", _list_of("delete", "compact")),
    "compression.gzip.level": ("-1", _integer(-1, 9)),
    "compression.lz4.level": ("9", _integer(1, 17)),
    "compression.type": (
        "producer",
        _one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    ),
    "compression.zstd.level": ("3", _integer(-131_072, 22)),
    "delete.retention.ms": ("86400000", _NATURAL_LONG),
    "file.delete.delay.ms": ("60000", _NATURAL_LONG),
    "flush.messages": (str(_LONG_MAX), _integer(1, _LONG_MAX)),
    "flush.ms": (str(_LONG_MAX), _NATURAL_LONG),
    "follower.replication.throttled.replicas": ("", _anything),
    "index.interval.bytes": ("4096", _NATURAL_INT),
    "leader.replication.throttled.replicas": ("", _anything),
    "local.retention.bytes": ("-2", _LONG_OR_MINUS_TWO),
    "local.retention.ms": ("-2", _LONG_OR_MINUS_TWO),
    "max.compaction.lag.ms": (str(_LONG_MAX), _integer(1, _LONG_MAX)),
    "max.message.bytes": ("1048588", _NATURAL_INT),
    "message.timestamp.after.max.ms": ("3600000", _NATURAL_LONG),
    "message.timestamp.before.max.ms": (str(_LONG_MAX), _NATURAL_LONG),
    "message.timestamp.type": ("CreateTime", _one_of("CreateTime", LOG_APPEND_TIME)),
    "min.cleanable.dirty.ratio": ("0.5", _number(0, 1)),
    "min.compaction.lag.ms": ("0", _NATURAL_LONG),
    "min.insync.replicas": ("1", _POSITIVE_INT),
    "preallocate": ("false", _boolean),
    "remote.log.copy.disable": ("false", _boolean),
    "remote.log.delete.on.disable": ("false", _boolean),
    "remote.storage.enable": ("false", _boolean),
    "retention.bytes": ("-1", _LONG_OR_MINUS_ONE),
    "retention.ms": ("604800000", _LONG_OR_MINUS_ONE),
    "segment.bytes": (str(1 << 30), _integer(1 << 20, _INT_MAX)),
    "segment.index.bytes": ("10485760", _integer(4, _INT_MAX)),
    "segment.jitter.ms": ("0", _NATURAL_LONG),
    "segment.ms": ("604800000", _integer(1, _LONG_MAX)),
    "unclean.leader.election.enable": ("false", _boolean),
}


@dataclass(frozen=True)
class TopicConfig:
    """The effective configuration of one topic.

    Attributes:
        overrides: What was set for this topic, as it was written.
        is_log_append_time: Records get the broker's time instead of the producer's.
        timestamp_after_max_ms: How far ahead of the broker's clock a record's time may be.
        is_compacted: Records must have keys.
    """

    overrides: Mapping[str, str]
    max_message_bytes: int
    segment_bytes: int
    min_insync_replicas: int
    is_log_append_time: bool
    timestamp_after_max_ms: int
    is_compacted: bool
    is_deleted_by_retention: bool

    @classmethod
    def parse(
        cls, overrides: Mapping[str, str], *, message_max_bytes: int, segment_bytes: int
    ) -> TopicConfig:
        """Check a topic's configuration and fill in what it leaves open.

        Args:
            overrides: As given when the topic was created.
            message_max_bytes: The broker's own setting.
            segment_bytes: The broker's own setting.

        Raises:
            InvalidConfigurationError: A name or a value is not one of Kafka's.
        """
        for name, value in overrides.items():
            _check(name, value)

        def value_of(name: str, default: int | str | None = None) -> str:
            return overrides.get(name, TOPIC_CONFIGS[name][0] if default is None else str(default))

        policies = [policy.strip() for policy in value_of("cleanup.policy").split(",")]
        return cls(
            overrides=dict(overrides),
            max_message_bytes=int(value_of("max.message.bytes", message_max_bytes)),
            segment_bytes=int(value_of("segment.bytes", segment_bytes)),
            min_insync_replicas=int(value_of("min.insync.replicas")),
            is_log_append_time=value_of("message.timestamp.type") == LOG_APPEND_TIME,
            timestamp_after_max_ms=int(value_of("message.timestamp.after.max.ms")),
            is_compacted="compact" in policies,
            is_deleted_by_retention="delete" in policies,
        )

    def effective(self) -> list[tuple[str, str, bool]]:
        """Return (name, value, is it an override) of every configuration, by name."""
        values = {
            name: (self.overrides.get(name, default), name in self.overrides)
            for name, (default, _) in TOPIC_CONFIGS.items()
        }
        own = {
            "max.message.bytes": self.max_message_bytes,
            "segment.bytes": self.segment_bytes,
        }
        for name, number in own.items():
            values[name] = (str(number), name in self.overrides)
        return [(name, value, is_override) for name, (value, is_override) in values.items()]


def _check(name: str, value: str) -> None:
    if name not in TOPIC_CONFIGS:
        raise InvalidConfigurationError(f"there is no topic configuration {name!r}")
    try:
        TOPIC_CONFIGS[name][1](value)
    except ValueError as error:
        raise InvalidConfigurationError(f"{name}={value!r}: {error}") from error
