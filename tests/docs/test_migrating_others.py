"""What docs/migrating.md says about confluent-kafka and kafka-python, asked of these themselves."""

from __future__ import annotations

import asyncio
import inspect
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.aio import AIOConsumer

import aiokafka_lite
from aiokafka_lite import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka_lite.broker import Broker, NewRecord
from aiokafka_lite.protocol.messages.fetch import FetchRequest

with warnings.catch_warnings():  # it reads its own message definitions by old functions
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

PAGE = (Path(__file__).parents[2] / "docs" / "migrating.md").read_text()
CONFLUENT, KAFKA_PYTHON = re.split(r"^## Coming from .*$", PAGE, flags=re.M)[-2:]
RECORD = set(inspect.signature(ConsumerRecord).parameters)
PARAMETERS = inspect.signature(AIOKafkaConsumer).parameters


def rows(section: str, number: int) -> list[tuple[str, str]]:
    """The rows of a section's first or second table, without its head."""
    tables = re.findall(r"(?:^\|.*\|\n)+", section, re.M)
    lines = tables[number].splitlines()[2:]
    return [
        (left.strip(), right.strip())
        for _, left, right, _ in (re.split(r" ?\| ?", line) for line in lines)
    ]


def names(cell: str) -> Iterator[str]:
    """The names in a cell's code: what stands at its beginning."""
    for code in re.findall(r"`([^`]+)`", cell):
        found = re.match(r"(?:for record in )?([A-Za-z_][\w.]*)", code)
        if found:
            yield found[1]


