"""Batches that are too large for an answer: the partition is found, the others go on."""

from __future__ import annotations

import asyncio

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.fetching.oversized import OversizeSearch
from aiokafka_lite.consumer.parts import max_frame_bytes
from aiokafka_lite.errors import RecordTooLargeError
from aiokafka_lite.structs import TopicPartition
from tests.support import tuning

MIB = 1 << 20


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have connections accept 1.5 MiB only, more if the application fetches more at once."""
    tuning.limit_frames(monkeypatch, 3 * MIB // 2, overhead_bytes=4096)


def consumer_of(broker: Broker, **settings: object) -> AIOKafkaConsumer:
    arguments: dict[str, object] = {
        "bootstrap_servers": broker.bootstrap_servers,
        "auto_offset_reset": "earliest",
        "fetch_max_wait_ms": 20,
        "retry_backoff_ms": 5,
        "fetch_max_bytes": MIB // 2,
        "max_partition_fetch_bytes": MIB // 4,
        **settings,
    }
    return AIOKafkaConsumer("t", **arguments)  # type: ignore[arg-type]


def fill(broker: Broker) -> None:
    """Three partitions with small records; that at offset 2 of partition 1 has two MiB."""
    broker.create_topic("t", 3, configs={"max.message.bytes": str(8 * MIB)})
    for partition in range(3):
        for offset in range(4):
            is_large = (partition, offset) == (1, 2)
            value = b"x" * (2 * MIB) if is_large else b"%d" % offset
            broker.produce("t", value, partition=partition)


@pytest.mark.usefixtures("limit")
async def test_the_partition_is_found_and_its_error_names_the_size_needed() -> None:
    async with Broker() as broker:
        fill(broker)
        found: dict[int, list[int]] = {0: [], 1: [], 2: []}
        async with consumer_of(broker) as consumer:
            error: RecordTooLargeError | None = None
            while error is None or sum(map(len, found.values())) < 10:
                try:
                    for tp, batch in (await asyncio.wait_for(consumer.poll(), 20)).items():
                        found[tp.partition] += [record.offset for record in batch]
                except RecordTooLargeError as raised:
                    error = raised
            assert found == {0: [0, 1, 2, 3], 1: [0, 1], 2: [0, 1, 2, 3]}
            tp = TopicPartition("t", 1)
            assert (error.tp, error.offset, error.next_offset) == (tp, 2, 3)
            with pytest.raises(RecordTooLargeError):
                await consumer.getone()
            assert await consumer.position(tp) == 2
            broker.produce("t", b"4", partition=0)
            while True:  # the others go on
                try:
                    record = await asyncio.wait_for(consumer.getone(), 20)
                    break
                except RecordTooLargeError:
                    continue
            assert (record.partition, record.offset) == (0, 4)
            consumer.seek(tp, 3)
            assert (await asyncio.wait_for(consumer.getone(), 20)).offset == 3
        size_needed = int(str(error).rpartition("max_partition_fetch_bytes to ")[2].split()[0])
        async with consumer_of(broker, max_partition_fetch_bytes=size_needed) as consumer:
            consumer.pause(TopicPartition("t", 0), TopicPartition("t", 2))
            consumer.seek(tp, 2)
            assert (await asyncio.wait_for(consumer.getone(), 20)).value == b"x" * (2 * MIB)


@pytest.mark.usefixtures("limit")
async def test_it_is_skipped_where_that_is_wanted() -> None:
    async with Broker() as broker:
        fill(broker)
        async with consumer_of(broker, on_bad_record="skip") as consumer:
            found: list[tuple[int, int]] = []
            while len(found) < 11:
                for tp, batch in (await asyncio.wait_for(consumer.poll(), 20)).items():
                    found += [(tp.partition, record.offset) for record in batch]
        expected = [(p, offset) for p in range(3) for offset in range(4) if (p, offset) != (1, 2)]
        assert sorted(found) == expected


@pytest.mark.usefixtures("limit")
async def test_finished_records_behind_it_are_passed_over_by_an_iteration() -> None:
    tp, settings = TopicPartition("t", 1), {"group_id": "g", "ack_mode": "explicit"}
    async with Broker() as broker:
        fill(broker)
        async with consumer_of(
            broker, max_partition_fetch_bytes=8 * MIB, fetch_max_bytes=8 * MIB, **settings
        ) as consumer:
            consumer.pause(TopicPartition("t", 0), TopicPartition("t", 2))
            for _ in range(4):
                record = await asyncio.wait_for(consumer.getone(tp), 20)
                assert record.offset == 0 or record.ack()
        broker.produce("t", b"4", partition=1)
        async with consumer_of(broker, **settings) as consumer:
            consumer.pause(TopicPartition("t", 0), TopicPartition("t", 2))
            iterator = aiter(consumer)
            found = [await asyncio.wait_for(anext(iterator), 20) for _ in range(2)]
            assert [record.offset for record in found] == [0, 4]


def test_suspects_are_asked_for_one_by_one_and_the_one_found_before_first() -> None:
    search = OversizeSearch()
    cursors = [Cursor(TopicPartition("t", number)) for number in range(3)]

    def allowed() -> list[int]:
        return [cursor.tp.partition for cursor in cursors if search.allows(cursor)]

    assert not search.is_on
    assert allowed() == [0, 1, 2]
    search.begin(cursors)
    assert search.is_on
    assert allowed() == [0]
    search.answered()
    assert allowed() == [1]
    search.pass_idle(lambda cursor: cursor is cursors[2])
    assert allowed() == [2]
    assert not search.is_found(cursors[2])
    assert search.is_on
    assert search.is_found(cursors[2])
    assert not search.is_on
    search.begin(cursors)
    assert allowed() == [2]
    search.answered()
    assert allowed() == [0]
    search.pass_idle(lambda cursor: False)
    assert not search.is_on
    assert allowed() == [0, 1, 2]


async def test_answers_as_large_as_the_application_asks_for_are_accepted() -> None:
    config = ConsumerConfig(fetch_max_bytes=300 * MIB)
    assert max_frame_bytes(config) > 300 * MIB
    config = ConsumerConfig(max_partition_fetch_bytes=300 * MIB)
    assert max_frame_bytes(config) > 300 * MIB
    assert max_frame_bytes(ConsumerConfig()) == 100 * MIB
