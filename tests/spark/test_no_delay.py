"""Whether what a worker writes is sent at once."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

PROGRAM = """
import socket, sys
from aiokafka_lite.spark.no_delay import send_at_once

def has_no_delay(connection):
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0

unix, _ = socket.socketpair()
with socket.create_server(("127.0.0.1", 0)) as server:
    ours = socket.create_connection(server.getsockname())
    theirs, _ = server.accept()
    with open(__file__ if "__file__" in globals() else sys.executable, "rb"):
        send_at_once()
    assert has_no_delay(ours) and has_no_delay(theirs)
    later = socket.create_connection(server.getsockname())
    send_at_once()
    assert not has_no_delay(later)  # a process is looked through once
    ours.sendall(b"still open")
    assert theirs.recv(100) == b"still open"
    unix.close()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not list open files")
def test_connections_with_this_machine_send_at_once() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], check=True)


def test_where_open_files_are_not_listed_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    from aiokafka_lite.spark import no_delay

    monkeypatch.setattr(no_delay, "_OPEN_FILES", "/no/such/folder")
    monkeypatch.setattr(no_delay, "_has_looked", False)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        no_delay.send_at_once()
        ours.sendall(b"open")
        assert theirs.recv(10) == b"open"
