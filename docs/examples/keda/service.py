"""A service for Kubernetes, which KEDA scales: handlers, a probe, and `/scale`.

SIGTERM stops the consumer: running handlers get 20 seconds, then their records are committed, and
the group moves the partitions at once. An error of the consumer ends the process, which Kubernetes
restarts. The page is also served while the consumer starts and stops.

    KAFKA=127.0.0.1:9092 python service.py
"""

from __future__ import annotations

import asyncio
import logging
import os

from aiokafka_lite import AIOKafkaConsumer, ConsumerRecord
from aiokafka_lite.extras import web
from aiokafka_lite.processing import Retry

log = logging.getLogger("orders")

# The longest time of a handler call, and how long a rebalance or a stop waits for handlers.
HANDLER_TIMEOUT_S = 15
REBALANCE_HOLD_MS = 20_000


async def handle(record: ConsumerRecord) -> None:
    """Put your work here. A record may be repeated after a crash or a rebalance."""
    log.info("%s-%d@%d: %r", record.topic, record.partition, record.offset, record.value)


async def main() -> None:
    logging.basicConfig(level=logging.INFO)
    consumer = AIOKafkaConsumer(
        "orders",
        bootstrap_servers=os.environ.get("KAFKA", "127.0.0.1:9092"),
        group_id="invoices",
        auto_offset_reset="earliest",
        rebalance_hold_ms=REBALANCE_HOLD_MS,
    )
    port = int(os.environ.get("PORT", "8080"))
    async with web.serve(consumer, host="0.0.0.0", port=port), consumer:  # noqa: S104
        await consumer.run(
            handle, concurrency=50, timeout_s=HANDLER_TIMEOUT_S, retry=Retry(attempts=5)
        )


if __name__ == "__main__":
    asyncio.run(main())
