"""Has the kernel ask the peers of idle connections whether they are still there.

A balancer or firewall that forgets idle connections (Azure's does after four minutes) sees these
questions, and keeps the connection. If the peer is gone nevertheless, the connection ends by
itself, before somebody waits for an answer over it.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

# By option: after how much silence the first question comes (two names for it), how long after it
# the next ones do, in seconds, and how many are asked in vain.
KEEP_ALIVE: Final[Mapping[str, int]] = MappingProxyType(
    {"TCP_KEEPIDLE": 60, "TCP_KEEPALIVE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
)


def keep_alive(sock: socket.socket) -> None:
    """Have the kernel ask, as far as the system can be told so.

    A connection may be lost before: then its protocol is told.
    """
    with contextlib.suppress(OSError, ValueError):  # uvloop: ValueError once the socket closed
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEP_ALIVE.items():
            if (option := getattr(socket, name, None)) is not None:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
