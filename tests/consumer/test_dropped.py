"""Consumers that nobody stopped and nobody holds give up what they had when they are collected."""

from __future__ import annotations

import asyncio
import gc
import time
import warnings
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from aiokafka_lite._compat import timeout
from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.broker import Broker, NewRecord
from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import ConsumerStoppedError
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.support.cluster import KafkaHandle, unique
from tests.support.leftovers import nothing_left
from tests.support.protocols import PROTOCOLS, in_both_protocols
from tests.support.reading import reading
from tests.support.rows import rows

PATIENCE_S = 20.0
TEN = [NewRecord(b"%d" % number) for number in range(10)]


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """A broker with ten records in "t"."""
    async with Broker() as broker:
        broker.create_topic("t")
        broker.produce_all("t", TEN)
        yield broker


def consumer_of(servers: str, *topics: str, **arguments: object) -> AIOKafkaConsumer:
    settings: dict[str, object] = {
        "bootstrap_servers": servers,
        "auto_offset_reset": "earliest",
        "heartbeat_interval_ms": 50,
        "fetch_max_wait_ms": 100,
        **arguments,
    }
    return AIOKafkaConsumer(*topics, **settings)  # type: ignore[arg-type]


@contextmanager
def warned_once() -> Iterator[None]:
    """The block drops one consumer, and that is said once."""
    told: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", ResourceWarning)
        # Not recorded, as a record holds what it is about.
        warnings.showwarning = lambda message, *_, **__: told.append(str(message))
        yield
    assert [each.split(" <")[0] for each in told] == ["Unclosed AIOKafkaConsumer"]


@asynccontextmanager
async def all_given_up() -> AsyncIterator[None]:
    """The block drops one consumer, of which no task, socket, timer or error is left."""
    loop = asyncio.get_running_loop()
    told: list[object] = []
    async with nothing_left(is_collected=False):
        loop.set_exception_handler(lambda _, context: told.append(context["message"]))
        with warned_once():
            yield
            gc.collect()
        for _ in range(3):  # for errors of tasks that are collected
            await asyncio.sleep(0)
    assert told == ["Unclosed AIOKafkaConsumer"]


async def start_and_drop(
    servers: str, *topics: str, records: int = 1, **arguments: object
) -> weakref.ref[AIOKafkaConsumer]:
    """Drop a consumer that has read."""
    consumer = consumer_of(servers, *topics, **arguments)
    await consumer.start()
    for _ in range(records):
        await consumer.getone()
    return weakref.ref(consumer)


# --- What it had -----------------------------------------------------------------------------
@pytest.mark.real_if_long
async def test_a_dropped_consumer_leaves_no_task_socket_or_timer(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=2)
    await kafka.produce(topic, 0, rows(0, 10))
    for group_id, protocol in ((None, "auto"), *((unique("group"), each) for each in PROTOCOLS)):
        async with all_given_up():
            dropped = await start_and_drop(
                kafka.bootstrap_servers, topic, group_id=group_id, group_protocol=protocol
            )
            assert dropped() is None


@in_both_protocols
async def test_partitions_of_a_dropped_member_go_to_the_next(
    kafka: KafkaHandle, protocol: str
) -> None:
    topic, group = await kafka.create_topic(), unique("group")
    await kafka.produce(topic, 0, rows(0, 10))
    loop = asyncio.get_running_loop()
    async with all_given_up():
        settings: dict[str, Any] = {"group_id": group, "group_protocol": protocol}
        await start_and_drop(kafka.bootstrap_servers, topic, records=5, **settings)
        began = loop.time()
        async with reading(kafka, topic, **settings) as successor:
            assert successor.assignment() == {TopicPartition(topic, 0)}
            # Nothing was committed: nobody knows what became of the five.
            assert (await successor.getone()).offset == 0
        # It was told that the first is gone, and need not wait for its session to end.
        assert loop.time() - began < 5.0


async def test_a_dropped_static_member_loses_its_place_with_its_session() -> None:
    async with Broker(group_min_session_timeout_ms=100) as broker, timeout(PATIENCE_S):
        broker.create_topic("t")
        broker.produce_all("t", TEN)
        settings: dict[str, Any] = {
            "group_id": "g",
            "group_protocol": "classic",  # whose session is as short as it says
            "session_timeout_ms": 500,
        }
        with warned_once():
            await start_and_drop(
                broker.bootstrap_servers, "t", **settings, group_instance_id="worker-1"
            )
        async with consumer_of(broker.bootstrap_servers, "t", **settings) as successor:
            assert successor.assignment() == {TopicPartition("t", 0)}
            assert not broker.requests.of("LeaveGroup")


