"""Records are written once and in order through a network that breaks, on both brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from aiokafka_lite._compat import timeout
from aiokafka_lite.client.config import parse_address
from aiokafka_lite.producing import AIOKafkaProducer
from aiokafka_lite.structs import RecordMetadata
from tests.producing.sending import as_values, producer_of, send_numbers, values_in
from tests.support.cluster import KafkaHandle, unique
from tests.support.proxy import Proxy, send_through
from tests.support.rounds import LONG
from tests.support.waiting import PATIENCE_S

PATIENCE = 5 if LONG else 1

PRODUCE = 0


@pytest.fixture
async def topic(kafka: KafkaHandle) -> str:
    return await kafka.create_topic()


@pytest.fixture
async def proxy(kafka: KafkaHandle, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Proxy]:
    """All connections of this test's clients go through it."""
    async with Proxy(parse_address(kafka.bootstrap_servers)) as proxy:
        send_through(monkeypatch, proxy)
        yield proxy


async def send_in_turns(
    producer: AIOKafkaProducer, topic: str, numbers: range
) -> list[asyncio.Future[RecordMetadata]]:
    futures: list[asyncio.Future[RecordMetadata]] = []
    for number in numbers:
        futures += await send_numbers(producer, topic, range(number, number + 1))
        if number % 10 == 9:
            await asyncio.wait(futures[-1:], timeout=0.005)
    return futures


@pytest.mark.parametrize("resets", [False, True], ids=["closed", "reset"])
async def test_connections_that_end_all_the_time_lose_and_double_nothing(
    kafka: KafkaHandle, topic: str, proxy: Proxy, resets: bool
) -> None:
    async with producer_of(kafka) as producer:
        proxy.lifetime_s, proxy.resets = (0.01, 0.15), resets
        futures: list[asyncio.Future[RecordMetadata]] = []
        while len(proxy.accepted_at) < 7:
            futures += await send_in_turns(producer, topic, range(len(futures), len(futures) + 20))
        await asyncio.gather(*futures)
        proxy.lifetime_s = None
        proxy.end_all()
    assert await values_in(kafka, topic) == as_values(range(len(futures)))


async def test_answers_that_are_lost_with_their_connection_double_nothing(
    kafka: KafkaHandle, topic: str, proxy: Proxy
) -> None:
    async with producer_of(kafka) as producer:
        await producer.send_and_wait(topic, b"0", partition=0)
        futures = []
        for start in range(1, 101, 20):
            for link in proxy.links_of(PRODUCE):
                link.held.hold()
            futures += await send_in_turns(producer, topic, range(start, start + 20))
            for link in proxy.links_of(PRODUCE):
                link.end(reset=True)
        await asyncio.gather(*futures)
    assert await values_in(kafka, topic) == as_values(range(101))


async def test_transactions_are_whole_though_connections_end(
    kafka: KafkaHandle, topic: str, proxy: Proxy
) -> None:
    async with producer_of(kafka, transactional_id=unique("tx")) as producer:
        proxy.lifetime_s = (0.02, 0.2)
        for start in range(0, 200, 10):
            async with producer.transaction():
                await send_numbers(producer, topic, range(start, start + 10))
        proxy.lifetime_s = None
        proxy.end_all()
    values = await values_in(kafka, topic, isolation_level="read_committed")
    assert values == as_values(range(200))


async def test_what_expires_leaves_no_gap_and_nothing_acknowledged_is_lost(
    kafka: KafkaHandle, topic: str, proxy: Proxy
) -> None:
    futures: list[asyncio.Future[RecordMetadata]] = []
    limits = {"request_timeout_ms": 200 * PATIENCE, "delivery_timeout_ms": 400 * PATIENCE}
    async with producer_of(kafka, **limits) as producer:
        for direction in (proxy.to_client, proxy.to_server, proxy.to_client):
            futures += await send_in_turns(producer, topic, range(len(futures), len(futures) + 50))
            direction.hold()  # answers, or requests, are on their way until what waits expires
            futures += await send_in_turns(producer, topic, range(len(futures), len(futures) + 50))
            await asyncio.wait(futures)
            direction.release()
            await asyncio.wait([await producer.send(topic, b"between", partition=0)])
        async with timeout(PATIENCE_S):  # on a busy machine records expire after the release, too
            while any(each.exception() for each in futures[-50:]):
                numbers = range(len(futures), len(futures) + 50)
                futures += await send_numbers(producer, topic, numbers)
                await asyncio.wait(futures)
    written = [int(each or b"") for each in await values_in(kafka, topic) if each != b"between"]
    assert written == sorted(set(written)), "each once, and in order"
    failed = {number for number, future in enumerate(futures) if future.exception()}
    assert failed
    assert set(range(len(futures))) - failed <= set(written), "what was acknowledged is there"
