"""Reads a topic and prints the offsets' sum and how many MiB that took: servers, topic, way, count.

The resident size is taken before the first read and at its highest.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from aiokafka_lite.consumer import AIOKafkaConsumer

SERVERS, TOPIC, WAY, COUNT = sys.argv[1:]
MIB = 1 << 20


def resident_kib(name: str) -> int:
    """What Linux says of this process."""
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith(name))
    return int(line.split()[1])


async def read(consumer: AIOKafkaConsumer, offsets: list[int]) -> None:
    """Add the offsets of the records as they come, until there are enough."""
    while len(offsets) < int(COUNT):
        if WAY == "async for":
            async for record in consumer:
                offsets.append(record.offset)
                if len(offsets) == int(COUNT):
                    return
        elif WAY == "batches":
            async for rows in consumer.batches():
                offsets += rows.column("offset").to_pylist()
                if len(offsets) >= int(COUNT):
                    return
        else:
            got = await (consumer.poll() if WAY == "poll" else consumer.getmany(max_records=100))
            for some in got.values():
                offsets += [record.offset for record in some]
                assert sum(len(record.value or b"") for record in some) < 18 * MIB


async def main() -> None:
    if WAY == "batches":
        import pyarrow as pa

        pa.array([1])
    async with AIOKafkaConsumer(
        TOPIC,
        bootstrap_servers=SERVERS,
        auto_offset_reset="earliest",
        max_batch_bytes=2 * MIB,
        max_buffered_bytes=16 * MIB,
    ) as consumer:
        before_kib = resident_kib("VmRSS")
        offsets: list[int] = []
        await read(consumer, offsets)
        assert offsets == list(range(int(COUNT)))
        print((resident_kib("VmHWM") - before_kib) / 1024)


asyncio.run(main())
