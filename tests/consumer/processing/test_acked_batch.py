"""`batch()` with `ack_mode="explicit"`: each record has its own end, the block's is the last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

import pytest

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker
from aiokafka_lite.errors import BatchRevokedError, UnknownMemberIdError
from aiokafka_lite.structs import TopicPartition
from tests.consumer.processing.acking import PATIENCE_S, filled, member, offsets, take
from tests.support import inside
from tests.support.cluster import KafkaHandle, unique
from tests.support.waiting import all_buffered, eventually, until


@pytest.mark.real_if_long
async def test_the_end_of_the_block_acknowledges_what_is_left(
    consumer: AIOKafkaConsumer, topic: str
) -> None:
    tp = TopicPartition(topic, 0)
    async with consumer.batch(max_records=5) as batch:
        assert offsets(list(batch)) == [0, 1, 2, 3, 4]
        assert batch[1].ack()
        assert batch[3].nack()
    assert not batch[0].ack()  # it is finished
    await eventually(lambda: consumer.committed(tp), 3)
    (again,) = await take(consumer, 1)
    assert again is batch[3]
    assert again.ack()
    await eventually(lambda: consumer.committed(tp), 5)


@pytest.mark.real_if_long
async def test_left_by_an_exception_it_has_the_rest_handed_out_again(
    consumer: AIOKafkaConsumer, topic: str
) -> None:
    async def fail() -> None:
        async with consumer.batch(max_records=4) as batch:
            batch[1].ack()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert offsets(await take(consumer, 4)) == [0, 2, 3, 4]
    assert await consumer.committed(TopicPartition(topic, 0)) in (None, 0)


@pytest.mark.real_if_long
@pytest.mark.parametrize("is_done", [True, False])
async def test_a_block_that_has_ended_is_forgotten(
    consumer: AIOKafkaConsumer, *, is_done: bool
) -> None:
    works = inside.works(consumer).begun
    before = list(works)
    with pytest.raises(ZeroDivisionError) if not is_done else nullcontext():
        async with consumer.batch(max_records=4):
            assert len(works) == len(before) + 1
            if not is_done:
                raise ZeroDivisionError
    assert works == before


@pytest.mark.real_if_long
async def test_a_record_that_always_fails_its_block_starves_no_other(
    consumer: AIOKafkaConsumer,
) -> None:
    done: set[int] = set()

    async def work_on_a_block() -> None:
        async with consumer.batch(max_records=3) as batch:
            if 1 in offsets(list(batch)):
                raise ZeroDivisionError
        done.update(offsets(list(batch)))

    blocks = 0
    while len(done) < 9:
        blocks += 1
        try:
            await work_on_a_block()
        except ZeroDivisionError:
            await asyncio.sleep(0)
    assert blocks < 50


@pytest.mark.real_if_long
async def test_a_record_that_went_on_to_others_is_theirs_to_finish(
    consumer: AIOKafkaConsumer, topic: str
) -> None:
    tp = TopicPartition(topic, 0)
    async with consumer.batch(max_records=2) as batch:
        batch[0].nack()
        (other,) = await take(consumer, 1)
        assert other is batch[0]
    await eventually(lambda: consumer.committed(tp), None)
    await asyncio.sleep(0.2)
    assert await consumer.committed(tp) in (None, 0)
    assert other.ack()
    await eventually(lambda: consumer.committed(tp), 2)


@pytest.mark.real_if_long
async def test_its_commit_acknowledges_what_is_left_and_commits(
    consumer: AIOKafkaConsumer, topic: str
) -> None:
    async with consumer.batch(max_records=6) as batch:
        batch[4].nack(delay_ms=60_000)
        await batch.commit()
        assert await consumer.committed(TopicPartition(topic, 0)) == 4
        assert not batch[0].nack()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_rebalance_waits_for_the_block_as_long_as_that_says(
    kafka: KafkaHandle, topic: str, protocol: str
) -> None:
    settings = {
        "group_id": unique("acks"),
        "group_protocol": protocol,
        "rebalance_timeout_ms": 10_000,
        "rebalance_hold_ms": 0,
    }
    other = await filled(kafka)
    async with timeout(PATIENCE_S), member(kafka, topic, other, **settings) as first:
        await until(lambda: len(first.assignment()) == 2)
        second = member(kafka, topic, other, **settings)
        async with first.batch(max_hold_ms=5_000) as batch:
            joining = asyncio.create_task(second.start())
            await batch.revoking
            assert batch.revoking.left_s > 3
            await asyncio.sleep(0.2)
            assert not second.assignment()
        await joining
        await until(lambda: len(second.assignment()) == 1)
        (moved,) = second.assignment()
        if moved in batch.by_partition:
            assert await second.getmany(timeout_ms=300) == {}
        await second.stop()


@asynccontextmanager
async def pair(kafka: KafkaHandle) -> AsyncIterator[tuple[AIOKafkaConsumer, AIOKafkaConsumer]]:
    """A member that has buffered both partitions of a topic, and one that is to be started."""
    topic = await filled(kafka, partitions=2, count=3)
    settings = {"group_id": unique("acks"), "rebalance_hold_ms": 60_000}
    async with timeout(PATIENCE_S), member(kafka, topic, **settings) as first:
        await until(lambda: len(first.assignment()) == 2)
        await all_buffered(first)
        yield first, member(kafka, topic, **settings)


@pytest.mark.real_if_long
async def test_a_block_whose_time_is_up_is_told_what_it_has_lost(kafka: KafkaHandle) -> None:
    async with pair(kafka) as (first, second):
        async with first.batch(10, max_hold_ms=100, max_records_per_partition=5) as batch:
            assert len(batch.by_partition) == 2
            async with timeout(4):  # other work may hold a rebalance up for longer than that
                await second.start()
                await until(second.assignment)
            await until(lambda: len(second.assignment()) == len(first.assignment()) == 1)
            (moved,), (kept,) = second.assignment(), first.assignment()
            assert batch.revoking.left_s == 0
            with pytest.raises(BatchRevokedError) as caught:
                await batch.commit()
            assert caught.value.partitions == {moved}
            assert await first.committed(kept) == 3
            assert not batch.by_partition[moved][0].ack()
        again = await take(second, 3)
        assert offsets(again) == [0, 1, 2]
        assert all(record.ack() for record in again)
        await second.stop()


@pytest.mark.real_if_long
async def test_what_was_acknowledged_before_it_went_is_not_lost(kafka: KafkaHandle) -> None:
    async with (
        pair(kafka) as (first, second),
        first.batch(10, max_records_per_partition=5) as batch,
    ):
        for record in batch:
            record.ack()
        async with second:
            await until(lambda: len(second.assignment()) == len(first.assignment()) == 1)
            await batch.commit()
            assert await second.getmany(timeout_ms=300) == {}


async def test_a_block_whose_partitions_are_lost_is_told_so() -> None:
    async with Broker() as broker:
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        topic = await filled(kafka, count=3)
        async with timeout(PATIENCE_S), member(kafka, topic) as consumer, consumer.batch() as batch:
            broker.on("ConsumerGroupHeartbeat").fail(UnknownMemberIdError)
            await batch.revoking
            with pytest.raises(BatchRevokedError):
                await batch.commit()
