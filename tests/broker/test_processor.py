"""A connection between its transport and the request channel, both played by the test."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.broker.faults.rules import Faults, Rule
from aiokafka_lite.broker.handlers.base import load_handlers
from aiokafka_lite.broker.network import frames
from aiokafka_lite.broker.network.dispatcher import RequestChannel, RequestWork
from aiokafka_lite.broker.network.frames import FIRST_SCRATCH_BYTES
from aiokafka_lite.broker.network.processor import Host, Processor
from aiokafka_lite.broker.network.request_log import RequestLog
from aiokafka_lite.broker.security.listener import Listener
from aiokafka_lite.protocol import framing
from aiokafka_lite.protocol.encoding import Part
from aiokafka_lite.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseTopic,
)

pytestmark = pytest.mark.virtual_time

load_handlers()

ANSWER = MetadataResponse(topics=[MetadataResponseTopic(error_code=3, name="t")])


def frame(number: int, *, client_id: str = "c") -> bytes:
    return framing.encode_request(MetadataRequest(topics=[]), 5, number, client_id)


class Wire(asyncio.Transport):
    """A transport that keeps what is written to it."""

    def __init__(self, sock: socket.socket | None = None) -> None:
        super().__init__({"socket": sock, "peername": ("127.0.0.1", 7)})
        self.sent = b""
        self.high: int | None = None
        self.is_paused = False
        self.end = ""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high

    def write(self, data: Part) -> None:
        self.sent += bytes(data)

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def is_closing(self) -> bool:
        return bool(self.end)

    def close(self) -> None:
        self.end = self.end or "closed"

    def abort(self) -> None:
        self.end = "aborted"


class Node:
    """What connections need of their node."""

    id = 1

    def __init__(self, capacity: int = 10) -> None:
        loop = asyncio.get_running_loop()
        self.channel = RequestChannel[RequestWork](capacity, loop)
        self.faults = Faults()
        self.requests = RequestLog(10)
        self.cluster = SimpleNamespace(
            config=SimpleNamespace(max_frame_bytes=1 << 20),
            scope=TaskScope("node"),
            security=SimpleNamespace(new_session=lambda listener: None),
        )
        self.connections: list[Processor] = []

    def on_bug(self, message: str, error: BaseException) -> None:
        raise error

    def admit(self, processor: Processor) -> bool:
        self.connections.append(processor)
        return True

    def dismiss(self, processor: Processor) -> None:
        self.connections.remove(processor)


class Client:
    """The other end of a connection."""

    def __init__(self, node: Node, sock: socket.socket | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.processor = Processor(cast("Host", node), Listener(), loop)
        self.wire = Wire(sock)
        self.processor.connection_made(self.wire)

    def send(self, *frames: bytes) -> None:
        """Send frames with one write."""
        data = b"".join(frames)
        self.processor.get_buffer(-1)[: len(data)] = data
        self.processor.buffer_updated(len(data))


async def correlation_id(node: Node) -> int:
    return (await node.channel.take()).correlation_id


async def test_answers_follow_requests_one_by_one() -> None:
    node = Node()
    client = Client(node)
    client.send(frame(1), frame(2))
    for number in (1, 2):
        assert len(node.channel) == 1
        work = await node.channel.take()
        assert (work.correlation_id, work.size_bytes) == (number, len(frame(number)) - 4)
        assert not client.processor.is_idle
        client.wire.sent = b""
        client.processor.answer(work, ANSWER)
        assert client.wire.sent == framing.encode_response(ANSWER, 5, number)
        assert work.seen is not None
        assert (work.seen.answered_at, work.seen.error_codes) == (0.0, {3})
    assert (client.processor.is_idle, client.processor.peer) == (True, "127.0.0.1:7")


async def test_requests_wait_until_the_client_takes_answers() -> None:
    node = Node()
    client = Client(node)
    client.processor.pause_writing()
    client.send(frame(1))
    assert len(node.channel) == 0
    client.processor.resume_writing()
    work = await node.channel.take()
    client.processor.pause_writing()
    client.processor.answer(work, ANSWER)
    client.send(frame(2))
    assert (client.wire.sent, len(node.channel)) == (b"", 0)
    client.processor.resume_writing()
    assert client.wire.sent == framing.encode_response(ANSWER, 5, 1)
    assert await correlation_id(node) == 2


async def test_throttled_connection_stays_muted_for_its_time() -> None:
    node = Node()
    client = Client(node)
    client.send(frame(1), frame(2))
    work = await node.channel.take()
    client.processor.mute_for(2.0)
    client.processor.mute_for(1.0)
    client.processor.answer(work, ANSWER)
    assert client.wire.sent
    for _ in range(2):  # the transport may be full and take more meanwhile
        client.processor.resume_writing()
    await asyncio.sleep(1.9)
    assert len(node.channel) == 0
    await asyncio.sleep(0.2)
    work = await node.channel.take()
    client.send(frame(3))
    client.processor.answer(work, ANSWER)
    assert await correlation_id(node) == 3, "the throttle is over"


async def test_answer_to_a_client_that_is_gone_is_dropped() -> None:
    node = Node()
    client = Client(node)
    gone: list[str] = []
    client.send(frame(1), frame(2))
    work = await node.channel.take()
    client.processor.call_when_closed(lambda: gone.append("gone"))
    client.processor.connection_lost(None)
    assert (gone, node.connections, client.processor.is_open) == (["gone"], [], False)
    client.processor.answer(work, ANSWER)
    client.processor.write_now(b"x")
    client.processor.write_rest(work, ANSWER, b"x")
    client.processor.close()
    client.processor.resume_writing()
    assert work.seen is not None
    assert (client.wire.sent, work.seen.answered_at, len(node.channel)) == (b"", None, 0)
    other = Client(node)
    other.send(frame(1))
    other.processor.call_when_closed(lambda: gone.append("again"))
    other.processor.answer(await node.channel.take(), ANSWER)
    other.processor.connection_lost(None)
    assert gone == ["gone"]


async def test_connections_wait_for_room_in_turn() -> None:
    node = Node(capacity=1)
    first, second, third = (Client(node) for _ in range(3))
    first.send(frame(1))
    second.send(frame(2))
    second.send(frame(20))
    third.send(frame(3))
    assert len(node.channel) == 1
    taken = []
    for _ in range(3):
        taken.append(await correlation_id(node))
        await asyncio.sleep(0)
    assert taken == [1, 2, 3]


async def test_reading_stops_while_there_is_no_room_for_more() -> None:
    node = Node()
    client = Client(node)
    stream, sent = frame(1, client_id="c" * 1_000) * 200, 0
    while not client.wire.is_paused:
        count = len(client.processor.get_buffer(-1))
        client.send(stream[sent : sent + count])
        sent += count
        assert sent < len(stream)
    assert sent > FIRST_SCRATCH_BYTES
    client.processor.answer(await node.channel.take(), ANSWER)
    assert not client.wire.is_paused


async def test_transport_waits_for_the_socket_at_once_where_answers_go_past_it() -> None:
    with socket.socket() as plain:
        assert Client(Node(), plain).wire.high == 0
    assert Client(Node()).wire.high == frames.HIGH_WATER_BYTES


async def test_connection_whose_socket_fails_is_aborted() -> None:
    node = Node()
    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        client = Client(node, ours)
        client.send(frame(1), frame(2))
        client.processor.answer(await node.channel.take(), ANSWER)
        assert (client.wire.end, client.wire.sent, len(node.channel)) == ("aborted", b"", 0)


async def test_next_request_waits_for_the_last_piece_of_an_answer() -> None:
    node = Node()
    client = Client(node)
    client.send(frame(1), frame(2))
    work = await node.channel.take()
    for piece in (b"one", b"two"):
        client.processor.write_now(piece)
        assert (client.processor.is_idle, len(node.channel)) == (False, 0)
    client.processor.write_rest(work, ANSWER, b"three")
    assert client.wire.sent == b"onetwothree"
    assert work.seen is not None
    assert (work.seen.answered_at, work.seen.error_codes) == (0.0, {3})
    assert await correlation_id(node) == 2


@pytest.mark.parametrize("is_a_rules", [False, True])
async def test_large_answer_is_emptied_unless_a_test_has_made_it(is_a_rules: bool) -> None:
    node = Node()
    client = Client(node)
    client.send(frame(1))
    work = await node.channel.take()
    topics = [MetadataResponseTopic(error_code=number % 2, name="t") for number in range(1_000)]
    answer = MetadataResponse(topics=topics)
    expected = framing.encode_response(answer, 5, 1)
    if is_a_rules:
        work.rule = cast("Rule", object())
    client.processor.send(work, answer)
    for _ in range(3):
        await asyncio.sleep(0)
    assert client.wire.sent == expected
    assert len(answer.topics) == (1_000 if is_a_rules else 0)
    assert work.seen is not None
    assert work.seen.error_codes == {1}


async def test_client_that_sends_no_more_is_closed() -> None:
    assert not Client(Node()).processor.eof_received()


@pytest.mark.parametrize("end", [Processor.close, Processor.abort])
async def test_connection_ends_once(end: Callable[[Processor], None]) -> None:
    client = Client(Node())
    client.processor.connection_lost(None)
    client.wire.end = ""
    end(client.processor)
    client.processor.reset()
    assert client.wire.end == ""
