"""docs/producing.md: its programs do what is said beside them, its tables are those of the code."""

from __future__ import annotations

import asyncio
import inspect
import re
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable, Coroutine
from pathlib import Path

from aiokafka_lite import AIOKafkaConsumer, errors
from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker
from aiokafka_lite.errors import (
    CommitFailedError,
    IllegalGenerationError,
    TransactionAbortableError,
)
from aiokafka_lite.producing import AIOKafkaProducer
from aiokafka_lite.protocol.messages.transactions import EndTxnRequest
from aiokafka_lite.protocol.schema import Request, Response
from aiokafka_lite.structs import ConsumerRecord
from tests.support.programs import started
from tests.support.reading import consumer_of, values
from tests.support.waiting import until

PAGE = (Path(__file__).parents[2] / "docs" / "producing.md").read_text()
WAIT_S = 30

Program = Callable[..., Coroutine[object, object, None]]


def snippet(having: str) -> str:
    """The one block that has these words."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.M)
    (found,) = (each for each in blocks if having in each)
    return str(found)


def program(name: str) -> Program:
    names: dict[str, object] = {
        "AIOKafkaConsumer": AIOKafkaConsumer,
        "AIOKafkaProducer": AIOKafkaProducer,
        "CommitFailedError": CommitFailedError,
        "TransactionAbortableError": TransactionAbortableError,
    }
    exec(snippet(f"async def {name}("), names)  # noqa: S102 -- it is ours
    return names[name]  # type: ignore[return-value]


async def test_the_ten_lines_say_where_records_are() -> None:
    code = snippet("asyncio.run(main())")
    async with Broker() as broker:
        code = code.replace("127.0.0.1:9092", broker.bootstrap_servers)
        command = [sys.executable, "-W", "error", "-c", code]
        async with started(*command, stdout=PIPE) as process, timeout(WAIT_S):
            printed, _ = await process.communicate()
        assert printed.decode().splitlines() == [f"0 {offset}" for offset in range(100)]


async def test_what_is_written_in_a_transaction_is_read_together() -> None:
    async with Broker() as broker:
        await program("in_pairs")(broker.bootstrap_servers)
        for topic in ("debits", "credits"):
            async with consumer_of(broker, topic, isolation_level="read_committed") as consumer:
                assert await values(consumer, 1) == [b"100"]


def is_commit(context: object, request: Request[Response]) -> bool:
    return isinstance(request, EndTxnRequest) and request.committed


async def test_a_batch_after_run_returns_again_what_run_had_finished_behind_the_offset() -> None:
    finished: set[int] = set()

    async def handle(record: ConsumerRecord) -> None:
        if record.offset == 0:
            await asyncio.get_running_loop().create_future()
        finished.add(record.offset)

    async with Broker() as broker:
        broker.create_topic("orders")
        for number in range(3):
            broker.produce("orders", b"%d" % number, key=b"%d" % number)
        async with consumer_of(broker, "orders", group_id="invoices") as consumer:
            running = asyncio.ensure_future(consumer.run(handle, concurrency=3))
            await until(lambda: finished == {1, 2})
            running.cancel()
            await asyncio.wait([running])
            async with consumer.batch(max_records=3) as batch:
                assert [record.offset for record in batch] == [0, 1, 2]
    assert "[read in the same way](processing.md#what-is-committed)" in PAGE


async def test_the_copy_is_exact_though_transactions_fail() -> None:
    async with Broker() as broker:
        broker.create_topic("orders", 2)
        broker.create_topic("invoices")
        for number in range(40):
            broker.produce("orders", b"%d" % number, partition=number % 2)
        broker.on("TxnOffsetCommit").fail(IllegalGenerationError)
        broker.on("EndTxn", when=is_commit).fail(TransactionAbortableError)
        copying = asyncio.ensure_future(program("copy")(broker.bootstrap_servers, 1))
        async with consumer_of(broker, "invoices", isolation_level="read_committed") as consumer:
            copied = await values(consumer, 40)
            for number in range(40, 60):
                broker.produce("orders", b"%d" % number, partition=number % 2)
            copied += await values(consumer, 20)
        copying.cancel()
        await asyncio.wait([copying])
        assert sorted(int(value or b"") for value in copied) == list(range(60))


def test_the_settings_have_the_defaults_of_the_code() -> None:
    table = PAGE.partition("## Settings")[2].partition("## ")[0]
    rows = re.findall(r"^\| (`.*?) \| (.*?) \| ", table, re.M)
    assert len(rows) > 10
    parameters = inspect.signature(AIOKafkaProducer).parameters
    for names, defaults in rows:
        given = [each.strip() for each in defaults.split(",")]
        found = re.findall(r"`(\w+)`", names)
        for name, default in zip(found, given * len(found), strict=False):
            assert str(parameters[name].default) == default, name


def test_the_errors_are_errors() -> None:
    table = PAGE.partition("## What errors mean")[2].partition("## ")[0]
    names = {name for row in re.findall(r"^\| (`.*?) \| ", table, re.M) for name in row.split("`")}
    named = {name for name in names if re.fullmatch(r"[A-Z]\w+", name)}
    assert len(named) > 10
    assert not [name for name in named if not hasattr(errors, name)]
