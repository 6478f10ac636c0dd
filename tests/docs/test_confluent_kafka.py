"""The statements of docs/confluent-kafka.md, compared with confluent-kafka and librdkafka."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias

import confluent_kafka
import pytest
from confluent_kafka import KafkaError
from confluent_kafka.aio import AIOConsumer

from aiokafka_lite import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition, errors
from aiokafka_lite.broker import Broker, NewRecord
from aiokafka_lite.confluent import DEFAULTS, SETTINGS, UNNEEDED, Translated
from aiokafka_lite.protocol.messages.fetch import FetchRequest
from tests.docs import confluent_tables
from tests.docs.page_tables import methods_of, names, rows
from tests.support.cluster import KafkaHandle, unique
from tests.support.librdkafka import librdkafka_settings
from tests.support.protocols import classic_only
from tests.support.reading import committed, reading
from tests.support.waiting import eventually

PAGE = confluent_tables.PAGE.read_text("utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.M)
CONFLUENT = PAGE.partition("\n## Calls\n")[2]
Event: TypeAlias = Callable[[], Awaitable[None]]
RECORD = set(inspect.signature(ConsumerRecord).parameters)


# The tables


def test_the_table_of_refused_settings_is_that_of_the_package() -> None:
    (shown,) = confluent_tables.MARKED.findall(PAGE)
    assert shown == confluent_tables.table(), "run: python -m tests.docs.confluent_tables"


def test_the_table_of_translated_settings_has_each_with_its_argument() -> None:
    table = PAGE.partition("\n### Translated\n")[2].partition("\n### ")[0]
    shown = {
        name: argument
        for names, argument in re.findall(r"^\| (`.*?`) \| `(\w+)` \|", table, re.M)
        for name in re.findall(r"`([^`]+)`", names)
    }
    translated = {
        name: setting.argument.partition(".")[0]
        for name, setting in SETTINGS.items()
        if isinstance(setting, Translated)
    }
    assert shown == translated


def test_the_table_of_settings_without_effect_has_each_of_them_with_a_reason() -> None:
    table = rows(PAGE.partition("\n### Left out\n")[2], 0)
    shown = [name for left, _ in table for name in re.findall(r"`([^`]+)`", left)]
    assert len(shown) == len(set(shown))
    assert set(shown) == UNNEEDED
    assert all(len(reason) > 10 for _, reason in table)


def test_defaults_are_as_in_the_table() -> None:
    theirs = {name: setting.default for name, setting in librdkafka_settings().items()}
    ours = {
        **inspect.signature(AIOKafkaProducer).parameters,
        **inspect.signature(AIOKafkaConsumer).parameters,
    }
    kept = {name for each in DEFAULTS.values() for name in each} - {"sasl.mechanism"}
    lines = re.findall(r"^\| `(\w+)`.*? \| (.*?) \| (.*?) \| (.*?) ?\|$", PAGE, re.M)
    checked = 0
    for argument, their_default, our_default, note in lines:
        name = THEIR_NAMES.get(argument, argument.replace("_", "."))
        if name not in theirs:
            continue
        checked += 1
        assert comparable(their_default) == theirs[name].replace(",", ", ").lower(), argument
        if our_default[0] in "`0123456789TF" and "MiB" not in our_default:
            assert comparable(our_default) == str(ours[argument].default).lower(), argument
        assert (name in kept) == (note == "keeps librdkafka's"), argument
    assert checked == 14


THEIR_NAMES = {
    "request_timeout_ms": "socket.timeout.ms",
    "max_batch_size": "batch.size",
    "buffer_memory": "queue.buffering.max.kbytes",
}


def comparable(cell: str) -> str:
    number = str(2**20)  # KiB
    return cell.strip("`").lower().replace("1 gib", number).replace("not set", "")


def test_every_call_of_confluent_kafka_is_in_the_table() -> None:
    named = {name for left, _ in rows(CONFLUENT, 0) for name in names(left)}
    consumers = methods_of(confluent_kafka.Consumer) | methods_of(AIOConsumer)
    assert consumers - named == set()
    messages = {name.removeprefix("Message.") for name in named if name.startswith("Message.")}
    assert messages <= methods_of(confluent_kafka.Message)
    others = {name for name in named if "." not in name}
    assert others - consumers <= {"None", "enable", "Message", "asynchronous", "offset"}


def test_every_call_of_a_producer_is_in_the_table() -> None:
    named = {name for left, _ in rows(CONFLUENT, 1) for name in names(left)}
    assert methods_of(confluent_kafka.Producer) - named == set()


def test_what_is_here_is_here() -> None:
    for number, client in enumerate((AIOKafkaConsumer, AIOKafkaProducer)):
        calls = " ".join(right for _, right in rows(CONFLUENT, number))
        called = set(re.findall(r"`(?:await )?([a-z_]+)\(", calls))
        assert len(called) > 4
        assert [name for name in called if not hasattr(client, name)] == []
        attributes = re.findall(r"`record\.(\w+)[`(]", calls)
        assert [name for name in attributes if name not in RECORD | {"ack"}] == []


def codes_of_librdkafka() -> dict[str, int]:
    codes = {name: getattr(KafkaError, name) for name in dir(KafkaError) if name.upper() == name}
    return {name: code for name, code in codes.items() if isinstance(code, int)}


def test_every_code_of_a_broker_has_a_class_here() -> None:
    codes = {name: code for name, code in codes_of_librdkafka().items() if code > 0}
    assert len(codes) > 100
    assert [name for name, code in codes.items() if errors.for_code(code).errno != code] == []


INTERNAL = {
    "_APPLICATION",
    "_CRIT_SYS_RESOURCE",
    "_DESTROY_BROKER",
    "_EXISTING_SUBSCRIPTION",
    "_FAIL",
    "_FS",
    "_INTR",
    "_INVALID_DIFFERENT_RECORD",
    "_IN_PROGRESS",
    "_ISR_INSUFF",
    "_NODE_UPDATE",
    "_NOENT",
    "_NOOP",
    "_NOT_IMPLEMENTED",
    "_OUTDATED",
    "_PARTIAL",
    "_PREV_IN_PROGRESS",
    "_READ_ONLY",
    "_RETRY",
    "_UNDERFLOW",
    "_UNKNOWN_BROKER",
    "_UNKNOWN_PROTOCOL",
    "_WAIT_CACHE",
    "_WAIT_COORD",
}
"""The codes of the table's row "all others"."""


