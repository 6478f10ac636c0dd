"""One of Spark's Python processes: its build of this package, and the time between its tasks.

A worker and the JVM write to each other in small pieces, with Nagle's algorithm on: the second
piece waits until the first one is acknowledged, which the other kernel delays for 40 ms. That is
more than a small task takes. PySpark 4.1 can use Unix sockets instead.

After each task Spark's daemon collects garbage of all generations, which takes 10 to 50 ms of CPU
for the objects of modules alone.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import aiokafka_lite
from aiokafka_lite._loopback import is_loopback
from aiokafka_lite.records.decoders import COMPILED, PLAIN_DECODER_NOTE

# Linux lists a process's files here. Elsewhere Spark's socket stays unchanged.
_OPEN_FILES = "/proc/self/fd"

# Linux has it.
_ACKNOWLEDGE_AT_ONCE: Final = getattr(socket, "TCP_QUICKACK", None)


@cache
def settle() -> None:
    """Hide all current objects, mostly of modules, from the garbage collector: once a process."""
    gc.freeze()


def answer_at_once() -> None:
    """Acknowledge received data and send written data at once, on connections of this machine.

    The kernel resumes delays at any time. So every task calls this while it is unpickled, between
    the first received piece and the second.
    """
    try:
        names = os.listdir(_OPEN_FILES)
    except OSError:
        return
    for name in names:
        _answer_at_once(int(name))


def _answer_at_once(descriptor: int) -> None:
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


log = logging.getLogger(__name__)


class Build(NamedTuple):
    """One installation of the package.

    A checkout in the current directory hides the installed package from the workers. So pickles
    contain the build that made them.
    """

    version: str
    is_compiled: bool
    home: str

    def __str__(self) -> str:
        decoder = "the compiled" if self.is_compiled else "the plain Python"
        return f"version {self.version} with {decoder} decoder, in {self.home}"


@cache
def own_build() -> Build:
    home = str(Path(aiokafka_lite.__file__).parent)
    return Build(aiokafka_lite.__version__, COMPILED, home)


@cache
def compare(sender: Build) -> None:
    """Log once how this process differs from the one that a pickle is from, or that it is slow."""
    own = own_build()
    if own[:2] != sender[:2]:
        log.warning(
            "this Spark process uses another build of aiokafka_lite (%s) than the process that "
            "sent the data source (%s). Install the same wheel for the Python of the driver and of "
            "every executor, and start Spark in a directory without a package aiokafka_lite",
            own,
            sender,
        )
    elif not own.is_compiled:
        log.warning("%s", PLAIN_DECODER_NOTE)
