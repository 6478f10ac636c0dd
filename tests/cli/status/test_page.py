"""The status page over HTTP: what it shows, and whom it refuses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote, urlsplit

import aiokafka
import confluent_kafka
import pytest

aiohttp = pytest.importorskip("aiohttp", reason="the status page needs aiohttp")

from aiokafka_lite._pages import ROWS, Json, PageQuery  # noqa: E402
from aiokafka_lite.broker import Broker, BrokerConfig, NewRecord  # noqa: E402
from aiokafka_lite.broker.slices import TIME_SLICE_S  # noqa: E402
from aiokafka_lite.cli import status  # noqa: E402
from aiokafka_lite.cli.status import (  # noqa: E402
    MeasuredSlices,
    serve,
)
from aiokafka_lite.errors import KafkaConnectionError  # noqa: E402
from tests.support.asking import Fields, ask  # noqa: E402


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every view anew."""
    monkeypatch.setattr(status, "REST_PER_WORK", 0)


async def read(url: str, path: str) -> Fields:
    answer = await ask(url + path)
    assert answer.status == 200, answer
    return answer.fields()


@asynccontextmanager
async def shown(config: BrokerConfig | None = None) -> AsyncIterator[tuple[Broker, str]]:
    """Run a broker and its page."""
    async with Broker(config=config) as broker, serve(broker) as url:
        yield broker, url.removesuffix("/")


# What it shows


async def test_overview_tells_of_the_cluster() -> None:
    async with shown(BrokerConfig(nodes=2)) as (broker, url):
        broker.create_topic("t", 3)
        await broker.stop_node(2)
        seen = await read(url, "/api/overview")
        assert seen["bootstrap_servers"] == broker.bootstrap_servers
        assert (seen["topics"], seen["partitions"], seen["connections"]) == (1, 3, 0)
        assert (seen["storage"], seen["controller"], seen["failure"]) == ("memory", 1, None)
        nodes = seen["nodes"]
        assert isinstance(nodes, list)
        assert [(node["id"], node["is_up"]) for node in nodes] == [(1, True), (2, False)]


async def test_topics_and_partitions_have_their_figures() -> None:
    async with shown(BrokerConfig(nodes=2)) as (broker, url):
        broker.create_topic("orders", 2, {"retention.ms": "-1"}, replication_factor=1)
        broker.produce_all("orders", [NewRecord("x" * 50, partition=0)] * 5)
        broker.partition("orders", 0).delete_before(2)
        down = broker.partition("orders", 1).leader_id
        await broker.stop_node(down)
        (topic,) = rows(await read(url, "/api/topics"))
        size_bytes = topic.pop("size_bytes")
        assert isinstance(size_bytes, int)
        assert size_bytes > 250
        assert topic == {
            "name": "orders", "is_internal": False, "partitions": 2, "replication": 1,
            "leaderless": 1, "records": 3, "configs": "retention.ms=-1",
        }  # fmt: skip
        first, second = rows(await read(url, "/api/topic?name=orders"))
        assert (first["start"], first["end"], first["records"]) == (2, 5, 3)
        assert first["size_bytes"] == size_bytes
        assert (second["leader"], second["records"]) == (-1, 0)
        assert second["replicas"] == str(down)


def rows(view: Fields, name: str = "rows") -> list[Fields]:
    found = view[name]
    assert isinstance(found, list)
    return found


