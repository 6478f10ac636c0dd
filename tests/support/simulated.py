"""A group in a simulation: a broker, members and a producer on a loop of simloop or simloom.

    python -m tests.support.simulated LIBRARY SEED SECONDS MEMBERS

prints one line of JSON: a hash of everything that the loop did, and what the members received.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from aiokafka_lite import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka_lite.broker import Broker
from aiokafka_lite.simulation import simulate

PAUSE_S = 0.25
SETTLE_S = 3.0

# Runs a coroutine function on the host of a name.
Spawn = Callable[[str, Callable[[], Coroutine[Any, Any, Any]]], "asyncio.Task[Any]"]


async def group(spawn: Spawn, seconds: float, member_count: int) -> dict[str, object]:
    """Let members read what a producer writes, each on a host of its own."""
    loop = asyncio.get_running_loop()
    is_up, is_over = asyncio.Event(), asyncio.Event()
    received: list[str] = []

    async def serve() -> None:
        async with Broker(host="broker", num_partitions=4, allow_remote=True):
            is_up.set()
            await is_over.wait()

    async def read() -> None:
        async with AIOKafkaConsumer(
            "t",
            bootstrap_servers="broker:9092",
            group_id="g",
            group_protocol="consumer",
            auto_offset_reset="earliest",
        ) as consumer:
            member_id = consumer.group_metadata().member_id
            async for record in consumer:
                got = member_id, record.partition, record.offset, record.timestamp, record.value
                received.append(repr(got))

    async def write() -> int:
        async with AIOKafkaProducer(bootstrap_servers="broker:9092") as producer:
            ends_at, count = loop.time() + seconds, 0
            while loop.time() < ends_at:
                key = None if count % 3 else b"%d" % (count % 7)
                await producer.send_and_wait("t", b"%d" % count, key=key)
                count += 1
                await asyncio.sleep(PAUSE_S)
            return count

    serving = spawn("broker", serve)
    await is_up.wait()
    members = [spawn(f"member{n}", read) for n in range(member_count)]
    written = await spawn("producer", write)
    await asyncio.sleep(SETTLE_S)
    for member in members:
        member.cancel()
    await asyncio.gather(*members, return_exceptions=True)
    is_over.set()
    await serving
    return {"written": written, "received": received}


def run_simloop(seed: int, seconds: float, member_count: int) -> dict[str, object]:
    from simloop import SimLoop  # needs Python 3.12

    loop = SimLoop(seed)
    simulate(loop, seed)
    net = loop.net
    net.set_defaults(latency=(0.0005, 0.005))
    outcome: dict[str, object] = loop.run_until_complete(
        group(lambda name, work: net.host(name).create_task(work()), seconds, member_count)
    )
    return outcome | {"hash": loop.trace_hash()}


def run_simloom(seed: int, seconds: float, member_count: int) -> dict[str, object]:
    import simloom  # needs Python 3.12

    async def program(world: Any) -> dict[str, object]:
        simulate(asyncio.get_running_loop(), seed)
        return await group(lambda name, work: world.host(name).spawn(work), seconds, member_count)

    result = simloom.run(program, seed=seed, raise_on_error=True)
    return {**result.value, "hash": result.digest}


if __name__ == "__main__":
    run = {"simloop": run_simloop, "simloom": run_simloom}[sys.argv[1]]
    print(json.dumps(run(int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))))
