"""What becomes of the sockets that a forked child inherits."""

from __future__ import annotations

import os
import socket

import pytest

from aiokafka_lite import _forks
from aiokafka_lite._forks import leave_to_parent
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