async def test_group_shows_members_assignment_and_lag() -> None:
    async with shown(BrokerConfig(num_partitions=2)) as (broker, url):
        broker.produce_all("t", [NewRecord(str(n), partition=0) for n in range(4)])
        async with aiokafka.AIOKafkaConsumer(
            "t",
            bootstrap_servers=broker.bootstrap_servers,
            group_id="a/../b?c=1&d",
            client_id="worker",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer:
            tp = aiokafka.TopicPartition("t", 0)
            (group,) = rows(await read(url, "/api/groups"))
            assert group["lag"] is None  # nothing is committed
            await consumer.commit({tp: (1, "note")})
            (group,) = rows(await read(url, "/api/groups"))
            assert (group["id"], group["state"], group["type"]) == (
                "a/../b?c=1&d", "Stable", "classic",
            )  # fmt: skip
            assert (group["members"], group["lag"], group["coordinator"]) == (1, 3, 1)
            view = await read(url, f"/api/group?name={quote('a/../b?c=1&d', safe='')}")
            (member,) = rows(view, "member_rows")
            assert (member["client"], member["host"]) == ("worker", "127.0.0.1")
            assert member["assignment"] == "t 0, 1"
            (committed,) = rows(view)
            assert (committed["topic"], committed["partition"]) == ("t", 0)
            assert (committed["committed"], committed["lag"]) == (1, 3)
            assert committed["metadata"] == "note"
        (group,) = rows(await read(url, "/api/groups"))
        assert (group["state"], group["members"]) == ("Empty", 0)


async def test_group_of_the_new_protocol_is_shown_like_the_others() -> None:
    async with shown(BrokerConfig(num_partitions=3)) as (broker, url):
        broker.create_topic("t")
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": "g",
                "group.protocol": "consumer",
                "client.id": "rd",
            }
        )
        consumer.subscribe(["t"])
        try:
            while len(consumer.assignment()) != 3:
                await asyncio.to_thread(consumer.poll, 0.1)
            (group,) = rows(await read(url, "/api/groups"))
            assert (group["type"], group["members"], group["protocol"]) == (
                "consumer", 1, "uniform",
            )  # fmt: skip
            (member,) = rows(await read(url, "/api/group?name=g"), "member_rows")
            assert (member["client"], member["assignment"]) == ("rd", "t 0, 1, 2")
        finally:
            await asyncio.to_thread(consumer.close)


async def test_connections_and_requests_tell_who_asked_for_what() -> None:
    async with (
        shown() as (broker, url),
        aiokafka.AIOKafkaConsumer("t", bootstrap_servers=broker.bootstrap_servers, client_id="me"),
    ):
        await broker.requests.wait_for("Fetch")
        seen = rows(await read(url, "/api/connections"))
        assert {row["client"] for row in seen} == {"me"}
        waiting = [row for row in seen if row["is_waiting"]]
        assert [str(row["request"]).split()[0] for row in waiting] == ["Fetch"]
        latest = rows(await read(url, "/api/requests"))
        assert [row["number"] for row in latest] == list(range(len(latest), 0, -1))
        assert latest[0]["took_ms"] is None
        metadata = [row for row in latest if str(row["api"]).startswith("Metadata ")]
        assert metadata
        found = rows(await read(url, "/api/requests?find=METADATA"))
        assert [row["number"] for row in found] == [row["number"] for row in metadata]


async def test_errors_in_answers_are_named() -> None:
    async with shown(BrokerConfig(auto_create_topics=False)) as (broker, url):
        admin = aiokafka.AIOKafkaClient(bootstrap_servers=broker.bootstrap_servers)
        await admin.bootstrap()
        admin.add_topic("none")
        await broker.requests.wait_for("Metadata", error=3)
        await admin.close()
        found = rows(await read(url, "/api/requests?find=metadata"))
        assert "UNKNOWN_TOPIC_OR_PARTITION" in {row["errors"] for row in found}


async def test_what_is_gone_is_not_found() -> None:
    async with shown() as (_, url):
        for path in ("/api/topic?name=none", "/api/topic", "/api/group?name=none"):
            answer = await ask(url + path)
            assert (answer.status, answer.body[:8]) == (404, b"there is")


# How much it shows


async def test_long_lists_come_in_pages_and_long_names_are_cut() -> None:
    async with shown(BrokerConfig(max_partitions=10_000)) as (broker, url):
        broker.create_topic("wide", 2 * ROWS + 1)
        for page_number, expected in ((1, ROWS), (2, ROWS), (3, 1), (4, 0)):
            view = await read(url, f"/api/topic?name=wide&page={page_number}")
            assert (view["total"], len(rows(view))) == (2 * ROWS + 1, expected)
        for wrong in ("0", "-1", "x", "1" * 5_000, "²"):
            view = await read(url, f"/api/topic?name=wide&page={quote(wrong)}")
            assert view["page"] == 1
        found = rows(await read(url, "/api/topic?name=wide&find=40"))
        assert {row["partition"] for row in found} == {
            number for number in range(2 * ROWS + 1) if "40" in str(number)
        }
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g",
             "client.id": "x" * 5_000}
        )  # fmt: skip
        await asyncio.to_thread(consumer.list_topics, timeout=20)
        consumer.close()
        assert {len(str(row["client"])) for row in rows(await read(url, "/api/requests"))} == {256}


