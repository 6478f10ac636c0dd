"""What a group member commits, and where its successor goes on."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager

import pytest

from aiokafka_lite.client.config import parse_address
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import IllegalStateError
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition
from tests.support.cluster import KafkaHandle, unique
from tests.support.proxy import Proxy, send_through
from tests.support.reading import committed, reading
from tests.support.rows import rows
from tests.support.waiting import eventually


async def test_a_clean_exit_commits_all_that_was_handed_out(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    tp, group = TopicPartition(topic, 0), unique("group")
    await kafka.produce(topic, 0, rows(0, 10))
    async with reading(kafka, topic, group_id=group) as consumer:
        async for record in consumer:
            if record.offset == 4:
                break
    assert await committed(kafka, group, tp) == 5


@pytest.mark.real_if_long
@pytest.mark.parametrize("way", ["exception", "cancellation"])
async def test_a_body_that_fails_leaves_its_record_to_be_read_again(
    kafka: KafkaHandle, way: str
) -> None:
    topic = await kafka.create_topic()
    tp, group = TopicPartition(topic, 0), unique("group")
    await kafka.produce(topic, 0, rows(0, 10))

    async def fail_at_four() -> None:
        async with reading(kafka, topic, group_id=group) as consumer:
            async for record in consumer:
                if record.offset == 4:
                    raise KeyError(4) if way == "exception" else asyncio.CancelledError

    with pytest.raises((KeyError, asyncio.CancelledError)):
        await fail_at_four()
    assert await committed(kafka, group, tp) == 4
    async with reading(kafka, topic, group_id=group) as consumer:
        assert (await consumer.getone()).offset == 4


@pytest.mark.real_if_long
async def test_auto_commit_leaves_out_what_is_being_processed(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    tp, group = TopicPartition(topic, 0), unique("group")
    await kafka.produce(topic, 0, rows(0, 10))
    async with reading(kafka, topic, group_id=group, auto_commit_interval_ms=20) as consumer:

        async def auto_committed() -> int | None:
            return await consumer.committed(tp)

        for _ in range(3):
            await consumer.getone()
        await eventually(auto_committed, 2)  # record 2 is still in our hands
        await asyncio.sleep(0.1)
        assert await auto_committed() == 2
        await consumer.poll(max_records=4)
        await eventually(auto_committed, 3)
        assert await consumer.poll(timeout_ms=0, max_records=100)
        await eventually(auto_committed, 7)


async def test_commit_takes_the_positions_or_what_it_is_given(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    tp, group = TopicPartition(topic, 0), unique("group")
    await kafka.produce(topic, 0, rows(0, 10))
    async with reading(kafka, topic, group_id=group, enable_auto_commit=False) as consumer:
        assert await consumer.committed(tp) is None
        for _ in range(3):
            await consumer.getone()
        await consumer.commit()
        assert await consumer.committed(tp) == 3
        await consumer.commit({tp: 7})
        assert await consumer.committed(tp) == 7
        await consumer.commit({tp: OffsetAndMetadata(0, "why")})
        assert await consumer.committed(tp) == 0
        assert await consumer.seek_to_committed() == {tp: 0}
        assert (await consumer.getone()).offset == 0
        with pytest.raises(IllegalStateError):
            await consumer.commit({TopicPartition(topic, 9): 1})
    assert await committed(kafka, group, tp) == 0


async def test_a_successor_goes_on_behind_the_last_record(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=2)
    group = unique("group")
    for partition in range(2):
        await kafka.produce(topic, partition, rows(0, 20))
    seen: list[tuple[int, int]] = []
    for _ in range(4):
        async with reading(kafka, topic, group_id=group) as consumer:
            taken = 0
            while taken < 10:
                for tp, batch in (await consumer.poll(10_000, max_records=10 - taken)).items():
                    taken += len(batch)
                    seen += [(tp.partition, record.offset) for record in batch]
    assert sorted(seen) == [(partition, i) for partition in range(2) for i in range(20)]


async def test_two_members_share_the_partitions(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=4)
    group = unique("group")
    for partition in range(4):
        await kafka.produce(topic, partition, rows(0, 50))
    seen: set[tuple[int, int]] = set()

    async def work(consumer: AIOKafkaConsumer) -> None:
        while len(seen) < 200:
            for batch in (await consumer.poll(timeout_ms=100)).values():
                seen.update((record.partition, record.offset) for record in batch)

    def member() -> AbstractAsyncContextManager[AIOKafkaConsumer]:
        # A heartbeat is what tells the first of the second's coming.
        return reading(kafka, topic, group_id=group, heartbeat_interval_ms=200)

    async with member() as first, member() as second:
        await asyncio.wait_for(asyncio.gather(work(first), work(second)), 30)
        owned = [first.assignment(), second.assignment()]
    assert all(len(partitions) == 2 for partitions in owned)
    assert len(seen) == 200


@pytest.mark.real_if_long
async def test_stop_says_what_it_could_not_commit(
    kafka: KafkaHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 10))
    async with Proxy(parse_address(kafka.bootstrap_servers)) as proxy:
        send_through(monkeypatch, proxy)
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=kafka.bootstrap_servers,
            group_id=unique("group"),
            auto_offset_reset="earliest",
        )
        await consumer.start()
        for _ in range(5):
            await consumer.getone()
        proxy.to_server.hold()
        wanted = {TopicPartition(topic, 0): OffsetAndMetadata(5, "")}
        assert await consumer.stop(timeout=0.3) == wanted
        assert await consumer.stop() == wanted
