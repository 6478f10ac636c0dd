"""Forks while the loop stands still, and goes on with it in the child: bootstrap servers, loop."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine

from aiokafka_lite import AIOKafkaProducer
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import ForkedError
from aiokafka_lite.structs import TopicPartition

SERVERS, LOOP = sys.argv[1:]
TP = TopicPartition("t", 0)


async def begin() -> tuple[AIOKafkaConsumer, AIOKafkaProducer]:
    """Write one record, and read it."""
    producer = AIOKafkaProducer(bootstrap_servers=SERVERS)
    consumer = AIOKafkaConsumer(
        "t", bootstrap_servers=SERVERS, group_id="g", auto_offset_reset="earliest"
    )
    await producer.start()
    await consumer.start()
    await producer.send_and_wait("t", b"parent 0")
    assert (await consumer.getone()).offset == 0
    return consumer, producer


async def go_on(consumer: AIOKafkaConsumer, producer: AIOKafkaProducer) -> None:
    """Write and read more, and commit that."""
    for number in (1, 2):
        await producer.send_and_wait("t", b"parent %d" % number)
        assert (await consumer.getone()).offset == number
    await consumer.stop()
    await producer.stop()


def child(
    loop: asyncio.AbstractEventLoop, consumer: AIOKafkaConsumer, producer: AIOKafkaProducer
) -> None:
    """Be the child: whatever is asked for on the parent's loop is refused."""
    calls: list[Coroutine[object, object, object]] = [
        producer.send_and_wait("t", b"child"),
        producer.send("t", b"child"),
        producer.start(),
        producer.stop(),
        consumer.getone(),
        consumer.getmany(),
        consumer.__anext__(),
        consumer.commit(),
        consumer.stop(),
    ]
    for call in calls:
        try:
            loop.run_until_complete(asyncio.wait_for(call, 10))
        except ForkedError:
            continue
        print(f"child: {call} was not refused", flush=True)
    loop.run_until_complete(asyncio.sleep(0.3))  # nothing of the parent's goes on meanwhile
    print("child: over", flush=True)


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a loop of the kind wanted."""
    if LOOP == "uvloop":
        import uvloop

        return uvloop.new_event_loop()
    return asyncio.new_event_loop()


def main() -> None:
    """Fork between two runs of the loop."""
    loop = new_loop()
    consumer, producer = loop.run_until_complete(begin())
    pid = os.fork()
    if pid == 0:
        child(loop, consumer, producer)
        os._exit(0)
    os.waitpid(pid, 0)
    loop.run_until_complete(go_on(consumer, producer))
    loop.close()
    print("parent: over", flush=True)


main()
