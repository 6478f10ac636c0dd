"""`await consumer.commit()` in handlers of `run`, while the group rebalances."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextvars import ContextVar

import pytest

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite._compat import timeout
from aiokafka_lite.errors import IllegalStateError
from aiokafka_lite.processing import DROP, Retry
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.consumer.processing.running import member
from tests.support.cluster import KafkaHandle, unique
from tests.support.protocols import WAYS
from tests.support.rows import rows

PARTITIONS = 4
EACH = 150


@pytest.mark.few_rows(3)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("enable_auto_commit", [True, False])
async def test_handlers_that_commit_do_not_fail_when_a_rebalance_takes_partitions(
    kafka: KafkaHandle, way: str, enable_auto_commit: bool
) -> None:
    topic, group = await kafka.create_topic(partitions=PARTITIONS), unique("g")
    for number in range(PARTITIONS):
        await kafka.produce(topic, number, rows(0, EACH))
    settings: Mapping[str, object] = {
        "bootstrap_servers": kafka.bootstrap_servers,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": enable_auto_commit,
        "heartbeat_interval_ms": 100,
        "session_timeout_ms": 6_000,
        "fetch_max_wait_ms": 50,
        **WAYS[way],
    }
    seen: Counter[tuple[int, int]] = Counter()

    async def member() -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(topic, **settings)  # type: ignore[arg-type]

        async def handle(record: ConsumerRecord[bytes | None, bytes | None]) -> None:
            seen[record.partition, record.offset] += 1
            await asyncio.sleep(0.002)
            await consumer.commit()

        await consumer.start()
        running.append(asyncio.ensure_future(consumer.run(handle, concurrency=10)))
        return consumer

    running: list[asyncio.Future[None]] = []
    async with timeout(90):
        first = await member()
        while len(seen) < PARTITIONS * EACH:
            other = await member()
            await asyncio.sleep(0.3)
            await other.stop()
            assert not running[0].done() or running[0].result() is None
        await first.stop()
        for task in running:
            await task  # raises nothing
    # Without auto-commit nobody commits what was finished behind the last commit of a handler.
    assert not enable_auto_commit or set(seen.values()) == {1}


@pytest.mark.real_if_long
@pytest.mark.parametrize("is_isolated", [False, True])
async def test_a_task_that_a_handler_starts_commits_for_this_handler_only(
    kafka: KafkaHandle, is_isolated: bool
) -> None:
    topic = await kafka.create_topic()
    tp = TopicPartition(topic, 0)
    await kafka.produce(topic, 0, rows(0, 3))
    variable = ContextVar[int]("variable")
    committed: list[int | None] = []
    late: list[asyncio.Task[None]] = []
    has_last_begun = asyncio.Event()

    async with timeout(90), member(kafka, topic, unique("g")) as consumer:

        async def commit_late() -> None:
            await has_last_begun.wait()
            await consumer.commit({tp: 3})

        async def handle(record: ConsumerRecord[bytes | None, bytes | None]) -> None:
            if is_isolated:
                variable.set(record.offset)
            if record.offset < 2:
                # Its second task outlives it.
                late.append(asyncio.create_task(commit_late()))
                named = asyncio.create_task(consumer.commit({tp: record.offset + 1}))
                await asyncio.wait_for(named, 30)
                committed.append(await consumer.committed(tp))
            else:
                has_last_begun.set()
                for each in late:
                    with pytest.raises(IllegalStateError):
                        await each
                committed.append(await consumer.committed(tp))

        await consumer.run(handle, order="partition", concurrency=1, until="end")
    assert committed == [1, 2, 2]


@pytest.mark.real_if_long
@pytest.mark.parametrize("concurrency", [1, 5])
async def test_a_task_that_a_handler_starts_stops_the_consumer(
    kafka: KafkaHandle, concurrency: int
) -> None:
    """The stop waits for other handlers, and not for the one that waits for it."""
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 2))
    group, loop = unique("g"), asyncio.get_running_loop()
    taken_s: list[float] = []
    done: list[int] = []

    async with timeout(90), member(kafka, topic, group) as consumer:

        async def handle(record: ConsumerRecord[bytes | None, bytes | None]) -> None:
            if record.offset == 1 or concurrency == 1:
                began_at = loop.time()
                await asyncio.create_task(consumer.stop())
                taken_s.append(loop.time() - began_at)
            else:
                await asyncio.sleep(0.5)
            done.append(record.offset)

        await consumer.run(handle, order=None, concurrency=concurrency)
    assert done == ([0] if concurrency == 1 else [0, 1])
    assert max(taken_s) < 5


async def test_a_stop_that_outlives_its_handler_waits_for_the_next_one(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 2))
    is_stopped, has_next_begun = asyncio.Event(), asyncio.Event()
    stopping: list[asyncio.Task[object]] = []

    async with timeout(90), member(kafka, topic, unique("g")) as consumer:

        async def stop() -> None:
            await has_next_begun.wait()
            await consumer.stop()
            is_stopped.set()

        async def handle(record: ConsumerRecord[bytes | None, bytes | None]) -> None:
            if not stopping:
                stopping.append(asyncio.create_task(stop()))
            else:
                has_next_begun.set()
                await asyncio.sleep(0.5)
                assert not is_stopped.is_set()
            done.append(record.offset)

        done: list[int] = []
        await consumer.run(handle, order="partition", concurrency=1)
        await is_stopped.wait()
    assert done == [0, 1]


async def test_a_handler_of_a_delayed_record_commits_it_by_its_original_place(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic()
    attempts: Counter[int] = Counter()
    delayed = TopicPartition(await kafka.create_topic(f"{topic}.retry.0.5"), 0)
    tp = TopicPartition(topic, 0)
    await kafka.produce(topic, 0, rows(0, 3))
    committed: list[int | None] = []

    async with timeout(90), member(kafka, topic, unique("g")) as consumer:

        async def handle(record: ConsumerRecord[bytes | None, bytes | None]) -> None:
            attempts[record.offset] += 1
            if attempts[1] == 1 and record.offset == 1:
                raise ValueError(record.offset)
            await consumer.commit({tp: record.offset + 1})
            committed.append(await consumer.committed(delayed))
            if len(committed) == 3:
                await consumer.stop()

        retry = Retry(topic=f"{topic}.retry", delays=[0.5], after=1)
        await consumer.run(handle, order="partition", retry=retry, dead_letter=DROP)
    assert (len(committed), committed[2], 1 in committed[:2]) == (3, 1, False)


async def test_a_task_that_a_handler_starts_finishes_no_record_of_another_handler(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic()
    tp = TopicPartition(topic, 0)
    await kafka.produce(topic, 0, rows(0, 2))
    attempts: Counter[int] = Counter()
    has_failed = asyncio.Event()
    committed: list[int | None] = []

    async with timeout(90), member(kafka, topic, unique("g")) as consumer:

        async def handle(record: ConsumerRecord[bytes | None, bytes | None]) -> None:
            attempts[record.offset] += 1
            if record.offset == 1:
                await asyncio.create_task(consumer.commit({tp: 2}))
                committed.append(await consumer.committed(tp))
                has_failed.set()
            elif attempts[0] == 1:
                await has_failed.wait()
                raise ValueError(record.offset)

        await consumer.run(handle, order=None, retry=3, until="end")
        assert attempts == {0: 2, 1: 1}
        assert committed in ([0], [None])
        await consumer.commit()
        assert await consumer.committed(tp) == 2
