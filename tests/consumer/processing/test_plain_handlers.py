"""Handlers of `consumer.run` that are plain functions: each call runs in a thread."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from aiokafka_lite import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka_lite._compat import timeout
from aiokafka_lite.errors import IllegalStateError, NoHandlerError
from aiokafka_lite.processing import DROP, Outputs, Retry, Router
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.consumer.processing.running import PATIENCE_S, member, running
from tests.support.cluster import KafkaHandle, unique
from tests.support.rows import rows
from tests.support.waiting import until

Record = ConsumerRecord[bytes | None, bytes | None]
PREFIX = "aiokafka_lite-handler"
user: ContextVar[str] = ContextVar("user")


def own_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith(PREFIX)]


class Blocking:
    """A handler that blocks its thread at some offsets until it is let go."""

    def __init__(self, *offsets: int) -> None:
        self.gates = {offset: threading.Event() for offset in offsets}
        self.begun: list[int] = []
        self.done: list[int] = []
        self.errors: list[Exception] = []
        self.at_once = self.most_at_once = 0
        self.lock = threading.Lock()
        self.copies = unique("copies")

    @contextmanager
    def counted(self) -> Iterator[None]:
        with self.lock:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        yield
        with self.lock:
            self.at_once -= 1

    def let_go(self) -> None:
        for gate in self.gates.values():
            gate.set()

    def __call__(self, record: Record, *outputs: Outputs) -> None:
        with self.counted():
            self.begun.append(record.offset)
            if (gate := self.gates.get(record.offset)) is not None:
                gate.wait(PATIENCE_S)
            try:
                for each in outputs:
                    each.send(self.copies, record.value)
            except Exception as error:
                self.errors.append(error)
                raise
            self.done.append(record.offset)


@pytest.fixture
async def topic(kafka: KafkaHandle) -> str:
    """A topic of one partition with ten records."""
    topic = await kafka.create_topic(partitions=1)
    await kafka.produce(topic, 0, rows(0, 10))
    return topic


@pytest.fixture
def group() -> str:
    return unique("plain")


async def committed(kafka: KafkaHandle, group: str, topic: str) -> int | None:
    async with AIOKafkaConsumer(
        bootstrap_servers=kafka.bootstrap_servers, group_id=group, enable_auto_commit=False
    ) as reader:
        return await reader.committed(TopicPartition(topic, 0))


@pytest.mark.real_if_long
async def test_a_plain_function_runs_in_threads_of_its_own(
    kafka: KafkaHandle, topic: str, group: str
) -> None:
    """At most `concurrency`, with the caller's context variables, until `run` ends."""
    handler = Blocking(*range(10))
    seen: set[tuple[str, str]] = set()
    failures = [ValueError("once")]

    def handle(record: Record) -> None:
        seen.add((threading.current_thread().name.rpartition("_")[0], user.get()))
        user.set("changed")
        handler(record)
        if failures and record.offset == 3:
            raise failures.pop()

    user.set("caller")
    async with running(member(kafka, topic, group), handle, concurrency=3, order=None, retry=2):
        await until(lambda: len(handler.begun) == 3)
        assert 3 <= len(own_threads()) <= 6  # a thread may be idle a moment after its call
        handler.let_go()
        await until(lambda: len(handler.done) == 11)
    assert handler.most_at_once == 3
    assert seen == {(PREFIX, "caller")}
    assert own_threads() == []
    assert await committed(kafka, group, topic) == 10


@pytest.mark.real_if_long
async def test_a_list_is_handled_in_a_thread_and_a_failed_one_record_by_record(
    kafka: KafkaHandle, topic: str, group: str
) -> None:
    done: list[int] = []

    def handle(records: list[Record]) -> None:
        if len(records) > 1:
            raise StopIteration  # which no future can have
        done.append(records[0].offset)

    consumer = member(kafka, topic, group)
    async with running(consumer, handle, batch_size=5, retry=5, breaker=None):
        await until(lambda: len(done) == 10)


@pytest.mark.real_if_long
async def test_outputs_of_a_thread_are_written_if_its_function_returns(
    kafka: KafkaHandle, topic: str, group: str
) -> None:
    copies = await kafka.create_topic(partitions=1)
    failures = [ValueError("once")]

    def handle(record: Record, outputs: Outputs) -> None:
        outputs.send(copies, record.value)
        if record.offset == 4 and failures:
            raise failures.pop()

    async def copy(record: Record, outputs: Outputs) -> None:
        outputs.send(copies, b"async")

    async with (
        AIOKafkaProducer(
            bootstrap_servers=kafka.bootstrap_servers, transactional_id=unique("tx")
        ) as producer,
        member(kafka, copies, unique("r"), isolation_level="read_committed") as reader,
    ):
        other = await kafka.create_topic(partitions=1)
        await kafka.produce(other, 0, rows(0, 1))
        consumer = member(kafka, topic, group)
        consumer.subscribe([topic, other])
        handlers = Router({topic: handle, other: copy})
        async with running(consumer, handlers, transactions=producer, retry=2):
            values = [(await reader.getone()).value for _ in range(11)]
        await until(lambda: own_threads() == [])
    assert sorted(value or b"" for value in values) == sorted(
        [b"async", *(value or b"" for _, value in rows(0, 10))]
    )


