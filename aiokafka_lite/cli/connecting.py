"""The connection of a command: from options, -X, the environment and a file, in this order.

All of them are Kafka's own settings (`security.protocol` …), or librdkafka's.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aiokafka_lite._settings import nearest
from aiokafka_lite.cli.arguments import add_arguments
from aiokafka_lite.cli.problems import CommandError, UsageError, plain_text
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.config import ClientConfig
from aiokafka_lite.errors import InsecureConfigError, OptionError
from aiokafka_lite.settings.kafka_options import (
    ACCEPTED,
    REFUSED,
    WITHOUT_EFFECT,
    WRITING,
    parse_kafka_options,
)
from aiokafka_lite.settings.raw_options import RawOptions
from aiokafka_lite.settings.security import Login

if TYPE_CHECKING:
    from aiokafka_lite import AIOKafkaConsumer
    from aiokafka_lite.client.sasl import Mechanism
    from aiokafka_lite.producing import AIOKafkaProducer
    from aiokafka_lite.producing.engine import BulkProducer

ENVIRONMENT: Final = "AIOKAFKA_LITE_"
DEFAULT_BOOTSTRAP: Final = "localhost:9092"
DEFAULT_TIMEOUT_S: Final = 20.0

_HELP: Final = """\
Environment variables can replace the options for addresses, files, names and passwords:
AIOKAFKA_LITE_BOOTSTRAP, AIOKAFKA_LITE_CONFIG, AIOKAFKA_LITE_PASSWORD … Options override
environment variables, and environment variables override the properties file."""
_ARGUMENTS: Final = f"""
-b, --bootstrap HOST:PORT  bootstrap servers, separated by commas (default: {DEFAULT_BOOTSTRAP})
--config, --command-config FILE
  a file with client settings, in the properties format of Kafka's own tools
-X NAME=VALUE ...  another client setting, by its name in Kafka (repeatable)
--tls  use TLS, and trust the system's certificates
--security-protocol NAME
  PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL (default: derived from the other options)
