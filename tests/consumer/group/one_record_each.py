"""A program for tests to kill: gets records in every way there is, and gets stuck at one of each.

    python -m tests.consumer.group.one_record_each BOOTSTRAP STUCK_AT WAY=TOPIC...

Each way has a consumer of its own, in the group named as its topic. It works on the records up to
offset STUCK_AT, says so on stdout, and never comes back from that one. Offsets are committed
automatically.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

from aiokafka_lite import AIOKafkaConsumer

Work = Callable[[int], Awaitable[None]]

# How many records a get of several may have.
BATCH = 2


async def by_getone(consumer: AIOKafkaConsumer) -> AsyncIterator[list[int]]:
    while True:
        yield [(await consumer.getone()).offset]


async def by_getmany(consumer: AIOKafkaConsumer) -> AsyncIterator[list[int]]:
    while True:
        for records in (await consumer.getmany(timeout_ms=200, max_records=BATCH)).values():
            yield [record.offset for record in records]


async def by_poll(consumer: AIOKafkaConsumer) -> AsyncIterator[list[int]]:
    while True:
        for records in (await consumer.poll(max_records=BATCH)).values():
            yield [record.offset for record in records]


async def by_async_for(consumer: AIOKafkaConsumer) -> AsyncIterator[list[int]]:
    async for record in consumer:
        yield [record.offset]


async def by_batches(consumer: AIOKafkaConsumer) -> AsyncIterator[list[int]]:
    async for batch in consumer.batches(max_rows=BATCH):
        yield batch.column("offset").to_pylist()


WAYS = {
    "getone": by_getone,
    "getmany": by_getmany,
    "poll": by_poll,
    "async-for": by_async_for,
    "batches": by_batches,
}


async def work(bootstrap_servers: str, stuck_at: int, way: str, topic: str) -> None:
    async with AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap_servers,
        group_id=topic,
        auto_offset_reset="earliest",
        auto_commit_interval_ms=20,
    ) as consumer:
        async for offsets in WAYS[way](consumer):
            if stuck_at in offsets:
                print(way, offsets[0], flush=True)
                await asyncio.get_running_loop().create_future()


async def main(bootstrap_servers: str, stuck_at: str, *ways: str) -> None:
    pairs = [way.split("=") for way in ways]
    await asyncio.gather(
        *(work(bootstrap_servers, int(stuck_at), way, topic) for way, topic in pairs)
    )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
