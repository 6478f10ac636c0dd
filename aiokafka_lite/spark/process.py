"""What keeps one of Spark's Python processes from losing time between its tasks.

A worker and the JVM write to each other in small pieces, with Nagle's algorithm on: the second
piece waits until the first one is acknowledged, which the other side's kernel puts off for 40 ms.
That happens once each way, and is more than a small task takes. PySpark 4.1 has Unix sockets for
this, off by default (spark.python.unix.domain.socket.enabled); where it is not on, the same is
done here: what is written is sent at once, and what has come is acknowledged at once.

Behind each task Spark's daemon collects garbage of all generations, 10 to 50 ms of CPU time for
what modules have made alone.
"""

from __future__ import annotations

import gc
import os
import socket
from typing import Final

from aiokafka_lite._loopback import is_loopback

_is_settled = False

# Linux lists a process's files here; elsewhere Spark's socket is not found, and stays as it is.
_OPEN_FILES = "/proc/self/fd"

# Linux has it.
_ACKNOWLEDGE_AT_ONCE: Final = getattr(socket, "TCP_QUICKACK", None)


def settle() -> None:
    """Hide what there is, above all modules, from the garbage collector: once a process."""
    global _is_settled
    if not _is_settled:
        _is_settled = True
        gc.freeze()


def answer_at_once() -> None:
    """Acknowledge now what this machine's processes have sent, and hold back nothing written.

    The kernel goes back to putting acknowledgements off when it likes: so this is for every task,
    between the first piece that came and the second, which is where a task is unpickled.
    """
    try:
        names = os.listdir(_OPEN_FILES)
    except OSError:
        return
    for name in names:
        _answer_at_once(int(name))


def _answer_at_once(descriptor: int) -> None:
    """Do so where a descriptor is a TCP connection with this machine; leave all others alone."""
    try:
        connection = socket.socket(fileno=descriptor)
    except OSError:
        return  # no socket, or the listing's own descriptor, closed by now
    try:
        is_tcp = connection.family in (socket.AF_INET, socket.AF_INET6)
        if not is_tcp or connection.type != socket.SOCK_STREAM:
            return
        if is_loopback(connection.getpeername()[0]):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if _ACKNOWLEDGE_AT_ONCE is not None:
                connection.setsockopt(socket.IPPROTO_TCP, _ACKNOWLEDGE_AT_ONCE, 1)
    except OSError:
        pass  # it listens, or is not connected any more
    finally:
        connection.detach()  # it is Spark's