--ca-file FILE
  certificates to trust, in PEM or PKCS12 (default: the system's certificates). Implies TLS
--cert-file FILE  the client's own certificate, in PEM. Implies TLS
--key-file FILE  the private key of --cert-file (default: the key in the file of --cert-file)
--key-password TEXT  the password of the private key
--mechanism NAME
  PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER (default with --username: PLAIN)
--username NAME  the user name for SASL. Implies SASL and TLS
--password TEXT
  the password for SASL. Set AIOKAFKA_LITE_PASSWORD instead if other users of this machine can see
  its processes
--allow-plaintext-credentials  allow sending credentials to other machines without TLS
--timeout SECONDS
  the time limit for connecting and for each response (default: {DEFAULT_TIMEOUT_S:g})
"""
# For a command whose own --config has other settings.
_WITHOUT_CONFIG: Final = _ARGUMENTS.replace("--config, ", "")
# The settings of options that environment variables can replace.
_SETTINGS: Final = {
    "bootstrap": "bootstrap.servers",
    "security_protocol": "security.protocol",
    "ca_file": "ssl.truststore.location",
    "cert_file": "ssl.certificate.location",
    "key_file": "ssl.key.location",
    "key_password": "ssl.key.password",
    "mechanism": "sasl.mechanism",
    "username": "sasl.username",
    "password": "sasl.password",
}


def add_options(parser: argparse.ArgumentParser, *, has_config: bool = True) -> None:
    group = parser.add_argument_group("connection", _HELP)
    add_arguments(group, _ARGUMENTS if has_config else _WITHOUT_CONFIG)


class Connecting(NamedTuple):
    """The settings of a connection. `login` is the source of `mechanism`."""

    config: ClientConfig
    mechanism: Mechanism | None
    login: Login | None
    client_rack: str | None

    @property
    def patience_s(self) -> float:
        """How long brokers may answer no fetch before a command ends."""
        return max(FETCHES_IN_A_ROW * self.config.request_timeout_s, LEAST_PATIENCE_S)

    @contextmanager
    def cluster(self) -> Iterator[BlockingCluster]:
        """Lend a client, which has the time of one request for all (`BlockingCluster.limit`)."""
        cluster = BlockingCluster(self.config, mechanism=self.mechanism)
        cluster.limit(self.config.request_timeout_s)
        try:
            yield cluster
        finally:
            cluster.close()

    def consumer(
        self,
        *,
        isolation_level: str,
        metadata_max_age_s: float = math.inf,
        group_id: str | None = None,
    ) -> AIOKafkaConsumer:
        """Create a consumer that joins no group: `group_id` is only for its committed offsets."""
        # Imported here, because it takes a while.
        from aiokafka_lite import AIOKafkaConsumer

        return AIOKafkaConsumer(
            **self._arguments(metadata_max_age_s),
            group_id=group_id,
            client_rack=self.client_rack,
            isolation_level=isolation_level,
            auto_offset_reset="none",
            enable_auto_commit=False,
            max_partition_fetch_bytes=MAX_PARTITION_FETCH_BYTES,
        )

    def member(
        self, kind: type[AIOKafkaConsumer], *topics: str, **settings: Any
    ) -> AIOKafkaConsumer:
        """Create a consumer that joins a group."""
        return kind(*topics, **self._arguments(), client_rack=self.client_rack, **settings)

    def producer(self, transactional_id: str | None = None) -> AIOKafkaProducer:
        from aiokafka_lite.producing import AIOKafkaProducer

        return AIOKafkaProducer(**self._arguments(), transactional_id=transactional_id)

    def bulk_producer(self, compression: str, on_loss: Callable[[], object]) -> BulkProducer:
        from aiokafka_lite.producing.config import ProducerConfig
        from aiokafka_lite.producing.engine import BulkProducer

        timeout_ms = int(self.config.request_timeout_s * 1000)
        config: ProducerConfig[bytes | None, bytes | None] = ProducerConfig(
            **self._arguments(),
            compression_type=None if compression == "none" else compression,
            linger_ms=LINGER_MS,
            max_batch_size=MAX_BATCH_BYTES,
            max_request_size=MAX_REQUEST_BYTES,
            buffer_memory=2 * MAX_REQUEST_BYTES,
            delivery_timeout_ms=LINGER_MS + timeout_ms,
        )
        return BulkProducer(config, on_loss)

    def _arguments(self, metadata_max_age_s: float = math.inf) -> dict[str, Any]:
        config, login = self.config, self.login
        password = login.password if login is not None else None
        return {
            "bootstrap_servers": str(config.bootstrap_servers),
            "client_id": config.client_id,
            "request_timeout_ms": int(config.request_timeout_s * 1000),
            "metadata_max_age_ms": int(min(config.metadata_max_age_s, metadata_max_age_s) * 1000),
            "security_protocol": config.security_protocol,
            "ssl_context": config.ssl_context,
            "sasl_mechanism": "PLAIN" if login is None else login.mechanism,
            "sasl_plain_username": None if login is None else login.username,
            "sasl_plain_password": None if password is None else password.reveal().decode(),
            "sasl_oauth_token_provider": None if login is None else login.tokens,
            "allow_plaintext_credentials": config.allow_plaintext_credentials,
            "allow_auto_create_topics": False,
        }


# Brokers restart in this time. It is longer than the longest wait of a fetch for records.
FETCHES_IN_A_ROW: Final = 3
LEAST_PATIENCE_S: Final = 2.0
# A few responses per second are as fast as the decoding.
MAX_PARTITION_FETCH_BYTES: Final = 4 << 20
# Not noticeable for single lines. Many lines fill batches sooner.
LINGER_MS: Final = 20
MAX_BATCH_BYTES: Final = 64 << 10
# The largest request that brokers take by default (socket.request.max.bytes).
MAX_REQUEST_BYTES: Final = 100 << 20


def connecting(
    options: argparse.Namespace, environment: Mapping[str, str] = os.environ
) -> Connecting:
    settings = _settings(options, environment)
    raw = RawOptions(
        {
            **{f"kafka.{name}": value for name, value in settings.items()},
            "allowPlaintextCredentials": str(options.allow_plaintext_credentials).lower(),
        }
    )
    try:
        parsed = parse_kafka_options(raw)
    except (OptionError, InsecureConfigError) as error:
        raise UsageError(plain_text(error)) from error
    return Connecting(parsed.client, parsed.mechanism, parsed.login, parsed.client_rack)


def _settings(options: argparse.Namespace, environment: Mapping[str, str]) -> dict[str, str]:
    file = options.command_config or environment.get(f"{ENVIRONMENT}CONFIG")
    settings: dict[str, str] = {"request.timeout.ms": str(int(DEFAULT_TIMEOUT_S * 1000))}
    if file:
        _override(settings, _of_file(Path(file)))
    _override(settings, _of_environment(environment))
    for name, _ in options.X:
        _check_name(name)
    _override(settings, dict(options.X))
    _override(settings, _of_options(options))
    settings.setdefault("bootstrap.servers", DEFAULT_BOOTSTRAP)
    has_login = "sasl.username" in settings
    if "sasl.password" in settings and not has_login:
        raise UsageError(
            f"there is a password, but no user name: add --username, or unset {ENVIRONMENT}PASSWORD"
        )
    if has_login and not {"sasl.mechanism", "sasl.mechanisms"} & settings.keys():
        settings["sasl.mechanism"] = "PLAIN"
    _choose_protocol(settings, wants_tls=options.tls)
    if has_login and "sasl.password" not in settings:
        # Kept, so that it is not asked for again, also by other processes.
        options.password = _ask_password(settings["sasl.username"])
        settings["sasl.password"] = options.password
    return settings


def _choose_protocol(settings: dict[str, str], *, wants_tls: bool) -> None:
    """Derive the protocol from the other settings. Credentials imply TLS."""
    chosen = settings.get("security.protocol", "").strip().upper()
    if chosen:
        if wants_tls and not chosen.endswith("SSL"):
            raise UsageError(f"--tls contradicts security.protocol={chosen}: leave one out")
        return
    wants_sasl = any(name.startswith("sasl.") for name in settings)
    wants_tls = wants_tls or wants_sasl or any(name.startswith("ssl.") for name in settings)
    protocol = "SASL_" if wants_sasl else ""
    settings["security.protocol"] = f"{protocol}{'SSL' if wants_tls else 'PLAINTEXT'}"


def _ask_password(username: str) -> str:
    import getpass

    try:
        if sys.stdin is not None and sys.stdin.isatty():
            return getpass.getpass(f"Password of {username}: ")
    except EOFError:  # Ctrl-D
        print(file=sys.stderr)
    raise UsageError(
        f"no password for user {username}: set {ENVIRONMENT}PASSWORD, or set sasl.password in "
        "the properties file"
    )


def _override(settings: dict[str, str], nearer: Mapping[str, str]) -> None:
    """Replace settings, and remove the ones that they make invalid."""
    if "sasl.username" in nearer or "sasl.password" in nearer:
        settings.pop("sasl.jaas.config", None)
    if "sasl.jaas.config" in nearer:
        settings.pop("sasl.username", None)
        settings.pop("sasl.password", None)
    if "ssl.certificate.location" in nearer:
        for name in ("location", "certificate.chain", "key"):
            settings.pop(f"ssl.keystore.{name}", None)
    if "ssl.truststore.location" in nearer:
        for name in ("ssl.ca.location", "ssl.truststore.certificates"):
            settings.pop(name, None)
    settings.update(nearer)


def _of_options(options: argparse.Namespace) -> dict[str, str]:
    given = {setting: getattr(options, name) for name, setting in _SETTINGS.items()}
    if options.timeout is not None:
        given["request.timeout.ms"] = str(max(1, int(options.timeout * 1000)))
    return {setting: str(value) for setting, value in given.items() if value is not None}


def _of_environment(environment: Mapping[str, str]) -> dict[str, str]:
    given = {
        setting: environment.get(f"{ENVIRONMENT}{name.upper()}")
        for name, setting in _SETTINGS.items()
    }
    return {setting: value for setting, value in given.items() if value}


def _of_file(path: Path) -> dict[str, str]:
    """Return the settings of a file that have an effect here. Other clients may share the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CommandError(f"cannot read {path}: byte {error.start} is not UTF-8") from error
    found: dict[str, str] = {}
    for name, value in parse_properties(text).items():
        if name in ACCEPTED:
            found[name] = value
        elif name not in WITHOUT_EFFECT and name not in REFUSED and name not in WRITING:
            print(
                f"warning: {path}: unknown setting {name} is ignored{nearest(name, ACCEPTED)}",
                file=sys.stderr,
            )
    for name in ("isolation.level", "group.id"):  # each command has an option of its own
        found.pop(name, None)
    return found


def _check_name(name: str) -> None:
    if name not in ACCEPTED:
        if name in WITHOUT_EFFECT or name in REFUSED or name in WRITING:
            raise UsageError(f"-X {name}: no command uses this setting, so leave it out")
        raise UsageError(f"-X {name}: there is no such setting{nearest(name, ACCEPTED)}")


_SPACE: Final = " \t\f"
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
# A key ends ahead of the first space, = or : that no backslash protects.
_KEY: Final = re.compile(r"(?:\\.|[^\\=: \t\f])*", re.DOTALL)
_BETWEEN: Final = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE: Final = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)


def parse_properties(text: str) -> dict[str, str]:
    """Parse Java's `.properties` (`java.util.Properties.load`). The last of equal names counts."""
    found: dict[str, str] = {}
    for line in _logical_lines(text):
        key = _KEY.match(line)
        end = 0 if key is None else key.end()
        between = _BETWEEN.match(line, end)
        start = end if between is None else between.end()
        found[_unescaped(line[:end])] = _unescaped(line[start:])
    return found


def _logical_lines(text: str) -> Iterator[str]:
    collected = ""
    for line in re.split(r"\r\n|\n|\r", text):
        stripped = line.lstrip(_SPACE)
        if not collected and (not stripped or stripped[0] in "#!"):
            continue
        backslashes = len(stripped) - len(stripped.rstrip("\\"))
        if backslashes % 2:
            collected += stripped[:-1]
            continue
        yield collected + stripped
        collected = ""
    if collected:
        yield collected


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(_character, text)


def _character(found: re.Match[str]) -> str:
    escaped = found[1]
    if len(escaped) > 1:
        return chr(int(escaped[1:], 16))
    return _ESCAPES.get(escaped, escaped)
