"""`ack_mode="explicit"`: records are acknowledged one by one, and only what is is committed."""

from __future__ import annotations

import asyncio
import pickle

import pytest

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite._compat import timeout
from aiokafka_lite.errors import IllegalStateError
from aiokafka_lite.structs import TopicPartition
from tests.consumer.processing.acking import PATIENCE_S, Record, filled, member, offsets, take
from tests.support.cluster import KafkaHandle, unique
from tests.support.waiting import eventually, until


@pytest.mark.real_if_long
async def test_only_what_is_acknowledged_is_committed_whatever_the_order(
    consumer: AIOKafkaConsumer, topic: str
) -> None:
    tp = TopicPartition(topic, 0)
    records = await take(consumer, 10)
    assert records[3].ack()
    assert records[0].ack()
    await eventually(lambda: consumer.committed(tp), 1)
    assert await take(consumer, 0) == []
    for record in (records[2], records[1]):
        record.ack()
    await eventually(lambda: consumer.committed(tp), 4)
    assert not records[1].ack()
    for record in records[4:]:
        record.ack()
    await eventually(lambda: consumer.committed(tp), 10)
    await consumer.commit()
    assert consumer.metrics()["processing_finished_total"] == 10


@pytest.mark.real_if_long
async def test_what_is_acknowledged_behind_the_commit_is_not_handed_out_again(
    kafka: KafkaHandle, topic: str
) -> None:
    group = unique("acks")
    async with member(kafka, topic, group_id=group) as first:
        records = await take(first, 10)
        for record in (*records[:2], *records[4:9]):
            record.ack()
    async with timeout(PATIENCE_S), member(kafka, topic, group_id=group) as second:
        assert offsets(await take(second, 3)) == [2, 3, 9]
    assert not records[2].ack()


@pytest.mark.real_if_long
@pytest.mark.parametrize(("offset", "left"), [(2, [2, 3, 9]), (1, [*range(1, 10)])])
async def test_a_commit_by_name_keeps_what_is_acknowledged_unless_it_goes_back(
    kafka: KafkaHandle, topic: str, offset: int, left: list[int]
) -> None:
    tp, group = TopicPartition(topic, 0), unique("acks")
    async with member(kafka, topic, group_id=group, enable_auto_commit=False) as first:
        records = await take(first, 10)
        for record in (*records[:2], *records[4:9]):
            record.ack()
        await first.commit({tp: offset})
    async with timeout(PATIENCE_S), member(kafka, topic, group_id=group) as second:
        assert offsets(await take(second, len(left))) == left


@pytest.mark.real_if_long
@pytest.mark.parametrize("way", ["poll", "getmany", "getone", "async for"])
async def test_each_kind_of_get_hands_out_what_was_refused(
    consumer: AIOKafkaConsumer, topic: str, way: str
) -> None:
    tp = TopicPartition(topic, 0)

    async def get() -> list[Record]:
        if way == "poll":
            return await take(consumer, 1)
        if way == "getone":
            return [await consumer.getone()]
        if way == "async for":
            async for record in consumer:
                return [record]
        while not (found := await consumer.getmany(tp, timeout_ms=500, max_records=1)):
            pass
        return found[tp]

    (first,) = await get()
    assert first.offset == 0
    assert first.nack()
    assert first.nack()  # once is enough
    (again,) = await get()
    assert again is first
    (second,) = await get()
    assert second.offset == 1
    second.ack()
    first.ack()
    assert not first.nack()
    await eventually(lambda: consumer.committed(tp), 2)


@pytest.mark.real_if_long
async def test_a_refused_record_comes_after_its_delay_and_wakes_a_get_that_waits(
    consumer: AIOKafkaConsumer,
) -> None:
    loop = asyncio.get_running_loop()
    records = await take(consumer, 10)
    for record in records[1:]:
        record.ack()
    began_at = loop.time()
    waiting = asyncio.create_task(consumer.getone())
    await asyncio.sleep(0.05)
    records[0].nack(delay_ms=300)
    assert (await waiting).offset == 0
    assert 0.3 <= loop.time() - began_at < 5
    assert await consumer.getmany(timeout_ms=50) == {}
    explained = consumer.explain(TopicPartition(records[0].topic, 0))
    assert "has not been acknowledged. The partition's commit waits" in explained
    assert "waits for this record (9 later records" in explained


