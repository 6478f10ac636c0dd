"""`run` of a share consumer: ends of records, retries under a lease, lost leases, stops."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from aiokafka_lite import AIOKafkaShareConsumer
from aiokafka_lite._compat import timeout
from aiokafka_lite.errors import IllegalStateError, LeaseLostError
from aiokafka_lite.events import LeaseLost
from aiokafka_lite.processing import DROP, CircuitBreaker, DeadLetters, DeadRecord, Retry, Router
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.consumer.sharing.reading import (
    LEAST_LOCK_MS,
    PATIENCE_S,
    Record,
    filled,
    member,
    new_group,
    offsets,
    running,
    take,
)
from tests.support.cluster import KafkaHandle
from tests.support.rows import rows
from tests.support.waiting import until

pytestmark = pytest.mark.virtual_time_if_embedded

QUICK = Retry(attempts=3, first_delay_ms=10, max_delay_ms=20)


class Seen:
    """Handlers, and the records that they have received."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    @property
    def offsets(self) -> list[int]:
        return sorted(offsets(self.records))

    async def handle(self, record: Record) -> None:
        self.records.append(record)

    async def fail(self, record: Record) -> None:
        self.records.append(record)
        raise ConnectionError("down")

    async def block(self, record: Record) -> None:
        self.records.append(record)
        await asyncio.Event().wait()


async def left_in(kafka: KafkaHandle, topic: str, group: str) -> dict[int, int]:
    """Return the delivery counts of the records that the group still has, by offset."""
    async with member(kafka, topic, group) as consumer:
        found: dict[int, int] = {}
        while lists := await consumer.getmany(timeout_ms=1_500):
            found |= {r.offset: r.delivery_count for records in lists.values() for r in records}
    return found


async def test_records_are_accepted_when_their_handlers_return(kafka: KafkaHandle) -> None:
    topic, group = await filled(kafka, 30, partitions=2), await new_group(kafka)
    seen, consumer = Seen(), member(kafka, topic, group)
    async with running(consumer, seen.handle, concurrency=8):
        await until(lambda: len(seen.records) == 60)
        await until(lambda: consumer.metrics()["processing_finished_total"] == 60)
        with pytest.raises(IllegalStateError, match="active"):
            await consumer.getone()
        with pytest.raises(IllegalStateError, match="already active"):
            await consumer.run(seen.handle, stop_on=())
    assert Counter(seen.offsets) == dict.fromkeys(range(30), 2)
    assert await left_in(kafka, topic, group) == {}


async def test_retries_keep_the_lease_and_the_delivery_count(kafka: KafkaHandle) -> None:
    topic, group = await filled(kafka, 1), await new_group(kafka)
    seen, dead = Seen(), list[DeadRecord]()

    async def bury(each: DeadRecord) -> None:
        dead.append(each)

    async with running(
        member(kafka, topic, group), seen.fail, retry=QUICK, dead_letter=bury, breaker=None
    ):
        await until(lambda: len(dead) == 1)
        await asyncio.sleep(0.1)
    assert [record.delivery_count for record in seen.records] == [1, 1, 1]
    assert dead[0].attempts == 3
    assert await left_in(kafka, topic, group) == {}


@pytest.mark.parametrize("letter", ["reject", DROP, {ConnectionError: "reject"}])
async def test_a_record_without_attempts_left_is_delivered_no_more(
    kafka: KafkaHandle, letter: Any
) -> None:
    topic, group = await filled(kafka, 1), await new_group(kafka)
    seen, consumer = Seen(), member(kafka, topic, group)
    name = "dropped" if letter is DROP else "rejected"
    async with running(consumer, seen.fail, dead_letter=letter, breaker=None):
        await until(lambda: consumer.metrics()[f"processing_{name}_total"] == 1)
    counts = consumer.metrics()
    assert counts["leases_rejected_total"] == int(letter is not DROP)
    assert len(seen.records) == 1
    assert await left_in(kafka, topic, group) == {}


async def test_dead_letters_have_the_record_and_its_group(kafka: KafkaHandle) -> None:
    topic, group = await filled(kafka, 1), await new_group(kafka)
    letters, letter_group = await kafka.create_topic(), await new_group(kafka)
    seen, consumer = Seen(), member(kafka, topic, group)
    settings: dict[str, Any] = {"retry": QUICK, "breaker": None}
    async with running(consumer, seen.fail, dead_letter=DeadLetters(letters), **settings):
        await until(lambda: consumer.metrics()["processing_dead_total"] == 1)
    async with timeout(PATIENCE_S), member(kafka, letters, letter_group) as reader:
        (letter,) = await take(reader, 1)
    headers = dict(letter.headers)
    assert letter.value == b"value 0"
    assert headers["__dlq.errors.group"] == group.encode()
    assert await left_in(kafka, topic, group) == {}


