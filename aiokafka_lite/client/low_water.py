"""Wakes the loop less often for large frames: when enough of one has arrived (SO_RCVLOWAT).

The kernel reports a socket as readable with the first bytes that come, and reading them costs a
turn of the loop however few they are: over a network, that is a few packets. Nobody can use less
than all of a large frame. So while one is received, the kernel reports the socket when it has a
good piece, or all that the frame still needs; it never waits for more than that. The end of the
stream, errors, and a receive buffer without room are reported at once in any case (tcp_poll in
Linux).

It never waits for more than half of the receive window either. A new connection has a small one,
which grows as data comes. If the window is full before the mark is reached, the peer stops to send
and nobody reads, until the peer asks 200 ms later (its window probe). A window shrinks only where
memory is short, and the kernel reports the socket then.

Linux only, and not under TLS, where the socket's bytes are not the frame's.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from typing import Final

IS_SUPPORTED: Final = sys.platform == "linux"
# Of Linux's struct tcp_info up to tcpi_rcv_ssthresh, its 15th number: the most that the window may
# offer now.
TCP_INFO: Final = struct.Struct("@64xI")


class LowWaterMark:
    """Sets how many bytes a transport's socket waits for.

    Attributes:
        wanted_bytes: What was last asked for.
    """

    __slots__ = ("_socket", "_window_bytes", "wanted_bytes")

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        self.wanted_bytes = 1
        # As it was when it was looked at last: by now it may be larger.
        self._window_bytes = 0
        self._socket: socket.socket | None = None
        if IS_SUPPORTED and transport.get_extra_info("sslcontext") is None:
            self._socket = transport.get_extra_info("socket")

    def want(self, count: int) -> None:
        """Report the socket as readable when it has so many bytes, or half a window."""
        self.wanted_bytes = count
        if self._socket is None:
            return
        try:
            if count > self._window_bytes // 2:
                self._window_bytes = self._look_at_window(self._socket)
                count = max(1, min(count, self._window_bytes // 2))
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
        except (OSError, ValueError):  # uvloop: ValueError once the socket closed
            self._socket = None  # no TCP, or no more: it goes without

    @staticmethod
    def _look_at_window(of: socket.socket) -> int:
        info = of.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO.size)
        window_bytes: int = TCP_INFO.unpack(info)[0]
        return window_bytes
