"""The options of `aiokafka_lite broker` about TLS and passwords."""

from __future__ import annotations

import argparse
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from aiokafka_lite.broker import Broker, server_ssl_context
from aiokafka_lite.broker.security.listener import DEFAULT_MECHANISMS, SecurityProtocol
from aiokafka_lite.broker.security.mechanism import Mechanism
from aiokafka_lite.broker.security.tls import ClientAuth
from aiokafka_lite.errors import KafkaConfigurationError
from aiokafka_lite.sasl import Secret

COMMENT: Final = "#"


class UserOption(NamedTuple):
    """A user who may connect: `name:password`."""

    name: str
    password: Secret


def user_option(text: str) -> UserOption:
    """Parse `name:password`; errors do not repeat it."""
    name, _, password = text.partition(":")
    if not (name and password):
        raise argparse.ArgumentTypeError("a user is written name:password")
    return UserOption(name, Secret(password))


def users_file(text: str) -> list[UserOption]:
    """Read a file with `name:password` on each line; empty lines and those with # are left out."""
    try:
        lines = Path(text).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise argparse.ArgumentTypeError(f"cannot read {text}: {reason}") from None
    return [user_option(line) for line in lines if line and not line.startswith(COMMENT)]


@dataclass(frozen=True)
class SecurityOptions:
    """What the command line says about security, as `Broker` takes it."""

    security_protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    ssl_context: ssl.SSLContext | None = field(default=None, repr=False)
    sasl_mechanisms: Sequence[Mechanism] = DEFAULT_MECHANISMS
    users: dict[str, Secret] = field(default_factory=dict)
    oauth_allow_unsecured_tokens: bool = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to the command."""
    group = parser.add_argument_group("security")
    group.add_argument(
        "--security-protocol",
        type=str.upper,
        choices=[protocol.value for protocol in SecurityProtocol],
        default=SecurityProtocol.PLAINTEXT.value,
        help="what clients must speak (default: %(default)s)",
    )
    group.add_argument(
        "--user",
        type=user_option,
        action="append",
        default=[],
        metavar="NAME:PASSWORD",
        help="who may connect, by PLAIN and SCRAM; may be repeated. Others on this machine can "
        "read command lines: --users-file hides it",
    )
    group.add_argument(
        "--users-file",
        type=users_file,
        default=[],
        metavar="FILE",
        help="the same from a file, name:password on each line",
    )
    group.add_argument(
        "--sasl-mechanism",
        action="append",
        choices=[mechanism.value for mechanism in Mechanism],
        help="what clients may authenticate by; may be repeated (default: PLAIN and both SCRAMs). "
        "OAUTHBEARER needs --oauth-allow-unsecured-tokens here",
    )
    group.add_argument(
        "--oauth-allow-unsecured-tokens",
        action="store_true",
        help="take tokens that nobody signed, as Kafka does by default",
    )
    group.add_argument(
        "--tls-cert",
        type=Path,
        metavar="FILE.pem",
        help="the broker's certificate, with its key or beside --tls-key (default: throw-away "
        "ones, see --write-certificates)",
    )
    group.add_argument("--tls-key", type=Path, metavar="FILE.pem", help="the certificate's key")
    group.add_argument(
        "--tls-client-ca",
        type=Path,
        metavar="FILE.pem",
        help="clients must show a certificate that this CA signed",
    )
    group.add_argument(
        "--write-certificates",
        type=Path,
        metavar="DIR",
        help="write the throw-away CA (ca.pem) and a client's certificate and key (client.pem)",
    )


def read_options(options: argparse.Namespace) -> SecurityOptions:
    """Make of the options what `Broker` takes.

    Raises:
        KafkaConfigurationError: Some do not fit together, or a file cannot be used.
    """
    protocol = SecurityProtocol(options.security_protocol)
    users = {user.name: user.password for user in (*options.users_file, *options.user)}
    if users and not protocol.has_sasl:
        raise KafkaConfigurationError(
            f"nobody asks users for a password with {protocol}: use --security-protocol SASL_SSL "
            f"or SASL_PLAINTEXT"
        )
    tls_options = (options.tls_cert, options.tls_key, options.tls_client_ca)
    if any(tls_options) and not (protocol.has_tls and options.tls_cert):
        raise KafkaConfigurationError(
            "certificates need --tls-cert, and --security-protocol SSL or SASL_SSL"
        )
    if options.write_certificates and (options.tls_cert or not protocol.has_tls):
        raise KafkaConfigurationError(
            "there are throw-away certificates with --security-protocol SSL or SASL_SSL only, and "
            "without --tls-cert"
        )
    context = None
    if options.tls_cert:
        asks = ClientAuth.REQUIRED if options.tls_client_ca else ClientAuth.NONE
        context = server_ssl_context(
            options.tls_cert,
            options.tls_key,
            client_auth=asks,
            client_ca_file=options.tls_client_ca,
        )
    return SecurityOptions(
        security_protocol=protocol,
        ssl_context=context,
        sasl_mechanisms=tuple(map(Mechanism, options.sasl_mechanism or DEFAULT_MECHANISMS)),
        users=users,
        oauth_allow_unsecured_tokens=options.oauth_allow_unsecured_tokens,
    )


def write_certificates(broker: Broker, folder: Path | None) -> list[str]:
    """Write the throw-away certificates, if they are wanted; return lines to say about it.

    Raises:
        KafkaConfigurationError: They cannot be written there.
    """
    if folder is None:
        return []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = broker.certificates.write(folder)
    except OSError as error:
        raise KafkaConfigurationError(f"cannot write to {folder}: {error.strerror}") from None
    return [f"certificates: trust {files.ca}; a client's own is {files.client}"]
