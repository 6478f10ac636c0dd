"""Runs handlers of a share group until a signal; says what they do: servers, topic, group."""

from __future__ import annotations

import asyncio
import sys

from aiokafka_lite import AIOKafkaShareConsumer
from aiokafka_lite.structs import ConsumerRecord

SERVERS, TOPIC, GROUP = sys.argv[1:]


async def handle(record: ConsumerRecord) -> None:
    print("began", record.offset, flush=True)
    if record.offset:
        await asyncio.Event().wait()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    print("ended", record.offset, flush=True)


async def main() -> None:
    async with AIOKafkaShareConsumer(TOPIC, bootstrap_servers=SERVERS, group_id=GROUP) as consumer:
        await consumer.run(handle)
        print("returned", flush=True)


asyncio.run(main())
