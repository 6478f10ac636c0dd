"""What `consumer.run` holds in memory: bounded in records and bytes, shared by partitions."""

from __future__ import annotations

import asyncio

import pytest

from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.consumer.processing.running import member, running
from tests.support.cluster import KafkaHandle, unique
from tests.support.rows import rows
from tests.support.waiting import until

Record = ConsumerRecord[bytes | None, bytes | None]
SIZE_BYTES = 50_000
LIMIT_BYTES = 2_000_000


async def fill(kafka: KafkaHandle, topic: str, partition: int, count: int, codec: str) -> None:
    """Produce large records of one key, ten a batch."""
    for _ in range(0, count, 10):
        await kafka.produce(topic, partition, [(b"hot", b"x" * SIZE_BYTES)] * 10, codec=codec)


class Seen:
    """Handles records; those of partition 0 wait, and only the first of their key begins."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.handled: dict[int, int] = {}

    async def __call__(self, record: Record) -> None:
        if record.partition == 0:
            await self.gate.wait()
        self.handled[record.partition] = self.handled.get(record.partition, 0) + 1


@pytest.mark.parametrize("codec", ["none", "gzip"])
async def test_a_hot_key_of_large_records_is_read_only_as_far_as_bytes_go(
    kafka: KafkaHandle, codec: str
) -> None:
    topic = await kafka.create_topic(partitions=2)
    await fill(kafka, topic, 0, 150, codec)
    await fill(kafka, topic, 1, 150, codec)
    handle = Seen()
    consumer = member(kafka, topic, unique("memory"), max_buffered_bytes=LIMIT_BYTES)
    most_bytes = 0

    def held_bytes() -> int:
        nonlocal most_bytes
        metrics = consumer.metrics()
        uncommitted = int(str(metrics["processing_uncommitted"]))
        most_bytes = max(most_bytes, uncommitted * SIZE_BYTES)
        return most_bytes

    async with running(consumer, handle):
        # The other partition is read to its end beside the one that stands still.
        await until(lambda: held_bytes() and handle.handled.get(1) == 150)
        assert LIMIT_BYTES / 4 <= most_bytes <= LIMIT_BYTES
        assert not handle.handled.get(0)
        handle.gate.set()
        await until(lambda: held_bytes() and handle.handled.get(0) == 150)
    assert most_bytes <= LIMIT_BYTES


@pytest.mark.real_if_long
@pytest.mark.parametrize("batch_size", [None, 1])
async def test_a_finished_record_makes_room_for_another_while_the_next_is_handled(
    kafka: KafkaHandle, batch_size: int | None
) -> None:
    topic = await kafka.create_topic(partitions=1)
    await kafka.produce(topic, 0, rows(0, 4))
    gate = asyncio.Event()
    begun: list[int] = []

    async def handle(given: Record | list[Record]) -> None:
        record = given[0] if isinstance(given, list) else given
        begun.append(record.offset)
        if record.offset == 1:
            await gate.wait()

    consumer = member(kafka, topic, unique("memory"))
    settings = {"concurrency": 2, "order": None, "max_uncommitted": 2, "batch_size": batch_size}
    async with running(consumer, handle, **settings):
        await until(lambda: 2 in begun)
        assert not gate.is_set()
        gate.set()
        await until(lambda: sorted(begun) == [0, 1, 2, 3])


@pytest.mark.real_if_long
async def test_a_record_that_its_handler_commits_makes_room_for_another_while_that_goes_on(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic(partitions=1)
    await kafka.produce(topic, 0, rows(0, 4))
    gate = asyncio.Event()
    begun: list[int] = []
    consumer = member(kafka, topic, unique("memory"))

    async def handle(record: Record) -> None:
        begun.append(record.offset)
        if record.offset == 0:
            await consumer.commit({TopicPartition(topic, 0): 1})
        await gate.wait()

    async with running(consumer, handle, concurrency=4, order=None, max_uncommitted=2):
        await until(lambda: 2 in begun)
        gate.set()
        await until(lambda: sorted(begun) == [0, 1, 2, 3])
