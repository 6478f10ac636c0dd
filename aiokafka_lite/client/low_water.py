"""Wakes the loop less often for large frames, with the socket option SO_RCVLOWAT of Linux.

The kernel then reports the socket when it has a large piece, or the rest of the frame, and at once
the end of the stream, errors, and a full receive buffer (tcp_poll in Linux).

The mark is at most half of the receive window, which is small at first. If the window fills below
the mark, the peer stops sending until its window probe, 200 ms later. Not under TLS, where the
socket's bytes are not the frame's.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from typing import Final

from aiokafka_lite._sockets import plain_socket

IS_SUPPORTED: Final = sys.platform == "linux"
# Linux's struct tcp_info up to tcpi_rcv_ssthresh, its 15th number: the window's present limit.
TCP_INFO: Final = struct.Struct("@64xI")


class LowWaterMark:
    __slots__ = ("_socket", "_window_bytes")

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        # The window at the last check; it may have grown.
        self._window_bytes = 0
        self._socket = plain_socket(transport) if IS_SUPPORTED else None

    def want(self, count: int) -> None:
        """Report the socket as readable when it has so many bytes, or half a window."""
        if self._socket is None:
            return
        try:
            if count > self._window_bytes // 2:
                self._window_bytes = self._look_at_window(self._socket)
                count = max(1, min(count, self._window_bytes // 2))
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
        except (OSError, ValueError):  # uvloop: ValueError once the socket closed
            self._socket = None  # not TCP, or closed

    @staticmethod
    def _look_at_window(of: socket.socket) -> int:
        info = of.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO.size)
        window_bytes: int = TCP_INFO.unpack(info)[0]
        return window_bytes
