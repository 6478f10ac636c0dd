"""`consumer.batch()` in a group: a rebalance waits for the block, and only its end counts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite._compat import timeout
from aiokafka_lite.errors import (
    BatchRevokedError,
    CommitFailedError,
    IllegalStateError,
    MaxPollIntervalError,
)
from aiokafka_lite.events import Lost, Revoked, WorkAwaited
from aiokafka_lite.structs import TopicPartition
from tests.support.cluster import KafkaHandle, unique
from tests.support.events import next_event
from tests.support.protocols import WAYS
from tests.support.rows import rows
from tests.support.waiting import all_buffered, until

pytestmark = [pytest.mark.virtual_time_if_embedded, pytest.mark.real_if_long]

PARTITIONS = 2
RECORDS_EACH = 20
PATIENCE_S = 30.0


@pytest.fixture(params=WAYS)
def protocol(request: pytest.FixtureRequest) -> Mapping[str, object]:
    return WAYS[request.param]


def member(kafka: KafkaHandle, topic: str, group: str, **settings: object) -> AIOKafkaConsumer:
    arguments: dict[str, object] = {
        "bootstrap_servers": kafka.bootstrap_servers,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "heartbeat_interval_ms": 100,
        "session_timeout_ms": 6000,
        "rebalance_timeout_ms": 10_000,
        "fetch_max_wait_ms": 50,
        **settings,
    }
    return AIOKafkaConsumer(topic, **arguments)  # type: ignore[arg-type]


@asynccontextmanager
async def two(
    kafka: KafkaHandle, settings: Mapping[str, object], *, partitions: int = PARTITIONS
) -> AsyncIterator[tuple[AIOKafkaConsumer, AIOKafkaConsumer]]:
    """A member that has all of a filled topic, and one that is to join."""
    topic, group = await kafka.create_topic(partitions=partitions), unique("g")
    for number in range(partitions):
        await kafka.produce(topic, number, rows(0, RECORDS_EACH))
    async with AsyncExitStack() as stack:
        first, second = (member(kafka, topic, group, **settings) for _ in range(2))
        stack.push_async_callback(second.stop)
        await stack.enter_async_context(first)
        await until(lambda: len(first.assignment()) == partitions)
        yield first, second


def now() -> float:
    return asyncio.get_running_loop().time()


# --- A rebalance and a block -------------------------------------------------------------------
async def test_a_rebalance_waits_for_the_block_whose_commits_do_not_fail(
    kafka: KafkaHandle, protocol: Mapping[str, object]
) -> None:
    async with two(kafka, {**protocol, "enable_auto_commit": False}) as (first, second):
        await all_buffered(first)
        async with first.batch(10, 8_000, max_records_per_partition=5) as batch:
            assert {
                tp: len(records) for tp, records in batch.by_partition.items()
            } == dict.fromkeys(first.assignment(), 5)
            assert not batch.revoking.is_set()
            with first.events() as events:
                joining = asyncio.create_task(second.start())
                async with timeout(PATIENCE_S):
                    await batch.revoking
                    event = await next_event(events)
                    while not isinstance(event, WorkAwaited):
                        event = await next_event(events)
            assert 0 < batch.revoking.left_s <= 8.0
            assert set(event.offsets.values()) == {(0, 5)}
            wanted = set(event.offsets)
            await asyncio.sleep(0.3)
            assert wanted <= first.assignment()
            assert not wanted & second.assignment()
            await first.commit(dict.fromkeys(wanted, 2))
            await asyncio.sleep(0.3)
            assert not wanted & second.assignment()
            await batch.commit()
        async with timeout(5):
            await joining
            await until(second.assignment)
        for tp in second.assignment():
            assert await second.committed(tp) == 5
            assert (await second.getone(tp)).offset == 5


async def test_the_end_of_the_block_counts_as_finished_without_a_commit(
    kafka: KafkaHandle, protocol: Mapping[str, object]
) -> None:
    async with two(kafka, protocol) as (first, second):
        await all_buffered(first)
        async with first.batch(10, max_records_per_partition=5) as batch:
            joining = asyncio.create_task(second.start())
            async with timeout(PATIENCE_S):
                await batch.revoking.wait()
        async with timeout(5):
            await joining
            await until(second.assignment)
        for tp in second.assignment():
            assert await second.committed(tp) == 5


async def fail(consumer: AIOKafkaConsumer, end: type[BaseException]) -> None:
    """Leave a block by an exception once a rebalance waits for it."""
    async with consumer.batch(10, max_records_per_partition=5) as batch, timeout(PATIENCE_S):
        await batch.revoking
        raise end


@pytest.mark.parametrize("end", [ValueError, asyncio.CancelledError])
async def test_a_block_that_fails_leaves_its_records_to_the_next_owner(
    kafka: KafkaHandle, protocol: Mapping[str, object], end: type[BaseException]
) -> None:
    async with two(kafka, protocol) as (first, second):
        await all_buffered(first)
        joining = asyncio.create_task(second.start())
        with pytest.raises(end):
            await fail(first, end)
        async with timeout(5):
            await joining
            await until(second.assignment)
        # An eager member's former assignment can be read until it has the next one.
        await until(lambda: first.assignment().isdisjoint(second.assignment()))
        for consumer in (first, second):
            await until(consumer.assignment)
            for tp in consumer.assignment():
                assert (await consumer.getone(tp)).offset == 0


async def test_when_the_time_is_up_a_commit_says_that_the_batch_was_revoked(
    kafka: KafkaHandle, protocol: Mapping[str, object]
) -> None:
    async with two(kafka, protocol) as (first, second):
        await all_buffered(first)
        async with first.batch(10, max_hold_ms=700, max_records_per_partition=5) as batch:
            joining = asyncio.create_task(second.start())
            async with timeout(PATIENCE_S):
                await batch.revoking
                began = now()
                await joining
                await until(second.assignment)
            assert 0.5 < now() - began < 5.0
            assert batch.revoking.left_s == 0.0
            with pytest.raises(BatchRevokedError, match=r"await batch\.revoking") as caught:
                await batch.commit()
            assert second.assignment() <= caught.value.partitions
            assert isinstance(caught.value, CommitFailedError)
        for tp in second.assignment():
            assert (await second.getone(tp)).offset == 0


async def test_no_hold_is_so_long_that_the_group_goes_on_without_the_member(
    kafka: KafkaHandle, protocol: Mapping[str, object]
) -> None:
    async with two(kafka, {**protocol, "rebalance_timeout_ms": 3_000}) as (first, second):
        await all_buffered(first)
        with first.events() as events:
            async with first.batch(10, 1e9, max_records_per_partition=5) as batch:
                joining = asyncio.create_task(second.start())
                async with timeout(PATIENCE_S):
                    await batch.revoking
                    assert batch.revoking.left_s <= 3.0 * 0.8
                    await joining
                    await until(second.assignment)
                kinds = set[type]()
                async with timeout(PATIENCE_S):
                    while Revoked not in kinds:
                        kinds.add(type(await next_event(events)))
                assert Lost not in kinds


async def test_a_batch_has_its_own_time_whatever_other_work_has(
    kafka: KafkaHandle, protocol: Mapping[str, object]
) -> None:
    async with two(kafka, {**protocol, "rebalance_hold_ms": 0}) as (first, second):
        await all_buffered(first)
        async with first.batch(10, 5_000, max_records_per_partition=5) as batch:
            joining = asyncio.create_task(second.start())
            async with timeout(PATIENCE_S):
                await batch.revoking
            await asyncio.sleep(0.5)
            assert not second.assignment()
            await batch.commit()  # as good as the end
            async with timeout(4):
                await joining
                await until(second.assignment)


async def test_only_what_a_rebalance_wants_is_lost_and_the_rest_is_committed(
    kafka: KafkaHandle,
) -> None:
    async with two(kafka, WAYS["cooperative"]) as (first, second):
        await all_buffered(first)
        async with first.batch(10, max_hold_ms=0, max_records_per_partition=5) as batch:
            await second.start()
            await until(second.assignment)
            with pytest.raises(BatchRevokedError) as caught:
                await batch.commit()
            assert caught.value.partitions == second.assignment()
        (kept,) = first.assignment()
        assert await first.committed(kept) == 5


async def test_a_block_beyond_the_poll_interval_loses_its_partitions(
    kafka: KafkaHandle, protocol: Mapping[str, object]
) -> None:
    settings = {**protocol, "max_poll_interval_ms": 800}
    async with two(kafka, settings) as (first, _), first.batch(5) as batch:
        tp = TopicPartition(batch[0].topic, batch[0].partition)
        async with timeout(PATIENCE_S):
            await batch.revoking
            await until(lambda: "within max_poll_interval_ms" in first.explain(tp))
        with pytest.raises(BatchRevokedError):
            await batch.commit()
        with pytest.raises((MaxPollIntervalError, IllegalStateError)):
            await first.commit({tp: 5})


@pytest.mark.parametrize("is_auto", [True, False], ids=["auto-commit", "own-commits"])
async def test_batches_of_several_tasks_through_rebalances_repeat_and_lose_nothing(
    kafka: KafkaHandle, protocol: Mapping[str, object], is_auto: bool
) -> None:
    handled: Counter[tuple[int, int]] = Counter()

    async def work(consumer: AIOKafkaConsumer, leaving: asyncio.Event) -> None:
        while not leaving.is_set():
            async with consumer.batch(7, timeout_ms=100) as batch:
                for record in batch:
                    await asyncio.sleep(0.005)
                    handled[record.partition, record.offset] += 1
                if batch and not is_auto:
                    await batch.commit()

    settings = {**protocol, "enable_auto_commit": is_auto}
    async with two(kafka, settings, partitions=6) as (first, second):
        leaving = asyncio.Event()
        workers = [asyncio.create_task(work(first, asyncio.Event())) for _ in range(3)]
        await until(lambda: sum(handled.values()) > 10)
        await second.start()
        guests = [asyncio.create_task(work(second, leaving)) for _ in range(2)]
        await asyncio.sleep(0.1)
        leaving.set()
        await asyncio.gather(*guests)
        await second.stop()
        await until(lambda: len(handled) == 6 * RECORDS_EACH)
        for worker in workers:
            worker.cancel()
        await asyncio.wait(workers)
    assert set(handled.values()) == {1}


# --- Stops and departures ----------------------------------------------------------------------
@pytest.mark.parametrize("how", ["stop", "unsubscribe"])
async def test_what_is_in_an_open_batch_is_not_committed_at_the_end(
    kafka: KafkaHandle, protocol: Mapping[str, object], how: str
) -> None:
    async with two(kafka, protocol, partitions=1) as (first, second):
        (tp,) = first.assignment()
        async with first.batch(5):
            pass
        async with first.batch(5) as batch:
            assert batch[0].offset == 5
            if how == "stop":
                await first.stop()
            else:
                first.unsubscribe()
        await second.start()
        await until(second.assignment)
        assert await second.committed(tp) == 5
