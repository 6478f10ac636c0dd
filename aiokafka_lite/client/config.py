"""The settings of a client, and the syntax of addresses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from aiokafka_lite._compat import override
from aiokafka_lite._loopback import is_loopback
from aiokafka_lite._settings import Settings
from aiokafka_lite.client.backoff import LONGEST_BACKOFF_S
from aiokafka_lite.errors import InsecureConfigError, KafkaConfigurationError

if TYPE_CHECKING:
    import ssl

DEFAULT_PORT: Final = 9092
DEFAULT_MAX_FRAME_BYTES: Final = 100 * 1024 * 1024

# The limit of a string in a request.
MOST_STRING_BYTES: Final = 2**15 - 1

SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class Address(NamedTuple):
    """A host name or IP address and a port, as a user or a broker wrote them."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def rule_of_text(text: str, most_bytes: int = MOST_STRING_BYTES) -> str | None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return "must be text that UTF-8 can encode"
    return f"must have at most {most_bytes:,} bytes in UTF-8" if size > most_bytes else None


class ClientConfig(Settings):
    """Settings of one client, with times in seconds.

    Attributes:
        bootstrap_servers: ``"host:port,host:port"`` or a list of such; IPv6 addresses in
            brackets. The port defaults to 9092.
        connect_timeout_s: The time for TCP and TLS at one address, and for ApiVersions and
            authentication.
        retry_backoff_s, reconnect_backoff_s: The first delays, which double, with jitter (KIP-580).
        max_frame_bytes: The largest accepted response.
        receive_buffer_bytes: SO_RCVBUF, at most twice net.core.rmem_max. None: the kernel adapts
            it, up to net.ipv4.tcp_rmem.
    """

    bootstrap_servers: str | Iterable[str] = "localhost"
    client_id: str = "aiokafka-lite"
    request_timeout_s: float = 40.0
    connect_timeout_s: float = 10.0
    retry_backoff_s: float = 0.1
    retry_backoff_max_s: float = LONGEST_BACKOFF_S
    reconnect_backoff_s: float = 0.05
    reconnect_backoff_max_s: float = LONGEST_BACKOFF_S
    metadata_max_age_s: float = 300.0
    connections_max_idle_s: float | None = 540.0
    security_protocol: str = "PLAINTEXT"
    ssl_context: ssl.SSLContext | None = None
    allow_plaintext_credentials: bool = False
    allow_auto_create_topics: bool = True
    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    receive_buffer_bytes: int | None = None

    @override
    def _check(self) -> None:
        if (rule := rule_of_text(self.client_id)) is not None:
            raise KafkaConfigurationError(f"client_id {rule}")
        if self.security_protocol not in SECURITY_PROTOCOLS:
            raise KafkaConfigurationError(
                f"security_protocol is {self.security_protocol!r}: "
                f"use one of {', '.join(SECURITY_PROTOCOLS)}"
            )
        if self.uses_tls and self.ssl_context is None:
            raise KafkaConfigurationError(
                f"security_protocol={self.security_protocol} needs ssl_context: "
                "make one with create_ssl_context()"
            )

    @property
    def uses_tls(self) -> bool:
        return self.security_protocol in ("SSL", "SASL_SSL")


def check_plaintext_credentials(
    security_protocol: str, addresses: Iterable[Address], *, is_allowed: bool
) -> None:
    """Raise InsecureConfigError if credentials would be sent to other machines without TLS."""
    if security_protocol != "SASL_PLAINTEXT" or is_allowed:
        return
    for address in addresses:
        if not address.is_loopback:
            raise InsecureConfigError(
                f"security_protocol=SASL_PLAINTEXT would send credentials to {address} without "
                "TLS: use SASL_SSL, or allow_plaintext_credentials=True if the network is safe"
            )


def check_unused_tls(
    security_protocol: str, addresses: Iterable[Address], *, is_allowed: bool
) -> None:
    """Raise InsecureConfigError if an ssl_context is given, but the protocol does not use TLS."""
    if security_protocol in ("SSL", "SASL_SSL") or is_allowed:
        return
    for address in addresses:
        if not address.is_loopback:
            raise InsecureConfigError(
                f"ssl_context is given, but security_protocol={security_protocol} would connect "
                f"to {address} without TLS: use SSL or SASL_SSL, or leave ssl_context out"
            )


def parse_bootstrap_servers(servers: str | Iterable[str]) -> list[Address]:
    """Parse ``"h1:p,h2"`` or an iterable of such strings."""
    texts = [servers] if isinstance(servers, str) else servers
    addresses: dict[Address, None] = {}
    for text in texts:
        if not isinstance(text, str):
            raise KafkaConfigurationError(
                f"bootstrap_servers contains {text!r}: each entry must be a str like 'host:9092'"
            )
        for entry in text.split(","):
            if stripped := entry.strip():
                addresses[parse_address(stripped)] = None
    if not addresses:
        raise KafkaConfigurationError("bootstrap_servers is empty: name at least one 'host:port'")
    return list(addresses)


def parse_address(text: str) -> Address:
    """Parse one ``host``, ``host:port``, ``[v6]``, ``[v6]:port`` or bare IPv6 address."""
    if "@" in text:  # the part before it may be a password
        raise KafkaConfigurationError(
            f"bootstrap_servers contains '***@{text.rpartition('@')[2]}': pass credentials as "
            "sasl_plain_username and sasl_plain_password"
        )
    if "://" in text:
        raise KafkaConfigurationError(
            f"bootstrap_servers contains {text!r}: leave out the scheme, write 'host:port'"
        )
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise KafkaConfigurationError(
                f"bootstrap_servers contains {text!r}: write an IPv6 address as '[::1]:9092'"
            )
        port_text = rest[1:] if rest else str(DEFAULT_PORT)
    elif text.count(":") > 1:  # an IPv6 address without brackets has no room for a port
        host, port_text = text, str(DEFAULT_PORT)
    else:
        host, colon, port_text = text.partition(":")
        port_text = port_text if colon else str(DEFAULT_PORT)
    if not host or any(character.isspace() or character == "/" for character in host):
        raise KafkaConfigurationError(
            f"bootstrap_servers contains {text!r}: the host name is missing"
        )
    if not (port_text.isascii() and port_text.isdigit() and 0 < int(port_text) < 65536):
        raise KafkaConfigurationError(
            f"bootstrap_servers contains {text!r}: {port_text!r} is not a port (1 to 65535)"
        )
    return Address(host, int(port_text))
