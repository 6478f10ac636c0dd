"""A consumer behind a network that breaks: all records, each once, and found out in time."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from aiokafka_lite import _compat
from aiokafka_lite.broker import Broker
from aiokafka_lite.client.config import Address, parse_address
from aiokafka_lite.client.connection import dial
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import NotLeaderForPartitionError
from aiokafka_lite.structs import TopicPartition
from tests.support import inside, tuning
from tests.support.cluster import KafkaHandle, unique
from tests.support.proxy import Proxy, send_through
from tests.support.reading import reading
from tests.support.rows import rows
from tests.support.sasl_consumer import consumer_of, sasl_broker

TIMEOUT_S = 30.0
WATCHED_S = 2.0
FETCH, HEARTBEAT = 1, 12


def reading_fast(
    kafka: KafkaHandle, topic: str, **arguments: object
) -> AbstractAsyncContextManager[AIOKafkaConsumer]:
    """A consumer that finds out soon."""
    return reading(
        kafka,
        topic,
        consumer_class=AIOKafkaConsumer,
        **{"fetch_max_wait_ms": 50, "request_timeout_ms": 500, "retry_backoff_ms": 10, **arguments},
    )


@pytest.fixture
async def proxy(kafka: KafkaHandle, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Proxy]:
    """A proxy between the consumers of a test and their broker."""
    async with Proxy(parse_address(kafka.bootstrap_servers)) as proxy:
        send_through(monkeypatch, proxy)
        yield proxy


async def read(consumer: AIOKafkaConsumer, count: int) -> list[int]:
    """The offsets of the next `count` records of the only partition."""
    seen: list[int] = []
    async with _compat.timeout(TIMEOUT_S):
        while len(seen) < count:
            for batch in (await consumer.poll(timeout_ms=1_000)).values():
                seen += [record.offset for record in batch]
    return seen


@pytest.mark.real_if_long
async def test_answers_split_at_every_byte_are_the_same_records(
    kafka: KafkaHandle, proxy: Proxy
) -> None:
    topic = await kafka.create_topic()
    base = await kafka.produce(topic, 0, rows(0, 3))
    async with reading(kafka, topic, fetch_max_wait_ms=1) as consumer:
        whole = [record async for record in _take(consumer, 3)]
        boundaries = itertools.count(1)
        longest = 0

        def split(size: int) -> int:
            nonlocal longest
            longest = max(longest, size)
            return min(next(boundaries), size)

        proxy.to_client.split = split
        tp = TopicPartition(topic, 0)
        while next(boundaries) <= longest + 1:
            consumer.seek(tp, base)
            assert [record async for record in _take(consumer, 3)] == whole
    assert longest > 100


async def _take(consumer: AIOKafkaConsumer, count: int) -> AsyncIterator[object]:
    for _ in range(count):
        yield await asyncio.wait_for(consumer.getone(), TIMEOUT_S)


def hold_client(proxy: Proxy) -> None:
    proxy.to_client.hold()


def hold_server(proxy: Proxy) -> None:
    proxy.to_server.hold()


def hold_both(proxy: Proxy) -> None:
    hold_client(proxy)
    hold_server(proxy)


@pytest.mark.parametrize(
    "hold", [hold_client, pytest.param(hold_server, marks=pytest.mark.slow), hold_both]
)
async def test_a_half_open_connection_is_found_and_left(
    kafka: KafkaHandle, proxy: Proxy, hold: Callable[[Proxy], None]
) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 5))
    loop = asyncio.get_running_loop()
    async with reading_fast(kafka, topic) as consumer:
        assert await read(consumer, 5) == [0, 1, 2, 3, 4]
        before = len(proxy.accepted_at)
        hold(proxy)
        held_at = loop.time()
        async with _compat.timeout(TIMEOUT_S):
            while len(proxy.accepted_at) == before:
                await consumer.poll(timeout_ms=20)
        # fetch_max_wait_ms, request_timeout_ms (the least of it and 10 s), and a moment.
        assert proxy.accepted_at[before] - held_at < 5.0
        proxy.end_all(reset=True)  # what was sent into the void never arrives
        proxy.to_client.release()
        proxy.to_server.release()
        await kafka.produce(topic, 0, rows(5, 5))
        assert await read(consumer, 5) == [5, 6, 7, 8, 9]


async def test_a_silent_fetch_connection_costs_no_membership(
    kafka: KafkaHandle, proxy: Proxy
) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 5))
    async with reading_fast(
        kafka,
        topic,
        group_id=unique("group"),
        heartbeat_interval_ms=20,
        session_timeout_ms=6_000,
    ) as consumer:
        assert await read(consumer, 5) == [0, 1, 2, 3, 4]
        generation = inside.generation(consumer)
        (fetching,) = proxy.links_of(FETCH)
        assert HEARTBEAT not in fetching.api_keys
        fetching.held.hold()
        await kafka.produce(topic, 0, rows(5, 5))
        assert await read(consumer, 5) == [5, 6, 7, 8, 9]
        assert inside.generation(consumer) == generation


def cut_inside_answers(proxy: Proxy) -> None:
    proxy.to_client.cut_after_bytes = 2_500


def cut_inside_requests(proxy: Proxy) -> None:
    proxy.to_server.cut_after_bytes = 400


def reset_inside_answers(proxy: Proxy) -> None:
    proxy.resets = True
    proxy.to_client.cut_after_bytes = 3_000


def a_few_bytes_at_a_time(proxy: Proxy) -> None:
    proxy.to_client.piece_bytes = 7


def late(proxy: Proxy) -> None:
    proxy.to_client.delay_s = 0.02


def flapping(proxy: Proxy) -> None:
    proxy.lifetime_s = (0.05, 0.2)


FAULTS = [
    cut_inside_answers,
    cut_inside_requests,
    reset_inside_answers,
    a_few_bytes_at_a_time,
    late,
    flapping,
]


@pytest.mark.parametrize("fault", FAULTS)
async def test_whatever_the_network_does_records_come_once_and_in_order(
    kafka: KafkaHandle, proxy: Proxy, fault: Callable[[Proxy], None]
) -> None:
    topic = await kafka.create_topic()
    for start in range(0, 60, 10):
        await kafka.produce(topic, 0, rows(start, 10))
    async with reading_fast(kafka, topic, max_partition_fetch_bytes=300) as consumer:
        seen = await read(consumer, 10)
        fault(proxy)
        proxy.end_all(reset=True)
        seen += await read(consumer, 50)
    assert seen == list(range(60))


@pytest.mark.virtual_time
async def test_a_flapping_broker_is_not_hammered(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    async with Broker() as broker:
        broker.create_topic("t", 1)
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        async with Proxy(parse_address(broker.bootstrap_servers)) as proxy:
            send_through(monkeypatch, proxy)
            async with reading(kafka, "t", fetch_max_wait_ms=50) as consumer:
                proxy.lifetime_s = (0.0, 0.01)
                proxy.end_all(reset=True)
                began, before = loop.time(), len(proxy.accepted_at)
                while loop.time() - began < 2.0:
                    await consumer.poll(timeout_ms=100)
                attempt_count = len(proxy.accepted_at) - before
                elapsed_s = loop.time() - began
                proxy.lifetime_s = None
                broker.produce("t", b"at last")
                assert await read(consumer, 1) == [0]
    # The backoff doubles from 50 ms to 1 s: five in the first 1.5 s, for two lanes; then it is
    # one a second, for each.
    assert attempt_count <= 2 * (6 + elapsed_s)


async def test_a_partition_in_a_backoff_does_not_wait_for_the_others_long_poll() -> None:
    async with Broker() as broker:
        broker.create_topic("t", 2)
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        broker.on("Fetch", partition=1).fail(NotLeaderForPartitionError)
        async with reading(kafka, "t", fetch_max_wait_ms=60_000, retry_backoff_ms=10) as consumer:
            broker.produce("t", b"all the same", partition=1)
            record = await asyncio.wait_for(consumer.getone(), TIMEOUT_S)
            assert record.value == b"all the same"


async def test_the_first_metadata_is_asked_for_again_when_it_gets_lost() -> None:
    async with Broker() as broker:
        broker.create_topic("t", 1)
        broker.produce("t", b"first")
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        lost = broker.on("Metadata").disconnect(handled=True, times=2)
        async with reading(kafka, "t", retry_backoff_ms=10) as consumer:
            assert (await asyncio.wait_for(consumer.getone(), TIMEOUT_S)).value == b"first"
        assert lost.is_over


async def test_brokers_that_were_all_replaced_are_found_by_their_old_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve = socket.getaddrinfo
    now_at = "127.0.0.1"

    def resolve_name(host: str, *arguments: object, **named: object) -> object:
        return resolve(now_at if host == "kafka.test" else host, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", resolve_name)
    async with Broker(data_dir=tmp_path) as old:
        old.create_topic("t", 1)
        old.produce("t", b"from the old ones")
        async with Proxy(parse_address(old.bootstrap_servers)) as door:
            consumer = AIOKafkaConsumer(
                "t",
                bootstrap_servers=f"kafka.test:{door.port}",
                auto_offset_reset="earliest",
                retry_backoff_ms=10,
            )
            await consumer.start()
            assert (await consumer.getone()).offset == 0
    async with Broker(data_dir=tmp_path) as new:
        assert new.bootstrap_servers != old.bootstrap_servers
        new.produce("t", b"from the new ones")
        now_at = "127.0.0.2"
        async with Proxy(parse_address(new.bootstrap_servers), host=now_at, port=door.port):
            record = await asyncio.wait_for(consumer.getone(), TIMEOUT_S)
            assert (record.offset, record.value) == (1, b"from the new ones")
            await consumer.stop()


async def test_brokers_that_are_down_cost_next_to_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    attempts = 0

    async def count(make: object, address: Address, **settings: object) -> object:
        nonlocal attempts
        attempts += 1
        return await dial(make, address, **settings)  # type: ignore[arg-type]

    async with Broker() as broker:
        broker.create_topic("t", 1)
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        consumer = AIOKafkaConsumer("t", bootstrap_servers=kafka.bootstrap_servers, group_id="g")
        await consumer.start()
    with caplog.at_level(logging.WARNING, logger="aiokafka_lite"):
        caplog.clear()
        polling = asyncio.ensure_future(consumer.poll())
        await asyncio.sleep(1.0)
        tuning.dial_by(monkeypatch, count)
        cpu_s = time.process_time()
        await asyncio.sleep(WATCHED_S)
        cpu_s = time.process_time() - cpu_s
        lines = list(caplog.messages)
        polling.cancel()
        await consumer.stop(timeout=0.2)
    # 0.3 % of a core and 2 attempts a second, when it was measured on a quiet machine.
    assert cpu_s / WATCHED_S < 0.05
    assert attempts <= 3 * WATCHED_S + 3
    assert len(lines) == len({line.partition(":")[0] for line in lines}) <= 6


@pytest.mark.parametrize(
    "cut_after_bytes",
    [pytest.param(3, marks=pytest.mark.slow), 300, pytest.param(900, marks=pytest.mark.slow)],
)
async def test_a_reset_while_the_client_signs_on_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, cut_after_bytes: int
) -> None:
    async with sasl_broker() as broker:
        broker.create_topic("t", 1)
        async with Proxy(parse_address(broker.bootstrap_servers)) as proxy:
            send_through(monkeypatch, proxy)
            async with consumer_of(broker, "SCRAM-SHA-256") as consumer:
                proxy.resets = True
                proxy.to_client.cut_after_bytes = cut_after_bytes
                cut_at = len(proxy.accepted_at)
                proxy.end_all(reset=True)
                async with _compat.timeout(TIMEOUT_S):
                    while len(proxy.accepted_at) < cut_at + 3:
                        await consumer.poll(timeout_ms=20)
                proxy.to_client.cut_after_bytes = None
                broker.produce("t", b"signed on")
                assert (await asyncio.wait_for(consumer.getone(), TIMEOUT_S)).value == b"signed on"
