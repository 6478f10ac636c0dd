"""A script that reads orders in batches and commits each batch when it is processed.

After SIGTERM or Ctrl-C it finishes the present batch. An error ends it, and the next process reads
the unfinished batch again.

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
    """Put your work here. A record may be repeated after a crash or a rebalance."""
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
                except CommitFailedError as error:  # the partitions were revoked
                    log.warning("these records will be read again: %s", error)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(main())
