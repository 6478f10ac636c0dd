"""The programs in docs/examples: run as processes, asked over HTTP, ended by SIGTERM."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp
import pytest

from aiokafka_lite import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker, NewRecord
from aiokafka_lite.cli.main import main as command_line
from aiokafka_lite.consumer.processing.draining import DRAIN_S
from tests.support.asking import ask
from tests.support.cluster import KafkaHandle, unique
from tests.support.ports import free_port
from tests.support.programs import started
from tests.support.protocols import JOIN, in_both_protocols

yaml = pytest.importorskip("yaml", reason="the extra docs has it")
pytest.importorskip("fastapi", reason="one of the examples is for it")
pytest.importorskip("prometheus_client", reason="one of the examples has the extra web")

FOLDER = Path(__file__).parents[2] / "docs" / "examples"
WAIT_S = 60

# Runs an example on a topic and in a group of the test's. Its `handle` tells what it gets; at
# "wait" it waits for a line of input, at "stuck" for ever, and at "bad" it fails.
DRIVER = """
import asyncio, sys
sys.path.insert(0, {folder!r})
import {module} as example

async def handle(record):
    print(record.value.decode(), flush=True)
    if record.value == b"wait":
        await asyncio.to_thread(sys.stdin.readline)
    if record.value == b"stuck":
        await asyncio.Event().wait()
    if record.value == b"bad":
        raise ValueError("a record that cannot be handled")

def consumer(topic, *, group_id, **settings):
    return made(sys.argv[1], group_id=sys.argv[1], **settings)

