"""docs/processing.md and docs/retries.md: every example processes records."""

from __future__ import annotations

import asyncio
import inspect
import re
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from aiokafka_lite import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker
from tests.support.programs import started
from tests.support.waiting import eventually

DOCS: Final = Path(__file__).parents[2] / "docs"
BLOCKS: Final = {
    page: re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.M)
    for page in ("processing.md", "retries.md")
}
IMPORTS: Final = "\n".join(
    line
    for blocks in BLOCKS.values()
    for line in re.findall(r"^(?:from|import) .*", "".join(blocks), re.M)
)
"""A page imports once what its examples use."""
# The functions that get a consumer, with their page and block.
EXAMPLES: Final = [
    pytest.param(block, name, id=f"{page}: {name}")
    for page, blocks in BLOCKS.items()
    for block in blocks
    for name in re.findall(r"^async def (\w+)\(consumer\b", block, re.M)
]
READ: Final = ("orders", "orders-eu", "payments")
WRITTEN: Final = (
    *("copies", "dlq.orders", "dlq.bad", "dlq.late"),
    *("retry.orders.60", "retry.orders.600"),
)
WAIT_S: Final = 30


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """A broker with a record in each topic that the examples read."""
    async with Broker() as broker:
        for topic in READ:
            broker.produce(topic, b'{"id": 1, "amount": 3}', key=b"k")
        for topic in WRITTEN:
            broker.create_topic(topic)
        yield broker


async def handle(*_: object) -> None:
    """A handler of the application."""


@asynccontextmanager
async def arguments_of(function: Any, broker: Broker) -> AsyncIterator[Mapping[str, object]]:
    """What a function of the pages is called with, by the names of its parameters."""
    async with AsyncExitStack() as stack:
        found: dict[str, object] = {}
        for name in [*inspect.signature(function).parameters][1:]:
            if name == "producer":
                found[name] = await stack.enter_async_context(
                    AIOKafkaProducer(
                        bootstrap_servers=broker.bootstrap_servers, transactional_id="t"
                    )
                )
            else:
                found[name] = handle if name.startswith("handle") else "one"
        yield found


@pytest.mark.parametrize(("block", "name"), EXAMPLES)
async def test_every_example_processes_all_records(broker: Broker, block: str, name: str) -> None:
    names: dict[str, Any] = {}
    exec(f"{IMPORTS}\n{block}", names)  # noqa: S102 -- the page's own
    topics = () if "subscribe(" in block else READ[::2]
    consumer = AIOKafkaConsumer(
        *topics,
        bootstrap_servers=broker.bootstrap_servers,
        group_id="g",
        auto_offset_reset="earliest",
    )
    async with consumer, arguments_of(names[name], broker) as arguments, timeout(WAIT_S):
        running = asyncio.ensure_future(names[name](consumer, **arguments))

        async def is_committed() -> bool:
            if running.done():
                running.result()
            tps = [tp for tp in consumer.assignment() if tp.topic in READ]
            return bool(tps) and all([await consumer.committed(tp) == 1 for tp in tps])

        await eventually(is_committed, True)
        await consumer.stop()
        await running


async def test_the_first_program_processes_a_record(broker: Broker) -> None:
    code = BLOCKS["processing.md"][0].replace("localhost:9092", broker.bootstrap_servers)
    command = [sys.executable, "-u", "-W", "error", "-c", code]
    async with started(*command, stdout=PIPE) as process, timeout(WAIT_S):
        assert process.stdout is not None
        assert await process.stdout.readline() == b"b'k' b'{\"id\": 1, \"amount\": 3}'\n"


async def test_the_test_of_a_handler_passes() -> None:
    (block,) = [each for each in BLOCKS["processing.md"] if "kafka_broker" in each]
    names: dict[str, Any] = {}
    exec(f"{IMPORTS}\n{block}", names)  # noqa: S102 -- the page's own
    async with Broker() as broker, timeout(WAIT_S):
        await names["test_orders_are_stored"](broker)


async def test_records_that_are_worth_it_are_acknowledged(broker: Broker) -> None:
    (block,) = [each for each in BLOCKS["processing.md"] if "async def by_hand" in each]
    names: dict[str, Any] = {}
    exec(f"{IMPORTS}\n{block}", names)  # noqa: S102 -- the page's own
    seen = asyncio.Event()

    async def worth_it(record: object) -> bool:
        seen.set()
        return True

    working = asyncio.ensure_future(names["by_hand"](broker.bootstrap_servers, worth_it))
    async with timeout(WAIT_S):
        await broker.requests.wait_for("Fetch")  # its start is the end of the log
        broker.produce("orders", b"two")
        await seen.wait()
        await broker.wait_until(lambda: bool(broker.committed("billing")))
    working.cancel()
    await asyncio.wait([working])
