"""The same records, compacted by this broker and by Kafka: batch for batch the same is left."""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

import pytest

from aiokafka_lite import records
from aiokafka_lite.broker import Broker
from aiokafka_lite.records import decode_all, iter_batches
from tests.broker.log.keyed import Row
from tests.broker.wire import fetch, fetch_partition, new_producer_id, produce
from tests.support.cluster import KafkaHandle
from tests.support.wire import RawClient

# Kafka's cleaner looks every 15 s.
PATIENCE_S = 90
# How long a tombstone stays after it was first met.
RETENTION_S = 1

CONFIGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "100",
    "delete.retention.ms": f"{RETENTION_S * 1000}",
}


class Layout(NamedTuple):
    """What is left of a batch."""

    base_offset: int
    last_offset_delta: int
    base_sequence: int
    attributes: int
    rows: list[tuple[int, int, bytes | None, bytes | None]]


async def layout(kafka: KafkaHandle, topic: str) -> list[Layout]:
    """Read all of a topic; times count from the newest record's."""
    found: list[Layout] = []
    offset = end = 0
    async with kafka.raw() as client:
        while offset < end or not end:
            answer = await fetch(client, topic, fetch_partition(offset=offset))
            end = answer.high_watermark
            for header, batch in iter_batches(memoryview(answer.records or b"")):
                rows = decode_all(batch) if header.count else []
                found.append(
                    Layout(
                        header.base_offset,
                        header.last_offset_delta,
                        header.base_sequence,
                        header.attributes,
                        [(row.offset, row.timestamp, row.key, row.value) for row in rows],
                    )
                )
                offset = header.last_offset + 1
    return found


class Writer:
    """Writes the same batches to any cluster."""

    def __init__(self, client: RawClient, topic: str, now_ms: int) -> None:
        self._client = client
        self._topic = topic
        self._now_ms = now_ms

    async def put(
        self, *rows: Row, at_ms: int, codec: str = "none", producer: int = -1, seq: int = -1
    ) -> None:
        batch = records.build_batch(
            [(self._now_ms + at_ms + n, key, value, ()) for n, (key, value) in enumerate(rows)],
            codec=codec,
            producer_id=producer,
            producer_epoch=-1 if producer < 0 else 0,
            base_sequence=seq,
        )
        assert (await produce(self._client, self._topic, batch)).error_code == 0

    async def first(self) -> None:
        """Write a producer's records, a compressed batch, a tombstone, and what supersedes."""
        producer = await new_producer_id(self._client)
        for number in range(3):
            await self.put((b"p", b"%d" % number), at_ms=0, producer=producer, seq=number)
        await self.put((b"a", b"1"), (b"b", b"2"), (b"a", b"3"), at_ms=10, codec="gzip")
        await self.put((b"x", b"1"), (b"y", None), (b"x", b"3"), at_ms=20)
        for at_ms, value in ((30, b"new"), (40, b"newer")):
            await self.put((b"p", value), at_ms=at_ms)
        await self.put((b"q", b"0"), (b"q", b"1"), at_ms=50)
        for at_ms in (30_000, 50_000):  # each starts a segment
            await self.put((b"z", b"%d" % at_ms), at_ms=at_ms)

    async def second(self) -> None:
        """Write more, now that the tombstone's time is over."""
        for at_ms in (60_000, 70_000):
            await self.put((b"z", b"%d" % at_ms), at_ms=at_ms)


@pytest.mark.slow
async def test_leaves_the_same_batches(real_kafka: str) -> None:
    now_ms = int(time.time() * 1000) - 70_000
    real = KafkaHandle("real", real_kafka)
    async with Broker() as broker:
        ours = KafkaHandle("embedded", broker.bootstrap_servers)
        topics = {each: await each.create_topic(configs=CONFIGS) for each in (real, ours)}
        for part in (Writer.first, Writer.second):
            for kafka, topic in topics.items():
                async with kafka.raw() as client:
                    await part(Writer(client, topic, now_ms))
            expected = before = await layout(real, topics[real])
            deadline = time.monotonic() + PATIENCE_S
            while expected == before and time.monotonic() < deadline:
                await asyncio.sleep(1)
                expected = await layout(real, topics[real])
            await broker.clean_logs()
            assert await layout(ours, topics[ours]) == expected
            assert expected != before
            # The next part may be cleaned half a second behind this one.
            await asyncio.sleep(RETENTION_S)
        await real.delete_topic(topics[real])
