"""TCP keep-alive, for balancers and firewalls that forget idle connections.

If the peer is gone, the connection ends before a caller waits for a response.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from typing import Final

# Seconds until the first probe (two names), seconds between probes, and unanswered probes.
KEEP_ALIVE: Final[Mapping[str, int]] = {
    "TCP_KEEPIDLE": 60,
    "TCP_KEEPALIVE": 60,
    "TCP_KEEPINTVL": 15,
    "TCP_KEEPCNT": 4,
}
_OPTIONS: Final = [
    (vars(socket)[name], KEEP_ALIVE[name]) for name in KEEP_ALIVE if name in vars(socket)
]


def keep_alive(sock: socket.socket) -> None:
    """Enable keep-alive as far as the system supports it. A lost connection is ignored."""
    with contextlib.suppress(OSError, ValueError):  # uvloop: ValueError once the socket closed
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _OPTIONS:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
