"""The TCP connections of a child process, of which nothing has to be known but its id (Linux)."""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

# The kernel's system call pidfd_getfd, and the field tcpi_bytes_received of its tcp_info.
_PIDFD_GETFD: Final = 438
_TCP_INFO_BYTES: Final = 232
_BYTES_RECEIVED: Final = slice(128, 136)


def received_bytes(pid: int) -> int:
    """Return how many bytes came in by the connections that a process has."""
    return sum(_each_connection(pid, _received))


def cut_connections(pid: int) -> int:
    """End all connections of a process, as a network does; return how many there were."""
    return sum(_each_connection(pid, _shut))


def _received(connection: socket.socket) -> int:
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    return int.from_bytes(info[_BYTES_RECEIVED], sys.byteorder)


def _shut(connection: socket.socket) -> int:
    connection.shutdown(socket.SHUT_RDWR)
    return 1


def _each_connection(pid: int, use: Callable[[socket.socket], int]) -> list[int]:
    """Call a function with each TCP connection of a process."""
    system_call = ctypes.CDLL(None, use_errno=True).syscall
    found = []
    process = os.pidfd_open(pid)
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                is_socket = os.readlink(entry).startswith("socket:")
            except OSError:
                continue  # closed since
            copied = system_call(_PIDFD_GETFD, process, int(entry.name), 0) if is_socket else -1
            if copied < 0:
                continue
            with socket.socket(fileno=copied) as copy:
                try:
                    copy.getpeername()
                    if copy.family in (socket.AF_INET, socket.AF_INET6):
                        found.append(use(copy))
                except OSError:
                    continue  # listens, or has ended
    finally:
        os.close(process)
    return found
