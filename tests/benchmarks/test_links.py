"""The link of the benchmark on bad ones, and the process that reads over it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from aiokafka_lite.broker import NewRecord
from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.thread import BrokerThread
from benchmarks.contestants import LITE_GETMANY
from benchmarks.links import CASES, Direction, Link, run_reader
from benchmarks.measure import Workload

PACKET = b"x" * 100


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket, socket.socket, socket.socket]]:
    """Two devices, with what writes to the first and what reads from the second."""
    with ExitStack() as stack:
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
        for end in (*pairs[0], *pairs[1]):
            stack.enter_context(end)
            end.setblocking(False)
        yield (*pairs[0], *pairs[1])


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("link", "expected"),
    [
        (Link(rate=1_000, delay_s=0.5, queue_s=1.0), [0.6, 0.7, 0.8, 0.9, 1.0, 1.1]),
        # What would wait for longer than the queue holds is dropped.
        (Link(rate=1_000, delay_s=0.5, queue_s=0.25), [0.6, 0.7, 0.8]),
        (Link(loss=1.0), []),
    ],
)
async def test_packets_are_late_slow_or_lost(
    ends: tuple[socket.socket, ...], link: Link, expected: list[float]
) -> None:
    near, source, target, far = ends
    loop = asyncio.get_running_loop()
    direction = Direction(source.fileno(), target.fileno(), link, seed=1)
    began, arrived = loop.time(), []
    for _ in range(6):
        near.send(PACKET)

    def receive() -> None:
        assert far.recv(1_000) == PACKET
        arrived.append(loop.time() - began)

    loop.add_reader(far, receive)
    await asyncio.sleep(5.0)
    loop.remove_reader(far)
    loop.remove_reader(source)
    assert arrived == pytest.approx(expected, abs=0.01)
    del direction


def test_a_reader_in_its_process_says_how_long_it_took_or_what_went_wrong() -> None:
    with BrokerThread(BrokerConfig()) as thread:
        thread.produce_all("t", [NewRecord(str(number)) for number in range(50)])
        workload = Workload(thread.bootstrap_servers, ("t",), 1, records=50)
        answer = run_reader(LITE_GETMANY.subject, workload)
        assert answer.endswith(" s")
        assert 0.0 <= float(answer.removesuffix(" s")) < 60.0
        assert "no_such_module" in run_reader("no_such_module:read", workload)


def test_every_case_has_a_trouble_of_its_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert all((case.link is None) != (not case.trouble) for case in CASES)
