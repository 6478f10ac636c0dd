"""Open a transport to a host, trying every address it resolves to (KIP-302).

The boundary where the operating system's and OpenSSL's exceptions become ours.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import TypeVar

from aiokafka_lite._compat import timeout
from aiokafka_lite.client.config import Address
from aiokafka_lite.errors import KafkaConnectionError, TLSError

P = TypeVar("P", bound=asyncio.BaseProtocol)


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


def explain(error: BaseException | None, timeout_s: float | None = None) -> str:
    """Say in a few words what an exception of the network means and what to do about it."""
    if error is None:
        return "the peer closed the connection"
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted ({error.verify_message}): "
            "give the signing CA to create_ssl_context(cafile=...)"
        )
    if isinstance(error, ssl.SSLError):
        reason = error.reason or str(error)
        hint = ": the listener may not speak TLS, see security_protocol"
        return f"TLS failed ({reason}){hint if 'WRONG_VERSION' in reason else ''}"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: is a broker listening there?"
    if isinstance(error, ConnectionResetError):
        return "connection reset by the peer"
    if timeout_s is not None and isinstance(error, (asyncio.TimeoutError, TimeoutError)):
        return f"no answer within {timeout_s:g} s"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