async def test_without_dead_letters_the_error_ends_run_and_the_record_is_released(
    kafka: KafkaHandle,
) -> None:
    topic, group = await filled(kafka, 1), await new_group(kafka)
    async with timeout(PATIENCE_S), member(kafka, topic, group) as consumer:
        with pytest.raises(ConnectionError):
            await consumer.run(Seen().fail, stop_on=())
        (record,) = await take(consumer, 1)  # the consumer goes on
        assert record.delivery_count == 2


async def test_an_error_of_run_releases_the_records_that_wait(kafka: KafkaHandle) -> None:
    topic, group = await kafka.create_topic(), await new_group(kafka)
    async with (
        timeout(PATIENCE_S),
        member(kafka, topic, group, fetch_max_wait_ms=10_000) as consumer,
    ):
        await until(lambda: bool(consumer.assignment()))
        reading = asyncio.create_task(consumer.getmany(max_records=5, timeout_ms=None))
        await asyncio.sleep(0.2)
        reading.cancel()
        await asyncio.wait([reading])
        await kafka.produce(topic, 0, rows(0, 5))
        await until(lambda: consumer.health().held == 5)
        with pytest.raises(ConnectionError):
            await consumer.run(Seen().fail, concurrency=1, stop_on=())
        await until(lambda: consumer.metrics()["leases_released_total"] == 5)
        assert consumer.health().held == 0


async def test_bad_values_are_dead_letters_with_their_bytes(kafka: KafkaHandle) -> None:
    topic, group = await kafka.create_topic(), await new_group(kafka)
    await kafka.produce(topic, 0, [(None, b"1"), (None, b"x"), (None, b"3")])
    found, dead = list[object](), list[DeadRecord]()

    async def handle(record: ConsumerRecord[Any, Any]) -> None:
        found.append(record.value)

    async def bury(each: DeadRecord) -> None:
        dead.append(each)

    consumer = member(kafka, topic, group, value_deserializer=int)
    async with running(consumer, handle, dead_letter=bury, retry=QUICK):
        await until(lambda: len(found) == 2 and len(dead) == 1)
    assert sorted(found) == [1, 3]  # type: ignore[type-var]
    assert (dead[0].value, dead[0].attempts) == (b"x", 1)


async def test_an_open_breaker_releases_new_records_and_fetches_none(kafka: KafkaHandle) -> None:
    topic, group = await filled(kafka, 50), await new_group(kafka)
    seen, consumer = Seen(), member(kafka, topic, group)
    breaker = CircuitBreaker(min_calls=4, first_pause_ms=60_000, max_pause_ms=60_000)
    async with running(consumer, seen.fail, concurrency=4, retry=QUICK, breaker=breaker):
        await until(lambda: consumer.health().handling and consumer.health().handling.is_paused)  # type: ignore[union-attr]
        await asyncio.sleep(0.2)
        calls = len(seen.records)
        assert calls < 20
        assert consumer.health().held <= 8
        async with member(kafka, topic, group) as other:
            assert len(await take(other, 30)) == 30
        assert len(seen.records) == calls


async def test_the_stop_waits_for_handlers_and_releases_what_is_left(kafka: KafkaHandle) -> None:
    topic, group = await filled(kafka, 4), await new_group(kafka)
    consumer, begun, cancelled = member(kafka, topic, group), list[int](), list[int]()

    async def handle(record: Record) -> None:
        begun.append(record.offset)
        try:
            await asyncio.sleep(0.3 if record.offset else 60)
        except asyncio.CancelledError:
            cancelled.append(record.offset)
            raise

    async with timeout(PATIENCE_S):
        await consumer.start()
        task = asyncio.create_task(consumer.run(handle, concurrency=2, stop_on=()))
        await until(lambda: len(begun) == 2)
        await consumer.stop(timeout=1.5)
        await task
    assert cancelled == [0]
    left = await left_in(kafka, topic, group)
    assert left.pop(0) == 2
    assert set(left) == set(range(4)) - set(begun)


async def test_a_handler_may_stop_the_consumer(kafka: KafkaHandle) -> None:
    topic, group = await filled(kafka, 1), await new_group(kafka)
    async with timeout(PATIENCE_S):
        async with member(kafka, topic, group) as consumer:
            ended = list[bool]()

            async def handle(record: Record) -> None:
                await consumer.stop()
                ended.append(True)

            await consumer.run(handle, stop_on=())
        assert ended == [True]


async def test_a_task_of_a_handler_may_stop_the_consumer(kafka: KafkaHandle) -> None:
    topic, group = await filled(kafka, 1), await new_group(kafka)
    async with timeout(PATIENCE_S), member(kafka, topic, group) as consumer:
        ended = list[bool]()

        async def handle(record: Record) -> None:
            await asyncio.create_task(consumer.stop())
            ended.append(True)

        await consumer.run(handle, stop_on=())
        assert ended == [True]