made, example.AIOKafkaConsumer, example.handle = example.AIOKafkaConsumer, consumer, handle
{run}
"""


class Example(NamedTuple):
    """A program, how it is run, where it tells of its health, and how it ends when told to."""

    module: str
    run: str
    health: str
    exit_codes: Sequence[int] = (0,)


SCRIPT = Example("script", "asyncio.run(example.main())", "")
FASTAPI = Example(
    "fastapi_worker",
    "import uvicorn; uvicorn.run(example.app, port={port}, log_level='critical')",
    "kafka/health",
    (0, -signal.SIGTERM),  # some versions of uvicorn raise the signal again when they are done
)
AIOHTTP = Example(
    "aiohttp_service",
    "example.web.run_app(example.make_app(), host='127.0.0.1', port={port}, print=None)",
    "kafka/health",
)
HANDLERS = FASTAPI._replace(module="fastapi_handlers")
KEDA = Example(
    "keda.service",
    "import os; os.environ['PORT'] = '{port}'; asyncio.run(example.main())",
    "health",
)
SERVICES = [pytest.param(each, id=each.module) for each in (FASTAPI, AIOHTTP)]


class Running(NamedTuple):
    """An example that runs."""

    process: Process
    url: str

    async def tells(self, *expected: str) -> None:
        """Wait until it has got records with these values, in this order."""
        assert self.process.stdout is not None
        for value in expected:
            line = await asyncio.wait_for(self.process.stdout.readline(), WAIT_S)
            assert line.decode().strip() == value

    async def go_on(self) -> None:
        """End its wait."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        await self.process.stdin.drain()

    async def get(self, path: str) -> tuple[int, object]:
        """Ask it over HTTP; returns the status and what the JSON says."""
        async with aiohttp.ClientSession() as session, session.get(self.url + path) as answer:
            return answer.status, await answer.json()

    async def answers(self, path: str, status: int) -> None:
        """Wait until it answers with a status."""
        async with timeout(WAIT_S):
            while True:
                if (await self.get(path))[0] == status:
                    return
                await asyncio.sleep(0.05)

    async def terminate(self) -> int:
        """Have it end; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.wait_for(self.process.wait(), WAIT_S)


@asynccontextmanager
async def running(example: Example, kafka: KafkaHandle, topic: str) -> AsyncIterator[Running]:
    port = free_port()
    program = DRIVER.format(
        folder=str(FOLDER), module=example.module, run=example.run.format(port=port)
    )
    async with started(
        sys.executable, "-W", "error::ResourceWarning", "-c", program, topic,
        stdin=PIPE, stdout=PIPE, stderr=PIPE,
        env={**os.environ, "KAFKA": kafka.bootstrap_servers},
    ) as process:  # fmt: skip
        yield Running(process, f"http://127.0.0.1:{port}/")


@asynccontextmanager
async def embedded() -> AsyncIterator[KafkaHandle]:
    async with Broker() as broker:
        yield KafkaHandle("embedded", broker.bootstrap_servers)


async def topic_of(kafka: KafkaHandle, *values: str) -> str:
    topic = await kafka.create_topic(unique("orders"))
    await kafka.produce(topic, 0, [(None, value.encode()) for value in values])
    return topic


async def committed(kafka: KafkaHandle, topic: str) -> int | None:
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap_servers, group_id=topic)
    async with consumer:
        return await consumer.committed(TopicPartition(topic, 0))


async def becomes_committed(kafka: KafkaHandle, topic: str, offset: int) -> None:
    async with timeout(WAIT_S):
        while True:
            if await committed(kafka, topic) == offset:
                return
            await asyncio.sleep(0.05)


async def is_in_flight_and_not_committed(example: Example, kafka: KafkaHandle) -> None:
    topic = await topic_of(kafka, "one", "two", "stuck", "late")
    async with running(example, kafka, topic) as service:
        await service.tells("one", "two", "stuck")
        status, health = await service.get(example.health)
        assert status == 200
        assert isinstance(health, dict)
        assert health["verdict"] in ("ok", "degraded")  # a busy machine's loop may be late
        assert await service.get("processed") == (200, {topic: 2})
        assert await service.terminate() in example.exit_codes
    assert await committed(kafka, topic) == 2


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(FASTAPI, id=FASTAPI.module),
        pytest.param(AIOHTTP, id=AIOHTTP.module, marks=pytest.mark.slow),
    ],
)
async def test_service_ended_in_the_middle_of_a_record_commits_those_before(
    example: Example,
) -> None:
    async with embedded() as kafka:
        await is_in_flight_and_not_committed(example, kafka)


async def test_handlers_at_work_are_waited_for_when_the_service_ends() -> None:
    async with embedded() as kafka:
        topic = await topic_of(kafka, "one", "wait", "three")
        async with running(HANDLERS, kafka, topic) as service:
            await service.tells("one", "wait", "three")
            service.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.5)
            assert service.process.returncode is None
            await service.go_on()
            assert await asyncio.wait_for(service.process.wait(), WAIT_S) in HANDLERS.exit_codes
        assert await committed(kafka, topic) == 3


async def test_a_handler_that_fails_ends_the_service_loudly() -> None:
    async with embedded() as kafka:
        topic = await topic_of(kafka, "one", "bad")
        async with running(HANDLERS, kafka, topic) as service:
            await service.tells("one", "bad")
            await service.answers(HANDLERS.health, 503)
            assert await service.terminate() in HANDLERS.exit_codes
        assert await committed(kafka, topic) == 1


@pytest.mark.slow
@pytest.mark.real_kafka
@pytest.mark.parametrize("example", SERVICES)
async def test_service_does_so_with_a_real_kafka(example: Example, real_kafka: str) -> None:
    await is_in_flight_and_not_committed(example, KafkaHandle("real", real_kafka))


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(FASTAPI, id=FASTAPI.module, marks=pytest.mark.slow),
        pytest.param(AIOHTTP, id=AIOHTTP.module),
    ],
)
async def test_service_whose_worker_failed_says_so_and_commits_those_before(
    example: Example,
) -> None:
    async with embedded() as kafka:
        topic = await topic_of(kafka, "one", "bad", "late")
        async with running(example, kafka, topic) as service:
            await service.tells("one", "bad")
            await service.answers(example.health, 503)
            assert await service.get("processed") == (200, {topic: 1})
            # The failure commits, not what ends the service; that may cut a stop short.
            await becomes_committed(kafka, topic, 1)
            assert await service.terminate() in example.exit_codes


# Runs the example of a queue. Its `read_text` tells which scan it gets; at "wait" it waits for a
# line of input.
QUEUE_DRIVER = """
import asyncio, sys, uvicorn
sys.path.insert(0, {folder!r})
import fastapi_queue as example

