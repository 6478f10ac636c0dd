"""Functions around each call of a handler of `consumer.run`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import pytest

from aiokafka_lite import AIOKafkaProducer
from aiokafka_lite.consumer.processing.handlers import Handlers
from aiokafka_lite.consumer.processing.threads import HandlerThreads
from aiokafka_lite.processing import DeadRecord, Outputs
from aiokafka_lite.structs import ConsumerRecord
from tests.consumer.processing.running import member, running
from tests.support.cluster import KafkaHandle, unique
from tests.support.waiting import until

Record = ConsumerRecord[bytes | None, bytes | None]
CallNext = Callable[[Any], Awaitable[object]]
request: ContextVar[int] = ContextVar("request", default=-1)


class Around:
    """Middleware that notes when it begins and ends."""

    def __init__(self, name: str, noted: list[object]) -> None:
        self.name = name
        self.noted = noted

    async def __call__(self, record: Record, call_next: CallNext) -> None:
        self.noted.append((self.name, record.offset))
        try:
            await call_next(record)
        except ValueError as error:
            self.noted.append((self.name, str(error)))
            raise


@pytest.fixture
async def topic(kafka: KafkaHandle) -> str:
    """A topic of one partition with three records."""
    topic = await kafka.create_topic(partitions=1)
    await kafka.produce(topic, 0, [(b"a", b"%d" % i) for i in range(3)])
    return topic


@pytest.mark.real_if_long
async def test_middleware_is_around_each_attempt_the_first_outermost(
    kafka: KafkaHandle, topic: str
) -> None:
    noted: list[object] = []
    dead: list[DeadRecord] = []

    async def handle(record: Record) -> None:
        noted.append(("handler", record.offset))
        if record.offset == 1:
            raise ValueError("bad")

    async def skip(record: Record, call_next: CallNext) -> None:
        if record.offset != 2:
            await call_next(record)

    async def bury(record: DeadRecord) -> None:
        dead.append(record)

    consumer = member(kafka, topic, unique("middleware"))
    middleware = [Around("outer", noted), skip, Around("inner", noted)]
    options = {"retry": 2, "dead_letter": bury, "breaker": None}
    async with running(consumer, handle, middleware=middleware, **options):
        await until(lambda: consumer.metrics()["processing_finished_total"] == 2 and dead)
    attempt = [("outer", 1), ("inner", 1), ("handler", 1), ("inner", "bad"), ("outer", "bad")]
    whole = [("outer", 0), ("inner", 0), ("handler", 0), *attempt, *attempt, ("outer", 2)]
    assert noted == whole
    assert [str(each.error) for each in dead] == ["bad"]


@pytest.mark.real_if_long
@pytest.mark.parametrize("is_plain", [False, True])
async def test_each_call_has_context_variables_of_its_own(
    kafka: KafkaHandle, topic: str, is_plain: bool
) -> None:
    """Which a thread sees, too."""
    seen: list[tuple[int, int]] = []
    before: list[int] = []

    async def bind(record: Record, call_next: CallNext) -> None:
        before.append(request.get())
        request.set(record.offset)
        await call_next(record)

    async def handle(record: Record) -> None:
        seen.append((record.offset, request.get()))

    def handle_in_thread(record: Record) -> None:
        seen.append((record.offset, request.get()))

    handler = handle_in_thread if is_plain else handle
    async with running(
        member(kafka, topic, unique("middleware")), handler, middleware=[bind], concurrency=1
    ):
        await until(lambda: len(seen) == 3)
    assert seen == [(0, 0), (1, 1), (2, 2)]
    assert before == [-1] * 3
    assert request.get() == -1


@pytest.mark.real_if_long
async def test_middleware_takes_the_list_and_leaves_the_outputs_to_the_handler(
    kafka: KafkaHandle, topic: str
) -> None:
    copies = await kafka.create_topic(partitions=1)
    lists: list[list[int]] = []

    async def around(records: list[Record], call_next: CallNext) -> None:
        lists.append([record.offset for record in records])
        await call_next(records[:2])

    async def handle(records: list[Record], outputs: Outputs) -> None:
        for record in records:
            outputs.send(copies, record.value)

    async with (
        AIOKafkaProducer(
            bootstrap_servers=kafka.bootstrap_servers, transactional_id=unique("tx")
        ) as producer,
        member(kafka, copies, unique("r"), isolation_level="read_committed") as reader,
        running(
            member(kafka, topic, unique("middleware")), {topic: handle},
            batch_size=5, transactions=producer, middleware=(around, around),
        ),
    ):  # fmt: skip
        values = [(await reader.getone()).value for _ in range(2)]
    assert lists == [[0, 1, 2], [0, 1]]
    assert values == [b"0", b"1"]


async def test_what_is_no_middleware_is_refused_and_none_costs_nothing() -> None:
    async def handle(record: Record) -> None: ...
    async def one(record: Record) -> None: ...
    def plain(record: Record, call_next: CallNext) -> None: ...

    for middleware in (one, [one], [plain], [None], "ab", {"a": one}, 5, None):
        with pytest.raises(TypeError, match="middleware must"):
            Handlers(handle, 0, middleware)
    threads = HandlerThreads(lambda: False)
    assert Handlers(handle, 0).compose(threads) is handle
