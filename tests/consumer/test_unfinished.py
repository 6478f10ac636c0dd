"""What was returned and is not finished: in the lag, in the state of its partition, in health()."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import cast

import pytest

from aiokafka_lite import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker, NewRecord
from aiokafka_lite.consumer.monitoring.diagnosis import Cause
from aiokafka_lite.consumer.monitoring.health import LONG_STANDSTILL_S
from aiokafka_lite.consumer.positions import resolver
from aiokafka_lite.consumer.positions.resolver import STALE_S, TICK_S
from aiokafka_lite.processing import CircuitBreaker, Retry
from aiokafka_lite.protocol.messages.offsets import ListOffsetsRequest
from aiokafka_lite.structs import ConsumerRecord
from tests.support.cluster import KafkaHandle, unique
from tests.support.reading import committed, consumer_of
from tests.support.rows import rows
from tests.support.waiting import eventually, until

Record = ConsumerRecord[bytes | None, bytes | None]
Way = Callable[[AIOKafkaConsumer, KafkaHandle], AbstractAsyncContextManager[None]]
T0 = TopicPartition("t", 0)


def partition_row(consumer: AIOKafkaConsumer, partition: int = 0) -> dict[str, object]:
    """The row of a partition in the metrics."""
    rows_of_all = cast("list[dict[str, object]]", consumer.metrics()["partitions"])
    (row,) = [row for row in rows_of_all if row["partition"] == partition]
    return row


# Each finishes three of ten records, has seven in hand within its block, and finishes them then.


@asynccontextmanager
async def by_run(consumer: AIOKafkaConsumer, kafka: KafkaHandle) -> AsyncIterator[None]:
    may_end = asyncio.Event()

    async def handle(record: Record) -> None:
        if record.offset >= 3:
            await may_end.wait()

    running = asyncio.create_task(consumer.run(handle, concurrency=2, order=None))
    yield
    may_end.set()
    await until(lambda: consumer.health().lag == 0)
    running.cancel()
    await asyncio.wait([running])


@asynccontextmanager
async def by_acknowledgements(
    consumer: AIOKafkaConsumer, kafka: KafkaHandle
) -> AsyncIterator[None]:
    taken: list[Record] = []
    while len(taken) < 10:
        for records in (await consumer.poll(timeout_ms=1_000)).values():
            taken += records
    # The first unfinished one is what counts, not how many there are.
    for record in (*taken[:3], taken[5]):
        record.ack()
    yield
    for record in taken:
        record.ack()


@asynccontextmanager
async def by_batch(consumer: AIOKafkaConsumer, kafka: KafkaHandle) -> AsyncIterator[None]:
    async with consumer.batch(max_records=3):
        pass
    async with consumer.batch(max_records=7):
        yield


@asynccontextmanager
async def by_reads(consumer: AIOKafkaConsumer, kafka: KafkaHandle) -> AsyncIterator[None]:
    assert await consumer.poll(timeout_ms=10_000, max_records=3)
    assert await consumer.poll(timeout_ms=10_000, max_records=7)
    yield
    await consumer.poll(timeout_ms=1)


@asynccontextmanager
async def by_transaction(consumer: AIOKafkaConsumer, kafka: KafkaHandle) -> AsyncIterator[None]:
    async with AIOKafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers, transactional_id=unique("tx")
    ) as producer:
        for max_records in (3, 7):
            async with (
                producer.transaction() as tx,
                consumer.batch(max_records=max_records) as batch,
            ):
                tx.commit_offsets(batch)
                if max_records == 7:
                    yield


WAYS: tuple[tuple[Way, dict[str, object], str], ...] = (
    (by_run, {}, "some records of offsets 3 to 9 are not processed yet"),
    (
        by_acknowledgements,
        {"ack_mode": "explicit"},
        "some records of offsets 3 to 9 are not processed yet",
    ),
    (by_batch, {}, "offsets 3 to 9 belong to a batch() block that has not ended"),
    (by_reads, {}, "offsets 3 to 9 are unfinished until the next read"),
    (
        by_transaction,
        {"enable_auto_commit": False},
        "offsets 3 to 9 belong to a transaction that has not ended",
    ),
)


@pytest.mark.parametrize(
    ("way", "settings", "words"), WAYS, ids=lambda each: getattr(each, "__name__", "")
)
async def test_lag_is_that_of_the_group_and_no_partition_is_at_its_end(
    kafka: KafkaHandle, way: Way, settings: dict[str, object], words: str
) -> None:
    topic, group = await kafka.create_topic(), unique("group")
    tp = TopicPartition(topic, 0)
    await kafka.produce(topic, 0, rows(0, 10))
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=kafka.bootstrap_servers,
        group_id=group,
        auto_offset_reset="earliest",
        auto_commit_interval_ms=50,
        **settings,  # type: ignore[arg-type]
    )
    async with timeout(30), consumer:
        async with way(consumer, kafka):
            await until(lambda: consumer.health().lag == 7)
            assert (consumer.metrics()["lag"], partition_row(consumer)["lag"]) == (7, 7)
            await eventually(lambda: committed(kafka, group, tp), 3)
            await until(lambda: partition_row(consumer)["state"] == "unfinished")
            assert words in consumer.explain(tp)
        await until(lambda: consumer.health().lag == 0)
        await until(lambda: partition_row(consumer)["state"] == "at_end")


@pytest.mark.real_if_long
async def test_records_to_be_acknowledged_are_at_work_or_wait_to_be_returned_again(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 10))
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=kafka.bootstrap_servers,
        group_id=unique("group"),
        auto_offset_reset="earliest",
        ack_mode="explicit",
    )
    async with timeout(30), consumer:
        taken: list[Record] = [await consumer.getone() for _ in range(9)]
        taken[4].ack()
        for record in taken[6:8]:
            record.nack(delay_ms=60_000)
        handling = consumer.health().handling
        assert handling is not None
        assert (handling.at_work, handling.waiting_for_retry, handling.unfinished) == (6, 2, 9)
        taken[6].ack()  # it is not returned again
        handling = consumer.health().handling
        assert handling is not None
        assert (handling.at_work, handling.waiting_for_retry) == (6, 1)
        for record in taken:
            record.ack()


@pytest.mark.real_if_long
async def test_partitions_whose_handlers_are_paused_are_in_trouble(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=2)
    await kafka.produce(topic, 0, rows(0, 5))
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=kafka.bootstrap_servers,
        group_id=unique("group"),
        auto_offset_reset="earliest",
    )

    async def handle(record: Record) -> None:
        raise ConnectionError

    retry, breaker = Retry(attempts=None), CircuitBreaker(min_calls=1, first_pause_ms=30_000)
    async with timeout(30), consumer:
        running = asyncio.create_task(consumer.run(handle, retry=retry, breaker=breaker))
        await until(lambda: partition_row(consumer)["state"] == Cause.HANDLERS_PAUSED)
        assert "circuit breaker" in consumer.explain(TopicPartition(topic, 0))
        # Without records there is nothing that a handler would do.
        await until(lambda: partition_row(consumer, 1)["state"] == "at_end")
        (reason,) = consumer.health().reasons
        assert reason.startswith("handling has been paused")
        running.cancel()
        await asyncio.wait([running])


async def test_a_delay_topic_whose_records_are_not_due_says_so(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    retry = Retry(after=1, topic=f"{topic}.retry", delays=[600])
    (name,) = retry.delay_topics
    await kafka.create_topic(name)
    await kafka.produce(topic, 0, rows(0, 2))
    delayed = TopicPartition(name, 0)

    async def handle(record: Record) -> None:
        raise ValueError("bad")

    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=kafka.bootstrap_servers,
        group_id=unique("group"),
        auto_offset_reset="earliest",
    )
    async with timeout(60), consumer:
        dead = await kafka.create_topic()
        running = asyncio.create_task(
            consumer.run(handle, retry=retry, breaker=None, dead_letter=dead)
        )

        def states() -> dict[object, object]:
            found = cast("list[dict[str, object]]", consumer.metrics()["partitions"])
            return {row["topic"]: row["state"] for row in found}

        await until(lambda: states().get(name) == Cause.DELAYED)
        assert "is not due" in consumer.explain(delayed)
        running.cancel()
        await asyncio.wait([running])


# --- What stands still --------------------------------------------------------------------------
@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as broker:
        broker.create_topic("t")
        broker.produce_all("t", [NewRecord(str(number)) for number in range(10)])
        yield broker


async def nothing_is_asked(consumer: AIOKafkaConsumer) -> None:
    """Return at once, and never ask for records."""


async def one_is_in_hand(consumer: AIOKafkaConsumer) -> None:
    await consumer.getone()


async def none_is_acknowledged(consumer: AIOKafkaConsumer) -> None:
    async for record in consumer:
        if record.offset:
            record.ack()


async def a_handler_hangs(consumer: AIOKafkaConsumer, max_uncommitted: int = 10) -> None:
    async def handle(record: Record) -> None:
        if not record.offset:
            await asyncio.sleep(1_000)

    await consumer.run(handle, max_uncommitted=max_uncommitted)


async def a_record_is_tried_again(consumer: AIOKafkaConsumer) -> None:
    async def handle(record: Record) -> None:
        if not record.offset:
            raise ConnectionError

    await consumer.run(handle, retry=Retry(attempts=None, max_delay_ms=1_000), breaker=None)


STANDSTILLS = (
    (nothing_is_asked, "the application has requested no records"),
    (one_is_in_hand, "the application has requested no records"),
    (none_is_acknowledged, "t/0 offset 0 was returned"),
    (a_handler_hangs, "t/0 offset 0, key None, was passed to its handler"),
    (a_record_is_tried_again, "t/0 offset 0, key None, failed, and is tried again"),
)


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("read", "words"), STANDSTILLS, ids=lambda each: getattr(each, "__name__", "")
)
async def test_health_is_not_ok_when_nothing_was_finished_for_thirty_seconds(
    broker: Broker, read: Callable[[AIOKafkaConsumer], Coroutine[object, object, None]], words: str
) -> None:
    settings = {"ack_mode": "explicit"} if read is none_is_acknowledged else {}
    consumer = consumer_of(broker, "t", group_id="g", max_poll_interval_ms=300_000, **settings)
    async with consumer:
        reading = asyncio.create_task(read(consumer))
        await asyncio.sleep(LONG_STANDSTILL_S - 5)
        assert consumer.health().is_ok
        await asyncio.sleep(10.1)
        (reason,) = consumer.health().reasons
        assert reason.startswith("t/0: no record from offset 0 on has been finished for ")
        assert words in reason
        assert not consumer.health().is_ok
        standstill_s = partition_row(consumer)["standstill_seconds"]
        assert isinstance(standstill_s, float)
        assert LONG_STANDSTILL_S <= standstill_s <= 30.1
        reading.cancel()
        await asyncio.wait([reading])


@pytest.mark.virtual_time
async def test_what_is_paused_or_at_its_end_does_not_stand_still(broker: Broker) -> None:
    broker.add_partitions("t", 2)
    async with consumer_of(broker, "t", group_id="g") as consumer:
        await consumer.getone()
        consumer.pause(T0)
        reading = asyncio.ensure_future(consumer.getone())
        await asyncio.sleep(100)
        assert consumer.health().is_ok
        for partition in range(2):
            assert partition_row(consumer, partition)["standstill_seconds"] == 0.0
        consumer.resume(T0)
        await reading


@pytest.mark.virtual_time
async def test_a_transaction_that_stays_open_is_told(broker: Broker) -> None:
    settings = {"isolation_level": "read_committed", "group_id": "g"}
    producer = AIOKafkaProducer(
        bootstrap_servers=broker.bootstrap_servers,
        transactional_id="tx",
        transaction_timeout_ms=600_000,
    )
    async with producer, consumer_of(broker, "t", **settings) as consumer:
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"open", partition=0)
        reading = asyncio.create_task(read_all(consumer))
        await asyncio.sleep(40)
        (reason,) = consumer.health().reasons
        assert "a transaction is open at offset 10" in reason
        await producer.commit_transaction()
        await asyncio.sleep(1)
        assert consumer.health().is_ok
        reading.cancel()
        await asyncio.wait([reading])


async def read_all(consumer: AIOKafkaConsumer) -> None:
    async for _ in consumer:
        pass


# --- Ends of logs of which nothing is fetched ----------------------------------------------------
@pytest.mark.few_rows(4)
@pytest.mark.virtual_time
@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("why", ["paused", "handlers are busy", "nobody asks"])
async def test_the_lag_grows_with_a_log_of_which_nothing_is_fetched(
    broker: Broker, why: str, isolation_level: str
) -> None:
    settings = {"group_id": "g", "isolation_level": isolation_level}
    reading = None
    async with consumer_of(broker, "t", **settings) as consumer:
        if why == "paused":
            await consumer.getone()
            consumer.pause(T0)
        elif why == "handlers are busy":
            reading = asyncio.create_task(a_handler_hangs(consumer, max_uncommitted=2))
        await asyncio.sleep(2)
        for total in (100, 1_000):
            end = broker.partition("t", 0).high_watermark
            broker.produce_all("t", [NewRecord("more")] * (total - end))
            await asyncio.sleep(STALE_S + TICK_S + 0.1)
            assert consumer.health().lag == total
        if reading is not None:
            reading.cancel()
            await asyncio.wait([reading])


@pytest.mark.virtual_time
async def test_nobody_is_asked_for_the_end_of_a_log_that_a_fetch_waits_at(broker: Broker) -> None:
    rule = broker.on("ListOffsets").delay(0)
    async with consumer_of(broker, "t", group_id="g") as consumer:
        reading = asyncio.create_task(read_all(consumer))
        await asyncio.sleep(5)
        asked = rule.hits
        await asyncio.sleep(100)
        assert rule.hits == asked
        reading.cancel()
        await asyncio.wait([reading])


@pytest.mark.virtual_time
async def test_very_many_ends_are_asked_for_some_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resolver, "MOST_ASKED", 2)
    async with Broker() as broker:
        broker.create_topic("t", 5)
        async with consumer_of(broker, "t", group_id="g") as consumer:
            consumer.pause(*consumer.assignment())
            await asyncio.sleep(STALE_S + TICK_S)
            broker.produce_all("t", [NewRecord("more", partition=n) for n in range(5)])
            broker.requests.clear()
            await asyncio.sleep(4 * TICK_S)
            for asked in broker.requests.of("ListOffsets"):
                (topic,) = cast("ListOffsetsRequest", asked.request).topics
                assert len(topic.partitions) <= 2
            assert consumer.health().lag == 5