async def read_text(scan):
    print(scan.decode(), flush=True)
    if scan == b"wait":
        await asyncio.to_thread(sys.stdin.readline)
    if scan == b"bad":
        raise ValueError("a scan without text")
    return scan.upper()

example.read_text = read_text
uvicorn.run(example.app, port={port}, log_level="critical")
"""


@asynccontextmanager
async def queueing(broker: Broker) -> AsyncIterator[Running]:
    port = free_port()
    async with started(
        sys.executable, "-W", "error::ResourceWarning", "-c",
        QUEUE_DRIVER.format(folder=str(FOLDER), port=port),
        stdin=PIPE, stdout=PIPE, stderr=PIPE,
        env={**os.environ, "KAFKA": broker.bootstrap_servers},
    ) as process:  # fmt: skip
        service = Running(process, f"http://127.0.0.1:{port}/")
        async with timeout(WAIT_S):
            while True:
                with suppress(aiohttp.ClientConnectionError):
                    await service.get("health")
                    break
                await asyncio.sleep(0.05)
        yield service


async def queue(service: Running, scan: bytes) -> None:
    url = service.url + "scans"
    async with aiohttp.ClientSession() as session, session.post(url, data=scan) as answer:
        assert answer.status == 202


@asynccontextmanager
async def broker_of_scans() -> AsyncIterator[Broker]:
    """A broker with the topics, where the group reads from the beginning."""
    async with Broker() as broker:
        for topic in ("scans", "texts", "scans.failed"):
            broker.create_topic(topic)
        command = ["share", "config", "ocr", "--set", "share.auto.offset.reset=earliest"]
        where = ["-b", broker.bootstrap_servers]
        assert await asyncio.to_thread(command_line, [*command, *where]) == 0
        yield broker


async def test_job_of_a_killed_service_goes_to_another() -> None:
    async with broker_of_scans() as broker, queueing(broker) as first:
        await queue(first, b"wait")
        await first.tells("wait")
        async with queueing(broker) as second:
            first.process.kill()
            await second.tells("wait")
            await second.go_on()
            (text,) = await broker.wait_for_records("texts", 1)
            assert text.value == b"WAIT"
            assert await second.terminate() in FASTAPI.exit_codes


async def test_job_that_fails_is_a_dead_letter_and_the_next_is_done() -> None:
    async with broker_of_scans() as broker, queueing(broker) as service:
        for scan in (b"bad", b"good"):
            await queue(service, scan)
        (text,) = await broker.wait_for_records("texts", 1)
        assert text.value == b"GOOD"
        (letter,) = await broker.wait_for_records("scans.failed", 1)
        assert letter.value == b"bad"
        assert await service.terminate() in FASTAPI.exit_codes


async def finishes_its_batch(kafka: KafkaHandle) -> None:
    topic = await topic_of(kafka, "one", "wait", "three")
    async with running(SCRIPT, kafka, topic) as script:
        await script.tells("one", "wait")
        ending = asyncio.create_task(script.terminate())
        await asyncio.sleep(0)
        await script.go_on()
        await script.tells("three")
        assert await ending == 0
    assert await committed(kafka, topic) == 3


async def test_script_finishes_its_batch_and_commits_it() -> None:
    async with embedded() as kafka:
        await finishes_its_batch(kafka)


@pytest.mark.real_kafka
async def test_script_does_so_with_a_real_kafka(real_kafka: str) -> None:
    await finishes_its_batch(KafkaHandle("real", real_kafka))


async def test_script_that_fails_commits_nothing_of_its_batch() -> None:
    async with embedded() as kafka:
        topic = await topic_of(kafka, "one", "bad", "late")
        async with running(SCRIPT, kafka, topic) as script:
            await script.tells("one", "bad")
            assert await asyncio.wait_for(script.process.wait(), WAIT_S) == 1
        assert await committed(kafka, topic) is None


async def test_service_that_keda_scales_answers_and_stops_at_sigterm() -> None:
    async with embedded() as kafka:
        topic = await topic_of(kafka, "one", "wait", "three")
        async with running(KEDA, kafka, topic) as service:
            await service.tells("one", "wait", "three")
            (trigger,) = manifests()["ScaledObject"]["spec"]["triggers"]
            status, found = await service.get(urlsplit(trigger["metadata"]["url"]).path[1:])
            assert status == 200
            assert isinstance(found, dict)
            assert found["lag"] >= 1
            assert isinstance(found[trigger["metadata"]["valueLocation"]], float)
            await service.answers(KEDA.health, 200)
            service.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.5)
            assert service.process.returncode is None
            await service.go_on()
            assert await asyncio.wait_for(service.process.wait(), WAIT_S) == 0
        assert await committed(kafka, topic) == 3


def manifests() -> dict[str, Any]:
    """The manifests of the example for KEDA, by their kinds."""
    files = FOLDER.joinpath("keda").glob("*.yaml")
    found = [each for file in files for each in yaml.safe_load_all(file.read_text())]
    return {each["kind"]: each for each in found}


def test_manifests_agree_with_each_other_and_with_their_service() -> None:
    """Their schemas were checked by kubeconform, whose schemas (70 MB) are not installed here."""
    found = manifests()
    deployment, service, scaled = (
        found[kind] for kind in ("Deployment", "Service", "ScaledObject")
    )
    assert len({each["metadata"]["namespace"] for each in found.values()}) == 1
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert pod["metadata"]["labels"] == deployment["spec"]["selector"]["matchLabels"]
    assert pod["metadata"]["labels"] == service["spec"]["selector"]
    (port,) = container["ports"]
    assert {"name": "PORT", "value": str(port["containerPort"])} in container["env"]
    probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    assert probes == [{"path": "/health", "port": port["name"]}] * 3
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    assert scaled["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert scaled["spec"]["minReplicaCount"] >= 1
    url = urlsplit(scaled["spec"]["triggers"][0]["metadata"]["url"])
    name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
    assert (url.hostname, url.port) == (
        f"{name}.{namespace}.svc.cluster.local",
        port["containerPort"],
    )
    assert not url.query  # KEDA asks pods without it
    program = FOLDER.joinpath("keda", "service.py").read_text()
    (hold_ms,) = re.findall(r"REBALANCE_HOLD_MS = ([0-9_]+)", program)
    (handler_s,) = re.findall(r"HANDLER_TIMEOUT_S = ([0-9_]+)", program)
    assert int(handler_s) * 1000 < int(hold_ms)
    assert pod["spec"]["terminationGracePeriodSeconds"] >= max(int(hold_ms) / 1000, DRAIN_S)


def test_page_links_every_example() -> None:
    page = (FOLDER.parent / "services.md").read_text()
    for file in FOLDER.glob("*.py"):
        assert f"(examples/{file.name})" in page


class Told:
    """What the page's own example tells, and a handler for it."""

    def __init__(self) -> None:
        page = (FOLDER.parent / "services.md").read_text()
        examples = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.M)
        (example,) = (each for each in examples if "web.serve" in each)
        self.lines = asyncio.Queue[str]()
        self.handled = asyncio.Queue[object]()
        self.names: dict[str, object] = {"print": self.lines.put_nowait}
        exec(example.replace("port=8080", "port=0"), self.names)  # noqa: S102 -- the page's own

    async def handle(self, record: ConsumerRecord) -> None:
        self.handled.put_nowait(record.value)
        if record.value == b"bad":
            raise ValueError("a record that cannot be handled")

    @asynccontextmanager
    async def shown(self, consumer: AIOKafkaConsumer) -> AsyncIterator[str]:
        """Run it; gives where its page is."""
        work = self.names["work"]
        assert callable(work)
        working = asyncio.create_task(work(consumer, self.handle))
        line = await asyncio.wait_for(self.lines.get(), WAIT_S)
        yield line.removeprefix("watch it at ")
        working.cancel()
        await asyncio.wait([working])


