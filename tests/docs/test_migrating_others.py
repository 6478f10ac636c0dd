"""The statements of docs/migrating.md about kafka-python, compared with kafka-python."""

from __future__ import annotations

import asyncio
import inspect
import re
import warnings
from pathlib import Path

import aiokafka_lite
from aiokafka_lite import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka_lite.broker import Broker, NewRecord
from tests.docs.page_tables import methods_of, names, rows

with warnings.catch_warnings():  # it reads its own message definitions by old functions
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

PAGE = (Path(__file__).parents[2] / "docs" / "migrating.md").read_text()
KAFKA_PYTHON = PAGE.partition("\n## Coming from kafka-python\n")[2]
RECORD = set(inspect.signature(ConsumerRecord).parameters)
PARAMETERS = inspect.signature(AIOKafkaConsumer).parameters


# The tables


def test_every_call_of_kafka_python_is_in_the_table() -> None:
    named = {name for left, _ in rows(KAFKA_PYTHON, 0) for name in names(left)}
    assert methods_of(kafka.KafkaConsumer) - named == set()
    assert named - methods_of(kafka.KafkaConsumer) == {"consumer"}


def test_what_is_here_is_here() -> None:
    calls = " ".join(right for _, right in rows(KAFKA_PYTHON, 0))
    called = set(re.findall(r"`(?:await )?([a-z_]+)\(", calls))
    assert len(called) > 5
    assert [name for name in called if not hasattr(AIOKafkaConsumer, name)] == []
    attributes = re.findall(r"`record\.(\w+)`", calls)
    assert [name for name in attributes if name not in RECORD] == []

    settings = " ".join(right for _, right in rows(KAFKA_PYTHON, 1))
    named = set(re.findall(r"`([a-z]+_[a-z_]+)(?:=|`)", settings))
    assert len(named) >= 5
    assert named <= set(PARAMETERS)
    called = set(re.findall(r"`consumer\.([a-z_]+)\(", settings))
    assert [name for name in called if not hasattr(AIOKafkaConsumer, name)] == []


def test_settings_of_kafka_python_have_these_defaults() -> None:
    theirs = dict(kafka.KafkaConsumer.DEFAULT_CONFIG)
    told: set[str] = set()
    for left, right in rows(KAFKA_PYTHON, 1):
        for name in names(left):
            assert name in theirs, name
            told.add(name)
            default = re.search(rf"`{name}`: (\d+)$", left)
            if default:
                assert theirs[name] == int(default[1])
            if right.startswith("the same"):
                is_same = theirs[name] == PARAMETERS[name].default
                assert is_same or name in _SAME_IN_EFFECT, name
    ours = {name for name in theirs if name in PARAMETERS}
    assert ours - told <= {"sasl_kerberos_service_name", "sasl_kerberos_domain_name"}


# The client's id names the client; None and "" are no rack; None needs no mechanism.
_SAME_IN_EFFECT = {"client_id", "client_rack", "sasl_mechanism"}


def test_our_defaults_are_as_told() -> None:
    told = [
        (name, quoted or plain)
        for _, right in rows(KAFKA_PYTHON, 1)
        for name, quoted, plain in re.findall(
            r"`(\w+)`: (?:`(\w+)`|(\d+\b(?! MiB)|True|None))", right
        )
    ]
    assert len(told) >= 3
    for name, value in told:
        assert str(PARAMETERS[name].default) == value, name


# What bites


async def test_kafka_python_commits_what_is_still_worked_on_when_it_is_closed() -> None:
    async with Broker() as broker:
        broker.produce_all("t", [NewRecord("one"), NewRecord("two")])

        def read_one() -> object:
            consumer = kafka.KafkaConsumer(
                "t",
                bootstrap_servers=broker.bootstrap_servers,
                group_id="theirs",
                auto_offset_reset="earliest",
            )
            try:
                return next(consumer).value
            finally:
                consumer.close()

        assert await asyncio.to_thread(read_one) == b"one"
        assert broker.committed("theirs")[TopicPartition("t", 0)] == 1


async def test_the_loop_of_the_page_reads_records() -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```", KAFKA_PYTHON, re.DOTALL | re.M)
    example = example.replace(
        "bootstrap_servers=", 'auto_offset_reset="earliest", bootstrap_servers='
    )
    found: dict[str, object] = {**vars(aiokafka_lite), "asyncio": asyncio}
    found["AIOKafkaConsumer"] = AIOKafkaConsumer
    exec(example, found)  # noqa: S102 -- the page's own example
    loop = found["kafka_python_loop_here"]
    assert callable(loop)
    handled = asyncio.Queue[object]()
    running = asyncio.get_running_loop()

    def handle(record: ConsumerRecord) -> None:
        running.call_soon_threadsafe(handled.put_nowait, record.value)

    async with Broker() as broker:
        broker.produce("orders", "one")
        reading = asyncio.create_task(loop(broker.bootstrap_servers, handle))
        assert await asyncio.wait_for(handled.get(), 30) == b"one"
        reading.cancel()
        await asyncio.wait([reading])
