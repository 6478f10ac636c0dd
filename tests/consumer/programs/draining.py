"""Runs handlers until a signal; says what they do: servers, topic, group, event loop, way.

A handler of the value "stuck" ends when a line comes in. Ways: "default"; "off", without signals;
"own", with a handler of the program for SIGTERM; "blocked", the handler blocks the event loop;
"thread", it blocks a thread; "again", with another consumer and run after each.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite.structs import ConsumerRecord

SERVERS, TOPIC, GROUP, LOOP, WAY = sys.argv[1:]


async def handle(record: ConsumerRecord) -> None:
    value = record.value or b""
    print("began", value.decode(), flush=True)
    try:
        if value == b"stuck" and WAY == "blocked":
            time.sleep(600)  # noqa: ASYNC251 -- it blocks the loop
        elif value == b"stuck":
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        print("ended", value.decode(), flush=True)
    except asyncio.CancelledError:
        print("cancelled", flush=True)
        raise


def handle_in_thread(record: ConsumerRecord) -> None:
    value = record.value or b""
    print("began", value.decode(), flush=True)
    if value == b"stuck":
        time.sleep(600)
    print("ended", value.decode(), flush=True)


async def main() -> None:
    await consume()
    while WAY == "again":
        await consume()


async def consume() -> None:
    consumer = AIOKafkaConsumer(
        TOPIC, bootstrap_servers=SERVERS, group_id=GROUP, auto_offset_reset="earliest"
    )
    async with consumer:
        if WAY == "own":
            stopping: list[asyncio.Future[object]] = []
            asyncio.get_running_loop().add_signal_handler(
                signal.SIGTERM, lambda: stopping.append(asyncio.ensure_future(consumer.stop()))
            )
        if WAY == "off":
            await consumer.run(handle, stop_on=())
        else:
            await consumer.run(handle_in_thread if WAY == "thread" else handle)
        print("returned", flush=True)


logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
if LOOP == "uvloop":
    import uvloop

    uvloop.run(main())
else:
    asyncio.run(main())
