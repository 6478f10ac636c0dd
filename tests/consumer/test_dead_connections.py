"""A connection that died without a word: whoever asks over it asks again over another in time."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from aiokafka_lite import AIOKafkaProducer
from aiokafka_lite.broker import Broker
from aiokafka_lite.client.connection import KEEP_ALIVE
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import KafkaConnectionError
from aiokafka_lite.structs import TopicPartition
from tests.support.connecting import connect_to

TP = TopicPartition("t", 0)
Call = Callable[[AIOKafkaConsumer], Awaitable[object]]
CALLS: dict[str, tuple[str, Call]] = {
    "commit": ("OffsetCommit", lambda c: c.commit()),
    "named commit": ("OffsetCommit", lambda c: c.commit({TP: 1})),
    "committed": ("OffsetFetch", lambda c: c.committed(TP)),
    "seek_to_committed": ("OffsetFetch", lambda c: c.seek_to_committed()),
    "seek_to_end": ("ListOffsets", lambda c: c.seek_to_end(TP)),
    "end_offsets": ("ListOffsets", lambda c: c.end_offsets([TP])),
    "offsets_for_times": ("ListOffsets", lambda c: c.offsets_for_times({TP: 0})),
    "topics": ("Metadata", lambda c: c.topics()),
}


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """A broker with a record in "t"."""
    async with Broker() as broker:
        broker.create_topic("t", 1)
        broker.produce("t", b"first")
        yield broker
    assert broker.failure is None


def consumer_of(broker: Broker, **settings: object) -> AIOKafkaConsumer:
    arguments: dict[str, object] = {
        "bootstrap_servers": broker.bootstrap_servers,
        "group_id": "g",
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "metadata_max_age_ms": 10_000_000,
        **settings,
    }
    return AIOKafkaConsumer(**arguments)  # type: ignore[arg-type]


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("request_timeout_ms", "limit_s"), [(40_000, 11.0), (6_000, 3.0)], ids=["default", "short"]
)
@pytest.mark.parametrize(("api", "call"), CALLS.values(), ids=CALLS)
async def test_a_call_is_made_again_over_another_connection(
    broker: Broker, api: str, call: Call, request_timeout_ms: int, limit_s: float
) -> None:
    loop = asyncio.get_running_loop()
    async with consumer_of(broker, request_timeout_ms=request_timeout_ms) as consumer:
        consumer.assign([TP])
        await consumer.getone()
        await consumer.commit({TP: 1})
        broker.on(api).silence()
        began = loop.time()
        await call(consumer)
        assert loop.time() - began < limit_s


@pytest.mark.virtual_time
async def test_calls_are_made_again_after_a_connection_was_lost(broker: Broker) -> None:
    async with consumer_of(broker) as consumer:
        consumer.assign([TP])
        await consumer.getone()
        for api, call in CALLS.values():
            broker.on(api).disconnect(times=2)
            broker.on(api).wrong_correlation_id()
            await call(consumer)
        broker.on("Metadata").disconnect(times=None)
        with pytest.raises(KafkaConnectionError, match="no broker can be used"):
            await consumer.topics()


@pytest.mark.virtual_time
async def test_the_coordinator_is_looked_for_over_another_connection(broker: Broker) -> None:
    loop = asyncio.get_running_loop()
    async with consumer_of(broker) as consumer:
        broker.on("FindCoordinator").silence()
        consumer.assign([TP])
        began = loop.time()
        assert await consumer.committed(TP) is None
        assert loop.time() - began < 11.0


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("request_timeout_ms", "delay_s"), [(40_000, 14.0), (40_000, 12.0), (6_000, 2.5)]
)
async def test_a_coordinator_that_is_slow_has_more_time_at_each_try(
    broker: Broker, request_timeout_ms: int, delay_s: float
) -> None:
    async with consumer_of(broker, request_timeout_ms=request_timeout_ms) as consumer:
        consumer.assign([TP])
        await consumer.getone()
        with broker.on("OffsetCommit").delay(delay_s, times=None):
            await consumer.commit()
        assert await consumer.committed(TP) == 1


@pytest.mark.virtual_time
async def test_a_transaction_ends_over_another_connection(broker: Broker) -> None:
    loop = asyncio.get_running_loop()
    producer = AIOKafkaProducer(
        bootstrap_servers=broker.bootstrap_servers, transactional_id="tx", client_id="p"
    )
    async with producer:
        async with producer.transaction():
            await producer.send_and_wait("t", b"second")
            broker.on("EndTxn").silence()
            began = loop.time()
        assert loop.time() - began < 11.0


async def test_the_kernel_asks_whether_the_peer_is_there(broker: Broker) -> None:
    host, port = broker.bootstrap_servers.split(":")
    connection = await connect_to(host, int(port))
    try:
        sock = connection._transport.get_extra_info("socket")  # type: ignore[union-attr]
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        for name, value in KEEP_ALIVE.items():
            if hasattr(socket, name):
                assert sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) == value
    finally:
        connection.close()
        await connection.wait_closed()
