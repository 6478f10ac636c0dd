"""The operating system's sockets of transports and servers.

Simulated networks have look-alikes. Only sockets of asyncio and uvloop are known to be real.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from asyncio.trsock import TransportSocket
from contextlib import suppress
from typing import Final, cast

# SO_LINGER for no time.
NO_LINGER: Final = struct.pack("ii", 1, 0)


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


def discard_unacknowledged(transport: asyncio.BaseTransport) -> None:
    """Have the kernel discard the bytes that the peer has not acknowledged when it closes.

    Otherwise it sends them again for minutes, so that they may arrive after those of the next
    connection.
    """
    sock: object = transport.get_extra_info("socket")
    if (set_option := getattr(sock, "setsockopt", None)) is not None:
        with suppress(OSError, ValueError):  # uvloop: ValueError once the socket closed
            set_option(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
