"""The snippets of README and of the guide do what is said beside them."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import sys
import textwrap
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from pathlib import Path

import aiohttp
import pytest

from aiokafka_lite import AIOKafkaConsumer, ConsumerRecord
from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker
from tests.support.for_each import for_each
from tests.support.ports import free_port
from tests.support.programs import started
from tests.support.waiting import eventually

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md")])
WAIT_S = 30


def snippets(page: str) -> list[str]:
    """The Python of a page, block by block."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.M)


def snippet(page: str, having: str) -> str:
    """The one block that has these words."""
    (found,) = (each for each in snippets(page) if having in each)
    return found


@for_each(PAGES)
def test_every_snippet_is_python(page: Path) -> None:
    for each in snippets(str(page.relative_to(ROOT))):
        compile(each, page.name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("page", ["README.md", "docs/five-minutes.md"])
async def test_the_ten_lines_print_what_is_in_the_topic(page: str) -> None:
    code = snippet(page, "asyncio.run(main())")
    async with Broker() as broker:
        broker.produce("flights", b"EWR", key=b"UA")
        code = code.replace("127.0.0.1:9092", broker.bootstrap_servers)
        command = [sys.executable, "-u", "-W", "error", "-c", code]
        async with started(*command, stdout=PIPE) as process, timeout(WAIT_S):
            assert process.stdout is not None
            assert await process.stdout.readline() == b"0 0 b'UA' b'EWR'\n"


def test_the_tests_of_readme_and_of_five_minutes_pass(pytester: pytest.Pytester) -> None:
    service = """
        from confluent_kafka import Producer

        def run_my_service(bootstrap_servers):
            producer = Producer({"bootstrap.servers": bootstrap_servers})
            producer.produce("invoices", b"42")
            producer.flush()
        """
    test = snippet("README.md", "def test_my_service")
    pytester.makepyfile(test_readme=f"{textwrap.dedent(service)}\n\n{test}")
    pytester.makepyfile(test_flights=snippet("docs/five-minutes.md", "def test_reads_a_flight"))
    pytester.runpytest_subprocess("-p", "no:randomly").assert_outcomes(passed=2)


async def test_the_handler_of_five_minutes_gets_what_its_producer_writes(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, object] = {"asyncio": asyncio}
    for having in ("async def announce", "async def process"):
        exec(snippet("docs/five-minutes.md", having), names)  # noqa: S102 -- the page's own
    await function(names, "announce")(broker.bootstrap_servers)
    assert capsys.readouterr().out == "0 0\n"
    consumer = AIOKafkaConsumer(
        "flights",
        bootstrap_servers=broker.bootstrap_servers,
        group_id="delays",
        auto_offset_reset="earliest",
    )
    async with consumer:
        processing = asyncio.ensure_future(function(names, "process")(consumer))
        (tp,) = consumer.assignment()
        await eventually(lambda: consumer.committed(tp), 1)
        assert capsys.readouterr().out == "b'AS' b'SFO'\n"
        processing.cancel()
        await asyncio.wait([processing])


async def test_the_worker_of_services_handles_records_beside_its_page(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("prometheus_client", reason="the page takes the extra web")
    port = free_port()
    names: dict[str, object] = {}
    code = snippet("docs/services.md", "async def work").replace("8080", str(port))
    exec(code, names)  # noqa: S102 -- the page's own example
    handled = asyncio.Event()

    async def handle(record: ConsumerRecord[bytes, bytes]) -> None:
        assert record.value == b"one"
        assert await asked(port) == 200
        handled.set()

    # It goes on for ever, also when the handler raises: until somebody ends the process.
    working = asyncio.ensure_future(function(names, "work")(consumer_of(broker), handle))
    async with timeout(WAIT_S):
        await handled.wait()
    working.cancel()
    await asyncio.wait([working])
    assert working.cancelled()
    assert f"watch it at http://127.0.0.1:{port}/" in capsys.readouterr().out


async def test_the_unit_of_work_of_services_is_committed_at_its_end(broker: Broker) -> None:
    names: dict[str, object] = {}
    exec(snippet("docs/services.md", "consumer.batch("), names)  # noqa: S102
    handled = list[bytes | None]()

    async def handle(record: ConsumerRecord[bytes, bytes]) -> None:
        handled.append(record.value)

    async with consumer_of(broker, group_id="g") as consumer:
        working = asyncio.ensure_future(function(names, "in_batches")(consumer, handle))
        (tp,) = consumer.assignment()
        await eventually(lambda: consumer.committed(tp), 1)
        working.cancel()
        await asyncio.wait([working])
    assert handled == [b"one"]


async def test_what_monitoring_shows_tells_of_a_consumer_until_it_is_stopped(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, object] = {}
    exec(snippet("docs/monitoring.md", "async def watch"), names)  # noqa: S102
    async with consumer_of(broker) as consumer:
        await consumer.getone()
        watching = asyncio.ensure_future(function(names, "watch")(consumer))
        await asyncio.sleep(0)  # its first step goes as far as the events
        await consumer.stop()
        async with timeout(WAIT_S):
            await watching
    assert "TopicPartition(topic='orders', partition=0)" in capsys.readouterr().out


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """A broker whose topic `orders` has one record."""
    async with Broker() as broker:
        broker.produce("orders", b"one")
        yield broker


def consumer_of(broker: Broker, group_id: str | None = None) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        "orders",
        bootstrap_servers=broker.bootstrap_servers,
        group_id=group_id,
        auto_offset_reset="earliest",
    )


def function(names: Mapping[str, object], name: str) -> Callable[..., Coroutine[None, None, None]]:
    """A function that a snippet has made."""
    found = names[name]
    assert inspect.iscoroutinefunction(found)
    return found


async def asked(port: int) -> int:
    """The status that a consumer's health has over HTTP."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/health") as answer,
    ):
        return answer.status