async def health_of(url: str, words: str) -> tuple[int, str]:
    """Status and verdict, once a reason has these words."""
    async with timeout(WAIT_S):
        while True:
            answer = await ask(f"{url}health")
            if words in str(answer.fields()["reasons"]):
                return answer.status, str(answer.fields()["verdict"])
            await asyncio.sleep(0.02)


@in_both_protocols
async def test_page_is_there_while_the_consumer_joins_and_when_it_has_died(protocol: str) -> None:
    told = Told()
    async with Broker() as broker:
        broker.produce_all("orders", [NewRecord("one"), NewRecord("bad")])
        consumer = AIOKafkaConsumer(
            "orders",
            bootstrap_servers=broker.bootstrap_servers,
            group_id="invoices",
            group_protocol=protocol,
            auto_offset_reset="earliest",
        )
        rule = broker.on(JOIN[protocol]).hold()
        async with told.shown(consumer) as url:
            assert await health_of(url, "it is joining group invoices") == (200, "degraded")
            assert (await ask(url)).status == 200
            rule.release()
            assert await asyncio.wait_for(told.handled.get(), WAIT_S) == b"one"
            is_dead = await health_of(url, "ValueError('a record that cannot be handled')")
            assert is_dead == (503, "dead")
            assert (await ask(url)).status == 200