@pytest.mark.real_if_long
async def test_what_is_paused_is_not_handed_out_again(
    consumer: AIOKafkaConsumer, topic: str
) -> None:
    (record, *_) = await take(consumer, 10)
    record.nack()
    consumer.pause(TopicPartition(topic, 0))
    assert await consumer.getmany(timeout_ms=50) == {}
    consumer.resume(TopicPartition(topic, 0))
    assert offsets(await take(consumer, 1)) == [0]


@pytest.mark.real_if_long
async def test_a_seek_back_hands_out_what_was_not_acknowledged_and_what_was(
    consumer: AIOKafkaConsumer, topic: str
) -> None:
    records = await take(consumer, 10)
    for record in records[:5]:
        record.ack()
    consumer.seek(TopicPartition(topic, 0), 3)
    again = await take(consumer, 7)
    assert offsets(again) == list(range(3, 10))
    assert not records[6].ack()
    assert again[3].ack()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_rebalance_waits_for_acknowledgements(
    kafka: KafkaHandle, topic: str, protocol: str
) -> None:
    group = unique("acks")
    settings = {"group_id": group, "group_protocol": protocol, "rebalance_hold_ms": 10_000}
    other = await filled(kafka)
    async with timeout(PATIENCE_S), member(kafka, topic, other, **settings) as first:
        records = await take(first, 20)
        second = member(kafka, topic, other, **settings)
        joining = asyncio.create_task(second.start())
        await until(lambda: not first.health().is_ok)
        await asyncio.sleep(0.3)
        assert not joining.done() or not second.assignment()
        for record in records:
            record.ack()
        await joining
        await until(second.assignment)
        assert await second.getmany(timeout_ms=300) == {}
        await second.stop()


@pytest.mark.real_if_long
async def test_a_cancelled_get_loses_no_record(consumer: AIOKafkaConsumer) -> None:
    (first,) = await take(consumer, 1)
    first.nack(delay_ms=20)
    found: list[Record] = []
    for _ in range(200):
        try:
            async with timeout(0.003):
                found.append(await consumer.getone())
        except asyncio.TimeoutError:
            pass
    assert sorted(offsets(found)) == list(range(10))


@pytest.mark.real_if_long
async def test_an_acknowledgement_elsewhere_is_an_error_that_says_so(
    kafka: KafkaHandle, consumer: AIOKafkaConsumer, topic: str
) -> None:
    async with member(kafka, topic, ack_mode="implicit") as other:
        record = await other.getone()
    for method in (record.ack, record.nack):
        with pytest.raises(RuntimeError, match='ack_mode="explicit"'):
            method()
    (mine,) = await take(consumer, 1)
    copy = pickle.loads(pickle.dumps(mine))  # noqa: S301 -- of our own
    assert copy == mine
    with pytest.raises(RuntimeError, match='ack_mode="explicit"'):
        copy.ack()
    with pytest.raises(ValueError, match="must not be negative"):
        mine.nack(-1)


@pytest.mark.real_if_long
async def test_what_does_not_go_with_it_is_refused(
    kafka: KafkaHandle, consumer: AIOKafkaConsumer
) -> None:
    async def handle(record: Record) -> None: ...

    with pytest.raises(IllegalStateError, match="acknowledges records itself"):
        await consumer.run(handle)
    with pytest.raises(IllegalStateError, match=r"poll_arrow\(\) cannot be used"):
        await consumer.poll_arrow()
    with pytest.raises(ValueError, match="ack_mode must be"):
        member(kafka, ack_mode="manual")