def methods_of(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_") and name.islower()}


# The tables


def test_every_call_of_confluent_kafka_is_in_the_table() -> None:
    named = {name for left, _ in rows(CONFLUENT, 0) for name in names(left)}
    consumers = methods_of(confluent_kafka.Consumer) | methods_of(AIOConsumer)
    assert consumers - named == set()
    messages = {name.removeprefix("Message.") for name in named if name.startswith("Message.")}
    assert messages <= methods_of(confluent_kafka.Message)
    others = {name for name in named if "." not in name}
    assert others - consumers <= {"None", "enable", "Message", "asynchronous", "offset"}


def test_every_call_of_kafka_python_is_in_the_table() -> None:
    named = {name for left, _ in rows(KAFKA_PYTHON, 0) for name in names(left)}
    assert methods_of(kafka.KafkaConsumer) - named == set()
    assert named - methods_of(kafka.KafkaConsumer) == {"consumer"}


@pytest.mark.parametrize("section", [CONFLUENT, KAFKA_PYTHON], ids=["confluent", "kafka-python"])
def test_what_is_here_is_here(section: str) -> None:
    calls = " ".join(right for _, right in rows(section, 0))
    called = set(re.findall(r"`(?:await )?([a-z_]+)\(", calls))
    assert len(called) > 5
    assert [name for name in called if not hasattr(AIOKafkaConsumer, name)] == []
    attributes = re.findall(r"`record\.(\w+)`", calls)
    assert [name for name in attributes if name not in RECORD] == []

    settings = " ".join(right for _, right in rows(section, 1))
    named = set(re.findall(r"`([a-z]+_[a-z_]+)(?:=|`)", settings))
    assert len(named) >= 5
    assert named - set(PARAMETERS) <= {"read_uncommitted"}
    called = set(re.findall(r"`consumer\.([a-z_]+)\(", settings))
    assert [name for name in called if not hasattr(AIOKafkaConsumer, name)] == []


SAMPLES: dict[str, object] = {
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
    "partition.assignment.strategy": "range",
    "security.protocol": "plaintext",
    "sasl.mechanism": "SCRAM-SHA-256",
    "ssl.ca.location": "probe",
    "group.protocol": "consumer",
    "bootstrap.servers": "127.0.0.1:1",
    "max.poll.interval.ms": 300_000,
    "fetch.max.bytes": 52_428_800,
}
VALUES_OF_SETTINGS = {"largest", "smallest", "beginning", "end", "error", "read_committed", "ssl."}


def librdkafka_names() -> list[str]:
    cells = " ".join(left for left, _ in rows(CONFLUENT, 1))
    codes = [code.split("=")[0] for code in re.findall(r"`([\w.]+)[=`]", cells)]
    return [code for code in codes if code not in VALUES_OF_SETTINGS and "," not in code]


def test_settings_of_librdkafka_exist_under_these_names() -> None:
    found = librdkafka_names()
    assert len(found) > 35
    for name in found:
        if name.endswith("_cb"):
            with pytest.raises((TypeError, ValueError), match=name):
                confluent_kafka.Consumer({"group.id": "g", name: None})
            continue
        number = {"enable": True, "allow": False, "check": False}.get(name.split(".")[0], 10_000)
        value = SAMPLES.get(name, number)
        # The log line of a server that is not there is of no interest.
        settings = {"group.id": "g", "log_level": 0, name: value}
        confluent_kafka.Consumer(settings).close()
    with pytest.raises(confluent_kafka.KafkaException, match="No such configuration property"):
        confluent_kafka.Consumer({"group.id": "g", "no.such.setting": 1})


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


@pytest.mark.parametrize("section", [CONFLUENT, KAFKA_PYTHON], ids=["confluent", "kafka-python"])
def test_our_defaults_are_as_told(section: str) -> None:
    told = [
        (name, quoted or plain)
        for _, right in rows(section, 1)
        for name, quoted, plain in re.findall(
            r"`(\w+)`: (?:`(\w+)`|(\d+\b(?! MiB)|True|None))", right
        )
    ]
    assert len(told) >= 3
    for name, value in told:
        assert str(PARAMETERS[name].default) == value, name


# What bites


async def test_librdkafka_reads_committed_and_creates_no_topic_unless_told_otherwise() -> None:
    async with Broker() as broker:
        broker.produce("t", "one")
        consumer = confluent(broker)
        consumer.subscribe(["t", "none"])
        assert await next_value(consumer) == b"one"
        await asyncio.to_thread(consumer.close)
        fetches = [seen.request for seen in broker.requests.of("Fetch")]
        assert {fetch.isolation_level for fetch in fetches if isinstance(fetch, FetchRequest)} == {
            1
        }
        assert not broker.has_topic("none")


async def test_librdkafka_commits_what_is_still_worked_on_and_we_do_not() -> None:
    async with Broker() as broker:
        broker.produce_all("t", [NewRecord("one"), NewRecord("two")])
        theirs = confluent(broker, **{"auto.commit.interval.ms": 50})
        theirs.subscribe(["t"])
        assert await next_value(theirs) == b"one"
        await broker.wait_until(lambda: broker.committed("theirs") == {TopicPartition("t", 0): 1})
        await asyncio.to_thread(theirs.close)

        async def fail_at_the_second() -> None:
            async with AIOKafkaConsumer(
                "t",
                bootstrap_servers=broker.bootstrap_servers,
                group_id="ours",
                auto_offset_reset="earliest",
                auto_commit_interval_ms=50,
            ) as ours:
                assert (await ours.getone()).value == b"one"
                assert (await ours.getone()).value == b"two"
                await broker.wait_until(lambda: bool(broker.committed("ours")))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail_at_the_second()
        assert broker.committed("ours") == {TopicPartition("t", 0): 1}


async def test_cancelled_poll_of_aioconsumer_loses_a_message_and_ours_does_not() -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        settings = settings_of(broker)
        async with AIOConsumer(settings) as theirs:
            await theirs.subscribe(["t"])
            await broker.wait_for_members("theirs", 1)
            polling = asyncio.create_task(theirs.poll(30))
            await broker.requests.wait_for("Fetch")
            polling.cancel()
            await asyncio.wait([polling])
            broker.produce_all("t", [NewRecord("one"), NewRecord("two")])
            # The thread that nobody waits for any more has the first one.
            message = await theirs.poll(30)
            assert message is not None
            assert message.value() == b"two"

        ours = AIOKafkaConsumer(
            "t", bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="latest"
        )
        async with ours:
            getting = asyncio.create_task(ours.getone())
            mark = broker.requests.total
            await broker.requests.wait_for("Fetch", since=mark - 1)
            getting.cancel()
            await asyncio.wait([getting])
            broker.produce_all("t", [NewRecord("three")])
            assert (await ours.getone()).value == b"three"


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


@pytest.mark.parametrize(
    ("section", "name"),
    [(CONFLUENT, "confluent_loop_here"), (KAFKA_PYTHON, "kafka_python_loop_here")],
)
async def test_loops_of_the_page_read_records(section: str, name: str) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.M)
    example = example.replace(
        "bootstrap_servers=", 'auto_offset_reset="earliest", bootstrap_servers='
    )
    found: dict[str, object] = {**vars(aiokafka_lite), "asyncio": asyncio}
    found["AIOKafkaConsumer"] = AIOKafkaConsumer
    exec(example, found)  # noqa: S102 -- the page's own example
    loop = found[name]
    assert callable(loop)
    handled = asyncio.Queue[object]()

    async def handle_confluent(key: bytes | None, value: bytes | None) -> None:
        handled.put_nowait(value)

    running = asyncio.get_running_loop()

    def handle_kafka_python(record: ConsumerRecord) -> None:
        running.call_soon_threadsafe(handled.put_nowait, record.value)

    handle = handle_confluent if section is CONFLUENT else handle_kafka_python
    async with Broker() as broker:
        broker.produce("orders", "one")
        reading = asyncio.create_task(loop(broker.bootstrap_servers, handle))
        assert await asyncio.wait_for(handled.get(), 30) == b"one"
        reading.cancel()
        await asyncio.wait([reading])


def settings_of(broker: Broker) -> dict[str, str | int | float | bool]:
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": "theirs",
        "auto.offset.reset": "earliest",
    }


def confluent(broker: Broker, **more: int) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer({**settings_of(broker), **more})


async def next_value(consumer: confluent_kafka.Consumer) -> object:
    while True:
        message = await asyncio.to_thread(consumer.poll, 10)
        if message is not None and message.error() is None:
            return message.value()
