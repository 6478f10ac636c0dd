"""What becomes of the sockets that a forked child inherits."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from aiokafka_lite import _forks
from aiokafka_lite._forks import leave_to_parent, notify_of_forks
from aiokafka_lite.client.blocking_cluster import OwnLoop
from aiokafka_lite.client.config import Address
from aiokafka_lite.client.wire import Wire


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_sockets_of_the_parent_lead_nowhere_and_their_owners_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[object] = []
    monkeypatch.setattr(_forks, "_inherited", kept)
    ours, theirs = socket.socketpair()
    null = os.stat(os.devnull)
    with ours, theirs:
        before = os.open(os.devnull, os.O_RDONLY)
        os.close(before)
        leave_to_parent(-1, "closed")
        leave_to_parent(ours.fileno(), "open")
        assert kept == ["closed", "open"]
        assert theirs.recv(1) == b""
        assert os.write(ours.fileno(), b"to nobody") == 9
        assert os.read(ours.fileno(), 1) == b""
        assert os.fstat(ours.fileno()).st_rdev == null.st_rdev
        assert not os.get_inheritable(ours.fileno())
        after = os.open(os.devnull, os.O_RDONLY)
        os.close(after)
        assert after == before  # nothing else was left open
    wire = Wire(
        Address("host", 9092), client_id="tests", max_frame_bytes=1, node_id=None, clock=float
    )
    wire.orphan()
    assert "host:9092 belongs to the parent process" in str(wire.error)


class Member:
    """Notes forks, which fails without a free descriptor."""

    def __init__(self, noted: list[str], name: str, error: Exception | None = None) -> None:
        self._noted = noted
        self._name = name
        self._error = error

    def note_fork(self) -> None:
        self._noted.append(self._name)
        if self._error is not None:
            raise self._error


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_an_object_that_cannot_replace_its_descriptor_does_not_hide_the_fork_from_others() -> None:
    noted: list[str] = []
    closed = OwnLoop()  # has no descriptor
    closed.close()
    full = OSError(errno.EMFILE, "too many open files")
    owners = [Member(noted, "owner", full) for _ in range(3)]
    members = [Member(noted, "member", ValueError("no loop")) for _ in range(3)]
    for owner in owners:
        notify_of_forks(owner, has_descriptor=True)
    for member in members:
        notify_of_forks(member)
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(writing, " ".join(noted).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        found = pipe.read().decode().split()
    os.waitpid(pid, 0)
    assert found == ["member"] * 3 + ["owner"] * 3
    assert noted == []
    closed.note_fork()
