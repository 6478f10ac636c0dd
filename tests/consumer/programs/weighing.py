"""Prints how many KiB each of many consumers takes.

Arguments: bootstrap servers, topic, way, how many consumers, the most KiB. On a busy machine, some
requests are in flight when it looks, and it looks again.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
import tracemalloc

from aiokafka_lite.consumer import AIOKafkaConsumer

SERVERS, TOPIC, WAY, COUNT, MOST_KIB = sys.argv[1:]
PATIENCE_S = 15.0


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
    deadline = time.monotonic() + PATIENCE_S
    while True:
        gc.collect()
        weight_kib = tracemalloc.get_traced_memory()[0] / 1024 / len(consumers)
        if weight_kib < float(MOST_KIB) or time.monotonic() > deadline:
            break
        await asyncio.sleep(0.5)
    tracemalloc.stop()
    await asyncio.gather(*(consumer.stop() for consumer in consumers))
    print(weight_kib)


asyncio.run(main())
