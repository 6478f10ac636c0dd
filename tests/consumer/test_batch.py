"""`consumer.batch()`: what a batch holds, and what the end of its block says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from aiokafka_lite import AIOKafkaConsumer, Batch
from aiokafka_lite._compat import timeout
from aiokafka_lite.errors import ConsumerStoppedError, IllegalOperation, IllegalStateError
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.support.cluster import KafkaHandle, unique
from tests.support.rows import rows
from tests.support.waiting import until

RECORDS_EACH = 20


def reader(kafka: KafkaHandle, **settings: object) -> AIOKafkaConsumer:
    arguments: dict[str, object] = {
        "bootstrap_servers": kafka.bootstrap_servers,
        "auto_offset_reset": "earliest",
        "fetch_max_wait_ms": 50,
        **settings,
    }
    return AIOKafkaConsumer(**arguments)  # type: ignore[arg-type]


@pytest.fixture
async def tps(kafka: KafkaHandle) -> list[TopicPartition]:
    topic = await kafka.create_topic(partitions=2)
    for number in range(2):
        await kafka.produce(topic, number, rows(0, RECORDS_EACH))
    return [TopicPartition(topic, number) for number in range(2)]


@pytest.fixture
async def consumer(
    kafka: KafkaHandle, tps: list[TopicPartition]
) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer without a group that has records of both partitions buffered."""
    async with reader(kafka) as consumer:
        consumer.assign(tps)
        await until(lambda: all("are buffered" in consumer.explain(tp) for tp in tps))
        yield consumer


@asynccontextmanager
async def failing(kind: type[BaseException]) -> AsyncIterator[None]:
    """A block that has to raise."""
    with pytest.raises(kind):
        yield


def offsets(records: list[ConsumerRecord[bytes | None, bytes | None]]) -> list[int]:
    return [record.offset for record in records]


# --- What it holds -----------------------------------------------------------------------------
@pytest.mark.real_if_long
async def test_a_batch_is_a_sequence_of_records_and_a_mapping_by_partition(
    consumer: AIOKafkaConsumer, tps: list[TopicPartition]
) -> None:
    async with consumer.batch(max_records=7, max_records_per_partition=4) as batch:
        assert batch
        assert len(batch) == len(list(batch)) == len(batch.records) == 7
        assert batch[0] is batch.records[0]
        assert batch[-2:] == batch.records[5:]
        assert batch.by_partition.keys() == set(tps)
        assert sorted(map(len, batch.by_partition.values())) == [3, 4]
        for tp, records in batch.by_partition.items():
            assert offsets(records) == list(range(len(records)))
            assert all(record.partition == tp.partition for record in records)
        assert "Batch of 7 records" in repr(batch)
        assert not batch.revoking.is_set()
        assert batch.revoking.left_s == float("inf")