# --- Who holds it ----------------------------------------------------------------------------
class Application(ConsumerRebalanceListener):
    """Knows its consumer, and gives it everything that can be given: a cycle of references."""

    def __init__(self, servers: str, topic: str, group_id: str | None) -> None:
        self.revoked = 0
        self.consumer = consumer_of(
            servers,
            group_id=group_id,
            key_deserializer=self.decode,
            value_deserializer=self.decode,
            on_bad_record=self.decide,
        )
        self.consumer.subscribe([topic], listener=self)
        self.events = self.consumer.events()

    def decode(self, payload: bytes | None) -> object:
        return payload

    def decide(self, bad: object) -> str:
        return "skip"

    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        self.revoked += 1

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        await self.consumer.committed(TopicPartition("nowhere", 0))

    async def read(self, count: int) -> None:
        await self.consumer.start()
        for _ in range(count):
            await self.consumer.getone()


@pytest.mark.real_if_long
async def test_a_consumer_in_a_cycle_with_its_application_is_given_up_when_collected(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 10))

    async def use() -> weakref.ref[Application]:
        application = Application(kafka.bootstrap_servers, topic, unique("group"))
        await application.read(3)
        return weakref.ref(application)

    async with all_given_up():
        dropped = await use()
        gc.collect()
        assert dropped() is None


@pytest.mark.real_if_long
async def test_a_listener_that_only_the_consumer_holds_is_called(kafka: KafkaHandle) -> None:
    topic, called = await kafka.create_topic(), asyncio.Event()

    class Listener(ConsumerRebalanceListener):
        def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
            pass

        def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
            called.set()

    consumer = consumer_of(kafka.bootstrap_servers, group_id=unique("group"))
    consumer.subscribe([topic], listener=Listener())
    gc.collect()
    async with consumer:
        assert called.is_set()


async def test_an_error_that_a_get_raised_does_not_hold_the_consumer(broker: Broker) -> None:
    async def use() -> weakref.ref[AIOKafkaConsumer]:
        def refuse(payload: bytes | None) -> object:
            raise ValueError(payload)

        consumer = consumer_of(broker.bootstrap_servers, "t", value_deserializer=refuse)
        await consumer.start()
        for _ in range(3):
            with pytest.raises(Exception, match="deserialised"):
                await consumer.getone()
        return weakref.ref(consumer)

    async with all_given_up():
        dropped = await use()
        gc.collect()
        assert dropped() is None


async def test_an_error_that_ended_run_does_not_hold_the_consumer(broker: Broker) -> None:
    async def refuse(record: ConsumerRecord) -> None:
        raise ValueError(f"no {record.offset}")

    async def run_and_drop() -> weakref.ref[AIOKafkaConsumer]:
        consumer = consumer_of(broker.bootstrap_servers, "t")
        await consumer.start()
        try:
            await consumer.run(refuse)
        except ValueError:  # whose traceback has this frame
            assert any("run() ended with ValueError" in each for each in consumer.health().reasons)
        return weakref.ref(consumer)

    async with all_given_up():
        dropped = await run_and_drop()
        gc.collect()
        assert dropped() is None


async def test_a_get_that_waits_keeps_its_consumer(broker: Broker) -> None:
    broker.create_topic("empty")

    async def begin() -> asyncio.Task[object]:
        consumer = consumer_of(broker.bootstrap_servers, "empty", group_id="g")
        await consumer.start()
        waiting: asyncio.Task[object] = asyncio.create_task(consumer.getone())
        await asyncio.sleep(0)
        return waiting

    async with all_given_up():
        waiting = await begin()
        gc.collect()
        broker.produce_all("empty", TEN)
        record = await waiting
        assert getattr(record, "offset", None) == 0
        del waiting