@pytest.mark.parametrize("count", [20_000, pytest.param(100_000, marks=pytest.mark.slow)])
async def test_many_partitions_do_not_hold_the_loop(count: int) -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with Broker(max_partitions=200_000) as broker:
        broker.create_topic("wide", count)
        counting = asyncio.create_task(count_turns())
        for view in (
            status.topics(broker, PageQuery(), MeasuredSlices()),
            status.topic(broker, PageQuery("wide", find="9999"), MeasuredSlices()),
        ):
            turns, began_s = 0, time.process_time()
            await view
            # Every slice ends with a turn for everybody else. Other processes take no CPU time.
            assert turns >= (time.process_time() - began_s) / TIME_SLICE_S / 20
            assert turns >= 3
        counting.cancel()


async def test_view_that_takes_long_is_made_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0

    async def slow(broker: Broker, query: PageQuery, slices: MeasuredSlices) -> dict[str, Json]:
        nonlocal made
        made += 1
        return {}

    monkeypatch.setattr(MeasuredSlices, "worked_s", 0.5)
    monkeypatch.setattr(status, "REST_PER_WORK", 99)
    monkeypatch.setattr(status, "VIEWS", {"api/topics": slow})
    async with shown() as (_, url):
        first = await read(url, "/api/topics")
        assert first == {"refresh_ms": pytest.approx(49_500, rel=0.1)}
        assert await read(url, "/api/topics") == first
        assert made == 1
        await read(url, "/api/topics?page=2")
        assert made == 2


# Whom it refuses


async def test_every_answer_carries_the_policy() -> None:
    async with shown() as (_, url):
        for path, status in (("/", 200), ("/status.js", 200), ("/api/topics", 200), ("/x", 404)):
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
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1",
        "localhost:1",
        "127.0.0.1.evil:{port}",
        "",
    ],
)
async def test_foreign_host_is_refused(host: str) -> None:
    async with shown() as (_, url):
        answer = await ask(f"{url}/api/topics", Host=host.format(port=urlsplit(url).port))
        assert answer.status == 400
        if host:  # aiohttp itself refuses an empty one
            assert f"ask for {urlsplit(url).netloc} or localhost:".encode() in answer.body
        assert b"rows" not in answer.body


async def test_localhost_is_the_same_place_in_any_case() -> None:
    async with shown() as (_, url):
        port = urlsplit(url).port
        for host in (f"localhost:{port}", f"LOCALHOST:{port}"):
            assert (await ask(f"{url}/", Host=host)).status == 200


async def test_two_hosts_are_refused() -> None:
    async with shown() as (_, url):
        netloc = urlsplit(url).netloc
        answer = await ask(f"{url}/", f"GET / HTTP/1.1\r\nHost: {netloc}")
        assert answer.status == 400


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND"])
async def test_nothing_can_be_changed(method: str) -> None:
    async with shown() as (_, url):
        for path in ("/", "/api/topics", "/nowhere"):
            answer = await ask(url, f"{method} {path} HTTP/1.1")
            assert answer.status == 405
            assert answer.headers["Allow"] == "GET, HEAD"


async def test_head_is_get_without_a_body() -> None:
    async with shown() as (_, url):
        head = await ask(url, "HEAD /page.css HTTP/1.1")
        get = await ask(f"{url}/page.css")
        assert (head.status, head.body) == (200, b"")
        assert head.headers["Content-Length"] == str(len(get.body))


@pytest.mark.parametrize(
    "path",
    [
        "/../page.py", "/static/../../page.py", "/%2e%2e/page.py", "/..%2fpage.py", "//etc/passwd",
        "/page.css/", "/./page.css/..", "/%00", "/index.html", "/api", "/api/../page.css%00",
        "/" + "x" * 5_000,
    ],
)  # fmt: skip
async def test_paths_lead_nowhere_else(path: str) -> None:
    async with shown() as (_, url):
        answer = await ask(url, f"GET {path} HTTP/1.1")
        assert answer.status in (400, 404)
        assert b"import" not in answer.body


async def test_port_in_use_says_what_to_do() -> None:
    async with Broker() as broker, serve(broker) as url:
        port = urlsplit(url).port
        assert port is not None
        with pytest.raises(KafkaConnectionError, match="Choose another port"):
            async with serve(broker, port=port):
                pass


async def test_page_ends_while_somebody_is_connected() -> None:
    async with Broker() as broker:
        async with serve(broker) as url:
            parts = urlsplit(url)
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            writer.write(f"GET / HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\n")
        assert await asyncio.wait_for(reader.read(), 30)
        writer.close()
        await writer.wait_closed()
