"""The operating system's sockets of transports and servers.

Simulated networks have look-alikes. Only sockets of asyncio and uvloop are known to be real.
"""

from __future__ import annotations

import asyncio
import socket
from asyncio.trsock import TransportSocket
from typing import cast


def is_real(sock: object) -> bool:
    """Whether this is the operating system's socket, or asyncio's or uvloop's view of it."""
    return isinstance(sock, socket.socket | TransportSocket) or (
        type(sock).__module__.partition(".")[0] == "uvloop"
    )


def real_socket(transport: asyncio.BaseTransport) -> socket.socket | None:
    sock: object = transport.get_extra_info("socket")
    return cast("socket.socket", sock) if is_real(sock) else None


def plain_socket(transport: asyncio.BaseTransport) -> socket.socket | None:
    """Return the socket of a transport, if its bytes are the transport's: None with TLS."""
    return None if transport.get_extra_info("sslcontext") else real_socket(transport)
