"""What becomes of the sockets that a forked child inherits."""

from __future__ import annotations

import os
import socket

import pytest

from aiokafka_lite._compat import override
from aiokafka_lite.client.forking import ForkAware, detach
from aiokafka_lite.errors import KafkaError

GivenUp = tuple[int, object] | None


class Owner(ForkAware):
    """Gives up what a test says."""

    def __init__(self, given_up: GivenUp) -> None:
        self._given_up = given_up
        self.error: KafkaError | None = None

    @property
    @override
    def peer(self) -> str:
        return "host:9092"

    @override
    def _give_up_socket(self, error: KafkaError) -> GivenUp:
        self.error = error
        return self._given_up


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_sockets_of_the_parent_lead_nowhere_and_their_owners_are_kept() -> None:
    ours, theirs = socket.socketpair()
    null = os.stat(os.devnull)
    with ours, theirs:
        owners = [Owner(None), Owner((-1, "closed")), Owner((ours.fileno(), "open"))]
        before = os.open(os.devnull, os.O_RDONLY)
        os.close(before)
        assert detach(owners) == ["closed", "open"]
        assert theirs.recv(1) == b""
        assert os.write(ours.fileno(), b"to nobody") == 9
        assert os.read(ours.fileno(), 1) == b""
        assert os.fstat(ours.fileno()).st_rdev == null.st_rdev
        assert not os.get_inheritable(ours.fileno())
        after = os.open(os.devnull, os.O_RDONLY)
        os.close(after)
        assert after == before  # nothing else was left open
    for owner in owners:
        assert "host:9092 belongs to the parent process" in str(owner.error)
