"""Writing views to a socket, as much as it takes."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
from collections import deque
from collections.abc import Mapping
from typing import cast

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.network import frames
from aiokafka_lite.protocol import framing
from aiokafka_lite.protocol.encoding import Part
from tests.broker.wire import fetch_partition, fetch_request
from tests.support.cluster import KafkaHandle


def parts_of(rng: random.Random, count: int) -> list[Part]:
    kinds = (bytes, bytearray, memoryview)
    return [kinds[n % 3](rng.randbytes(int(2 ** rng.uniform(0, 17)))) for n in range(count)]


def test_socket_gets_every_byte_in_order_however_little_it_takes() -> None:
    rng = random.Random(3)
    parts = parts_of(rng, 3 * frames.PARTS_AT_ONCE)
    expected = b"".join(parts)
    outgoing, received = deque(parts), bytearray()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 20_000)
        while not frames.write(ours.fileno(), outgoing):
            assert outgoing
            assert not frames.write(ours.fileno(), outgoing), "it is full"
            received += theirs.recv(rng.randrange(1, 300_000))
        assert not outgoing
        ours.shutdown(socket.SHUT_WR)
        while piece := theirs.recv(1 << 20):
            received += piece
    assert received == expected


def test_lost_connection_is_an_error() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        with pytest.raises(OSError, match="pipe"):
            frames.write(ours.fileno(), deque([b"x"]))


def test_parts_are_cut_only_where_they_are_too_large() -> None:
    parts: deque[Part] = deque([b"small", b"0123456789"])
    taken = [bytes(frames.take(parts, 5)) for _ in range(3)]
    assert taken == [b"small", b"01234", b"56789"]
    assert not parts


class Told:
    """A transport that tells of itself what it is given."""

    def __init__(self, told: Mapping[str, object]) -> None:
        self._told = told

    def get_extra_info(self, name: str) -> object:
        return self._told.get(name)


def test_only_a_plain_socket_is_written_to_past_its_transport() -> None:
    def descriptor(**told: object) -> int | None:
        return frames.socket_of(cast("asyncio.Transport", Told(told)))

    with socket.socket() as plain:
        assert descriptor(socket=plain) == plain.fileno()
        assert descriptor(socket=plain, sslcontext=ssl.create_default_context()) is None
    assert descriptor() is None


@pytest.mark.every_loop
@pytest.mark.parametrize("is_gathered", [True, False])
async def test_slow_reader_gets_whole_answers(
    monkeypatch: pytest.MonkeyPatch, is_gathered: bool
) -> None:
    if not is_gathered:
        monkeypatch.setattr(frames, "socket_of", lambda transport: None)
    values = [random.Random(n).randbytes(700_000) for n in range(3)]
    async with Broker() as broker:
        broker.create_topic("t", 3)
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        for number, value in enumerate(values):
            await kafka.produce("t", number, [(None, value)])
        asked = [fetch_partition(number, max_bytes=4 << 20) for number in range(3)]
        frame = framing.encode_request(fetch_request({"t": asked}), 12, 1, "raw")
        address = broker.node.address
        reader, writer = await asyncio.open_connection(address.host, address.port, limit=1000)
        try:
            writer.write(frame * 3)
            answers = [await slowly_read(reader) for _ in range(3)]
        finally:
            writer.close()
            await writer.wait_closed()
    assert answers[0] == answers[1] == answers[2]
    assert all(value in answers[0] for value in values)


async def slowly_read(reader: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await reader.readexactly(4), "big")
    answer = bytearray()
    while len(answer) < size:
        answer += await reader.read(min(size - len(answer), 150_000))
        await asyncio.sleep(0)
    return bytes(answer)
