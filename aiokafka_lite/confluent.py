"""Translates a configuration of confluent-kafka (librdkafka) into arguments.

`SETTINGS` and `UNNEEDED` have every setting of librdkafka 2.16 and of confluent-kafka's Python
classes. docs/confluent-kafka.md explains them.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from aiokafka_lite._arguments import TEXT
from aiokafka_lite._compat import override
from aiokafka_lite._settings import nearest
from aiokafka_lite._virtual import chance_here, monotonic
from aiokafka_lite.abc import AbstractTokenProvider
from aiokafka_lite.consumer.assignors import RangePartitionAssignor, RoundRobinPartitionAssignor
from aiokafka_lite.consumer.assignors.cooperative_sticky import CooperativeStickyPartitionAssignor
from aiokafka_lite.errors import KafkaConfigurationError
from aiokafka_lite.producing.config import ProducerConfig

if TYPE_CHECKING:
    import ssl

    from aiokafka_lite.consumer.assignors import AbstractPartitionAssignor
    from aiokafka_lite.producing.config import Partitioner

__all__ = ["confluent_settings"]

Client: TypeAlias = Literal["consumer", "producer", "both"]

# How long librdkafka keeps records without a key in one partition, by default.
STICKY_S: Final = 0.01
# Replaces a time without a limit: 24 days.
LONGEST_MS: Final = 2**31 - 1


class Translated(NamedTuple):
    """A setting with an argument here, for one client: the other ignores the setting.

    `argument` has a dot and a part if several settings form it. `read` converts a value, or raises
    ValueError if it has no equal.
    """

    argument: str
    read: Callable[[object], object]
    client: Client = "both"


class Own(NamedTuple):
    """A setting whose argument here has its name, with underscores; see `Translated`."""

    read: Callable[[object], object]
    client: Client = "both"


class Refused(NamedTuple):
    """A setting without an equal here, except for the values `unless`, which are left out."""

    note: str
    client: Client = "both"
    unless: tuple[str, ...] = ()


Setting: TypeAlias = "Translated | Refused"


# --- Values, which may all be strings ---------------------------------------------------------
def _text(given: object) -> str:
    return str(given).lstrip()  # as librdkafka does


def _servers(given: object) -> str:
    if not isinstance(given, str):
        raise ValueError(f"the value must be a str, 'host:port,host:port', not {given!r}")
    return given


def _without_protocol(servers: str, protocol: str) -> str:
    plain = []
    for server in servers.split(","):
        prefix, has_prefix, address = server.strip().rpartition("://")
        if has_prefix and prefix.upper() != protocol:
            raise ValueError(
                f"{prefix}:// in {server.strip()!r} does not match "
                f"security.protocol={protocol.lower()}"
            )
        plain.append(address)
    return ",".join(plain)


def _function(given: object) -> object:
    if not callable(given):
        raise ValueError(f"the value must be a function, not {given!r}")
    return given


def _flag(given: object) -> bool:
    text = str(given).lower()
    if text not in ("true", "t", "1", "false", "f", "0"):
        raise ValueError(f"the value must be true or false, not {given!r}")
    return text in ("true", "t", "1")


def _number(given: object) -> int:
    try:
        return round(float(str(given)))
    except (ValueError, OverflowError):
        raise ValueError(f"the value must be a number, not {given!r}") from None


def _kbytes(given: object) -> int:
    return _number(given) * 1024


def _endless_ms(given: object) -> int:
    return _number(given) or LONGEST_MS


def _refresh_ms(given: object) -> int:
    if (number := _number(given)) < 1:
        raise ValueError(
            "the value must be at least 1, because periodic refreshes of metadata cannot be "
            "disabled"
        )
    return number


def _commit_ms(given: object) -> int:
    if (number := _number(given)) < 1:
        raise ValueError("set enable.auto.commit to false instead of an interval of 0")
    return number


def _one_of(choices: Mapping[str, object]) -> Callable[[object], object]:
    def read(given: object) -> object:
        try:
            return choices[str(given).lower()]
        except KeyError:
            known = ", ".join(choices)
            raise ValueError(f"the value must be one of {known}, not {given!r}") from None

    return read


def _mechanism(given: object) -> str:
    name = str(given).upper()
    if name == "GSSAPI":  # librdkafka's default
        raise ValueError("Kerberos (GSSAPI) is not supported: set PLAIN, SCRAM or OAUTHBEARER")
    return name


_ASSIGNORS: Final[Mapping[str, type[AbstractPartitionAssignor]]] = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "cooperative-sticky": CooperativeStickyPartitionAssignor,
}


def _assignors(given: object) -> tuple[type[AbstractPartitionAssignor], ...]:
    names = [name.strip() for name in str(given).split(",")]
    if unknown := [name for name in names if name not in _ASSIGNORS]:
        raise ValueError(
            f"every assignor must be one of {', '.join(_ASSIGNORS)}, not {', '.join(unknown)}"
        )
    return tuple([_ASSIGNORS[name] for name in names])


# --- Partitioners -----------------------------------------------------------------------------
def _fnv1a(key: bytes) -> int:
    number = 0x811C9DC5
    for byte in key:
        number = (number ^ byte) * 0x01000193 & 0xFFFFFFFF
    return min(number, 2**32 - number)  # the absolute value of a signed number


class HashPartitioner:
    """Chooses by a hash of the key, and for a while one partition for records without a key."""

    def __init__(
        self,
        key_hash: Callable[[bytes], int] | None,
        *,
        is_empty_hashed: bool = True,
        sticky_s: float = STICKY_S,
    ) -> None:
        self._hash = key_hash
        self._is_empty_hashed = is_empty_hashed
        self._sticky_s = sticky_s
        self._number = 0
        self._until_s = 0.0

    def __call__(
        self, key: bytes | None, all_partitions: Sequence[int], available: Sequence[int]
    ) -> int:
        if self._hash is not None and (key or (key is not None and self._is_empty_hashed)):
            return all_partitions[self._hash(key) % len(all_partitions)]
        now_s = monotonic()
        if now_s >= self._until_s:
            self._until_s = now_s + self._sticky_s
            self._number = chance_here("partition").getrandbits(32)
        return available[self._number % len(available)]


PARTITIONERS: Final[Mapping[str, Callable[[], Partitioner | None]]] = {
    "consistent_random": lambda: HashPartitioner(zlib.crc32, is_empty_hashed=False),
    "consistent": lambda: HashPartitioner(zlib.crc32),
    "murmur2_random": lambda: None,  # the producer's own default
    "murmur2": lambda: None,
    "fnv1a_random": lambda: HashPartitioner(_fnv1a),
    "fnv1a": lambda: HashPartitioner(_fnv1a),
    "random": lambda: HashPartitioner(None, sticky_s=0),
}


def _partitioner(given: object) -> Partitioner | None:
    make: Any = _one_of(PARTITIONERS)(given)
    found: Partitioner | None = make()
    return found


# --- Arguments made of several settings ---------------------------------------------------------
def _tls_context(
    *,
    ca: str = "probe",
    cadata: str | None = None,
    certfile: str | None = None,
    keyfile: str | None = None,
    password: str | None = None,
    crl: str | None = None,
    ciphers: str | None = None,
) -> ssl.SSLContext:
    import ssl  # late: it takes milliseconds

    from aiokafka_lite.helpers import create_ssl_context

    if keyfile is not None and certfile is None:
        raise KafkaConfigurationError("ssl.key.location needs ssl.certificate.location")
    trusted: dict[str, Any] = {"cadata": cadata}
    if ca != "probe":
        trusted["capath" if os.path.isdir(ca) else "cafile"] = ca
    with _loading("ssl.ca.pem" if cadata is not None else f"ssl.ca.location={ca!r}"):
        context = create_ssl_context(**trusted)
    if certfile is not None:
        files = f"ssl.certificate.location={certfile!r}"
        if keyfile is not None:
            files += f", ssl.key.location={keyfile!r}"
        with _loading(f"{files} {'without' if password is None else 'with'} ssl.key.password"):
            # Without a password, OpenSSL would ask for one at the terminal.
            context.load_cert_chain(certfile, keyfile, password or "")
    if crl is not None:
        with _loading(f"ssl.crl.location={crl!r}"):
            context.load_verify_locations(crl)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    if ciphers is not None:
        with _loading(f"ssl.cipher.suites={ciphers!r}"):
            context.set_ciphers(ciphers)
    return context


@contextmanager
def _loading(settings: str) -> Iterator[None]:
    """Name the settings in an error of OpenSSL, which names neither them nor the files."""
    try:
        yield
    except (OSError, ValueError) as error:  # `ssl.SSLError` is an OSError
        raise KafkaConfigurationError(f"cannot use {settings}: {error}") from error


class CallbackTokens(AbstractTokenProvider):
    """Tokens of an ``oauth_cb``, which is called in a thread."""

    def __init__(self, callback: Callable[[str], Any], config: str) -> None:
        self._callback = callback
        self._config = config
        self._extensions: dict[str, str] = {}

    @override
    async def token(self) -> str:
        answer = await asyncio.to_thread(self._callback, self._config)
        if inspect.isawaitable(answer):
            answer = await answer
        token, _, *more = answer  # the time of expiry, then perhaps principal and extensions
        self._extensions = dict(more[1]) if more[1:] else {}
        given: str = token  # the client checks its type
        return given

    @override
    def extensions(self) -> dict[str, str]:
        return self._extensions


def _tokens(
    *, callback: Callable[[str], Any] | None = None, config: str = ""
) -> CallbackTokens | None:
    return None if callback is None else CallbackTokens(callback, config)


_MAKERS: Final[Mapping[str, Callable[..., object]]] = {
    "ssl_context": _tls_context,
    "sasl_oauth_token_provider": _tokens,
}

# --- The table ----------------------------------------------------------------------------------
_EARLIEST_OR_LATEST: Final = {
    **dict.fromkeys(("smallest", "earliest", "beginning"), "earliest"),
    **dict.fromkeys(("largest", "latest", "end"), "latest"),
    "error": "none",
}
_CODECS: Final = {"none": None, "gzip": "gzip", "snappy": "snappy", "lz4": "lz4", "zstd": "zstd"}
_ACKS: Final = {"all": "all", "-1": "all", "0": 0, "1": 1}
_PROTOCOLS: Final = {
    name: name.upper() for name in ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
}


_OWN_CONTEXT: Final = "create an `ssl.SSLContext` and pass it as `ssl_context=`"
_OIDC: Final = Refused("pass `sasl_oauth_token_provider=`, an object with `async def token()`")
_C_ONLY: Final = Refused("only C programs can use this setting")
_ASSERTIONS: Final = (
    "algorithm", "private.key.file", "private.key.passphrase", "private.key.pem", "file",
    "claim.aud", "claim.exp.seconds", "claim.iss", "claim.jti.include", "claim.nbf.seconds",
    "claim.sub", "jwt.template.file",
)  # fmt: skip

_TABLE: Final[Mapping[str, Setting | Own]] = {
        # The cluster
        "metadata.broker.list": Translated("bootstrap_servers", _servers),
        "bootstrap.servers": Own(_servers),
        "client.id": Own(_text),
        "client.rack": Own(_text, "consumer"),
        "socket.timeout.ms": Translated("request_timeout_ms", _number),
        "connections.max.idle.ms": Own(_number),
        "retry.backoff.ms": Own(_number),
        "metadata.max.age.ms": Own(_number),
        "topic.metadata.refresh.interval.ms": Translated("metadata_max_age_ms", _refresh_ms),
        "allow.auto.create.topics": Own(_flag),
        # Security
        "security.protocol": Own(_one_of(_PROTOCOLS)),
        "sasl.mechanisms": Translated("sasl_mechanism", _mechanism),
        "sasl.mechanism": Own(_mechanism),
        "sasl.username": Translated("sasl_plain_username", _text),
        "sasl.password": Translated("sasl_plain_password", _text),
        "oauth_cb": Translated("sasl_oauth_token_provider.callback", _function),
        "sasl.oauthbearer.config": Translated("sasl_oauth_token_provider.config", _text),
        "ssl.ca.location": Translated("ssl_context.ca", _text),
        "ssl.ca.pem": Translated("ssl_context.cadata", _text),
        "ssl.certificate.location": Translated("ssl_context.certfile", _text),
        "ssl.key.location": Translated("ssl_context.keyfile", _text),
        "ssl.key.password": Translated("ssl_context.password", _text),
        "ssl.crl.location": Translated("ssl_context.crl", _text),
        "ssl.cipher.suites": Translated("ssl_context.ciphers", _text),
        # The consumer
        "group.id": Own(_text, "consumer"),
        "group.instance.id": Own(_text, "consumer"),
        "group.protocol": Own(_one_of({"classic": "classic", "consumer": "consumer"}), "consumer"),
        "group.remote.assignor": Own(_text, "consumer"),
        "partition.assignment.strategy": Own(_assignors, "consumer"),
        "session.timeout.ms": Own(_number, "consumer"),
        "heartbeat.interval.ms": Own(_number, "consumer"),
        "max.poll.interval.ms": Own(_number, "consumer"),
        "enable.auto.commit": Own(_flag, "consumer"),
        "auto.commit.interval.ms": Own(_commit_ms, "consumer"),
        "enable.auto.offset.store": Translated(
            "ack_mode", lambda given: "implicit" if _flag(given) else "explicit", "consumer"
        ),
        "auto.offset.reset": Own(_one_of(_EARLIEST_OR_LATEST), "consumer"),
        "isolation.level": Own(
            _one_of({name: name for name in ("read_uncommitted", "read_committed")}), "consumer"
        ),
        "check.crcs": Own(_flag, "consumer"),
        "fetch.wait.max.ms": Translated("fetch_max_wait_ms", _number, "consumer"),
        "fetch.min.bytes": Own(_number, "consumer"),
        "fetch.max.bytes": Own(_number, "consumer"),
        "fetch.message.max.bytes": Translated("max_partition_fetch_bytes", _number, "consumer"),
        "max.partition.fetch.bytes": Own(_number, "consumer"),
        "queued.max.messages.kbytes": Translated("max_buffered_bytes", _kbytes, "consumer"),
        # The producer
        "request.required.acks": Translated("acks", _one_of(_ACKS), "producer"),
        "acks": Own(_one_of(_ACKS), "producer"),
        "enable.idempotence": Own(_flag, "producer"),
        "transactional.id": Own(_text, "producer"),
        "transaction.timeout.ms": Own(_number, "producer"),
        "queue.buffering.max.ms": Translated("linger_ms", _number, "producer"),
        "linger.ms": Own(_number, "producer"),
        "queue.buffering.max.kbytes": Translated("buffer_memory", _kbytes, "producer"),
        "batch.size": Translated("max_batch_size", _number, "producer"),
        "message.max.bytes": Translated("max_request_size", _number, "producer"),
        "message.timeout.ms": Translated("delivery_timeout_ms", _endless_ms, "producer"),
        "delivery.timeout.ms": Own(_endless_ms, "producer"),
        "compression.codec": Translated("compression_type", _one_of(_CODECS), "producer"),
        "compression.type": Own(_one_of(_CODECS), "producer"),
        "partitioner": Own(_partitioner, "producer"),
        # Refused: callbacks
        **dict.fromkeys(
            ("error_cb", "throttle_cb"), Refused("read `consumer.events()` or `consumer.health()`")
        ),
        "stats_cb": Refused("call `metrics()`, or serve the consumer's metrics with `extras.web`"),
        "on_commit": Refused("`await commit()` raises commit errors", "consumer"),
        "on_delivery": Refused(
            "await the future of `send()`, or call the future's `add_done_callback`", "producer"
        ),
        **dict.fromkeys(
            ("key.serializer", "value.serializer"),
            Refused(
                "pass functions without a `ctx` parameter as `key_serializer=` and "
                "`value_serializer=`"
            ),
        ),
        **dict.fromkeys(
            ("key.deserializer", "value.deserializer"),
            Refused(
                "pass functions without a `ctx` parameter as `key_deserializer=` and "
                "`value_deserializer=`"
            ),
        ),
        **dict.fromkeys(
            (
                "log_cb", "background_event_cb", "socket_cb", "connect_cb", "closesocket_cb",
                "open_cb", "resolve_cb", "opaque", "default_topic_conf", "interceptors",
                "oauthbearer_token_refresh_cb", "ssl_key", "ssl_certificate", "ssl_ca",
                "ssl_engine_callback_data", "ssl.certificate.verify_cb",
            ),
            _C_ONLY,
        ),
        **dict.fromkeys(
            ("consume_cb", "rebalance_cb", "offset_commit_cb"), _C_ONLY._replace(client="consumer")
        ),
        **dict.fromkeys(
            ("dr_cb", "dr_msg_cb", "partitioner_cb", "msg_order_cmp"),
            _C_ONLY._replace(client="producer"),
        ),
        # Refused: security
        "enable.ssl.certificate.verification": Refused(_OWN_CONTEXT, unless=("true", "t", "1")),
        "ssl.endpoint.identification.algorithm": Refused(_OWN_CONTEXT, unless=("https",)),
        **dict.fromkeys(
            (
                "ssl.curves.list", "ssl.sigalgs.list", "ssl.providers", "ssl.engine.location",
                "ssl.engine.id",
            ),
            Refused(_OWN_CONTEXT),
        ),
        **dict.fromkeys(
            ("ssl.key.pem", "ssl.certificate.pem"),
            Refused(
                "write the PEM text to a file for `ssl.key.location` or `ssl.certificate.location`"
            ),
        ),
        **dict.fromkeys(
            ("ssl.keystore.location", "ssl.keystore.password"),
            Refused("convert the keystore to PEM files (`openssl pkcs12`)"),
        ),
        "enable.sasl.oauthbearer.unsecure.jwt": _OIDC._replace(unless=("false", "f", "0")),
        "sasl.oauthbearer.method": _OIDC._replace(unless=("default",)),
        "sasl.oauthbearer.metadata.authentication.type": _OIDC._replace(unless=("none",)),
        **dict.fromkeys(
            (
                "sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret",
                "sasl.oauthbearer.client.credentials.client.id",
                "sasl.oauthbearer.client.credentials.client.secret",
                "sasl.oauthbearer.scope", "sasl.oauthbearer.extensions",
                "sasl.oauthbearer.token.endpoint.url", "sasl.oauthbearer.sub.claim.name",
                "sasl.oauthbearer.grant.type", "https.ca.location", "https.ca.pem",
                *[f"sasl.oauthbearer.assertion.{name}" for name in _ASSERTIONS],
            ),
            _OIDC,
        ),
        # Refused: the rest
        "plugin.library.paths": Refused("librdkafka's plugins cannot be loaded"),
        "topic.blacklist": Refused("subscribe with a pattern that excludes the blacklisted topics"),
        "enable.partition.eof": Refused(
            "compare `position` with `highwater`", "consumer", unless=("false", "f", "0")
        ),
        "offset.store.method": Refused(
            "offsets are always committed to the group, on the brokers",
            "consumer",
            unless=("broker",),
        ),
        **dict.fromkeys(
            ("offset.store.path", "offset.store.sync.interval.ms"),
            Refused("offsets are always committed to the group, on the brokers", "consumer"),
        ),
        "share.acknowledgement.mode": Refused(
            "use `AIOKafkaShareConsumer(ack_mode=…)`", "consumer"
        ),
        "enable.gapless.guarantee": Refused(
            "use a transaction", "producer", unless=("false", "f", "0")
        ),
        "queuing.strategy": Refused(
            "records are always sent in order", "producer", unless=("fifo",)
        ),
    }  # fmt: skip
SETTINGS: Final[Mapping[str, Setting]] = {
    name: Translated(name.replace(".", "_"), *each) if isinstance(each, Own) else each
    for name, each in _TABLE.items()
}

# Settings that have no effect here, whatever their values are. The page has the reasons.
UNNEEDED: Final = frozenset(
    {
        "retry.backoff.max.ms", "reconnect.backoff.jitter.ms", "reconnect.backoff.ms",
        "reconnect.backoff.max.ms", "fetch.error.backoff.ms", "api.version.request",
        "api.version.request.timeout.ms", "api.version.fallback.ms", "broker.version.fallback",
        "metadata.recovery.strategy", "metadata.recovery.rebootstrap.trigger.ms",
        "topic.metadata.refresh.fast.interval.ms", "topic.metadata.refresh.fast.cnt",
        "topic.metadata.refresh.sparse", "topic.metadata.propagation.max.ms",
        "coordinator.query.interval.ms", "socket.send.buffer.bytes", "socket.receive.buffer.bytes",
        "socket.keepalive.enable", "socket.nagle.disable", "socket.connection.setup.timeout.ms",
        "socket.max.fails", "socket.blocking.max.ms", "broker.address.ttl", "broker.address.family",
        "client.dns.lookup", "receive.message.max.bytes", "message.copy.max.bytes",
        "max.in.flight.requests.per.connection", "max.in.flight", "builtin.features",
        "enable.metrics.push", "statistics.interval.ms", "default.topic.config", "logger", "debug",
        "log_level", "log.queue", "log.thread.name", "log.connection.close",
        "internal.termination.signal", "enable.random.seed", "enabled_events",
        "sasl.kerberos.service.name", "sasl.kerberos.principal", "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.keytab", "sasl.kerberos.min.time.before.relogin",
        "ssl.ca.certificate.stores", "group.protocol.type", "queued.min.messages",
        "fetch.queue.backoff.ms", "consume.callback.max.messages", "max.poll.records",
        "auto.commit.enable", "message.send.max.retries", "retries", "queue.buffering.max.messages",
        "queue.buffering.backpressure.threshold", "batch.num.messages", "request.timeout.ms",
        "compression.level", "sticky.partitioning.linger.ms", "delivery.report.only.error",
        "produce.offset.report",
    }
)  # fmt: skip

# librdkafka's defaults, if another value would change the records that are read, their partition,
# or what brokers do.
DEFAULTS: Final[Mapping[str, Mapping[str, object]]] = {
    "consumer": {
        "isolation.level": "read_committed",
        "allow.auto.create.topics": False,
        "session.timeout.ms": 45_000,
        "sasl.mechanism": "GSSAPI",
    },
    "producer": {"partitioner": "consistent_random", "sasl.mechanism": "GSSAPI"},
}


def confluent_settings(
    conf: Mapping[str, object], kind: Literal["consumer", "producer"] = "consumer"
) -> dict[str, Any]:
    """Translate a configuration of confluent-kafka into keyword arguments.

    ::

        consumer = AIOKafkaConsumer("orders", **confluent_settings(conf))
        producer = AIOKafkaProducer(**confluent_settings(conf, kind="producer"))

    ``docs/confluent-kafka.md`` lists every setting, and the defaults of librdkafka that are kept.
    As in librdkafka, values may be strings, an empty text is the default (as is None), a server may
    have the prefix of the security protocol, and settings of the other client, and of a protocol
    that is not used, are ignored. A consumer's ``group.id`` must not be empty.

    Args:
        conf: Settings by their names with dots.
        kind: The client: "consumer" or "producer".

    Raises:
        KafkaConfigurationError: Some settings have no equal here, are unknown or have a wrong
            value. The message has all of them, each with the reason or its replacement. Or a file
            with certificates cannot be read.
        ValueError: There is no such kind.
        TypeError: `conf` or its ``default.topic.config`` is not a dict, or a name is no str.
    """
    _check_names("conf", conf)
    if kind not in tuple(DEFAULTS):
        raise ValueError(f'kind must be "consumer" or "producer", not {kind!r}')
    used = _with_defaults(conf, DEFAULTS[kind])
    protocol = str(used.get("security.protocol", "plaintext")).upper()
    problems: dict[str, str] = {}
    if kind == "consumer" and "group.id" in conf and "group.id" not in used:
        # A consumer without a group would read all partitions, and commit no offsets.
        problems["group.id"] = "the value is empty: leave it out for a consumer without a group"
    values: dict[str, object] = {}
    for name, given in used.items():
        if name in UNNEEDED:
            continue
        if (setting := SETTINGS.get(name)) is None:
            known = SETTINGS.keys() | UNNEEDED
            problems[name] = f"librdkafka has no such setting{nearest(name, known)}"
        elif not _is_used(name, setting, used, kind, protocol):
            continue
        elif isinstance(setting, Translated):
            try:
                value = setting.read(given)
                if setting.read is _servers:
                    value = _without_protocol(str(value), protocol)
                values[setting.argument] = value
            except ValueError as error:
                problems[name] = str(error)
        elif str(given).lower() not in setting.unless:
            problems[name] = setting.note.replace("`", "")
    if problems:
        raise KafkaConfigurationError(
            f"these settings of confluent-kafka cannot be used with AIOKafka{kind.capitalize()}:"
            + "".join(f"\n- {name}: {reason}" for name, reason in problems.items())
        )
    arguments = _assembled(values, has_tls=protocol.endswith("SSL"))
    if kind == "producer":
        _fit_request_timeout(arguments)
    return arguments


def _check_names(label: str, conf: object) -> None:
    if not isinstance(conf, Mapping):
        # Its value is not shown, because it may contain a password.
        raise TypeError(f"{label} must be a dict of settings by name, not a {type(conf).__name__}")
    for name in conf:
        TEXT.check(f"the name of a setting in {label}", name)


def _with_defaults(
    conf: Mapping[str, object], defaults: Mapping[str, object]
) -> Mapping[str, object]:
    """Add defaults that nothing sets. Of two settings with one argument, the later one is used."""
    topic: Any = conf.get("default.topic.config") or {}
    _check_names("default.topic.config", topic)
    given = {
        name: value
        for name, value in {**conf, **topic}.items()  # confluent-kafka merges them so
        if value is not None and not (value == "" and _is_text(name))
    }
    arguments = {getattr(SETTINGS.get(name), "argument", None) for name in given}
    more = {
        name: value
        for name, value in defaults.items()
        if getattr(SETTINGS[name], "argument", None) not in arguments
    }
    # It has no alias: its interval is used whatever the age of cached metadata is.
    last = "topic.metadata.refresh.interval.ms"
    return dict(sorted({**more, **given}.items(), key=lambda item: item[0] == last))


def _is_text(name: str) -> bool:
    return getattr(SETTINGS.get(name), "read", None) in (_text, _servers)


def _is_used(
    name: str, setting: Setting, conf: Mapping[str, object], kind: str, protocol: str
) -> bool:
    is_manual = str(conf.get("enable.auto.commit")).lower() in ("false", "f", "0")
    if name == "auto.commit.interval.ms" and is_manual:
        return False
    if "ssl" in name and not protocol.endswith("SSL"):
        return False
    is_sasl = "sasl" in name or "oauth" in name or name.startswith("https.")
    if is_sasl and not protocol.startswith("SASL_"):
        return False
    return setting.client in (kind, "both")


def _assembled(values: Mapping[str, object], *, has_tls: bool) -> dict[str, Any]:
    parts: defaultdict[str, dict[str, object]] = defaultdict(dict)
    if has_tls:
        parts["ssl_context"] = {}
    for argument, value in values.items():
        owner, _, part = argument.partition(".")
        if part:
            parts[owner][part] = value
    made = {owner: _MAKERS[owner](**each) for owner, each in parts.items()}
    return {**{name: value for name, value in values.items() if "." not in name}, **made}


def _fit_request_timeout(arguments: dict[str, Any]) -> None:
    """Lower the time of a request to that of a record, as librdkafka does."""
    if "delivery_timeout_ms" in arguments:
        left_ms = arguments["delivery_timeout_ms"] - arguments.get("linger_ms", 0)
        if left_ms < 1:
            raise KafkaConfigurationError("message.timeout.ms must be greater than linger.ms")
        default: Any = (ProducerConfig.__init__.__kwdefaults__ or {})["request_timeout_ms"]
        arguments["request_timeout_ms"] = min(arguments.get("request_timeout_ms", default), left_ms)
