"""A FastAPI service with a worker next to its routes.

The lifespan starts a task that reads orders and owns the consumer. The shutdown cancels the task,
so `async with` exits with an exception: processed records are committed, the record being
processed is not.
The consumer's status page, health and metrics are under /kafka/, also during the start and after
a failure.

    KAFKA=127.0.0.1:9092 uvicorn fastapi_worker:app
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request

from aiokafka_lite import AIOKafkaConsumer, ConsumerRecord
from aiokafka_lite.extras import web as consumer_web

log = logging.getLogger("orders")


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


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    logging.basicConfig(level=logging.INFO)  # uvicorn configures only its own loggers
    app.state.processed = Counter[str]()
    app.state.consumer = AIOKafkaConsumer(
        "orders",
        bootstrap_servers=os.environ.get("KAFKA", "127.0.0.1:9092"),
        group_id="invoices",
        auto_offset_reset="earliest",
    )
    app.state.worker = asyncio.create_task(work(app.state.consumer, app.state.processed))
    yield
    app.state.worker.cancel()
    await asyncio.gather(app.state.worker, return_exceptions=True)


app = FastAPI(title="Invoices", lifespan=lifespan)
app.mount("/kafka", consumer_web.asgi(lambda: app.state.consumer))


@app.get("/processed")
async def processed(request: Request) -> dict[str, int]:
    return dict(request.app.state.processed)
