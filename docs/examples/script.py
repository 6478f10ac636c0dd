"""A plain worker: reads orders in batches and commits each when it is done.

SIGTERM or Ctrl-C lets it finish the batch it works on. An error ends it; what it had not finished
is read again by the next one.

    KAFKA=127.0.0.1:9092 python script.py
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal

from aiokafka_lite import AIOKafkaConsumer, ConsumerRecord
from aiokafka_lite.errors import CommitFailedError

log = logging.getLogger("orders")


async def handle(record: ConsumerRecord) -> None:
    """Put your work here. A record may come twice: after a crash, or a rebalance."""
    log.info("%s-%d@%d: %r", record.topic, record.partition, record.offset, record.value)


async def main() -> None:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    async with AIOKafkaConsumer(
        "orders",
        bootstrap_servers=os.environ.get("KAFKA", "127.0.0.1:9092"),
        group_id="invoices",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:
        while not stopping.is_set():
            batch = await consumer.poll(timeout_ms=500, max_records=500)
            for records in batch.values():
                for record in records:
                    await handle(record)
            if batch:
                try:
                    await consumer.commit()
                except CommitFailedError as error:  # the group gave the partitions to others
                    log.warning("these records will be read again: %s", error)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(main())
