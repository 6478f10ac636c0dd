"""Listeners: the checks of their addresses, and the server's side of TLS.

Clients of a listener get the addresses of the same listener at every node. The protocol does not
contain the listener's name."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from aiokafka_lite._arguments import check_fields
from aiokafka_lite._compat import StrEnum
from aiokafka_lite._loopback import is_loopback
from aiokafka_lite.broker.security.mechanisms import SaslMechanism
from aiokafka_lite.errors import InsecureConfigError, KafkaConfigurationError
from aiokafka_lite.sasl import Secret

ANONYMOUS: Final = "ANONYMOUS"
_SHORT_NAMES: Final[Mapping[str, str]] = {
    "commonName": "CN",
    "countryName": "C",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}


class ClientAuth(StrEnum):
    """Whether clients show a certificate (Kafka's ssl.client.auth)."""

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


_VERIFY_MODES: Final = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.REQUESTED: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}


def server_ssl_context(
    certfile: str | Path,
    keyfile: str | Path | None = None,
    *,
    key_password: Secret | str | None = None,
    client_auth: ClientAuth | str = ClientAuth.NONE,
    client_ca_file: str | Path | None = None,
) -> ssl.SSLContext:
    """Create a listener's TLS context from PEM files, for TLS 1.2 and newer.

    Args:
        certfile: The certificate and its intermediate certificates.
        keyfile: The private key, unless `certfile` has it.
        key_password: The password of the private key.
        client_auth: Whether clients show a certificate: `none`, `requested` or `required`.
        client_ca_file: The CA of the clients' certificates, unless `client_auth` is `none`.

    Raises:
        KafkaConfigurationError: A file cannot be read, or has another content.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    password = Secret(key_password) if isinstance(key_password, str) else key_password
    try:
        # Without a password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(certfile, keyfile, password.reveal() if password else lambda: "")
    except (OSError, ValueError) as error:
        raise KafkaConfigurationError(
            f"cannot use certificate {certfile} with key {keyfile or certfile}: {_reason(error)}"
        ) from None
    ask_for_certificates(context, client_auth, client_ca_file)
    return context


def ask_for_certificates(
    context: ssl.SSLContext,
    client_auth: ClientAuth | str,
    client_ca_file: str | Path | None = None,
    client_ca_pem: str | None = None,
) -> None:
    mode = ClientAuth(client_auth)
    if mode is not ClientAuth.NONE:
        if client_ca_file is None and client_ca_pem is None:
            raise KafkaConfigurationError(
                f"client_auth={mode.value} needs client_ca_file, a file with the CA that signs "
                "client certificates"
            )
        try:
            context.load_verify_locations(client_ca_file, cadata=client_ca_pem)
        except OSError as error:
            raise KafkaConfigurationError(
                f"cannot use the CA file {client_ca_file}: {_reason(error)}"
            ) from None
    context.verify_mode = _VERIFY_MODES[mode]


def principal_of(certificate: Mapping[str, object] | None) -> str:
    """Return the name in a client's certificate, last part first, as Kafka does (RFC 2253)."""
    subject = (certificate or {}).get("subject")
    if not isinstance(subject, Sequence) or not subject:
        return ANONYMOUS
    return ",".join(
        "+".join(f"{_SHORT_NAMES.get(kind, kind)}={_escaped(value)}" for kind, value in parts)
        for parts in reversed(subject)
    )


def _escaped(value: str) -> str:
    return "".join(f"\\{char}" if char in ',+"\\<>;=' else char for char in value)


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "the file is not in PEM format"
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__


MAX_PORT: Final = 65_535

DEFAULT_MECHANISMS: Final = (
    SaslMechanism.PLAIN,
    SaslMechanism.SCRAM_SHA_256,
    SaslMechanism.SCRAM_SHA_512,
)

E = TypeVar("E", bound=StrEnum)