# --- Threads that go on -------------------------------------------------------------------------
@pytest.mark.parametrize("most", [2, 0])
async def test_without_further_threads_records_wait_and_without_any_run_fails(
    kafka: KafkaHandle, topic: str, group: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def start_few(thread: threading.Thread) -> None:
        if thread.name.startswith(PREFIX) and len(own_threads()) >= most:
            raise RuntimeError("can't start new thread")
        start(thread)

    handler = Blocking(*range(10))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start_few)
        if most:
            async with running(member(kafka, topic, group), handler, concurrency=5, order=None):
                await until(lambda: len(handler.begun) == 2)
                handler.let_go()
                await until(lambda: len(handler.done) == 10)
        else:
            async with member(kafka, topic, group) as consumer:
                with pytest.raises(RuntimeError, match="can't start new thread"):
                    await consumer.run(handler, concurrency=5)
    assert sorted(handler.begun) == [*range(10 if most else 0)]
    assert own_threads() == []
    assert (await committed(kafka, group, topic) or 0) == (10 if most else 0)


@pytest.mark.real_if_long
async def test_a_record_waits_for_a_thread_that_takes_too_long(
    kafka: KafkaHandle, topic: str, group: str
) -> None:
    """It is not tried again beside the thread, nor does the thread take more than one handler."""
    handler = Blocking(0)
    consumer = member(kafka, topic, group)
    options = {"timeout_s": 0.5, "retry": 3, "order": None, "concurrency": 2, "breaker": None}
    async with running(consumer, handler, **options):
        await until(lambda: len(handler.done) == 9)
        await until(lambda: "has not ended" in str(consumer.health()))
        assert handler.begun.count(0) == 1
        assert len(own_threads()) <= 4  # a thread may be idle a moment after its call
        handler.let_go()
        await until(lambda: handler.done.count(0) == 2)  # late is a failure, as for others
    assert handler.begun.count(0) == 2
    assert await committed(kafka, group, topic) == 10


@pytest.mark.parametrize("way", ["cancel", "stop", "transactions"])
async def test_the_end_of_run_does_not_wait_for_a_thread(
    kafka: KafkaHandle, topic: str, group: str, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    """Its record is left to the next owner, and what it sends after that is refused."""
    handler = Blocking(2)
    options: dict[str, Any] = {}
    producer = AIOKafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers, transactional_id=unique("tx")
    )
    async with timeout(PATIENCE_S), producer, member(kafka, topic, group) as consumer:
        if way == "transactions":
            await kafka.create_topic(handler.copies, partitions=1)
            options = {"transactions": producer}
        task = asyncio.ensure_future(consumer.run(handler, order="partition", **options))
        await until(lambda: handler.begun == [0, 1, 2])
        if way == "stop":
            await consumer.stop(1)
        else:
            task.cancel()
        await asyncio.wait([task])
        assert "1 threads are still running handlers" in caplog.text
        assert handler.done == [0, 1]
        handler.let_go()
        await until(lambda: not own_threads())
    assert handler.begun == [0, 1, 2]
    assert (await committed(kafka, group, topic) or 0) <= 2
    assert [type(error) for error in handler.errors] == [IllegalStateError] * bool(options)


@pytest.mark.real_if_long
async def test_a_rebalance_leaves_a_thread_behind_and_its_worker_goes_on_after_it(
    kafka: KafkaHandle, topic: str, group: str
) -> None:
    handler, other = Blocking(2), Blocking()
    first = member(kafka, topic, group, rebalance_hold_ms=100)
    async with running(first, handler, order="partition", concurrency=1):
        await until(lambda: handler.begun == [0, 1, 2])
        first.unsubscribe()
        async with running(member(kafka, topic, group), other):
            await until(lambda: other.done == [*range(2, 10)])
        assert handler.done == [0, 1]
        first.subscribe([topic])
        await kafka.produce(topic, 0, rows(0, 1))
        handler.let_go()
        await until(lambda: handler.done == [0, 1, 2, 10])
    assert await committed(kafka, group, topic) == 11


async def test_a_failed_call_leaves_no_reference_cycle(
    kafka: KafkaHandle, topic: str, group: str
) -> None:
    """A record and its error are freed without a garbage collection."""

    class FailedError(Exception): ...

    failures: list[weakref.ref[FailedError]] = []

    def handle(record: Record) -> None:
        error = FailedError()
        failures.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error

    gc.disable()
    try:
        async with running(member(kafka, topic, group), handle, dead_letter=DROP, breaker=None):
            await until(lambda: len(failures) == 10 and not any(each() for each in failures))
    finally:
        gc.enable()


# --- What is refused ----------------------------------------------------------------------------
@pytest.mark.real_if_long
@pytest.mark.parametrize("batch_size", [None, 3])
async def test_a_plain_function_that_returns_a_coroutine_ends_run(
    kafka: KafkaHandle, topic: str, group: str, batch_size: int | None
) -> None:
    """Otherwise nobody would await it, and the record be lost."""

    async def handle(given: object) -> None:
        """Handle records."""

    dead: list[object] = []

    async def bury(record: object) -> None:
        dead.append(record)

    async with timeout(PATIENCE_S), member(kafka, topic, group) as consumer:
        with pytest.raises(NoHandlerError, match="make it an async def function"):
            await consumer.run(
                lambda given: handle(given),
                batch_size=batch_size, retry=Retry(), dead_letter=bury,
            )  # fmt: skip
    assert dead == []
    assert await committed(kafka, group, topic) in (None, 0)
