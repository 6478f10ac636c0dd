"""Opens transports to the addresses that a host resolves to (KIP-302)."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

from aiokafka_lite._compat import timeout
from aiokafka_lite._sockets import real_socket
from aiokafka_lite._threads import resolve
from aiokafka_lite._virtual import simulation_of
from aiokafka_lite.client.config import Address
from aiokafka_lite.client.network_errors import (
    NETWORK_ERRORS,
    hosts,
    is_numeric,
    not_connected,
    unresolved,
)

P = TypeVar("P", bound=asyncio.BaseProtocol)

# TCP keep-alive, for balancers and firewalls that forget idle connections: seconds until the first
# probe (two names), seconds between probes, and unanswered probes.
KEEP_ALIVE: Final[Mapping[str, int]] = {
    "TCP_KEEPIDLE": 60,
    "TCP_KEEPALIVE": 60,
    "TCP_KEEPINTVL": 15,
    "TCP_KEEPCNT": 4,
}


class StepLimit(NamedTuple):
    """A limit for each step of opening a connection, and a deadline for all of them."""

    step_s: float
    deadline: float | None = None

    def left_s(self) -> float:
        if self.deadline is None:
            return self.step_s
        left_s = self.deadline - asyncio.get_running_loop().time()
        return max(0.0, min(self.step_s, round(left_s, 3)))  # for messages


async def dial(
    protocol_factory: Callable[[], P],
    address: Address,
    *,
    ssl_context: ssl.SSLContext | None,
    limit: StepLimit,
    receive_buffer_bytes: int | None = None,
) -> P:
    """Connect to the first address that accepts. Cancellation leaves no connection open."""
    loop = asyncio.get_running_loop()
    failures: dict[str, BaseException] = {}
    timeout_s = limit.left_s()
    for host in await _resolve(address, timeout_s):
        try:
            async with timeout(limit.left_s()):
                sock, target = None, dict[str, Any](host=host, port=address.port)
                if receive_buffer_bytes is not None and simulation_of(loop) is None:
                    sock = await _connected(**target, receive_buffer_bytes=receive_buffer_bytes)
                    target = {"sock": sock}
                try:
                    transport, protocol = await loop.create_connection(
                        protocol_factory,
                        **target,
                        ssl=ssl_context,
                        # SNI has no trailing dot (RFC 6066), fully qualified names may have one.
                        server_hostname=address.host.rstrip(".") if ssl_context else None,
                    )
                except BaseException:
                    if sock is not None:
                        sock.close()
                    raise
        except asyncio.TimeoutError:
            failures[host] = TimeoutError()  # another class before Python 3.11
        except NETWORK_ERRORS as error:
            failures[host] = error
        else:
            if (real := real_socket(transport)) is not None:
                _keep_alive(real)
            return protocol
    raise not_connected(address, failures, timeout_s=timeout_s, uses_tls=ssl_context is not None)


def _keep_alive(sock: socket.socket) -> None:
    """Enable keep-alive as far as the system supports it. A lost connection is ignored."""
    with suppress(OSError, ValueError):  # uvloop: ValueError once the socket closed
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEP_ALIVE.items():
            if (option := getattr(socket, name, None)) is not None:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)


async def _connected(host: str, port: int, receive_buffer_bytes: int) -> socket.socket:
    """Return a socket whose receive buffer is set before connecting, which fixes TCP's window."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    family, kind, protocol, _, sockaddr = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        await asyncio.get_running_loop().sock_connect(sock, sockaddr)
    except BaseException:
        sock.close()
        raise
    return sock


async def _resolve(address: Address, timeout_s: float) -> list[str]:
    if is_numeric(address.host):
        return [address.host]
    try:
        async with timeout(timeout_s):
            found = await resolve(*address)
    except asyncio.TimeoutError:
        raise unresolved(address, TimeoutError(), timeout_s) from None
    except NETWORK_ERRORS as error:
        raise unresolved(address, error, timeout_s) from error
    return hosts(found)
