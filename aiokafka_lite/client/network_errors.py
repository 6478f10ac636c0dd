"""Explains exceptions of the operating system and of OpenSSL, and converts them into ours."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from aiokafka_lite.client.config import Address
from aiokafka_lite.errors import KafkaConnectionError, TLSError

if TYPE_CHECKING:
    import ssl
    from typing import TypeGuard

_GIVE_CA: Final = (
    "call create_ssl_context(cafile=...) with the CA that signed the broker's certificate"
)
_CHECK_DATES: Final = "renew the certificate on the broker, or correct this machine's clock"
_CHECK_NAME: Final = (
    "connect to a host that the certificate contains, or add the broker's host to the "
    "certificate's subjectAltName (see also advertised.listeners)"
)
_CHECK_PROTOCOL: Final = "perhaps the listener does not speak TLS (see security_protocol)"
_CHECK_LISTENER: Final = (
    "perhaps the listener does not speak TLS (see security_protocol), does not support TLS 1.2, "
    "or requires a client certificate"
)
_CHECK_VERSION: Final = "this client needs TLS 1.2 or newer: see the broker's ssl.enabled.protocols"
# OpenSSL's codes of strict checks (RFC 5280), the default of Python 3.13 and newer.
_STRICT_CODES: Final = range(79, 94)
_NOT_STRICT: Final = (
    "Python 3.13 and newer require certificates that follow RFC 5280: reissue the "
    "certificate, or pass an ssl_context whose verify_flags exclude ssl.VERIFY_X509_STRICT"
)
# Remedies by OpenSSL's code (X509_verify_cert_error_string).
_CERTIFICATE_HINTS: Final[Mapping[int, str]] = {
    9: _CHECK_DATES,  # not yet valid
    10: _CHECK_DATES,  # has expired
    23: "the CA has revoked the certificate: the broker needs a new certificate",
    62: _CHECK_NAME,  # host name mismatch
    64: _CHECK_NAME,  # IP address mismatch
}
# Remedies by a part of OpenSSL's reason.
_TLS_HINTS: Final[Mapping[str, str]] = {
    "WRONG_VERSION": _CHECK_PROTOCOL,
    "RECORD_LAYER_FAILURE": _CHECK_PROTOCOL,
    "UNEXPECTED_EOF": _CHECK_PROTOCOL,
    "UNSUPPORTED_PROTOCOL": _CHECK_VERSION,
    "ALERT_PROTOCOL_VERSION": _CHECK_VERSION,
    "CERTIFICATE_REQUIRED": "the broker requires a client certificate: pass certfile= and "
    "keyfile= to create_ssl_context()",
    "ALERT_BAD_CERTIFICATE": "the broker rejects the client's certificate, or requires one: "
    "see certfile= of create_ssl_context()",
    "ALERT_UNKNOWN_CA": "the broker does not trust the CA of the client's certificate",
    "ALERT_CERTIFICATE": "the broker rejects the client's certificate",
    "ALERT_HANDSHAKE_FAILURE": "client and broker have no cipher in common, or the broker "
    "requires a client certificate: see certfile= of create_ssl_context()",
}
_ALERT: Final = "ALERT"
# Alerts that may also occur later in a session, where they mean a reset.
_PASSING_ALERTS: Final = ("CLOSE_NOTIFY", "INTERNAL_ERROR", "USER_CANCELLED")


# Errors of resolving and connecting. The latter two are for invalid addresses, which brokers may
# advertise: a port beyond 65535, or a host that is empty, has a NUL, or fits no certificate.
NETWORK_ERRORS: Final = (OSError, OverflowError, ValueError)


def not_connected(
    address: Address, failures: Mapping[str, BaseException], *, timeout_s: float, uses_tls: bool
) -> KafkaConnectionError:
    """Explain why a host could not be connected to. `failures` are by its addresses, in order."""
    reasons, last = [], None
    for host, last in failures.items():
        reason = explain(last, timeout_s)
        reasons.append(reason if host == address.host else f"{host}: {reason}")
    # If the peer closed the connection during the handshake, a retry may succeed.
    is_tls = _is_of_tls(last) and not _is_cut_short(last)
    error_class = TLSError if is_tls else KafkaConnectionError
    if uses_tls and isinstance(last, ConnectionResetError):
        reasons[-1] += f" during TLS's handshake: {_CHECK_LISTENER}"
    return caused(error_class(f"cannot connect to {address}: {'; '.join(reasons)}"), last)


def unresolved(
    address: Address, error: BaseException, timeout_s: float | None = None
) -> KafkaConnectionError:
    return caused(
        KafkaConnectionError(
            f"cannot resolve the host name of {address}: {explain(error, timeout_s)}. Check "
            "bootstrap_servers, or the broker's advertised.listeners"
        ),
        error,
    )


@lru_cache(1_000)
def is_numeric(host: str) -> bool:
    try:
        # A str would be encoded as an international domain name.
        socket.getaddrinfo(
            host.encode("ascii"), None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )
    except NETWORK_ERRORS:
        return False
    return True


def hosts(found: Iterable[tuple[object, object, object, object, Sequence[object]]]) -> list[str]:
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


def caused(error: KafkaConnectionError, cause: BaseException | None) -> KafkaConnectionError:
    """Return an error with its cause, as `raise from` would set it."""
    error.__cause__ = cause
    return error


def _is_of_tls(error: BaseException | None) -> TypeGuard[ssl.SSLError]:
    """Whether an error is OpenSSL's, without importing ssl."""
    tls = sys.modules.get("ssl")
    return tls is not None and isinstance(error, tls.SSLError)


def _is_cut_short(error: ssl.SSLError) -> bool:
    import ssl

    return isinstance(error, ssl.SSLEOFError)


def is_refusal(error: BaseException | None) -> bool:
    """Whether the peer ended TLS permanently, with TLS 1.3 only after the client's handshake."""
    if not _is_of_tls(error):
        return False
    reason = error.reason or ""
    return _ALERT in reason and not any(passing in reason for passing in _PASSING_ALERTS)


def explain(error: BaseException | None, timeout_s: float | None = None) -> str:
    """Return a network exception's meaning and remedy, in a few words."""
    if error is None:
        return "the peer closed the connection"
    if _is_of_tls(error):
        import ssl

        if isinstance(error, ssl.SSLCertVerificationError):
            code = error.verify_code
            hint = _NOT_STRICT if code in _STRICT_CODES else _CERTIFICATE_HINTS.get(code, _GIVE_CA)
            return (
                f"the broker's certificate is not trusted ({error.verify_message.rstrip('.')}): "
                f"{hint}"
            )
        reason = error.reason or str(error)
        hints = (f": {hint}" for part, hint in _TLS_HINTS.items() if part in reason)
        return f"TLS failed ({reason}){next(hints, '')}"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: check that a broker listens on this address"
    if isinstance(error, ConnectionResetError):
        return "connection reset by the peer"
    if timeout_s is not None and isinstance(error, TimeoutError):
        return f"no answer within {timeout_s:g} s"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
