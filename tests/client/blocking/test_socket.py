"""What sockets without an event loop are told, and how they wait."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing
from typing import cast

import pytest

from aiokafka_lite.client.blocking_socket import TlsSocket, connect
from aiokafka_lite.client.config import Address

TIMEOUT_S = 5.0


@pytest.fixture
def address() -> Iterator[Address]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield Address(*server.getsockname())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a descriptor of a socket is no file here")
@pytest.mark.parametrize("buffer_bytes", [None, 20_000])
def test_the_kernel_is_told_what_a_connection_needs(
    address: Address, buffer_bytes: int | None
) -> None:
    sock = connect(
        address,
        ssl_context=None,
        connect_timeout_s=TIMEOUT_S,
        receive_buffer_bytes=buffer_bytes,
    )
    with closing(sock), socket.socket(fileno=os.dup(sock.fileno())) as same:
        assert same.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert same.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert same.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 15
        granted = same.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        assert (granted in (20_000, 40_000)) == (buffer_bytes is not None)


class OpenSsl:
    """Stands for a socket with TLS, of which OpenSSL wants something a few times."""

    def __init__(self, sock: socket.socket, *wants: type[ssl.SSLError]) -> None:
        self.fileno = sock.fileno
        self.tries = 0
        self._wants = list(wants)

    def settimeout(self, timeout_s: float) -> None:
        assert timeout_s == 0

    def recv_into(self, memory: memoryview) -> int:
        self.tries += 1
        if self._wants:
            raise self._wants.pop(0)
        return len(memory)

    def send(self, encoded: memoryview) -> int:
        return self.recv_into(encoded)


@pytest.fixture
def ours() -> Iterator[socket.socket]:
    """A socket that can be written, and not read."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours


def test_tls_waits_for_what_openssl_waits_for(ours: socket.socket) -> None:
    memory = memoryview(bytearray(3))
    write, read = ssl.SSLWantWriteError, ssl.SSLWantReadError
    cases: list[tuple[list[type[ssl.SSLError]], bool]] = [
        ([], True),
        ([write], True),
        ([write] * 3, True),
        ([read], False),
        ([write, read], False),
    ]
    for wants, is_there in cases:
        openssl = OpenSsl(ours, *wants)
        tls = TlsSocket(cast("ssl.SSLSocket", openssl))
        if is_there:
            assert tls.receive_into(memory, TIMEOUT_S, is_all_wanted=True) == 3
            assert tls.send(memory, TIMEOUT_S) == 3
            assert openssl.tries == len(wants) + 2
        else:
            with pytest.raises(TimeoutError):
                tls.send(memory, 0.01)
            assert openssl.tries == len(wants)  # it slept, and did not try again and again
