"""A FastAPI service that processes many records at a time next to its routes.

`consumer.run` calls `handle` for up to 200 records at a time, in order per customer (the key). At
shutdown, `stop` waits for running handlers, here up to eight seconds, and commits their records.
Then `run` returns.

    KAFKA=127.0.0.1:9092 uvicorn fastapi_handlers:app
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
from aiokafka_lite.processing import Retry

log = logging.getLogger("orders")


async def handle(record: ConsumerRecord) -> None:
    """Put your work here. A record may be repeated after a crash."""
    log.info("%s-%d@%d: %r", record.topic, record.partition, record.offset, record.value)


async def work(consumer: AIOKafkaConsumer, processed: Counter[str]) -> None:
    async def counted(record: ConsumerRecord) -> None:
        await handle(record)
        processed[record.topic] += 1

    retry = Retry(attempts=5, on=(ConnectionError, TimeoutError))
    try:
        async with consumer:
            await consumer.run(counted, concurrency=200, retry=retry)
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
    await app.state.consumer.stop(timeout=10)
    await asyncio.gather(app.state.worker, return_exceptions=True)


app = FastAPI(title="Invoices", lifespan=lifespan)
app.mount("/kafka", consumer_web.asgi(lambda: app.state.consumer))


@app.get("/processed")
async def processed(request: Request) -> dict[str, int]:
    return dict(request.app.state.processed)
