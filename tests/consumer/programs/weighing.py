"""Prints how many KiB each of many consumers takes: bootstrap servers, topic, way, how many."""

from __future__ import annotations

import asyncio
import gc
import sys
import tracemalloc

from aiokafka_lite.consumer import AIOKafkaConsumer

SERVERS, TOPIC, WAY, COUNT = sys.argv[1:]


async def started(number: int) -> AIOKafkaConsumer:
    """A consumer that has handed out its first record."""
    consumer = AIOKafkaConsumer(
        TOPIC,
        bootstrap_servers=SERVERS,
        auto_offset_reset="earliest",
        group_id=f"group-{number}" if WAY == "group" else None,
    )
    await consumer.start()
    await consumer.getone()
    return consumer


async def main() -> None:
    await (await started(-1)).stop()  # what a process has once
    tracemalloc.start()
    consumers = [await started(number) for number in range(int(COUNT))]
    gc.collect()
    weight_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    await asyncio.gather(*(consumer.stop() for consumer in consumers))
    print(weight_bytes / 1024 / len(consumers))


asyncio.run(main())
