"""Options kafka.*: the settings of Kafka's Java consumer, by its names and rules for values.

Some of Kafka 4.1's `ConsumerConfig` have no effect. Some are refused, as in Spark's own source, or
because they name Java classes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from aiokafka_lite._settings import Settings, nearest
from aiokafka_lite.client.config import ClientConfig, parse_bootstrap_servers
from aiokafka_lite.errors import KafkaConfigurationError, OptionError
from aiokafka_lite.settings.raw_options import MAX_INT, MAX_LONG, RawOptions, trimmed
from aiokafka_lite.settings.security import SECURITY_NAMES, parse_security

if TYPE_CHECKING:
    import ssl

    from aiokafka_lite.client.sasl import Mechanism
    from aiokafka_lite.settings.security import Login

IsolationLevel: TypeAlias = Literal["read_uncommitted", "read_committed"]

# Kafka's consumers have 50 MiB, 1 MiB and 64 KiB. A task here reads one partition at a time, and
# requests the next piece before it decodes the last one.
DEFAULT_MAX_BYTES: Final = 64 << 20
DEFAULT_PARTITION_MAX_BYTES: Final = 8 << 20
# A batch of any size is sent as a whole; a response in plain HTTP would exceed this.
MAX_FRAME_BYTES: Final = 1 << 30
# -1: the system enlarges it as needed, usually up to 6 MiB. A given size is constant, and at most
# net.core.rmem_max, usually 208 KiB.
DEFAULT_RECEIVE_BUFFER_BYTES: Final = -1

_PREFIX: Final = "kafka."
_SCHEME: Final = re.compile(r"[0-9A-Za-z\-%._]*://")

# Times in ms, by their fields in seconds in `ClientConfig`, with their limits.
_TIMES: Final = {
    "metadata.max.age.ms": ("metadata_max_age_s", 0, MAX_LONG),
    "reconnect.backoff.max.ms": ("reconnect_backoff_max_s", 0, MAX_LONG),
    "reconnect.backoff.ms": ("reconnect_backoff_s", 0, MAX_LONG),
    "request.timeout.ms": ("request_timeout_s", 1, MAX_INT),
    "retry.backoff.max.ms": ("retry_backoff_max_s", 0, MAX_LONG),
    "retry.backoff.ms": ("retry_backoff_s", 0, MAX_LONG),
    "socket.connection.setup.timeout.ms": ("connect_timeout_s", 1, MAX_LONG),
}
# Whole numbers, by their fields in `KafkaOptions`, with their lowest values.
_NUMBERS: Final = {
    "fetch.max.bytes": ("max_bytes", 0),
    "fetch.max.wait.ms": ("max_wait_ms", 0),
    "max.partition.fetch.bytes": ("partition_max_bytes", 0),
    "receive.buffer.bytes": ("receive_buffer_bytes", -1),
}
ACCEPTED: Final = SECURITY_NAMES | frozenset(
    {
        *_TIMES,
        *_NUMBERS,
        "bootstrap.servers",
        "check.crcs",
        "client.id",
        "client.rack",
        "connections.max.idle.ms",
        "group.id",
        "isolation.level",
    }
)

WITHOUT_EFFECT: Final[dict[str, tuple[int, int] | None]] = {
    # Groups: a query joins no group.
    "auto.commit.interval.ms": (0, MAX_INT),
    "exclude.internal.topics": None,
    "group.instance.id": None,
    "group.protocol": None,
    "group.remote.assignor": None,
    "heartbeat.interval.ms": (-MAX_INT, MAX_INT),
    "max.poll.interval.ms": (1, MAX_INT),
    "partition.assignment.strategy": None,
    "session.timeout.ms": (-MAX_INT, MAX_INT),
    # Polls: an Arrow batch has the fastest number of rows.
    "max.poll.records": (1, MAX_INT),
    # Fetches: all requested records exist already.
    "fetch.min.bytes": (0, MAX_INT),
    "send.buffer.bytes": (-1, MAX_INT),
    # Metrics: Spark has its own.
    "auto.include.jmx.reporter": None,
    "enable.metrics.push": None,
    "metric.reporters": None,
    "metrics.num.samples": (1, MAX_INT),
    "metrics.recording.level": None,
    "metrics.sample.window.ms": (0, MAX_LONG),
    # Brokers: all addresses are tried, and finally the bootstrap servers.
    "client.dns.lookup": None,
    "metadata.recovery.rebootstrap.trigger.ms": (0, MAX_LONG),
    "metadata.recovery.strategy": None,
    # Timeouts of calls: fetchOffset.* and kafkaConsumer.pollTimeoutMs.
    "default.api.timeout.ms": (0, MAX_INT),
    "socket.connection.setup.timeout.max.ms": (-MAX_LONG, MAX_LONG),
    # Reading creates no topic.
    "allow.auto.create.topics": None,
}
"""Names that change nothing here, with the range of those that are numbers."""

REFUSED: Final = {
    "auto.offset.reset": (
        "Spark manages the query's offsets. Set startingOffsets for the start of a new query, and "
        "failOnDataLoss=false to skip deleted records"
    ),
    "enable.auto.commit": (
        "Spark manages the query's offsets. Set commitOffsetsToGroup to commit processed offsets "
        "to a group"
    ),
    "interceptor.classes": "this source cannot run Java classes. Change records with DataFrame "
    "functions",
    "key.deserializer": "this source returns keys as bytes. Deserialise keys with DataFrame "
    "functions",
    "value.deserializer": "this source returns values as bytes. Deserialise values with DataFrame "
    "functions",
}

WRITING: Final = frozenset(
    {
        "acks",
        "batch.size",
        "buffer.memory",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.type",
        "compression.zstd.level",
        "delivery.timeout.ms",
        "enable.idempotence",
        "key.serializer",
        "linger.ms",
        "max.block.ms",
        "max.in.flight.requests.per.connection",
        "max.request.size",
        "metadata.max.idle.ms",
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
        "partitioner.class",
        "partitioner.ignore.keys",
        "retries",
        "transaction.timeout.ms",
        "transactional.id",
        "value.serializer",
    }
)
"""Names of the producer, in options that a job shares between reading and writing."""


class KafkaOptions(Settings):
    """The parsed options kafka.*. A first batch may exceed the limits of bytes."""

    secrets = frozenset({"mechanism", "login"})

    client: ClientConfig
    mechanism: Mechanism | None = None
    login: Login | None = None
    client_rack: str | None = None
    isolation_level: IsolationLevel = "read_uncommitted"
    max_wait_ms: int = 500
    max_bytes: int = DEFAULT_MAX_BYTES
    partition_max_bytes: int = DEFAULT_PARTITION_MAX_BYTES
    check_crcs: bool = True
    receive_buffer_bytes: int = DEFAULT_RECEIVE_BUFFER_BYTES


def check_kafka_names(raw: RawOptions) -> None:
    """Refuse unknown names of kafka.*, and those that are not supported."""
    for option in raw.names():
        if not option.startswith(_PREFIX):
            continue
        name = option.removeprefix(_PREFIX)
        if name in ACCEPTED:
            continue
        if name in WITHOUT_EFFECT:
            limits = WITHOUT_EFFECT[name]
            if limits is not None:
                raw.integer(option, at_least=limits[0], at_most=limits[1])
        elif name in WRITING:
            raw.warnings.append(
                f"option {option} only applies to writing, so this source ignores it"
            )
        elif name in REFUSED:
            raise OptionError(f"option {option} cannot be used, because {REFUSED[name]}")
        else:
            known = [*ACCEPTED, *WITHOUT_EFFECT, *WRITING]
            raise OptionError(
                f"option {option} is not a setting of Kafka's consumer"
                f"{nearest(name, known, _PREFIX.__add__)}"
            )


def parse_kafka_options(raw: RawOptions) -> KafkaOptions:
    """Parse the options kafka.*, after `check_kafka_names`. OptionError names a wrong one."""
    numbers: dict[str, Any] = {
        field: raw.number(
            f"{_PREFIX}{name}",
            getattr(KafkaOptions, field),
            at_least=at_least,
            at_most=MAX_INT,
        )
        for name, (field, at_least) in _NUMBERS.items()
    }
    servers = _bootstrap_servers(raw)
    security = parse_security(raw, servers)
    if "kafka.group.id" in raw:
        raw.warnings.append(
            "option kafka.group.id has no effect, because a query joins no group. Set "
            "commitOffsetsToGroup to commit the query's offsets to a group"
        )
    return KafkaOptions(
        client=_client_config(raw, servers, security.protocol, security.ssl_context),
        mechanism=security.mechanism,
        login=security.login,
        client_rack=raw.sent_text("kafka.client.rack") or None,
        isolation_level=_isolation_level(raw),
        check_crcs=raw.boolean("kafka.check.crcs", default=True),
        **numbers,
    )


def _bootstrap_servers(raw: RawOptions) -> str:
    name = "kafka.bootstrap.servers"
    text = raw.text(name)
    if text is None:
        raise OptionError(f"option {name} is missing: name a broker, such as 'broker:9092'")
    if "@" in text:  # the part before it may be a password
        raise OptionError(
            f"option {name} contains an @: set credentials with the options kafka.sasl.username "
            "and kafka.sasl.password"
        )
    # Java's clients skip a protocol's name.
    servers = ",".join(_SCHEME.sub("", entry.strip(), count=1) for entry in text.split(","))
    try:
        return ",".join(map(str, parse_bootstrap_servers(servers)))
    except KafkaConfigurationError as error:
        raise OptionError(f"option {name}: {error.args[0]}") from error


def _client_config(
    raw: RawOptions, servers: str, protocol: str, ssl_context: ssl.SSLContext | None
) -> ClientConfig:
    default = ClientConfig
    times: dict[str, Any] = {
        field: raw.seconds(
            f"{_PREFIX}{name}", getattr(default, field), at_least=at_least, at_most=at_most
        )
        for name, (field, at_least, at_most) in _TIMES.items()
    }
    for kind in ("retry", "reconnect"):
        longest = f"{kind}_backoff_max_s"
        times[longest] = max(times[f"{kind}_backoff_s"], times[longest])
    idle_ms = raw.integer("kafka.connections.max.idle.ms", at_least=-MAX_LONG)
    idle_s = default.connections_max_idle_s if idle_ms is None else idle_ms / 1000
    return ClientConfig(
        bootstrap_servers=servers,
        client_id=raw.sent_text("kafka.client.id") or default.client_id,
        connections_max_idle_s=idle_s if idle_s is not None and idle_s >= 0 else None,
        security_protocol=protocol,
        ssl_context=ssl_context,
        allow_plaintext_credentials=raw.boolean("allowPlaintextCredentials", default=False),
        allow_auto_create_topics=False,
        max_frame_bytes=MAX_FRAME_BYTES,
        **times,
    )


def _isolation_level(raw: RawOptions) -> IsolationLevel:
    name = "kafka.isolation.level"
    match trimmed(raw.text(name) or "read_uncommitted"):
        case "read_uncommitted":
            return "read_uncommitted"
        case "read_committed":
            return "read_committed"
    raise raw.refusal(name, "the value must be read_uncommitted or read_committed")
