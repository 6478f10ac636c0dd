"""A FastAPI service with a worker beside its routes.

The lifespan starts a task that reads orders; the task owns the consumer, so that the cancellation
at shutdown goes through its `async with`: what was processed is committed, the record that was
being processed is not.

    KAFKA=127.0.0.1:9092 uvicorn fastapi_worker:app
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response

from aiokafka_lite import AIOKafkaConsumer, ConsumerRecord

log = logging.getLogger("orders")


async def handle(record: ConsumerRecord[bytes, bytes]) -> None:
    """Put your work here. A record may come twice: after a crash, or a rebalance."""
    log.info("%s-%d@%d: %r", record.topic, record.partition, record.offset, record.value)


async def work(consumer: AIOKafkaConsumer, processed: Counter[str]) -> None:
    try:
        async with consumer:
            async for record in consumer:
                await handle(record)
                processed[record.topic] += 1
    except Exception:
        log.exception("the worker has ended; /health says so")
        raise


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
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


@app.get("/processed")
async def processed(request: Request) -> dict[str, int]:
    return dict(request.app.state.processed)


@app.get("/health")
async def health(request: Request, response: Response) -> dict[str, object]:
    state = request.app.state
    found = state.consumer.health()
    if state.worker.done() or found.verdict == "dead":
        response.status_code = 503
    return dataclasses.asdict(found)