@pytest.mark.parametrize("how", ["records", "batches"])
async def test_iterating_over_a_consumer_that_nobody_else_holds_goes_on(
    broker: Broker, how: str
) -> None:
    async def offsets(consumer: AIOKafkaConsumer) -> AsyncGenerator[list[int], None]:
        if how == "records":
            async for record in consumer:
                yield [record.offset]
        else:
            pytest.importorskip("pyarrow")
            async for batch in consumer.batches(max_rows=3):
                yield batch.column("offset").to_pylist()

    async def started() -> AIOKafkaConsumer:
        consumer = consumer_of(broker.bootstrap_servers, "t", group_id="g")
        await consumer.start()
        return consumer

    async with all_given_up(), timeout(PATIENCE_S):
        found: list[int] = []
        iterator = offsets(await started())
        async for some in iterator:
            gc.collect()
            found += some
            if len(found) >= 10:
                break
        await iterator.aclose()
        del iterator
    assert found == list(range(10))


# --- What the others see ---------------------------------------------------------------------
async def test_events_of_a_dropped_consumer_end(broker: Broker) -> None:
    async def use() -> list[str]:
        consumer = consumer_of(broker.bootstrap_servers, "t", group_id="g")
        events = consumer.events()
        await consumer.start()
        del consumer
        return [event.name async for event in events]

    async with all_given_up(), timeout(PATIENCE_S):
        assert "assigned" in await use()


async def test_a_consumer_that_comes_back_to_life_is_stopped(broker: Broker) -> None:
    """Whoever hears of it may hold it: the handler of the loop, the warning's source."""
    kept: list[AIOKafkaConsumer] = []
    loop = asyncio.get_running_loop()
    async with nothing_left(is_collected=False):
        loop.set_exception_handler(lambda _, context: kept.append(context["consumer"]))
        with warned_once():
            await start_and_drop(broker.bootstrap_servers, "t", group_id="g")
        await asyncio.sleep(0)
        (consumer,) = kept
        with pytest.raises(ConsumerStoppedError):
            await consumer.getone()
        assert await consumer.stop() == {}
        assert consumer.health().verdict == "dead"


# --- Where and when --------------------------------------------------------------------------
@pytest.mark.every_loop
async def test_a_consumer_that_another_thread_collects_is_given_up(broker: Broker) -> None:
    async def in_a_cycle() -> None:
        consumer = consumer_of(broker.bootstrap_servers, "t", group_id="g")
        await consumer.start()
        consumer.itself = consumer  # type: ignore[attr-defined]

    gc.collect()
    gc.disable()
    try:
        async with nothing_left(is_collected=False):
            loop = asyncio.get_running_loop()
            told: list[object] = []
            loop.set_exception_handler(lambda _, context: told.append(context["message"]))
            with warned_once():
                await in_a_cycle()
                await asyncio.to_thread(gc.collect)
            await loop.shutdown_default_executor()
        assert told == ["Unclosed AIOKafkaConsumer"]
    finally:
        gc.enable()


@pytest.fixture
def broker_thread() -> Iterator[BrokerThread]:
    """A broker that lives on when loops end."""
    with BrokerThread() as thread:
        thread.create_topic("t")
        yield thread


@pytest.mark.parametrize("ending", ["as asyncio.run does", "closed with tasks", "between two runs"])
def test_a_consumer_dropped_when_its_loop_has_ended_leaves_nothing(
    broker_thread: BrokerThread, ending: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def started() -> AIOKafkaConsumer:
        consumer = consumer_of(broker_thread.bootstrap_servers, "t", group_id="g")
        await consumer.start()
        return consumer

    async def all_cancelled() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            assert task is not None
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    loop = asyncio.new_event_loop()
    consumer = loop.run_until_complete(started())
    if ending == "as asyncio.run does":
        loop.run_until_complete(all_cancelled())
    if ending != "between two runs":
        loop.close()
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("always", ResourceWarning)
        told: list[str] = []
        warnings.showwarning = lambda message, *_, **__: told.append(str(message))
        dropped = weakref.ref(consumer)
        del consumer
        gc.collect()
        if ending == "between two runs":
            loop.run_until_complete(asyncio.sleep(0.01))
            loop.close()
        gc.collect()
    assert dropped() is None
    # asyncio says of its transports that they were not closed, which it did not let us do.
    assert {each.split(" <")[0] for each in told} - {"unclosed transport"} == {
        "Unclosed AIOKafkaConsumer"
    }
    assert "destroyed" not in caplog.text
    deadline = time.monotonic() + PATIENCE_S
    while broker_thread.call(lambda broker: broker.connection_count):
        assert time.monotonic() < deadline
        time.sleep(0.005)
