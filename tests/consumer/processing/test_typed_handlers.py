"""Handlers of `consumer.run` that take values of the type that they are annotated with."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Union

import pytest

from aiokafka_lite import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka_lite.bad_records import RawRecord
from aiokafka_lite.consumer.processing import typed
from aiokafka_lite.consumer.processing.handlers import Handlers
from aiokafka_lite.consumer.processing.threads import HandlerThreads
from aiokafka_lite.errors import DeserializationError, InvalidValueError
from aiokafka_lite.processing import CircuitBreaker, Outputs, Retry
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.consumer.processing.running import member, running
from tests.support.cluster import KafkaHandle, unique

pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")
msgspec = pytest.importorskip("msgspec", reason="msgspec is not installed")

if TYPE_CHECKING:
    from elsewhere import Missing  # type: ignore[import-not-found]

Record = ConsumerRecord[Any, Any]


class Model(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    amount: int
    at: datetime | None = None


class Struct(msgspec.Struct, tag="struct"):  # type: ignore[call-arg, misc, name-defined]
    amount: int


class OtherStruct(msgspec.Struct, tag="other"):  # type: ignore[call-arg, misc, name-defined]
    amount: int


@dataclass
class Line:
    name: str
    price: float = 0.0


@dataclass
class Order:
    amount: int
    lines: list[Line] = field(default_factory=list)
    by_name: dict[str, int] = field(default_factory=dict)
    note: str | None = None
    anything: Any = None


@dataclass
class Node:
    name: str
    nodes: list[Node] = field(default_factory=list)
    parent: Node | None = None
    weight: float = 0.0


@dataclass
class Dated:
    at: datetime


def record(value: object, offset: int = 0) -> Record:
    return ConsumerRecord("t", 0, offset, 0, 0, None, value, None, -1, -1, ())


async def called(handler: Any, given: Any, *outputs: object, takes_lists: bool = False) -> Any:
    """Call a handler as `run` does."""
    handlers = Handlers(handler, len(outputs), takes_lists=takes_lists)
    threads = HandlerThreads(lambda: False)
    try:
        return await handlers.compose(threads)(given, *outputs)
    finally:
        threads.close()


seen: list[Any] = []


async def take_model(order: Model) -> None:
    seen.append(order)


async def take_model_or_none(order: Model | None) -> None:
    seen.append(order)


async def take_struct(order: Struct | OtherStruct) -> None:
    seen.append(order)


async def take_annotated(order: Annotated[Union[Struct, OtherStruct, None], "any"]) -> None:  # noqa: UP007
    seen.append(order)


async def take_order(order: Order) -> None:
    seen.append(order)


def take_in_thread(order: Order) -> None:
    seen.append(order)


class Taker:
    async def take(self, order: Order) -> None:
        seen.append(order)

    async def __call__(self, order: Order) -> None:
        seen.append(order)


async def take_node(node: Node) -> None:
    seen.append(node)


async def take_after(first: str, order: Order) -> None:
    seen.append(order)


HANDLERS: list[tuple[Any, Any]] = [
    (take_model, Model(amount=1)),
    (take_model_or_none, Model(amount=1)),
    (take_order, Order(1)),
    (take_in_thread, Order(1)),
    (Taker().take, Order(1)),
    (Taker(), Order(1)),
    (functools.partial(take_after, "first"), Order(1)),
]


async def test_a_handler_takes_the_value_that_its_annotation_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of JSON as bytes or text, of what a deserialiser made of it, or as it is."""
    for take in (take_struct, take_annotated):
        await called(take, record(b'{"type": "other", "amount": 3}'))
        assert seen.pop() == OtherStruct(3)
    for take in (take_model_or_none, take_annotated):
        await called(take, record(None))
        assert seen.pop() is None
    for has_msgspec in (True, False):
        monkeypatch.setattr(typed, "has_msgspec", lambda: has_msgspec)  # noqa: B023
        for handler, wanted in HANDLERS:
            for value in (b'{"amount": 1}', '{"amount": 1}', {"amount": 1}, wanted):
                await called(handler, record(value))
                assert seen.pop() == wanted, (handler, value)
        nested = {
            "amount": 2, "lines": [{"name": "a", "price": 1}], "by_name": {"a": 1}, "note": None,
            "anything": [1], "unknown": 5,
        }  # fmt: skip
        await called(take_order, record(json.dumps(nested).encode()))
        assert seen.pop() == Order(2, [Line("a", 1.0)], {"a": 1}, None, [1])
        of_itself = b'{"name": "a", "nodes": [{"name": "b", "parent": {"name": "c"}}]}'
        await called(take_node, record(of_itself))
        assert seen.pop() == Node("a", [Node("b", parent=Node("c"))])


