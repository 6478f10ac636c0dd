"""Answers written straight from the log: several views with one system call, none of them copied.

A transport copies what its socket does not take at once, and moves the copy forward after each
further write. Here the socket is given the views themselves, as much as it takes; only a small
piece goes through the transport then, because the transport waits for the socket: it tells when
the piece is gone, which is when the socket takes more.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from itertools import islice
from typing import Final

from aiokafka_lite.protocol.encoding import Part

# What a transport without a socket of its own, such as one with TLS, is given at once.
WRITE_BYTES: Final = 256 << 10
# When such a transport is to wait. Not 0: asyncio's TLS is paused as soon as it has no less than
# that, and so it would be with nothing to write, and nothing would resume it.
HIGH_WATER_BYTES: Final = 64 << 10
# What makes a transport wait: the less, the less is copied.
PIECE_BYTES: Final = 4 << 10
PARTS_AT_ONCE: Final = 64


def socket_of(transport: asyncio.Transport) -> int | None:
    """Return the descriptor that may be written to in the transport's stead, None if there is none.

    That needs a plain connection, on a system that can write several buffers at once.
    """
    socket = transport.get_extra_info("socket")
    is_plain = transport.get_extra_info("sslcontext") is None
    return socket.fileno() if socket is not None and is_plain and hasattr(os, "writev") else None


def write(fd: int, parts: deque[Part]) -> bool:
    """Write parts to a socket and remove those written; return whether all were.

    Raises:
        OSError: The connection is lost.
    """
    while parts:
        batch = list(islice(parts, PARTS_AT_ONCE))
        try:
            taken = os.writev(fd, batch)
        except BlockingIOError:
            return False
        for part in batch:
            if taken < len(part):
                parts[0] = memoryview(part)[taken:]
                return False
            taken -= len(part)
            parts.popleft()
    return True


def take(parts: deque[Part], size: int) -> Part:
    """Remove and return the first of the parts, or its beginning if it is larger than `size`."""
    first = parts.popleft()
    if len(first) > size:
        view = memoryview(first)
        parts.appendleft(view[size:])
        return view[:size]
    return first
