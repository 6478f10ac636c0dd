"""Ports for servers of other programs, which are told on which to listen."""

from __future__ import annotations

import random
import socket

# A connection that goes out gets a port from 32,768 on (Linux) or from 49,152 on (macOS). So one
# below is not taken by chance while its server is down, or not up yet.
FIRST, LAST = 15_000, 32_767
_any = random.SystemRandom()


def free_port() -> int:
    """A TCP port on 127.0.0.1 that nobody listens on, and that no connection gets by chance."""
    while True:
        port = _any.randint(FIRST, LAST)
        with socket.socket() as probe:
            # As servers do: connections of an earlier server that linger do not count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