async def test_a_handler_may_take_the_record_too_lists_and_outputs() -> None:
    async def with_record(order: Model, record: Record) -> None:
        seen.append((order.amount, record.offset))

    async def with_outputs(order: Model, outputs: object) -> None:
        seen.append((order.amount, outputs))

    async def with_both(order: Model, record: Record, outputs: object) -> None:
        seen.append((order.amount, record.offset, outputs))

    async def with_list(orders: list[Model]) -> None:
        seen.append([order.amount for order in orders])

    def with_records(orders: list[Model], records: list[Record], outputs: object) -> None:
        seen.append(([order.amount for order in orders], len(records), outputs))

    one, many = record(b'{"amount": 1}', 7), [record({"amount": i}) for i in range(2)]
    for handler, given, outputs, wanted in (
        (with_record, one, (), (1, 7)),
        (with_outputs, one, (5,), (1, 5)),
        (with_both, one, (5,), (1, 7, 5)),
        (with_list, many, (), [0, 1]),
        (with_records, many, (5,), ([0, 1], 2, 5)),
    ):
        await called(handler, given, *outputs, takes_lists=given is many)
        assert seen.pop() == wanted


async def test_an_annotation_that_is_no_model_means_the_record(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def bare(given) -> None:  # type: ignore[no-untyped-def]
        seen.append(given)

    async def of_records(given: ConsumerRecord[bytes, bytes]) -> None:
        seen.append(given)

    async def of_a_protocol(given: Callable[[], object]) -> None:
        seen.append(given)

    async def of_anything(given: dict[str, Any] | None) -> None:
        seen.append(given)

    async def unknown_record(given: MissingRecord) -> None:  # type: ignore[name-defined]  # noqa: F821
        seen.append(given)

    async def of_any_number(*given: Model) -> None:
        seen.extend(given)

    async def missing(given: Missing) -> None:
        seen.append(given)

    given = record(b"{}")
    for handler in (
        bare, of_records, of_a_protocol, of_anything, of_any_number, unknown_record, seen.append,
    ):  # fmt: skip
        await called(handler, given)
        assert seen.pop() is given
        assert not [each for each in caplog.records if each.levelno >= logging.WARNING]
    await called(missing, given)
    assert seen.pop() is given
    assert "'Missing' cannot be resolved" in caplog.text


async def test_what_does_not_fit_an_annotation_is_an_invalid_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def many(orders: list[Model]) -> None:
        raise AssertionError

    for has_msgspec in (True, False):
        monkeypatch.setattr(typed, "has_msgspec", lambda: has_msgspec)  # noqa: B023
        for handler in (take_model, take_order, take_in_thread):
            for value in (
                None, b"", b"bad", b"\xff", b"null", b"[]", b'{"amount": "x"}', b"{}", 5,
                {"amount": [1]}, {"amount": None},
            ):  # fmt: skip
                with pytest.raises(InvalidValueError, match="t/0 offset 7") as caught:
                    await called(handler, record(value, 7))
                error = caught.value
                assert isinstance(error, DeserializationError)
                assert (error.tp, error.offset, error.raw) == (TopicPartition("t", 0), 7, value)
                assert error.__cause__ is not None
        for weight in ("NaN", "Infinity", "-Infinity", "1e400"):
            with pytest.raises(InvalidValueError):
                await called(take_node, record(f'{{"name": "a", "weight": {weight}}}'.encode()))
        for encoding in ("utf-16", "utf-8-sig", "utf-32"):
            with pytest.raises(InvalidValueError):
                await called(take_node, record('{"name": "a"}'.encode(encoding)))
    raw = RawRecord(*dataclasses.astuple(record(b'{"amount": 1}')))
    raw.error = DeserializationError("no schema")
    with pytest.raises(InvalidValueError, match="no schema"):
        await called(take_model, raw)
    with pytest.raises(InvalidValueError, match="tombstone"):
        await called(many, [record({"amount": 1}), record(None)], takes_lists=True)


def test_what_cannot_be_called_with_a_value_is_refused_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def three(order: Model, record: Record, another: int) -> None: ...
    async def mixed(order: Model | Record) -> None: ...
    async def listed(order: list[Model]) -> None: ...
    async def dated(order: Dated) -> None: ...
    async def two(order: Order | Line) -> None: ...

    monkeypatch.setattr(typed, "has_msgspec", lambda: False)
    for handler, takes_lists, words in (
        (three, False, "must take a value"),
        (mixed, False, "must be ConsumerRecord"),
        (listed, False, "without batch_size"),
        (take_model, True, r"list\[…\] with batch_size"),
        (dated, False, "only if msgspec is installed"),
    ):
        with pytest.raises(TypeError, match=words):
            Handlers(handler, 0, takes_lists=takes_lists)
    Handlers(two, 0)


# --- With the rest of `run` -----------------------------------------------------------------------
@pytest.mark.real_if_long
@pytest.mark.parametrize("batch_size", [None, 4])
@pytest.mark.parametrize("is_plain", [False, True])
async def test_a_record_with_an_invalid_value_goes_to_the_dead_letters_at_once(
    kafka: KafkaHandle, batch_size: int | None, is_plain: bool
) -> None:
    """Without another attempt, and without the breaker, also out of a list, and by transactions."""
    topic, letters = await kafka.create_topic(partitions=1), await kafka.create_topic(partitions=1)
    copies = await kafka.create_topic(partitions=1)
    good = [b'{"amount": %d}' % i for i in range(8)]
    await kafka.produce(topic, 0, [(b"k", v) for v in (b"bad", *good[:4], None, *good[4:])])

    async def handle(order: Order, outputs: Outputs) -> None:
        outputs.send(copies, b"%d" % order.amount)

    def handle_in_thread(order: Order, outputs: Outputs) -> None:
        outputs.send(copies, b"%d" % order.amount)

    async def handle_list(orders: list[Order], outputs: Outputs) -> None:
        for order in orders:
            outputs.send(copies, b"%d" % order.amount)

    def handle_list_in_thread(orders: list[Order], outputs: Outputs) -> None:
        for order in orders:
            outputs.send(copies, b"%d" % order.amount)

    singles, lists = (handle, handle_in_thread), (handle_list, handle_list_in_thread)
    handler: Any = (lists if batch_size else singles)[is_plain]
    group = unique("typed")
    consumer = member(kafka, topic, group)
    async with (
        AIOKafkaProducer(
            bootstrap_servers=kafka.bootstrap_servers, transactional_id=unique("tx")
        ) as producer,
        member(kafka, copies, unique("r"), isolation_level="read_committed") as reader,
        member(kafka, letters, unique("r"), isolation_level="read_committed") as undertaker,
    ):
        options: dict[str, Any] = {
            "retry": Retry(attempts=5, first_delay_ms=60_000, max_delay_ms=60_000),
            "breaker": CircuitBreaker(min_calls=1),
            "batch_size": batch_size, "dead_letter": letters, "transactions": producer,
        }  # fmt: skip
        async with running(consumer, handler, **options):
            values = [(await reader.getone()).value for _ in range(8)]
            dead = [await undertaker.getone() for _ in range(2)]
    assert values == [b"%d" % i for i in range(8)]
    assert [letter.value for letter in dead] == [b"bad", None]
    headers = dict(dead[0].headers)
    assert headers["__dlq.errors.exception"] == b"aiokafka_lite.errors.InvalidValueError"
    assert headers["__dlq.errors.delivery.count"] == b"1"
    async with AIOKafkaConsumer(
        bootstrap_servers=kafka.bootstrap_servers, group_id=group
    ) as reader_of_offsets:
        assert await reader_of_offsets.committed(TopicPartition(topic, 0)) == 10


@pytest.mark.real_if_long
async def test_without_dead_letters_run_raises_an_invalid_value(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=1)
    await kafka.produce(topic, 0, [(b"k", b"bad")])
    async with member(kafka, topic, unique("typed")) as consumer:
        with pytest.raises(InvalidValueError, match=f"{topic}/0 offset 0 is no valid Order"):
            await consumer.run({topic: take_order}, retry=Retry())
