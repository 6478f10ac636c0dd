"""Listeners, and the checks of their addresses.

Clients of a listener get the addresses of the same listener at every node. The protocol does not
contain the listener's name.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from aiokafka_lite._arguments import check_fields
from aiokafka_lite._compat import StrEnum
from aiokafka_lite._loopback import is_loopback
from aiokafka_lite.broker.security.mechanisms import SaslMechanism
from aiokafka_lite.errors import InsecureConfigError

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
