"""A group in a simulation: a broker, members and a producer on a loop of simloop.

    python -m tests.support.simulated SEED SECONDS MEMBERS

prints one line of JSON: the hash of the loop's trace, the steps, and what the members received.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from aiokafka_lite import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka_lite.broker import Broker
from aiokafka_lite.simulation import simulate

PAUSE_S = 0.25
SETTLE_S = 3.0


async def group(loop: Any, seconds: float, member_count: int) -> dict[str, object]:
    """Let members read what a producer writes, each on a host of its own."""
    net = loop.net
    net.set_defaults(latency=(0.0005, 0.005))
    is_up, is_over = asyncio.Event(), asyncio.Event()
    received: list[tuple[int, int, int, bytes | None]] = []

    async def serve() -> None:
        async with Broker(host=net.address("broker"), num_partitions=4, allow_remote=True):
            is_up.set()
            await is_over.wait()

    async def read(number: int) -> None:
        async with AIOKafkaConsumer(
            "t",
            bootstrap_servers="broker:9092",
            group_id="g",
            group_protocol="consumer",
            auto_offset_reset="earliest",
        ) as consumer:
            async for record in consumer:
                got = number, record.partition, record.offset, record.value
                received.append(got)

    async def write() -> int:
        async with AIOKafkaProducer(bootstrap_servers="broker:9092") as producer:
            ends_at, count = loop.time() + seconds, 0
            while loop.time() < ends_at:
                key = None if count % 3 else b"%d" % (count % 7)
                await producer.send_and_wait("t", b"%d" % count, key=key)
                count += 1
                await asyncio.sleep(PAUSE_S)
            return count

    serving = net.host("broker").create_task(serve())
    await is_up.wait()
    members = [net.host(f"member{n}").create_task(read(n)) for n in range(member_count)]
    written = await net.host("producer").create_task(write())
    await asyncio.sleep(SETTLE_S)
    for member in members:
        member.cancel()
    await asyncio.gather(*members, return_exceptions=True)
    is_over.set()
    await serving
    return {"written": written, "received": [repr(each) for each in received]}


def run(seed: int, seconds: float, member_count: int) -> dict[str, object]:
    from simloop import SimLoop  # needs Python 3.12

    loop = SimLoop(seed)
    simulate(loop, seed)
    outcome: dict[str, object] = loop.run_until_complete(group(loop, seconds, member_count))
    return outcome | {"trace": loop.trace_hash(), "steps": len(loop.trace)}


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))))