def test_every_code_of_librdkafka_is_in_the_table() -> None:
    table = rows(CONFLUENT, 2)
    named = [name for left, _ in table for name in names(left)]
    local = {name for name, code in codes_of_librdkafka().items() if code < -1}
    assert local - set(named) == INTERNAL
    assert ("all others", "internal to librdkafka: no such error") in table
    assert len(named) == len(set(named))
    classes = re.findall(r"`([A-Z]\w+)`", " ".join(right for _, right in table))
    builtin = {"ValueError", "TypeError"}
    assert [name for name in classes if not hasattr(errors, name) and name not in builtin] == []


# The programs


def priced(order: object) -> object:
    assert isinstance(order, dict)
    return order["price"]


async def test_both_clients_of_the_page_are_created_from_one_configuration() -> None:
    names: dict[str, Any] = {}
    exec(EXAMPLES[0], names)  # noqa: S102 -- the page's own example
    consumer, producer = await names["clients"]()
    assert isinstance(consumer, AIOKafkaConsumer)
    assert isinstance(producer, AIOKafkaProducer)
    await consumer.stop()
    await producer.stop()


async def run_before(program: type[Any], conf: dict[str, object], is_done: Event) -> None:
    stopped = threading.Event()
    running = asyncio.create_task(asyncio.to_thread(program(conf, priced).run, stopped))
    await is_done()
    stopped.set()
    await running


async def run_after(
    program: Callable[..., Coroutine[Any, Any, None]], conf: dict[str, object], is_done: Event
) -> None:
    running = asyncio.create_task(program(conf, priced))
    await is_done()
    running.cancel()
    await asyncio.wait([running])


@pytest.mark.parametrize(("name", "run"), [("Invoices", run_before), ("invoices", run_after)])
async def test_the_programs_before_and_after_do_the_same(
    kafka: KafkaHandle, name: str, run: Callable[..., Awaitable[None]]
) -> None:
    orders, invoices, failed = [
        await kafka.create_topic(unique(topic)) for topic in ("orders", "invoices", "orders-failed")
    ]
    program = next(each for each in EXAMPLES if re.search(rf"(class|def) {name}\b", each))
    names: dict[str, Any] = {}
    for shown, used in (("orders", orders), ("invoices", invoices), ("orders-failed", failed)):
        program = program.replace(f'"{shown}"', f'"{used}"')
    exec(program, names)  # noqa: S102 -- the page's own example
    values = [*(json.dumps({"price": price}).encode() for price in (7, 9)), b"bad"]
    await kafka.produce(orders, 0, [(b"k", value) for value in values])

    async def all_are_committed() -> None:
        tp = TopicPartition(orders, 0)
        await eventually(lambda: committed(kafka, invoices, tp), len(values))

    await run(names[name], {"bootstrap.servers": kafka.bootstrap_servers}, all_are_committed)
    async with reading(kafka, invoices, failed) as reader:
        found = [await reader.getone() for _ in values]
    assert {each.key for each in found} == {b"k"}
    good = [json.loads(each.value or b"") for each in found if each.topic == invoices]
    assert [each["sum"] for each in good] == [7, 9]
    (bad,) = [each for each in found if each.topic == failed]
    assert bad.value == b"bad"
    assert bad.headers == (("error", b"Expecting value: line 1 column 1 (char 0)"),)


# The pitfalls


async def test_on_a_broker_without_kip_848_librdkafka_does_not_join_by_it_and_we_do_classic() -> (
    None
):
    async with Broker() as broker:
        broker.on("ApiVersions").answer(classic_only, times=None)
        broker.produce("t", "one")
        theirs = confluent(broker, **{"group.protocol": "consumer"})
        theirs.subscribe(["t"])
        await broker.requests.wait_for("FindCoordinator")
        assert await asyncio.to_thread(theirs.poll, 2) is None
        assert broker.requests.of("JoinGroup") == []
        await asyncio.to_thread(theirs.close)
        ours = AIOKafkaConsumer(
            "t",
            bootstrap_servers=broker.bootstrap_servers,
            group_id="ours",
            auto_offset_reset="earliest",
        )
        async with ours:
            assert (await ours.getone()).value == b"one"


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


def settings_of(broker: Broker) -> dict[str, str | int | float | bool]:
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": "theirs",
        "auto.offset.reset": "earliest",
    }


def confluent(broker: Broker, **more: int | str) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer({**settings_of(broker), **more})


async def next_value(consumer: confluent_kafka.Consumer) -> object:
    while True:
        message = await asyncio.to_thread(consumer.poll, 10)
        if message is not None and message.error() is None:
            return message.value()