@pytest.mark.real_if_long
async def test_without_records_in_time_it_is_empty(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    async with reader(kafka) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        async with consumer.batch(timeout_ms=50) as batch:
            assert not batch
            assert list(batch) == []
            assert batch.by_partition == {}
        entering = asyncio.create_task(consumer.batch().__aenter__())
        await asyncio.sleep(0.05)
        await kafka.produce(topic, 0, rows(0, 1))
        assert offsets((await entering).records) == [0]


@pytest.mark.real_if_long
async def test_a_batch_that_is_not_entered_takes_nothing(
    consumer: AIOKafkaConsumer, tps: list[TopicPartition]
) -> None:
    consumer.pause(*tps)
    with pytest.raises(asyncio.TimeoutError):
        async with timeout(0.05), consumer.batch():
            raise AssertionError("there are no records")
    consumer.resume(*tps)
    async with consumer.batch(1) as batch:
        assert offsets(batch.records) == [0]


@pytest.mark.real_if_long
@pytest.mark.parametrize(
    "arguments",
    [
        {"max_records": 0},
        {"max_records_per_partition": True},
        {"max_hold_ms": -1},
        {"max_hold_ms": float("nan")},
        {"max_hold_ms": "1"},
    ],
)
async def test_a_limit_that_is_none_is_refused(
    consumer: AIOKafkaConsumer, arguments: dict[str, int]
) -> None:
    with pytest.raises(ValueError, match="|".join(arguments)):
        consumer.batch(**arguments)


@pytest.mark.real_if_long
async def test_each_batch_has_one_block(consumer: AIOKafkaConsumer) -> None:
    scope = consumer.batch(1)
    async with scope:
        pass
    with pytest.raises(IllegalStateError, match="only once"):
        await scope.__aenter__()


# --- The end of the block ----------------------------------------------------------------------
@pytest.mark.real_if_long
async def test_a_block_that_ends_is_followed_by_the_next_records(
    consumer: AIOKafkaConsumer, tps: list[TopicPartition]
) -> None:
    found: dict[int, list[int]] = {0: [], 1: []}
    while sum(map(len, found.values())) < 2 * RECORDS_EACH:
        async with consumer.batch(3) as batch:
            for record in batch:
                found[record.partition].append(record.offset)
    assert found == {0: list(range(RECORDS_EACH)), 1: list(range(RECORDS_EACH))}


@pytest.mark.real_if_long
@pytest.mark.parametrize("end", [ValueError, asyncio.CancelledError, KeyboardInterrupt])
async def test_a_block_that_fails_has_its_records_handed_out_again(
    consumer: AIOKafkaConsumer, tps: list[TopicPartition], end: type[BaseException]
) -> None:
    async with consumer.batch(4, max_records_per_partition=2):
        pass
    scope = consumer.batch(6, max_records_per_partition=3)
    async with failing(end), scope as batch:
        assert all(offsets(records) == [2, 3, 4] for records in batch.by_partition.values())
        raise end
    assert await consumer.position(*tps) == dict.fromkeys(tps, 2)
    for tp in tps:
        assert (await consumer.getone(tp)).offset == 2


@pytest.mark.real_if_long
async def test_a_position_that_the_block_has_sought_stays_when_it_fails(
    consumer: AIOKafkaConsumer, tps: list[TopicPartition]
) -> None:
    async with failing(ValueError), consumer.batch(10, max_records_per_partition=5):
        consumer.seek(tps[0], 3)  # behind what cannot be processed
        raise ValueError
    assert (await consumer.getone(tps[0])).offset == 3
    assert (await consumer.getone(tps[1])).offset == 0


@pytest.mark.real_if_long
async def test_without_a_group_nothing_can_be_committed(consumer: AIOKafkaConsumer) -> None:
    async with consumer.batch(1) as batch:
        with pytest.raises(IllegalOperation):
            await batch.commit()


@pytest.mark.real_if_long
async def test_a_stop_inside_of_the_block_leaves_nothing_to_wait_for(
    consumer: AIOKafkaConsumer,
) -> None:
    async with consumer.batch(1):
        await consumer.stop()
    with pytest.raises(ConsumerStoppedError):
        async with consumer.batch():
            raise AssertionError("it is stopped")


# --- Several at once ---------------------------------------------------------------------------
@pytest.mark.real_if_long
async def test_nothing_more_is_handed_out_of_a_partition_in_an_open_batch(
    consumer: AIOKafkaConsumer, tps: list[TopicPartition]
) -> None:
    async with consumer.batch(5) as first:
        (one,) = first.by_partition
        async with consumer.batch() as second:
            (other,) = second.by_partition
            assert {one, other} == set(tps)
            assert len(second) == RECORDS_EACH
            assert await consumer.getmany(timeout_ms=50) == {}
            async with consumer.batch(timeout_ms=50) as third:
                assert not third
            assert "the partition's open batch" in consumer.explain(one)
        assert await consumer.getmany(timeout_ms=50) == {}
        waiting = asyncio.create_task(consumer.getone())
        await asyncio.sleep(0.05)
        assert not waiting.done()
    async with timeout(5):
        assert (await waiting).offset == 5
    async for record in consumer:
        assert record.offset == 6
        break


@pytest.mark.real_if_long
async def test_blocks_of_several_tasks_keep_each_partitions_order(
    consumer: AIOKafkaConsumer,
) -> None:
    found: dict[int, list[int]] = {0: [], 1: []}
    at_work: set[int] = set()
    most = 0

    async def work() -> None:
        nonlocal most
        while sum(map(len, found.values())) < 2 * RECORDS_EACH:
            async with consumer.batch(3, timeout_ms=50, max_records_per_partition=3) as batch:
                numbers = {tp.partition for tp in batch.by_partition}
                assert not numbers & at_work
                at_work.update(numbers)
                most = max(most, len(at_work))
                await asyncio.sleep(0.002)
                for record in batch:
                    found[record.partition].append(record.offset)
                at_work.difference_update(numbers)

    await asyncio.gather(*(work() for _ in range(3)))
    assert found == {0: list(range(RECORDS_EACH)), 1: list(range(RECORDS_EACH))}
    assert most == 2


# --- What is committed -------------------------------------------------------------------------
async def committed_at_the_end(
    kafka: KafkaHandle, group: str, tps: list[TopicPartition]
) -> dict[TopicPartition, int | None]:
    async with reader(kafka, group_id=group) as consumer:
        consumer.assign(tps)
        return {tp: await consumer.committed(tp) for tp in tps}


async def test_auto_commit_counts_only_blocks_that_have_ended(
    kafka: KafkaHandle, tps: list[TopicPartition]
) -> None:
    group = unique("g")
    async with reader(kafka, group_id=group, auto_commit_interval_ms=20) as consumer:
        consumer.assign(tps)
        await until(lambda: all("are buffered" in consumer.explain(tp) for tp in tps))
        async with consumer.batch(5) as first:
            (one,) = first.by_partition
            async with consumer.batch(5) as second:
                (other,) = second.by_partition
                await consumer.getmany(timeout_ms=100)
                assert not any((await consumer.committed(one, other)).values())
            await asyncio.sleep(0.1)
            assert not await consumer.committed(one)
            assert await consumer.committed(other) == 5
            await consumer.commit({one: 3})
            await asyncio.sleep(0.1)
            assert await consumer.committed(one) == 3
    assert await committed_at_the_end(kafka, group, tps) == {one: 5, other: 5}


@pytest.mark.real_if_long
async def test_a_stop_inside_a_block_commits_the_records_before_the_block(
    kafka: KafkaHandle, tps: list[TopicPartition]
) -> None:
    group = unique("g")
    consumer = reader(kafka, group_id=group, auto_commit_interval_ms=3_600_000)
    await consumer.start()
    consumer.assign(tps[:1])
    async with consumer.batch(5):
        pass
    async with consumer.batch(5) as batch:
        assert batch[0].offset == 5
        await consumer.stop()
    assert await committed_at_the_end(kafka, group, tps[:1]) == {tps[0]: 5}


@pytest.mark.real_if_long
async def test_a_failed_block_goes_back_to_what_was_committed_of_it(
    kafka: KafkaHandle, tps: list[TopicPartition]
) -> None:
    group = unique("g")
    async with reader(kafka, group_id=group) as consumer:
        consumer.assign(tps[:1])
        async with failing(ValueError), consumer.batch(5):
            await consumer.commit({tps[0]: 3})
            raise ValueError
        async with consumer.batch(5) as batch:
            assert batch[0].offset == 3
            await batch.commit()
            await batch.commit()
        with pytest.raises(IllegalStateError, match="block has ended"):
            await batch.commit()
        async with consumer.batch(5) as batch:
            assert batch[0].offset == 8
            assert isinstance(batch, Batch)
    assert await committed_at_the_end(kafka, group, tps[:1]) == {tps[0]: 13}


@pytest.mark.real_if_long
async def test_a_consumer_left_by_an_exception_commits_no_batch(
    kafka: KafkaHandle, tps: list[TopicPartition]
) -> None:
    group = unique("g")
    async with failing(ValueError), reader(kafka, group_id=group) as consumer:
        consumer.assign(tps)
        await until(lambda: all("are buffered" in consumer.explain(tp) for tp in tps))
        async with consumer.batch(4, max_records_per_partition=2):
            pass
        async with consumer.batch(4, max_records_per_partition=2):
            raise ValueError
    assert await committed_at_the_end(kafka, group, tps) == dict.fromkeys(tps, 2)
