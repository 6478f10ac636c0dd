"""Forks while a consumer is at work: arguments are bootstrap servers, topic, way, loop."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import sys
import traceback

from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import ForkedError
from aiokafka_lite.structs import TopicPartition
from tests.support import inside

SERVERS, TOPIC, WAY, LOOP = sys.argv[1:]
TP = TopicPartition(TOPIC, 0)


async def misuse(consumer: AIOKafkaConsumer) -> None:
    """Use a consumer in every way; each has to be refused."""
    for call in (
        consumer.poll,
        consumer.getone,
        consumer.getmany,
        consumer.__anext__,
        consumer.poll_arrow,
        consumer.commit,
        consumer.topics,
        consumer.seek_to_end,
        consumer.start,
        consumer.stop,
        lambda: consumer.position(TP),
        lambda: consumer.committed(TP),
        lambda: consumer.end_offsets([TP]),
    ):
        try:
            await call()
        except ForkedError:
            continue
        raise AssertionError(f"{call} was not refused")


def child(consumer: AIOKafkaConsumer) -> None:
    """Be the child: nothing works, and nothing that it does reaches the parent's sockets."""
    try:
        try:
            consumer.unsubscribe()
            raise AssertionError("a change was not refused")
        except ForkedError:
            pass
        # As in a coroutine that goes on in the child, and on a loop of the child's own.
        try:
            consumer.poll().send(None)
            raise AssertionError("not refused without a loop")
        except ForkedError:
            pass
        asyncio.run(misuse(consumer))
        inside.cluster(consumer).abort()  # whatever is closed here is not the parent's
        gc.collect()
        print("child: every call is refused", flush=True)
    except BaseException:  # noqa: BLE001 -- nothing of the parent's stack may go on here
        traceback.print_exc()
        os._exit(1)


async def main() -> None:
    """Read, fork with records ready and a fetch in flight, and read on."""
    async with AIOKafkaConsumer(
        TOPIC,
        bootstrap_servers=SERVERS,
        group_id=f"g-{TOPIC}-{WAY}-{LOOP}",
        auto_offset_reset="earliest",
        heartbeat_interval_ms=100,
        max_partition_fetch_bytes=200,
    ) as consumer:
        generation = inside.generation(consumer)
        read = [(await consumer.getone()).offset for _ in range(3)]
        for _ in range(2):
            if WAY == "multiprocessing":
                process = multiprocessing.get_context("fork").Process(
                    target=child, args=(consumer,)
                )
                process.start()
                while process.is_alive():  # noqa: ASYNC110 -- nothing tells of a process's end
                    await asyncio.sleep(0.01)
                assert process.exitcode == 0, process.exitcode
            else:
                pid = os.fork()
                if pid == 0:
                    child(consumer)
                    os._exit(0)
                while True:
                    done, status = os.waitpid(pid, os.WNOHANG)  # noqa: ASYNC222 -- it does not wait
                    if done:
                        break
                    await asyncio.sleep(0.01)
                assert status == 0, status
        while len(read) < 20:
            read.append((await asyncio.wait_for(consumer.getone(), 20)).offset)
        assert read == list(range(20)), read
        await consumer.commit()
        assert await consumer.committed(TP) == 20
        assert inside.generation(consumer) == generation
    print("parent: read all, in one generation", flush=True)


if LOOP == "uvloop":
    import uvloop

    uvloop.run(main())
else:
    asyncio.run(main())
