"""The pages in ASGI applications: the same answers as by aiohttp, without any package."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import MutableMapping
from typing import Any

import pytest

from aiokafka_lite import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka_lite.extras import web
from aiokafka_lite.extras.web import pages
from aiokafka_lite.extras.web.app import Application
from tests.support.asking import Answer
from tests.support.cluster import KafkaHandle

Message = MutableMapping[str, object]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure anew for every request."""
    monkeypatch.setattr(pages, "REST_PER_WORK", 0)


async def told(app: Application, scope: Message, *messages: Message) -> list[Message]:
    """What an application sends when it is called as a server does it."""
    waiting = iter(messages)
    sent: list[Message] = []

    async def receive() -> Message:
        return next(waiting)

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


async def asked(
    app: Application,
    path: str,
    *,
    method: str = "GET",
    hosts: tuple[bytes, ...] = (b"127.0.0.1:8000",),
    query: bytes = b"",
    root_path: str = "",
) -> Answer:
    """What an application answers to a request."""
    scope: Message = {
        "type": "http",
        "method": method,
        "path": path,
        "root_path": root_path,
        "query_string": query,
        "headers": [(b"host", host) for host in hosts],
    }
    start, body = await told(app, scope)
    assert (start["type"], body["type"]) == ("http.response.start", "http.response.body")
    status, headers, content = start["status"], start["headers"], body["body"]
    assert isinstance(status, int)
    assert isinstance(headers, list)
    assert isinstance(content, bytes)
    return Answer(status, {name.decode(): value.decode() for name, value in headers}, content)


async def test_mounted_into_fastapi_it_answers_under_its_prefix(kafka: KafkaHandle) -> None:
    fastapi = pytest.importorskip("fastapi")
    topic = await kafka.create_topic()
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=kafka.bootstrap_servers)
    service = fastapi.FastAPI()
    service.mount("/kafka", web.asgi(lambda: consumer))
    async with consumer:
        await consumer.position(TopicPartition(topic, 0))
        for path in ("", "page.css", "health", "metrics", "api/partitions", "api/overview"):
            answer = await asked(service, f"/kafka/{path}")
            assert answer.status == 200, path
            assert "default-src 'self'" in answer.headers["content-security-policy"]
            assert answer.headers["content-length"] == str(len(answer.body))
        assert (await asked(service, "/kafka/health")).fields()["verdict"] == "ok"
        assert (await asked(service, "/kafka/")).headers["content-type"].startswith("text/html")
        (row,) = (await asked(service, "/kafka/api/partitions", query=b"find=t&find=x")).rows()
        assert row["topic"] == topic
        assert (await asked(service, "/kafka/nowhere")).status == 404
        assert (await asked(service, "/kafka")).status == 307
    dead = await asked(service, "/kafka/health")
    assert (dead.status, dead.fields()["verdict"]) == (503, "dead")


async def test_without_the_slash_it_leads_to_the_page() -> None:
    app = web.asgi(lambda: None)
    answer = await asked(app, "/outer/kafka", root_path="/outer/kafka")
    assert (answer.status, answer.headers["location"]) == (307, "kafka/")
    # With and without what it is mounted under, as servers and frameworks do not agree.
    for path in ("/kafka/page.css", "/page.css"):
        assert (await asked(app, path, root_path="/kafka")).status == 200


async def test_there_may_be_no_consumer_yet_and_another_one_later() -> None:
    made: list[AIOKafkaConsumer] = []
    app = web.asgi(lambda: made[-1] if made else None)
    assert (await asked(app, "/")).status == 200
    health = await asked(app, "/health")
    assert (health.status, health.fields()["verdict"]) == (200, "degraded")
    assert health.fields()["reasons"] == ["the application has not created the consumer yet"]
    assert (await asked(app, "/metrics")).status == 503
    made.append(AIOKafkaConsumer())
    await made[0].stop()
    assert (await asked(app, "/health")).status == 503
    made.append(AIOKafkaConsumer())
    assert (await asked(app, "/health")).status == 200
    await made[1].stop()