async def test_a_handler_may_stop_the_consumer_that_is_stopping(kafka: KafkaHandle) -> None:
    topic, group = await filled(kafka, 1), await new_group(kafka)
    begun, stopping, ended = asyncio.Event(), asyncio.Event(), list[bool]()
    consumer = member(kafka, topic, group)

    async def handle(record: Record) -> None:
        begun.set()
        await stopping.wait()
        await consumer.stop()
        ended.append(True)

    async with running(consumer, handle):
        await begun.wait()
        asyncio.get_running_loop().call_later(0.2, stopping.set)
        await consumer.stop()
    assert ended == [True]


async def test_a_cancelled_run_releases_its_records(kafka: KafkaHandle) -> None:
    topic, group = await filled(kafka, 2), await new_group(kafka)
    seen = Seen()
    async with timeout(PATIENCE_S), member(kafka, topic, group) as consumer:
        task = asyncio.create_task(consumer.run(seen.block, stop_on=()))
        await until(lambda: len(seen.records) == 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [record.delivery_count for record in await take(consumer, 2)] == [2, 2]


@pytest.mark.slow
async def test_a_handler_longer_than_the_lock_keeps_its_record(kafka: KafkaHandle) -> None:
    group = await new_group(kafka, record_lock_duration_ms=LEAST_LOCK_MS)
    topic, seen, done = await filled(kafka, 3), Seen(), list[int]()

    async def handle(record: Record) -> None:
        seen.records.append(record)
        await asyncio.sleep(LEAST_LOCK_MS / 1000 + 2)
        done.append(record.offset)

    async with running(member(kafka, topic, group), handle):
        await until(lambda: len(seen.records) == 3)
        async with member(kafka, topic, group) as other:
            reading = asyncio.create_task(other.getone())
            await until(lambda: len(done) == 3)
            assert not reading.done()
            reading.cancel()
            await asyncio.wait([reading])
    assert seen.offsets == [0, 1, 2]


@pytest.mark.real_if_long
@pytest.mark.parametrize(
    "on_lease_lost", ["cancel", pytest.param("finish", marks=pytest.mark.slow)]
)
async def test_a_lost_lease_cancels_its_handler_unless_it_may_finish(
    kafka: KafkaHandle, on_lease_lost: str
) -> None:
    topic = await filled(kafka, 1)
    group = await new_group(kafka, record_lock_duration_ms=LEAST_LOCK_MS)
    consumer = member(kafka, topic, group)
    causes, done, lost = list[object](), list[int](), list[LeaseLost]()

    async def handle(record: Record) -> None:
        if record.delivery_count > 1:
            return
        try:
            await asyncio.sleep(LEAST_LOCK_MS / 1000 + 2)
            done.append(record.offset)
        except asyncio.CancelledError as error:
            causes.append(error.__cause__)
            raise

    async def watch() -> None:
        async for event in consumer.events():
            if isinstance(event, LeaseLost):
                lost.append(event)

    watching = asyncio.create_task(watch())
    settings = {"max_lease_ms": 1, "on_lease_lost": on_lease_lost}
    async with running(consumer, handle, **settings):
        await until(lambda: bool(lost and (causes or done)))
        await until(lambda: consumer.metrics()["processing_finished_total"] == 1)
    await watching
    assert lost[0].tp == TopicPartition(topic, 0)
    assert lost[0].offsets == (0, 1)
    if on_lease_lost == "finish":
        assert done == [0]
        assert causes == []
    else:
        (cause,) = causes
        assert isinstance(cause, LeaseLostError)
        assert (cause.tp, cause.offset) == (TopicPartition(topic, 0), 0)
        assert "max_lease_ms" in str(cause)
        assert done == []


async def test_a_call_that_takes_too_long_fails(kafka: KafkaHandle) -> None:
    topic, group = await filled(kafka, 1), await new_group(kafka)
    dead = list[DeadRecord]()

    async def bury(each: DeadRecord) -> None:
        dead.append(each)

    consumer = member(kafka, topic, group)
    settings: dict[str, Any] = {"timeout_s": 0.1, "breaker": None}
    async with running(consumer, Seen().block, dead_letter=bury, **settings):
        await until(lambda: len(dead) == 1)
    assert isinstance(dead[0].error, TimeoutError)
    assert await left_in(kafka, topic, group) == {}


@dataclass
class Order:
    id: int


async def test_typed_handlers_routers_and_middleware_are_those_of_consumers(
    kafka: KafkaHandle,
) -> None:
    topic, group = await kafka.create_topic(), await new_group(kafka)
    await kafka.produce(topic, 0, [(None, b'{"id": 7}')])
    found, around = list[int](), list[int]()

    async def handle(order: Order, record: Record) -> None:
        found.append(order.id)

    async def note(record: Record, call_next: Any) -> None:
        around.append(record.offset)
        await call_next(record)

    consumer: AIOKafkaShareConsumer[Any, Any] = AIOKafkaShareConsumer(
        group_id=group, bootstrap_servers=kafka.bootstrap_servers
    )
    async with running(consumer, Router({topic: handle}), middleware=[note]):
        await until(lambda: found == [7])
    assert around == [0]


async def test_a_topic_without_a_handler_is_refused(kafka: KafkaHandle) -> None:
    topic, group = await filled(kafka, 1), await new_group(kafka)
    async with timeout(PATIENCE_S), member(kafka, topic, group) as consumer:
        with pytest.raises(ValueError, match="has none for"):
            await consumer.run({"other": Seen().handle}, stop_on=())
        delayed = Retry(topic="later", delays=[1])
        with pytest.raises(ValueError, match="AIOKafkaConsumer"):
            await consumer.run(Seen().handle, retry=delayed, stop_on=())
        with pytest.raises(ValueError, match="on_lease_lost"):
            await consumer.run(Seen().handle, on_lease_lost="ignore", stop_on=())  # type: ignore[arg-type]
        with pytest.raises(TypeError, match='a mapping of classes of errors, "reject"'):
            await consumer.run(Seen().handle, dead_letter=5, stop_on=())  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="max_lease_ms"):
            await consumer.run(Seen().handle, max_lease_ms="1", stop_on=())  # type: ignore[arg-type]


