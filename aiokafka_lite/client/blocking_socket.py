"""Sockets with deadlines, without an event loop.

A plain socket blocks, with the kernel's timeouts. A single call (MSG_WAITALL) receives a large
frame in its final place, and releases the GIL once. Two threads must not use OpenSSL's object at
once, so a TLS socket does not block, and each attempt holds a lock.
"""

from __future__ import annotations

import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from aiokafka_lite._compat import override
from aiokafka_lite.client.config import Address
from aiokafka_lite.client.keep_alive import keep_alive
from aiokafka_lite.client.network_errors import (
    NETWORK_ERRORS,
    hosts,
    is_numeric,
    not_connected,
    unresolved,
)

if TYPE_CHECKING:
    import ssl

# The limit of poll() in milliseconds, which a request timeout may exceed.
MOST_POLL_MS: Final = (1 << 31) - 1
# To the kernel, a timeout of zero is infinite.
LEAST_WAIT_S: Final = 0.001


class BlockingSocket:
    """One thread may write while another reads."""

    def __init__(self, sock: socket.socket, timeout_s: float | None = None) -> None:
        self._socket = sock
        sock.settimeout(timeout_s)  # Python's own timeouts would cost a poll for each call

    def send(self, encoded: memoryview, timeout_s: float) -> int:
        """Write at least a byte. Return how many bytes were written.

        Raises:
            TimeoutError: The peer accepted no data in time.
        """
        self._set_timeout(socket.SO_SNDTIMEO, timeout_s)
        try:
            return self._socket.send(encoded)
        except BlockingIOError:
            raise TimeoutError from None

    def receive_into(self, memory: memoryview, timeout_s: float, *, is_all_wanted: bool) -> int:
        """Wait for data and read it into memory. Return how many bytes, 0 at the end of the stream.

        Args:
            timeout_s: 0 or less: do not wait.
            is_all_wanted: Prefer to fill the memory, which may still be filled partly.

        Raises:
            TimeoutError: No data arrived in time.
        """
        flags = 0
        if timeout_s <= 0:
            flags = _DONT_WAIT
        else:
            self._set_timeout(socket.SO_RCVTIMEO, timeout_s)
            if is_all_wanted:
                flags = socket.MSG_WAITALL
        try:
            return self._socket.recv_into(memory, len(memory), flags)
        except BlockingIOError:
            raise TimeoutError from None

    def is_quiet(self) -> bool:
        """Whether neither data nor the stream's end has arrived."""
        return not _is_ready(self._socket, 0.0, is_writing=False)

    def _set_timeout(self, option: int, timeout_s: float) -> None:
        value = _timeval(max(timeout_s, LEAST_WAIT_S))
        self._socket.setsockopt(socket.SOL_SOCKET, option, value)

    def shut_down(self) -> None:
        """End the stream in both directions, which wakes threads that wait for it."""
        try:
            # Not TLS's shutdown, because another thread may be using it.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        except OSError:  # it is lost already
            pass

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        """Close the descriptor. No other thread may be using the socket."""
        self._socket.close()


def connect(
    address: Address,
    *,
    ssl_context: ssl.SSLContext | None,
    connect_timeout_s: float,
    receive_buffer_bytes: int | None = None,
) -> BlockingSocket:
    """Connect to a host. Each of its addresses has ``connect_timeout_s`` (KIP-302)."""
    failures: dict[str, BaseException] = {}
    for host in _resolve(address):
        try:
            return _connect(host, address, ssl_context, connect_timeout_s, receive_buffer_bytes)
        except NETWORK_ERRORS as error:
            failures[host] = error
    raise not_connected(
        address, failures, timeout_s=connect_timeout_s, uses_tls=ssl_context is not None
    )


def _resolve(address: Address) -> list[str]:
    if is_numeric(address.host):
        return [address.host]
    # As bytes if possible, because importing encodings.idna takes longer than connecting.
    host = address.host.encode() if address.host.isascii() else address.host
    try:
        return hosts(socket.getaddrinfo(host, address.port, type=socket.SOCK_STREAM))
    except NETWORK_ERRORS as error:
        raise unresolved(address, error) from error


def _connect(
    host: str,
    address: Address,
    ssl_context: ssl.SSLContext | None,
    timeout_s: float,
    receive_buffer_bytes: int | None,
) -> BlockingSocket:
    deadline = time.monotonic() + timeout_s
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(sock)
        if receive_buffer_bytes is not None:  # before connecting: the window's scale needs it
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        sock.settimeout(timeout_s)
        sock.connect((host, address.port))
        if ssl_context is None:
            return BlockingSocket(sock)
        sock.settimeout(max(LEAST_WAIT_S, deadline - time.monotonic()))
        # SNI has no trailing dot (RFC 6066), fully qualified names may have one.
        name = address.host.rstrip(".")
        return TlsSocket(ssl_context.wrap_socket(sock, server_hostname=name))
    except BaseException:
        sock.close()
        raise


class TlsSocket(BlockingSocket):
    def __init__(self, sock: ssl.SSLSocket) -> None:
        super().__init__(sock, 0.0)
        self._lock = threading.Lock()

    @override
    def send(self, encoded: memoryview, timeout_s: float) -> int:
        return self._try(lambda: self._socket.send(encoded), timeout_s)

    @override
    def receive_into(self, memory: memoryview, timeout_s: float, *, is_all_wanted: bool) -> int:
        return self._try(lambda: self._socket.recv_into(memory), timeout_s)

    @override
    def is_quiet(self) -> bool:
        # Data may be OpenSSL's own: session tickets, new keys.
        try:
            self._try(lambda: self._socket.recv_into(bytearray(1)), 0.0)
        except TimeoutError:
            return True
        except OSError:
            return False
        return False

    def _try(self, operation: Callable[[], int], timeout_s: float) -> int:
        """Repeat an operation until OpenSSL does not have to wait for the socket."""
        import ssl

        deadline = time.monotonic() + timeout_s
        while True:
            try:
                with self._lock:
                    return operation()
            except ssl.SSLWantReadError:
                is_writing = False
            except ssl.SSLWantWriteError:
                is_writing = True
            left_s = max(0.0, deadline - time.monotonic())
            if not _is_ready(self._socket, left_s, is_writing=is_writing):
                raise TimeoutError


_DONT_WAIT: Final = getattr(socket, "MSG_DONTWAIT", 0)


def _timeval(duration_s: float) -> bytes:
    if sys.platform == "win32":
        return struct.pack("@L", int(duration_s * 1000))
    return struct.pack("@ll", int(duration_s), int(duration_s % 1 * 1e6))


def _is_ready(sock: socket.socket, timeout_s: float, *, is_writing: bool) -> bool:
    if not hasattr(select, "poll"):  # Windows
        sockets = [sock]
        return any(
            select.select(
                [] if is_writing else sockets, sockets if is_writing else [], [], timeout_s
            )
        )
    poll = select.poll()
    poll.register(sock, select.POLLOUT if is_writing else select.POLLIN)
    return bool(poll.poll(min(timeout_s * 1000, MOST_POLL_MS)))
