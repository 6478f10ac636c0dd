"""Whether Spark's processes lose no time: nothing is held back, no module looked at as garbage."""

from __future__ import annotations

import gc
import pickle
import socket
import subprocess
import sys
import time

import pytest

from aiokafka_lite.spark import process
from aiokafka_lite.spark.readers import KafkaBatchReader
from aiokafka_lite.spark.schema import default_schema
from tests.support.programs import started_and_awaited

PROGRAM = """
import socket, sys
from aiokafka_lite.spark.process import answer_at_once

def has_no_delay(connection):
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0

unix, _ = socket.socketpair()
with socket.create_server(("127.0.0.1", 0)) as server:
    ours = socket.create_connection(server.getsockname())
    theirs, _ = server.accept()
    with open(__file__ if "__file__" in globals() else sys.executable, "rb"):
        answer_at_once()
    assert has_no_delay(ours) and has_no_delay(theirs)
    later = socket.create_connection(server.getsockname())
    answer_at_once()
    assert has_no_delay(later)  # each time anew: the kernel forgets
    ours.sendall(b"still open")
    assert theirs.recv(100) == b"still open"
    unix.close()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not list open files")
def test_connections_with_this_machine_answer_at_once() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], check=True)


def test_where_open_files_are_not_listed_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_OPEN_FILES", "/no/such/folder")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process.answer_at_once()
        ours.sendall(b"open")
        assert theirs.recv(10) == b"open"


# Writes as Spark's JVM does: in two pieces, the second one held back by Nagle's algorithm.
JVM = """
import socket, sys

with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
    while connection.recv(1):
        connection.sendall(bytes(8_000))
        connection.sendall(bytes(500))
"""
ROUNDS = 20


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not list open files")
def test_unpickling_a_reader_brings_what_the_jvm_holds_back() -> None:
    pickled = pickle.dumps(KafkaBatchReader({}, default_schema(include_headers=False)))
    took_s = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        with started_and_awaited([sys.executable, "-c", JVM, port]) as jvm:
            connection, _ = server.accept()
            with connection:
                for _ in range(ROUNDS):
                    connection.sendall(b"?")
                    receive(connection, 8_000)
                    started = time.perf_counter()
                    pickle.loads(pickled)  # noqa: S301 -- our own
                    receive(connection, 500)
                    took_s.append(time.perf_counter() - started)
        assert jvm.returncode == 0
    # A kernel acknowledges the first pieces of a connection at once, and puts off later ones.
    assert min(took_s[ROUNDS // 2 :]) < 0.02


def receive(connection: socket.socket, count: int) -> None:
    """Read so many bytes."""
    while count:
        received = len(connection.recv(count))
        assert received
        count -= received


def test_modules_are_no_garbage_to_look_through() -> None:
    gc.unfreeze()  # another test's
    process.settle.cache_clear()
    try:
        process.settle()
        assert gc.get_freeze_count() > 1_000
    finally:
        gc.unfreeze()
