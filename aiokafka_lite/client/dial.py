"""Open a transport to a host, trying every address it resolves to (KIP-302).

The boundary where the operating system's and OpenSSL's exceptions become ours.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, TypeVar

from aiokafka_lite._compat import timeout
from aiokafka_lite.client.config import Address
from aiokafka_lite.errors import KafkaConnectionError, TLSError

P = TypeVar("P", bound=asyncio.BaseProtocol)

_GIVE_CA: Final = "give the CA that signed it to create_ssl_context(cafile=...)"
_CHECK_DATES: Final = "renew it on the broker, or set this machine's clock"
_CHECK_NAME: Final = (
    "connect by a name that it has, or give the broker a certificate with this one "
    "(subjectAltName; see advertised.listeners)"
)
_CHECK_PROTOCOL: Final = "the listener may not speak TLS, see security_protocol"
_CHECK_LISTENER: Final = (
    "the listener may not speak TLS, see security_protocol, not TLS 1.2, or ask for a client's "
    "certificate"
)
_CHECK_VERSION: Final = "TLS 1.2 or newer is needed, see the broker's ssl.enabled.protocols"
# By OpenSSL's code (X509_verify_cert_error_string), what to do.
_CERTIFICATE_HINTS: Final[Mapping[int, str]] = MappingProxyType(
    {
        9: _CHECK_DATES,  # not yet valid
        10: _CHECK_DATES,  # has expired
        23: "the CA has revoked it: the broker needs another one",
        62: _CHECK_NAME,  # host name mismatch
        64: _CHECK_NAME,  # IP address mismatch
    }
)
# By a part of OpenSSL's reason, what to do.
_TLS_HINTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "WRONG_VERSION": _CHECK_PROTOCOL,
        "RECORD_LAYER_FAILURE": _CHECK_PROTOCOL,
        "UNEXPECTED_EOF": _CHECK_PROTOCOL,
        "UNSUPPORTED_PROTOCOL": _CHECK_VERSION,
        "ALERT_PROTOCOL_VERSION": _CHECK_VERSION,
        "CERTIFICATE_REQUIRED": "the broker asks for a client's certificate: give certfile= and "
        "keyfile= to create_ssl_context()",
        "ALERT_BAD_CERTIFICATE": "the broker does not take the client's certificate, or asks for "
        "one: see certfile= of create_ssl_context()",
        "ALERT_UNKNOWN_CA": "the broker does not trust the CA of the client's certificate",
        "ALERT_CERTIFICATE": "the broker does not take the client's certificate",
        "ALERT_HANDSHAKE_FAILURE": "no common cipher, or the broker asks for a client's "
        "certificate: see certfile= of create_ssl_context()",
    }
)
_ALERT: Final = "ALERT"
# What a peer may say in the middle of a session as well, where it means no more than a reset.
_PASSING_ALERTS: Final = ("CLOSE_NOTIFY", "INTERNAL_ERROR", "USER_CANCELLED")


async def dial(
    protocol_factory: Callable[[], P],
    address: Address,
    *,
    ssl_context: ssl.SSLContext | None,
    connect_timeout_s: float,
) -> P:
    """Connect and return the protocol; every resolved address gets ``connect_timeout_s``.

    The name is resolved again at each call: a name that moved is followed.
    Cancellation leaves nothing open.

    Raises:
        KafkaConnectionError: No address could be connected to; says which and why.
        TLSError: The last address answered, but TLS could not be agreed on.
    """
    loop = asyncio.get_running_loop()
    failures: list[str] = []
    last_error: BaseException | None = None
    for host in await _resolve(address, connect_timeout_s):
        try:
            async with timeout(connect_timeout_s):
                _, protocol = await loop.create_connection(
                    protocol_factory,
                    host,
                    address.port,
                    ssl=ssl_context,
                    # SNI has no trailing dot (RFC 6066), fully qualified names may have one.
                    server_hostname=address.host.rstrip(".") if ssl_context else None,
                )
        except (OSError, ssl.SSLError, asyncio.TimeoutError) as error:
            last_error = error
            reason = explain(error, connect_timeout_s)
            failures.append(reason if host == address.host else f"{host}: {reason}")
        else:
            return protocol
    # A handshake that the peer cut short is a lost connection, worth another try.
    is_tls = isinstance(last_error, ssl.SSLError) and not isinstance(last_error, ssl.SSLEOFError)
    error_class = TLSError if is_tls else KafkaConnectionError
    if ssl_context is not None and isinstance(last_error, ConnectionResetError):
        failures[-1] += f" during TLS's handshake: {_CHECK_LISTENER}"
    raise error_class(f"cannot connect to {address}: {'; '.join(failures)}") from last_error


async def _resolve(address: Address, timeout_s: float) -> list[str]:
    """Return the addresses of a host in the resolver's order, each once."""
    if _is_numeric(address.host):
        return [address.host]
    loop = asyncio.get_running_loop()
    try:
        async with timeout(timeout_s):
            found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, asyncio.TimeoutError) as error:
        raise KafkaConnectionError(
            f"cannot resolve the host name of {address}: {explain(error, timeout_s)}; "
            "check bootstrap_servers, or the broker's advertised.listeners"
        ) from error
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


def _is_numeric(host: str) -> bool:
    """Whether the host is an IP address, for which nobody has to be asked."""
    try:
        # As bytes: a string would be encoded by the rules for international domain names.
        socket.getaddrinfo(host.encode("ascii"), None, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return False
    return True


def is_refusal(error: BaseException | None) -> bool:
    """Whether the peer ended TLS for a reason that another try would not mend.

    With TLS 1.3 a broker says so only after the client has finished its handshake.
    """
    if not isinstance(error, ssl.SSLError):
        return False
    reason = error.reason or ""
    return _ALERT in reason and not any(passing in reason for passing in _PASSING_ALERTS)


def explain(error: BaseException | None, timeout_s: float | None = None) -> str:
    """Say in a few words what an exception of the network means and what to do about it."""
    if error is None:
        return "the peer closed the connection"
    if isinstance(error, ssl.SSLCertVerificationError):
        hint = _CERTIFICATE_HINTS.get(error.verify_code, _GIVE_CA)
        return f"its certificate is not trusted ({error.verify_message.rstrip('.')}): {hint}"
    if isinstance(error, ssl.SSLError):
        reason = error.reason or str(error)
        hints = (f": {hint}" for part, hint in _TLS_HINTS.items() if part in reason)
        return f"TLS failed ({reason}){next(hints, '')}"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: is a broker listening there?"
    if isinstance(error, ConnectionResetError):
        return "connection reset by the peer"
    if timeout_s is not None and isinstance(error, (asyncio.TimeoutError, TimeoutError)):
        return f"no answer within {timeout_s:g} s"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