async def test_page_is_there_after_a_start_that_failed() -> None:
    told = Told()
    async with embedded() as kafka:
        gone = kafka.bootstrap_servers
    consumer = AIOKafkaConsumer("t", bootstrap_servers=gone)
    async with told.shown(consumer) as url:
        assert await health_of(url, "start() had failed: KafkaConn") == (503, "dead")
        assert "refused" in str((await ask(f"{url}health")).fields()["reasons"])
        assert (await ask(url)).status == 200


async def test_fastapi_worker_as_uvicorn_runs_it_logs_and_shows_the_page() -> None:
    async with embedded() as kafka:
        await kafka.create_topic("orders")
        await kafka.produce("orders", 0, [(None, b"one")])
        async with started(
            sys.executable, "-m", "uvicorn", "fastapi_worker:app", "--port", "0",
            "--app-dir", str(FOLDER), stderr=PIPE, stdout=PIPE,
            env={**os.environ, "KAFKA": kafka.bootstrap_servers},
        ) as process:  # fmt: skip
            assert process.stderr is not None
            url, lines = "", ""
            async with timeout(WAIT_S):
                while not url or "orders-0@0: b'one'" not in lines:
                    lines += (await process.stderr.readline()).decode()
                    found = re.search(r"running on (http://127.0.0.1:\d+)", lines)
                    url = "" if found is None else found[1]
            assert "INFO:orders:orders-0@0: b'one'\n" in lines
            page = await ask(f"{url}/kafka/")
            assert (page.status, b"consumer.js" in page.body) == (200, True)
            health = await ask(f"{url}/kafka/health")
            assert (health.status, health.fields()["verdict"]) == (200, "ok")
            assert (await ask(f"{url}/kafka/metrics")).status == 200
            process.terminate()
            await process.communicate()
