"""How many bytes of a large frame a socket waits for."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from typing import ClassVar

import pytest

from aiokafka_lite._compat import override
from aiokafka_lite.client.connection import Connection
from aiokafka_lite.client.frames import PIECE_BYTES
from aiokafka_lite.client.low_water import LowWaterMark
from aiokafka_lite.errors import KafkaConnectionError, RequestTimedOutError
from aiokafka_lite.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from aiokafka_lite.protocol.messages.group_members import HeartbeatRequest, HeartbeatResponse
from tests.client.conftest import TIMEOUT_S
from tests.support.connecting import connect_to
from tests.support.scripted_broker import Answer, Asked, Do, ScriptedBroker, always

pytestmark = [
    pytest.mark.every_loop,
    pytest.mark.skipif(sys.platform != "linux", reason="what the mark does is Linux's"),
]


class CountingConnection(Connection):
    """Counts how often it is woken up to read."""

    reads: ClassVar[int] = 0

    @override
    def buffer_updated(self, nbytes: int) -> None:
        CountingConnection.reads += 1
        super().buffer_updated(nbytes)


async def send_slowly(asked: Asked, answer: bytes, piece: int) -> None:
    """Write an answer in pieces, with a turn of the loop after each."""
    for start in range(0, len(answer), piece):
        asked.peer.transport.write(answer[start : start + piece])
        await asyncio.sleep(0)


def fetched(size: int) -> FetchResponse:
    partition = PartitionData(partition_index=0, records=bytes(range(250)) * (size // 250))
    return FetchResponse(responses=[FetchableTopicResponse(partitions=[partition])])


@pytest.mark.parametrize("piece", [7_001, 70_001])
async def test_large_answer_comes_whole_with_few_reads(broker: ScriptedBroker, piece: int) -> None:
    connection = await connect_to(broker.host, broker.port, kind=CountingConnection)
    writing: list[asyncio.Future[None]] = []

    def answer_slowly(asked: Asked) -> Answer:
        answer = asked.encode(fetched(8 * PIECE_BYTES))
        writing.append(asyncio.ensure_future(send_slowly(asked, answer, piece)))
        return Do.NOTHING

    broker.scripts[FetchRequest] = answer_slowly
    broker.scripts[HeartbeatRequest] = always(HeartbeatResponse())
    for is_window_small in (True, False):
        CountingConnection.reads = 0
        response = await connection.request(FetchRequest(), timeout_s=TIMEOUT_S)
        assert is_window_small or CountingConnection.reads < 8 * PIECE_BYTES / piece / 2
        records = response.responses[0].partitions[0].records
        assert records == fetched(8 * PIECE_BYTES).responses[0].partitions[0].records
        await writing.pop()
        # A small answer is not waited for longer than it is.
        await connection.request(HeartbeatRequest(), timeout_s=TIMEOUT_S)
    connection.close()
    await connection.wait_closed()


async def test_end_of_the_stream_within_a_large_answer_is_noticed_at_once(
    broker: ScriptedBroker, connection: Connection
) -> None:
    def break_off(asked: Asked) -> Answer:
        asked.peer.transport.write(asked.encode(fetched(8 * PIECE_BYTES))[: 2 * PIECE_BYTES + 99])
        return Do.CLOSE

    broker.scripts[FetchRequest] = break_off
    with pytest.raises(KafkaConnectionError, match="the peer closed the connection"):
        await connection.request(FetchRequest(), timeout_s=TIMEOUT_S)


async def test_claim_of_a_large_answer_holds_up_no_deadline(
    broker: ScriptedBroker, connection: Connection
) -> None:
    broker.scripts[FetchRequest] = always(struct.pack(">ii", 8 * PIECE_BYTES, 0) + bytes(20_000))
    with pytest.raises(RequestTimedOutError):
        await connection.request(FetchRequest(), timeout_s=0.05)


async def test_mark_is_the_sockets(broker: ScriptedBroker) -> None:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(asyncio.Protocol, broker.host, broker.port)
    mark = LowWaterMark(transport)
    for count in (1000, 1):
        mark.want(count)
        own = transport.get_extra_info("socket")
        assert own.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == count
    transport.abort()


async def test_mark_leaves_half_of_the_window_until_that_has_grown(broker: ScriptedBroker) -> None:
    """Otherwise the first large answer of a connection may stand still for 200 ms."""
    opened: list[asyncio.BaseTransport] = []

    class Watched(Connection):
        @override
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            opened.append(transport)
            super().connection_made(transport)

    connection = await connect_to(broker.host, broker.port, kind=Watched)
    own = opened[0].get_extra_info("socket")

    def marked() -> int:
        mark = LowWaterMark(opened[0])
        mark.want(PIECE_BYTES)
        count: int = own.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)
        mark.want(1)
        return count

    info = struct.unpack("8B15I", own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 68))
    assert marked() == info[-1] // 2 < PIECE_BYTES
    broker.scripts[FetchRequest] = always(fetched(8 * PIECE_BYTES))
    for _ in range(4):
        await connection.request(FetchRequest(), timeout_s=TIMEOUT_S)
    assert marked() == PIECE_BYTES
    connection.close()
    await connection.wait_closed()


async def test_socket_without_a_mark_goes_without(broker: ScriptedBroker) -> None:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(asyncio.Protocol, broker.host, broker.port)
    mark = LowWaterMark(transport)
    transport.abort()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for count in (1000, 1):
        mark.want(count)
