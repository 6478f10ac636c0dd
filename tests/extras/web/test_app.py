"""A consumer over HTTP: what it shows, and whom it refuses."""

from __future__ import annotations

import asyncio
import gc
import re
import time
import warnings
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import pytest
from aiohttp import web as aiohttp_web

from aiokafka_lite import AIOKafkaConsumer, TopicPartition
from aiokafka_lite._compat import timeout
from aiokafka_lite._pages import ROWS, PageQuery, serving
from aiokafka_lite.broker import Broker, NewRecord
from aiokafka_lite.consumer.monitoring.diagnosis import TROUBLES
from aiokafka_lite.consumer.monitoring.health import LONG_STANDSTILL_S
from aiokafka_lite.errors import KafkaConnectionError
from aiokafka_lite.extras import web
from aiokafka_lite.extras.web import pages
from aiokafka_lite.extras.web.pages import Measuring, TooManyError
from aiokafka_lite.processing import CircuitBreaker, DeadRecord, Retry
from aiokafka_lite.structs import ConsumerRecord
from tests.support.asking import Fields, ask
from tests.support.cluster import KafkaHandle
from tests.support.rows import rows
from tests.support.waiting import eventually, until

HOSTILE = '<script>alert(1)</script>\r\nX: "y"\\'


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure anew for every request."""
    monkeypatch.setattr(pages, "REST_PER_WORK", 0)


@asynccontextmanager
async def shown(
    broker: Broker, *topics: str, group_id: str | None = None, client_id: str = "worker"
) -> AsyncIterator[tuple[AIOKafkaConsumer, str]]:
    """Run a consumer and its page."""
    consumer = AIOKafkaConsumer(
        *topics,
        bootstrap_servers=broker.bootstrap_servers,
        group_id=group_id,
        client_id=client_id,
        auto_offset_reset="earliest",
    )
    async with consumer, web.serve(consumer) as url:
        yield consumer, url


# What it shows


async def test_health_is_200_until_the_consumer_is_dead(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=kafka.bootstrap_servers)
    async with web.serve(consumer) as url:
        before = await ask(f"{url}health")
        assert (before.status, before.fields()["verdict"]) == (200, "degraded")
        async with consumer:
            await consumer.position(TopicPartition(topic, 0))
            running = await ask(f"{url}health")
            assert (running.status, running.fields()["verdict"]) == (200, "ok")
            assert running.headers["Content-Type"].startswith("application/json")
        stopped = await ask(f"{url}health")
        assert (stopped.status, stopped.fields()["verdict"]) == (503, "dead")
        assert "stopped" in str(stopped.fields()["reasons"])
        assert (await ask(f"{url}metrics")).status == 200


async def test_a_consumer_that_is_shown_and_dropped_is_collected_and_said_to_be_gone(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic()
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=kafka.bootstrap_servers, group_id=topic)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: None)
    async with web.serve(consumer) as url:
        await consumer.start()
        for path in ("health", "metrics", "api/overview", "api/partitions"):
            assert (await ask(f"{url}{path}")).status == 200
        dropped = weakref.ref(consumer)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            del consumer
            gc.collect()
        assert dropped() is None
        gone = await ask(f"{url}health")
        assert (gone.status, gone.fields()["verdict"]) == (503, "dead")
        for path in ("metrics", "api/overview", "api/partitions"):
            assert (await ask(f"{url}{path}")).status == 503


async def test_partitions_show_position_lag_and_state(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=2)
    await kafka.produce(topic, 0, [(None, b"x")] * 5)
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=kafka.bootstrap_servers, auto_offset_reset="earliest"
    )
    async with consumer, web.serve(consumer) as url:
        for _ in range(3):
            await consumer.getone()
        consumer.pause(TopicPartition(topic, 1))
        first, second = (await ask(f"{url}api/partitions")).rows()
        assert (first["topic"], first["partition"]) == (topic, 0)
        assert (first["position"], first["high_watermark"], first["lag"]) == (3, 5, 3)
        assert (second["state"], second["is_paused"]) == ("paused", True)
        for name, expected in (("behind", [0]), ("paused", [1]), ("trouble", []), ("x", [0, 1])):
            found = (await ask(f"{url}api/partitions?show={name}")).rows()
            assert [row["partition"] for row in found] == expected
        overview = (await ask(f"{url}api/overview")).fields()
        assert (overview["all"], overview["behind"], overview["paused"]) == (2, 1, 1)
        assert (overview["lag"], overview["records_total"]) == (3, 3)
        (node,) = (await ask(f"{url}api/nodes")).rows()
        assert (node["is_reachable"], node["address"]) == (True, kafka.bootstrap_servers)


async def test_partition_whose_leader_is_gone_is_in_trouble_and_says_why() -> None:
    async with Broker(nodes=2) as broker:
        broker.create_topic("t", 2, replication_factor=1)
        down = broker.partition("t", 1).leader_id
        async with shown(broker, "t") as (consumer, url):
            await consumer.position(TopicPartition("t", 1))
            await broker.stop_node(down)

            async def found() -> list[Fields]:
                return (await ask(f"{url}api/partitions?show=trouble")).rows()

            while not (rows := await found()):
                await consumer.poll(timeout_ms=50)
            assert [(row["partition"], row["is_in_trouble"]) for row in rows] == [(1, True)]
            assert rows[0]["state"] in ("no_leader", "broker_down", "backing_off")
            assert rows[0]["why"]


def test_states_of_trouble_are_the_consumers() -> None:
    assert {str(cause.value) for cause in TROUBLES} == pages.TROUBLES
    assert pages.LONG_STANDSTILL_S == LONG_STANDSTILL_S


async def test_handlers_retries_dead_letters_and_the_circuit_are_shown(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 20))
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=kafka.bootstrap_servers,
        group_id=f"group of {topic}",
        auto_offset_reset="earliest",
    )
    may_end = asyncio.Event()

    async def handle(record: ConsumerRecord[object, object]) -> None:
        if record.offset == 0:
            await may_end.wait()
        elif record.offset < 3:
            raise ConnectionError
        elif record.offset < 6:
            raise ValueError("bad")

    async def keep(dead: DeadRecord) -> None:
        pass

    async def overview() -> Fields:
        return (await ask(f"{url}api/overview")).fields()

    retry = Retry(attempts=None, first_delay_ms=60_000, max_delay_ms=60_000, dead=ValueError)
    breaker = CircuitBreaker(min_calls=1, first_pause_ms=30_000)
    async with consumer, web.serve(consumer) as url:
        running = asyncio.create_task(
            consumer.run(handle, concurrency=5, retry=retry, dead_letter=keep, breaker=None)
        )
        names = ("at_work", "waiting_for_retry", "dead_total", "uncommitted", "paused")

        async def counts() -> list[object]:
            shown = await overview()
            return [shown[f"processing_{name}"] for name in names]

        await eventually(counts, [1, 2, 3, 20, 0])
        shown = await overview()
        assert (shown["lag"], shown["behind"], shown["trouble"]) == (20, 1, 0)
        (row,) = (await ask(f"{url}api/partitions?show=behind")).rows()
        assert row["state"] != "at_end"
        running.cancel()
        await asyncio.wait([running])
        running = asyncio.create_task(consumer.run(handle, concurrency=5, breaker=breaker))
        await until(lambda: (found := consumer.health().handling) and found.is_paused)
        shown = await overview()
        assert (shown["verdict"], shown["trouble"]) == ("degraded", 1)
        (row,) = (await ask(f"{url}api/partitions?show=trouble")).rows()
        assert (row["state"], row["is_in_trouble"]) == ("handlers_paused", True)
        running.cancel()
        await asyncio.wait([running])


@pytest.mark.virtual_time
async def test_partition_that_stands_still_is_in_trouble() -> None:
    async with Broker() as broker:
        broker.produce_all("t", [NewRecord("first"), NewRecord("second")])
        consumer = AIOKafkaConsumer(
            "t", bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest"
        )
        async with consumer:
            await consumer.getone()
            await asyncio.sleep(40)
            page = PageQuery(show="trouble")
            (row,) = cast("list[Fields]", pages.partitions(Measuring(consumer).now(), page)["rows"])
            assert (row["lag"], row["is_in_trouble"]) == (2, True)


async def test_long_lists_come_in_pages_and_are_searched() -> None:
    async with Broker(max_partitions=1_000) as broker:
        broker.create_topic("wide", 2 * ROWS + 1)
        async with shown(broker, "wide") as (_, url):
            for page, expected in ((1, ROWS), (2, ROWS), (3, 1), (4, 0)):
                answer = await ask(f"{url}api/partitions?page={page}")
                assert answer.fields()["total"] == 2 * ROWS + 1
                assert len(answer.rows()) == expected
            for wrong in ("0", "-1", "x", "1" * 5_000):
                assert (await ask(f"{url}api/partitions?page={wrong}")).fields()["page"] == 1
            found = (await ask(f"{url}api/partitions?find=wide/40")).rows()
            assert [row["partition"] for row in found] == [40, 400]


async def test_names_of_strangers_stay_within_their_quotes() -> None:
    async with (
        Broker() as broker,
        shown(broker, "t", group_id=HOSTILE, client_id=HOSTILE) as (_, url),
    ):
        overview = (await ask(f"{url}api/overview")).fields()
        assert (overview["client_id"], overview["group_id"]) == (HOSTILE, HOSTILE)
        answer = await ask(f"{url}metrics")
        assert "X" not in answer.headers
        (line,) = re.findall(rb"^aiokafka_lite_consumer_info\{.*$", answer.body, re.M)
        assert line.count(b"<script>") == 3  # the group is everywhere
        assert b'X: \\"y\\"\\\\"' in line


async def test_mounted_it_answers_under_its_prefix() -> None:
    async with Broker() as broker:
        consumer = AIOKafkaConsumer("t", bootstrap_servers=broker.bootstrap_servers)
        app = aiohttp_web.Application()
        app.add_subapp("/kafka/", web.application(consumer, hosts={"Example.org"}))
        runner = aiohttp_web.AppRunner(app)
        await runner.setup()
        await aiohttp_web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/kafka/"
        async with consumer:
            for path in ("", "page.css", "health", "metrics", "api/partitions"):
                answer = await ask(url + path)
                assert answer.status == 200, path
                assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
            assert (await ask(url, Host="example.org:80")).status == 200
            assert (await ask(url, Host="example.com")).status == 400
        await runner.cleanup()


# How much it takes


@dataclass
class Slow:
    """Takes the place of a consumer that takes long to measure."""

    consumer: AIOKafkaConsumer
    work: Callable[[], object]
    calls: int = 0

    def metrics(self) -> dict[str, object]:
        self.calls += 1
        self.work()
        return self.consumer.metrics()

    def health(self) -> object:
        self.calls += 1
        self.work()
        return self.consumer.health()


def compute() -> None:
    """Take 20 ms of CPU time."""
    end = time.thread_time() + 0.02
    while time.thread_time() < end:
        pass


async def test_consumer_that_takes_long_to_measure_is_measured_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pages, "REST_PER_WORK", 10_000)
    slow = Slow(AIOKafkaConsumer(), compute)
    measuring = Measuring(cast("AIOKafkaConsumer", slow))
    for _ in range(1_000):
        measuring.health()
        measuring.now()
    assert slow.calls == 2
    assert measuring.now().refresh_ms > 100_000
    for number in range(pages.MOST_BODIES):
        measuring.now().body(number, lambda _: {})
    with pytest.raises(TooManyError):
        measuring.now().body("one more", lambda _: {})
    await slow.consumer.stop()


async def test_process_that_was_suspended_while_it_measured_measures_again_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pages, "REST_PER_WORK", 199)
    slow = Slow(AIOKafkaConsumer(), lambda: time.sleep(0.2))
    measuring = Measuring(cast("AIOKafkaConsumer", slow))
    measuring.health()
    slow.work = lambda: None
    async with timeout(10):
        while slow.calls < 2:
            measuring.health()
            await asyncio.sleep(0.01)
    await slow.consumer.stop()


async def test_health_of_a_consumer_is_not_answered_for_its_successor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pages, "REST_PER_WORK", 10_000)
    stopped, successor = AIOKafkaConsumer(), AIOKafkaConsumer()
    await stopped.stop()
    shown = [stopped]
    measuring = Measuring(lambda: shown[0])
    assert (measuring.health().verdict, measuring.now().health.verdict) == ("dead", "dead")
    shown[0] = successor
    assert measuring.health().verdict == measuring.now().health.verdict != "dead"
    await successor.stop()


async def test_thousand_slow_clients_hold_up_neither_the_consumer_nor_a_probe() -> None:
    async with Broker() as broker:
        broker.produce_all("t", [NewRecord(str(number)) for number in range(5_000)])
        async with shown(broker, "t") as (consumer, url):
            parts = urlsplit(url)
            clients: list[asyncio.StreamWriter] = []

            async def connect(number: int) -> None:
                # Some send nothing, some half a request, some read no answer.
                _, writer = await asyncio.open_connection(parts.hostname, parts.port)
                head = f"GET /metrics HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode()
                writer.write(head[: len(head) * (number % 3) // 2])
                writer.transport.pause_reading()  # type: ignore[attr-defined]  # a socket's has it
                clients.append(writer)

            read = 0
            for first in range(0, 1_000, 50):
                await asyncio.gather(*(connect(number) for number in range(first, first + 50)))
                for records in (await consumer.poll(max_records=250)).values():
                    read += len(records)
            assert (len(clients), read) == (1_000, 5_000)
            assert (await ask(f"{url}health")).status == 200
            for writer in clients:
                writer.transport.abort()


async def test_no_more_connections_are_open_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MOST_CONNECTIONS", 3)
    async with Broker() as broker, shown(broker, "t") as (_, url):
        parts = urlsplit(url)
        streams = []
        for _ in range(5):
            streams.append(await asyncio.open_connection(parts.hostname, parts.port))
            reader, writer = streams[-1]
            writer.write(f"GET /health HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        for reader, _ in streams[:2]:  # the oldest went
            with suppress(ConnectionResetError):
                await asyncio.wait_for(reader.read(), 30)
        for reader, writer in streams[2:]:
            writer.write(f"GET /health HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
            await reader.readuntil(b"HTTP/1.1 200")
        for _, writer in streams:
            writer.transport.abort()


# Whom it refuses


async def test_every_answer_carries_the_policy() -> None:
    async with Broker() as broker, shown(broker, "t") as (_, url):
        for path, status in (
            ("", 200), ("consumer.js", 200), ("api/nodes", 200), ("metrics", 200), ("x", 404),
        ):  # fmt: skip
            answer = await ask(url + path)
            assert answer.status == status
            policy = answer.headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'self';")
            assert "unsafe" not in policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Cache-Control"] == "no-store"
            assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil.example",
        "evil@127.0.0.1", "127.0.0.1:1:2", "[::1", "", "0x7f.1",
    ],
)  # fmt: skip
async def test_foreign_host_is_refused(host: str) -> None:
    async with Broker() as broker, shown(broker, "t") as (_, url):
        host = host.format(port=urlsplit(url).port)
        for path in ("", "api/overview", "api/partitions", "nothing"):
            answer = await ask(url + path, Host=host)
            assert answer.status == 400
            assert b"verdict" not in answer.body
        for path in ("health", "metrics"):  # probes and scrapers use other names of the service
            # aiohttp itself refuses an empty name.
            assert (await ask(url + path, Host=host)).status == (200 if host else 400)


async def test_addresses_localhost_and_given_names_are_its_own() -> None:
    async with Broker() as broker:
        consumer = AIOKafkaConsumer("t", bootstrap_servers=broker.bootstrap_servers)
        async with consumer, web.serve(consumer, hosts={"kafka.svc"}) as url:
            for host in ("127.0.0.1", "10.1.2.3:80", "[::1]:80", "LOCALHOST:5", "Kafka.svc:9"):
                assert (await ask(url, Host=host)).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND"])
async def test_nothing_can_be_changed(method: str) -> None:
    async with Broker() as broker, shown(broker, "t") as (_, url):
        for path in ("/", "/health", "/nowhere"):
            answer = await ask(url, f"{method} {path} HTTP/1.1")
            assert answer.status == 405
            assert answer.headers["Allow"] == "GET, HEAD"
        head = await ask(url, "HEAD /health HTTP/1.1")
        assert (head.status, head.body) == (200, b"")


async def test_paths_lead_nowhere_else() -> None:
    async with Broker() as broker, shown(broker, "t") as (_, url):
        for path in (
            "/../app.py", "/static/../../app.py", "/%2e%2e/app.py", "/..%2fapp.py", "//etc/passwd",
            "/page.css/", "/%00", "/index.html", "/api", "/api/../page.css%00", "/" + "x" * 5_000,
        ):  # fmt: skip
            answer = await ask(url, f"GET {path} HTTP/1.1")
            assert answer.status in (400, 404), path
            assert b"import" not in answer.body


async def test_port_in_use_says_what_to_do() -> None:
    consumer = AIOKafkaConsumer()
    async with web.serve(consumer) as url:
        port = urlsplit(url).port
        assert port is not None
        with pytest.raises(KafkaConnectionError, match="Choose another port"):
            async with web.serve(consumer, port=port):
                pass
    await consumer.stop()
