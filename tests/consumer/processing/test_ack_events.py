"""Acknowledgements, by each way of reading, meet each event: no record is lost or repeated."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite._compat import timeout
from aiokafka_lite.errors import ConsumerStoppedError
from aiokafka_lite.structs import TopicPartition
from tests.consumer.processing.acking import PATIENCE_S, Record, filled, member
from tests.support.cluster import KafkaHandle, unique
from tests.support.protocols import WAYS as PROTOCOLS
from tests.support.waiting import eventually, until

pytestmark = pytest.mark.virtual_time_if_embedded

READS = ["async for", "getone", "getmany", "poll", "batch"]
EVENTS = ["seek", "pause", "cancelled", "stop", "error"]
COUNT = 20  # records of each of two partitions


class Boom(Exception):
    """Ends an `async with consumer`."""


class Work:
    """Reads, refuses every fifth record once, and acknowledges the others and those."""

    def __init__(self, topic: str) -> None:
        self.tps = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
        self.acked = Counter[tuple[int, int]]()
        self.refused: set[tuple[int, int]] = set()

    @property
    def is_done(self) -> bool:
        return len(self.acked) == 2 * COUNT

    def handle(self, record: Record) -> None:
        place = (record.partition, record.offset)
        if record.offset % 5 == 0 and place not in self.refused:
            self.refused.add(place)
            record.nack()
        elif record.ack():
            self.acked[place] += 1

    async def step(self, consumer: AIOKafkaConsumer, way: str) -> None:
        """One read, at most 0.2 s long."""
        if way == "batch":
            async with consumer.batch(max_records=3, timeout_ms=200) as batch:
                for record in batch:
                    self.handle(record)
            return
        if way in ("poll", "getmany"):
            read = consumer.poll if way == "poll" else consumer.getmany
            for records in (await read(timeout_ms=200, max_records=3)).values():
                for record in records:
                    self.handle(record)
            return
        try:
            async with timeout(0.2):
                if way == "getone":
                    self.handle(await consumer.getone())
                else:
                    async for record in consumer:
                        self.handle(record)
                        break
        except asyncio.TimeoutError:
            pass

    async def until_done(self, consumer: AIOKafkaConsumer, way: str) -> None:
        while not self.is_done:
            await self.step(consumer, way)
        await self.step(consumer, way)  # passes over what was finished before, to the end

    async def is_committed(self, consumer: AIOKafkaConsumer) -> None:
        for tp in self.tps:
            await eventually(lambda tp=tp: consumer.committed(tp), COUNT)  # type: ignore[misc]


@pytest.mark.few_rows(9)
@pytest.mark.real_if_long
@pytest.mark.parametrize("way", READS)
@pytest.mark.parametrize("event", EVENTS)
async def test_no_record_is_lost_or_repeated(kafka: KafkaHandle, way: str, event: str) -> None:
    work = Work(await filled(kafka, partitions=2, count=COUNT))
    topic, group = work.tps[0].topic, unique("acks")

    async def first_life() -> None:
        async with member(kafka, topic, group_id=group) as consumer:
            for _ in range(6):
                await work.step(consumer, way)
            if event == "seek":
                first = min(
                    offset
                    for offset in range(COUNT + 1)
                    if not work.acked[0, offset] and (0, offset) not in work.refused
                )
                consumer.seek(work.tps[0], first)
            elif event == "pause":
                consumer.pause(work.tps[0])
                while sum(place[0] == 1 for place in work.acked) < COUNT:
                    await work.step(consumer, way)
                consumer.resume(work.tps[0])
            elif event == "cancelled":
                for _ in range(20):
                    reading = asyncio.ensure_future(work.step(consumer, way))
                    await asyncio.sleep(0)
                    reading.cancel()
                    await asyncio.wait([reading])
            elif event == "error":
                raise Boom
            elif event == "stop":
                await consumer.stop()
                with pytest.raises(ConsumerStoppedError):
                    await consumer.getone()
                return
            await work.until_done(consumer, way)
            await work.is_committed(consumer)

    async with timeout(PATIENCE_S):
        try:
            await first_life()
        except Boom:
            pass
        if not work.is_done:
            async with member(kafka, topic, group_id=group) as consumer:
                await work.until_done(consumer, way)
                await work.is_committed(consumer)
    assert work.is_done
    assert set(work.acked.values()) == {1}


@pytest.mark.few_rows(7)
@pytest.mark.parametrize("way", READS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_rebalance_loses_and_repeats_none(
    kafka: KafkaHandle, way: str, protocol: str
) -> None:
    work = Work(await filled(kafka, partitions=2, count=COUNT))
    settings = {"group_id": unique("acks"), "rebalance_hold_ms": 5_000, **PROTOCOLS[protocol]}
    topic = work.tps[0].topic
    async with timeout(PATIENCE_S), member(kafka, topic, **settings) as first:
        await until(lambda: len(first.assignment()) == 2)
        for _ in range(4):
            await work.step(first, way)
        second = member(kafka, topic, **settings)
        joining = asyncio.create_task(second.start())
        while not (joining.done() and second.assignment() and len(first.assignment()) == 1):
            if sum(work.acked.values()) < COUNT:
                await work.step(first, way)
            else:  # some is left for the other
                await asyncio.sleep(0.01)
        await asyncio.gather(work.until_done(first, way), work.until_done(second, way))
        await work.is_committed(first)
        await second.stop()
    assert set(work.acked.values()) == {1}
