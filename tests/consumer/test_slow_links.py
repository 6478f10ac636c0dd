"""Answers that take long to arrive: they are received, or asked for in smaller pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from aiokafka_lite import _compat
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.protocol.messages.fetch import FetchRequest
from aiokafka_lite.structs import TopicPartition
from tests.support import inside
from tests.support.virtual_time import VirtualTimeLoop

COUNT = 20
RECORD_BYTES = 100_000
TP = TopicPartition("t", 0)

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """Two nodes. The first leads "t", whose records are two megabytes in all."""
    async with Broker(nodes=2) as broker:
        broker.create_topic("t", 1)
        broker.move_leader(TP, 1)
        for _ in range(COUNT):
            broker.produce("t", bytes(RECORD_BYTES))
        await asyncio.sleep(1.0)  # so that reconnections are told from the first connections
        yield broker
    assert broker.failure is None


def consumer_of(broker: Broker, **settings: object) -> AIOKafkaConsumer:
    arguments: dict[str, object] = {
        "bootstrap_servers": broker.bootstrap_servers,
        "auto_offset_reset": "earliest",
        "max_partition_fetch_bytes": 2 * COUNT * RECORD_BYTES,
        "metadata_max_age_ms": 10_000_000,
        **settings,
    }
    return AIOKafkaConsumer("t", **arguments)  # type: ignore[arg-type]


async def read_all(consumer: AIOKafkaConsumer, within_s: float) -> list[int]:
    offsets: list[int] = []
    async with _compat.timeout(within_s):
        while len(offsets) < COUNT:
            records = (await consumer.getmany(timeout_ms=1_000)).get(TP, [])
            offsets += [record.offset for record in records]
    return offsets


def max_bytes(asked: object) -> int:
    assert isinstance(asked, FetchRequest)
    return asked.max_bytes


def asked_bytes(broker: Broker) -> list[int]:
    """How many bytes each Fetch asked for, of those that read from the start."""
    requests = [each.request for each in broker.requests.of("Fetch")]
    return [
        request.max_bytes
        for request in requests
        if isinstance(request, FetchRequest)
        and [p.fetch_offset for topic in request.topics for p in topic.partitions] == [0]
    ]


async def test_an_answer_is_received_however_long_it_takes_while_bytes_come(
    broker: Broker,
) -> None:
    broker.on("Fetch").trickle(50_000, times=None)
    async with consumer_of(broker) as consumer:
        assert await read_all(consumer, 60.0) == list(range(COUNT))
        assert inside.cluster(consumer).pool.reconnect_count == 0
    assert len(asked_bytes(broker)) == 1


async def test_a_broker_whose_answer_is_coming_is_not_suspected(broker: Broker) -> None:
    broker.on("Fetch").trickle(50_000, times=None)
    async with consumer_of(broker) as consumer:
        asking = asyncio.ensure_future(read_all(consumer, 60.0))
        await asyncio.sleep(2.0)
        asked = len(broker.requests.of("Metadata"))
        while not asking.done():
            assert not inside.cluster(consumer).pool.suspects
            await asyncio.sleep(1.0)
        assert len(broker.requests.of("Metadata")) == asked
        await asking


async def test_an_answer_that_stops_half_way_is_asked_for_in_a_smaller_piece(
    broker: Broker,
) -> None:
    broker.on("Fetch").split(pieces=2, pause_s=10_000.0, times=2)
    async with consumer_of(broker) as consumer:
        assert await read_all(consumer, 90.0) == list(range(COUNT))
        first, second, third = asked_bytes(broker)
        assert (second, third) == (first // 2, first // 4)
        # Answers in time undo that.
        for _ in range(2):
            broker.produce("t", b"more")
            await asyncio.wait_for(consumer.getone(), 5.0)
        await asyncio.sleep(1.0)
        assert max_bytes(broker.requests.of("Fetch")[-1].request) == first


@pytest.mark.parametrize("ending", ["cut", "reset"])
async def test_an_answer_that_is_cut_off_is_asked_for_in_smaller_pieces_until_it_arrives(
    broker: Broker, ending: str
) -> None:
    """As a middlebox does that ends connections after so many bytes, or so many seconds."""
    limit = RECORD_BYTES * 4
    broker.on("Fetch", when=lambda _, asked: max_bytes(asked) > limit).disconnect(
        after_bytes=limit, reset=ending == "reset", times=None
    )
    async with consumer_of(broker) as consumer:
        assert await read_all(consumer, 60.0) == list(range(COUNT))


@pytest.mark.parametrize("delay_s", [11.0, 35.0])
async def test_a_broker_may_take_as_long_as_request_timeout_ms(
    broker: Broker, delay_s: float
) -> None:
    broker.on("Fetch").delay(delay_s, times=None)
    async with consumer_of(broker) as consumer:
        assert await read_all(consumer, 400.0) == list(range(COUNT))
        assert (await consumer.getmany(timeout_ms=0)) == {}
        # What was learnt holds as long as the broker is slow.
        reconnect_count = inside.cluster(consumer).pool.reconnect_count
        broker.produce("t", b"more")
        await asyncio.wait_for(consumer.getone(), 3 * delay_s)
        assert inside.cluster(consumer).pool.reconnect_count == reconnect_count


async def test_a_broker_that_is_silent_at_first_has_ten_seconds(broker: Broker) -> None:
    loop = asyncio.get_running_loop()
    async with consumer_of(broker) as consumer:
        await read_all(consumer, 5.0)
        with broker.on("Fetch").silence(times=None):
            began = loop.time()
            while not inside.cluster(consumer).pool.reconnect_count:
                await consumer.getmany(timeout_ms=100)
            assert 10.0 < loop.time() - began < 11.5


# --- A loop that is blocked -------------------------------------------------------------------
async def test_a_loop_that_is_blocked_gives_no_connection_up(broker: Broker) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    async with consumer_of(broker, max_partition_fetch_bytes=3 * RECORD_BYTES) as consumer:
        offsets = []
        async for record in consumer:
            offsets.append(record.offset)
            loop.pass_time(12.0)
            assert not inside.cluster(consumer).pool.suspects
            if len(offsets) == COUNT:
                break
        assert offsets == list(range(COUNT))
        assert inside.cluster(consumer).pool.reconnect_count == 0


async def test_a_loop_that_is_blocked_again_and_again_hides_no_broker_that_is_gone(
    broker: Broker,
) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    async with consumer_of(broker) as consumer:
        await read_all(consumer, 5.0)
        with broker.on("Fetch").silence(times=None):
            for _ in range(100):
                loop.pass_time(2.0)
                await asyncio.sleep(0)
            assert inside.cluster(consumer).pool.reconnect_count > 0
