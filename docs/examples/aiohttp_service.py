"""An aiohttp service that reads orders and returns how many it has processed.

The reading task owns the consumer. The shutdown cancels the task, so `async with` exits with an
exception: processed records are committed, the record being processed is not.
The consumer's status page, health and metrics are under /kafka/, also during the start and after
a failure.

    KAFKA=127.0.0.1:9092 python aiohttp_service.py
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator

from aiohttp import web

from aiokafka_lite import AIOKafkaConsumer, ConsumerRecord
from aiokafka_lite.extras import web as consumer_web

log = logging.getLogger("orders")

CONSUMER = web.AppKey("CONSUMER", AIOKafkaConsumer)
PROCESSED: web.AppKey[Counter[str]] = web.AppKey("PROCESSED")


async def handle(record: ConsumerRecord) -> None:
    """Put your work here. A record may be repeated after a crash or a rebalance."""
    log.info("%s-%d@%d: %r", record.topic, record.partition, record.offset, record.value)


async def work(consumer: AIOKafkaConsumer, processed: Counter[str]) -> None:
    try:
        async with consumer:
            async for record in consumer:
                await handle(record)
                processed[record.topic] += 1
    except Exception:
        log.exception("the worker has ended; /kafka/ says so")
        await consumer.stop()  # also after a failed start: /kafka/health then returns 503
        raise


async def consuming(app: web.Application) -> AsyncIterator[None]:
    worker = asyncio.create_task(work(app[CONSUMER], app[PROCESSED]))
    yield
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)


async def processed(request: web.Request) -> web.Response:
    return web.json_response(request.app[PROCESSED])


async def make_app() -> web.Application:
    app = web.Application()
    app[CONSUMER] = AIOKafkaConsumer(
        "orders",
        bootstrap_servers=os.environ.get("KAFKA", "127.0.0.1:9092"),
        group_id="invoices",
        auto_offset_reset="earliest",
    )
    app[PROCESSED] = Counter()
    app.router.add_get("/processed", processed)
    app.add_subapp("/kafka/", consumer_web.application(app[CONSUMER]))
    app.cleanup_ctx.append(consuming)
    return app


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    web.run_app(make_app(), host="127.0.0.1", port=int(os.environ.get("PORT", "8080")))
