"""Ends with a consumer that nobody stopped: bootstrap servers, topic, way, loop."""

from __future__ import annotations

import asyncio
import sys

from aiokafka_lite.consumer import AIOKafkaConsumer

SERVERS, TOPIC, WAY, LOOP = sys.argv[1:]
kept: list[AIOKafkaConsumer] = []


async def main() -> None:
    """Start, read, and leave it at that."""
    consumer = AIOKafkaConsumer(
        TOPIC, bootstrap_servers=SERVERS, group_id=f"g-{WAY}-{LOOP}", auto_offset_reset="earliest"
    )
    await consumer.start()
    await consumer.getone()
    if WAY == "loop closed":
        kept.append(consumer)


if LOOP == "uvloop":
    import uvloop

    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
else:
    loop = asyncio.new_event_loop()
loop.run_until_complete(main())
if WAY != "loop stopped":
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
kept.clear()