async def _no_consumer() -> None:
    raise AssertionError


@pytest.mark.parametrize("wrong", [None, "x", AIOKafkaConsumer, AIOKafkaProducer, _no_consumer])
async def test_another_object_than_a_consumer_is_refused_by_name(wrong: Any) -> None:
    for show in (web.asgi, web.application):
        with pytest.raises(TypeError, match="consumer must be an AIOKafkaConsumer, or a plain fun"):
            show(wrong)
    app = web.asgi(lambda: "x")  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="must be an AIOKafkaConsumer or None, not 'x'"):
        await asked(app, "/health")


async def test_a_test_client_reads_health_and_is_told_how_to_read_the_page() -> None:
    app = web.asgi(lambda: None)
    assert (await asked(app, "/health", hosts=(b"testserver",))).status == 200
    assert (await asked(app, "/health", hosts=())).status == 200  # HTTP/1.0, as some probes
    assert (await asked(app, "/metrics", hosts=(b"orders.svc:8080",))).status == 503
    answer = await asked(app, "/", hosts=(b"testserver:80",))
    assert answer.status == 400
    assert b"does not accept the Host header 'testserver:80'" in answer.body
    assert b'web.asgi(consumer, hosts={"testserver"})' in answer.body
    with pytest.raises(TypeError, match="hosts must be a list of host names, not 'testserver'"):
        web.asgi(lambda: None, hosts="testserver")
    named = web.asgi(lambda: None, hosts={"testserver"})
    assert (await asked(named, "/", hosts=(b"testserver:80",))).status == 200


async def test_it_refuses_whom_the_page_refuses() -> None:
    app = web.asgi(lambda: None, hosts={"orders.svc"})
    for hosts in ((b"evil.example",), (), (b"127.0.0.1", b"127.0.0.1")):
        assert (await asked(app, "/", hosts=hosts)).status == 400
    assert (await asked(app, "/", hosts=(b"orders.svc:80",))).status == 200
    answer = await asked(app, "/health", method="POST")
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
    whole = await asked(app, "/health")
    head = await asked(app, "/health", method="HEAD")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == str(len(whole.body))


async def test_a_server_may_run_it_by_itself() -> None:
    app = web.asgi(lambda: None)
    lifespan = await told(
        app, {"type": "lifespan"}, {"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}
    )
    assert [message["type"] for message in lifespan] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]
    assert await told(app, {"type": "websocket"}) == [{"type": "websocket.close"}]


WITHOUT_PACKAGES = """
import asyncio, json, sys

for name in ("aiohttp", "prometheus_client"):
    sys.modules[name] = None

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite.extras import web

async def status(app, path):
    sent = []
    async def send(message):
        sent.append(message)
    scope = {"type": "http", "method": "GET", "path": path, "query_string": b""}
    await app({**scope, "headers": [(b"host", b"localhost")]}, None, send)
    return sent[0]["status"], sent[1]["body"].decode()

async def main():
    consumer = AIOKafkaConsumer()
    app = web.asgi(consumer)
    answers = {path: await status(app, path) for path in ("/", "/health", "/metrics")}
    try:
        async with web.serve(consumer):
            pass
    except ModuleNotFoundError as error:
        answers["serve"] = str(error)
    await consumer.stop()
    print(json.dumps(answers))

asyncio.run(main())
"""


def test_without_aiohttp_there_is_the_page_and_it_is_said_what_the_rest_needs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PACKAGES], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert answers["/"][0] == 200
    assert answers["/health"][0] == 200
    assert answers["/metrics"][0] == 501
    assert "pip install 'aiokafka-lite[web]'" in answers["/metrics"][1]
    assert answers["serve"] == "aiohttp is not installed: pip install 'aiokafka-lite[web]'"