class SecurityProtocol(StrEnum):
    """The protection of a listener's connections, by Kafka's names."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


@dataclass(frozen=True)
class Listener:
    """An address at which each node listens, and the authentication that it requires.

    The fields other than `name` have the meaning of those in `BrokerConfig`.

    Attributes:
        name: Unique in a broker. By default the protocol.
    """

    security_protocol: SecurityProtocol | str = SecurityProtocol.PLAINTEXT
    name: str = ""
    host: str = "127.0.0.1"
    port: int = 0
    ssl_context: ssl.SSLContext | None = field(default=None, repr=False)
    sasl_mechanisms: Sequence[SaslMechanism | str] = DEFAULT_MECHANISMS

    def __post_init__(self) -> None:
        check_fields(self)
        protocol = _member(SecurityProtocol, "security_protocol", self.security_protocol)
        object.__setattr__(self, "security_protocol", protocol)
        object.__setattr__(self, "name", self.name or protocol.value)
        mechanisms = tuple(
            _member(SaslMechanism, "sasl_mechanisms", name) for name in self.sasl_mechanisms
        )
        object.__setattr__(self, "sasl_mechanisms", mechanisms)
        if protocol.has_sasl and not mechanisms:
            raise ValueError(f"listener {self.name} needs a SASL mechanism: set sasl_mechanisms")
        if self.ssl_context is not None:
            _check_context(self.ssl_context, self.name, protocol)

    @property
    def protocol(self) -> SecurityProtocol:
        """The security protocol."""
        return SecurityProtocol(self.security_protocol)

    @property
    def mechanisms(self) -> tuple[SaslMechanism, ...]:
        """The SASL mechanisms that clients may use, empty without SASL."""
        return tuple(map(SaslMechanism, self.sasl_mechanisms)) if self.protocol.has_sasl else ()

    @property
    def is_remote(self) -> bool:
        """Whether other machines can reach the address."""
        return not is_loopback(self.host)


def check_listeners(
    listeners: Sequence[Listener],
    *,
    nodes: int,
    allow_remote: bool,
    allow_cleartext_credentials: bool,
) -> None:
    """Check the names, ports and addresses of a broker's listeners."""
    names = [listener.name for listener in listeners]
    if len(set(names)) < len(names):
        raise ValueError(f"two listeners have the same name: {', '.join(names)}")
    for listener in listeners:
        if not 0 <= listener.port <= listener.port + nodes - 1 <= MAX_PORT:
            raise ValueError(
                f"port must be 0 to {MAX_PORT - nodes + 1}, not {listener.port}, because the "
                f"{nodes} nodes use consecutive ports"
            )
        if not listener.is_remote:
            continue
        protocol = listener.protocol
        if not allow_remote:
            raise InsecureConfigError(_remote_problem(listener))
        if protocol is SecurityProtocol.SASL_PLAINTEXT and not allow_cleartext_credentials:
            raise InsecureConfigError(
                f"listener {listener.name}: clients would send credentials to "
                f"{listener.host} without TLS. Use SASL_SSL, or set allow_cleartext_credentials"
            )


def _remote_problem(listener: Listener) -> str:
    why = {
        SecurityProtocol.PLAINTEXT: "security_protocol=PLAINTEXT does not require a password",
        SecurityProtocol.SSL: "security_protocol=SSL does not require a password",
        SecurityProtocol.SASL_PLAINTEXT: "this broker is for tests only",
        SecurityProtocol.SASL_SSL: "this broker is for tests only",
    }[listener.protocol]
    return (
        f"{listener.host} can be reached from other machines, and {why}: "
        f"listen on 127.0.0.1, or set allow_remote (--allow-remote)"
    )


def _check_context(context: ssl.SSLContext, name: str, protocol: SecurityProtocol) -> None:
    if not protocol.has_tls:
        raise ValueError(
            f"listener {name} has an ssl_context, but {protocol.value} does not use TLS"
        )
    if context.protocol is not ssl.PROTOCOL_TLS_SERVER:
        raise ValueError(
            f"listener {name}: the ssl_context must be a server context "
            f"(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH))"
        )
    if context.minimum_version < ssl.TLSVersion.TLSv1_2:
        raise InsecureConfigError(
            f"listener {name}: set the ssl_context's minimum_version to TLSv1_2 or newer"
        )


def _member(kind: type[E], setting: str, value: str) -> E:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(kind)
        raise ValueError(f"{setting} must be one of {known}, not {value!r}") from None