async def test_plain_functions_run_in_threads_as_many_as_there_are_handlers(
    kafka: KafkaHandle,
) -> None:
    topic, group = await filled(kafka, 6), await new_group(kafka)
    names, consumer = set[str](), member(kafka, topic, group)

    def handle(record: Record) -> None:
        time.sleep(0.02)
        names.add(threading.current_thread().name)

    async with running(consumer, handle, concurrency=2):
        await until(lambda: consumer.metrics()["processing_finished_total"] == 6)
    assert len(names) == 2
    assert threading.main_thread().name not in names
    assert await left_in(kafka, topic, group) == {}


async def test_more_records_are_leased_only_while_handlers_are_free(kafka: KafkaHandle) -> None:
    topic, group = await filled(kafka, 100), await new_group(kafka)
    seen, consumer = Seen(), member(kafka, topic, group)
    async with running(consumer, seen.block, concurrency=3):
        await until(lambda: len(seen.records) == 3)
        await asyncio.sleep(0.3)
        assert consumer.health().held <= 6
        async with member(kafka, topic, group) as other:
            assert len(await take(other, 90)) == 90
        explained = consumer.explain(TopicPartition(topic, 0))
        assert "was passed to its handler" in explained
        await consumer.stop(timeout=0.2)


async def test_records_produced_later_are_handled_soon(kafka: KafkaHandle) -> None:
    topic, group = await kafka.create_topic(), await new_group(kafka)
    seen, consumer = Seen(), member(kafka, topic, group)
    async with running(consumer, seen.handle):
        for first in range(0, 30, 10):
            await kafka.produce(topic, 0, rows(first, 10))
            await until(lambda: len(seen.records) >= first + 10)  # noqa: B023
    assert seen.offsets == list(range(30))


# --- Workers ----------------------------------------------------------------------------------
async def test_a_worker_handles_record_after_record_until_one_fails(kafka: KafkaHandle) -> None:
    topic, group = await filled(kafka, 600), await new_group(kafka)
    tasks: dict[int, Any] = {}

    async def handle(record: Record) -> None:
        tasks[record.offset] = asyncio.current_task()
        await asyncio.sleep(60 if record.offset == 300 else 0)

    consumer = member(kafka, topic, group)
    limits: dict[str, Any] = {"timeout_s": 0.3, "dead_letter": "reject", "breaker": None}
    async with running(consumer, handle, concurrency=16, **limits):
        await until(lambda: consumer.metrics()["leases_accepted_total"] == 599)
        await until(lambda: consumer.metrics()["leases_rejected_total"] == 1)
    assert sorted(tasks) == list(range(600))
    assert len(set(tasks.values())) < 600


@pytest.mark.real_time
async def test_handlers_that_do_not_wait_leave_the_loop_to_others(kafka: KafkaHandle) -> None:
    topic, group = await filled(kafka, 300), await new_group(kafka)
    count, most, seen = 0, 0, 0

    async def handle(record: Record) -> None:
        nonlocal count
        count += 1
        time.sleep(0.001)  # noqa: ASYNC251 -- a handler that computes

    async with running(member(kafka, topic, group), handle, concurrency=100):
        while count < 300:
            await asyncio.sleep(0)
            most, seen = max(most, count - seen), count
    assert most <= 20
