"""A FastAPI service that queues slow jobs, which all its processes share.

`POST /scans` writes a scan to a topic. `read_text` takes seconds, and up to 64 calls of it run at
a time in each process. The share group `ocr` leases each scan to one process, and gives it to
another one if that process dies. At shutdown, `stop` waits for running jobs, here up to eight
seconds, and releases the others.

    aiokafka-lite topics create scans texts scans.failed --partitions 3     # once, before the start
    aiokafka-lite share config ocr --set share.auto.offset.reset=earliest
    KAFKA=127.0.0.1:9092 uvicorn fastapi_queue:app
"""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response

from aiokafka_lite import AIOKafkaProducer, AIOKafkaShareConsumer, ConsumerRecord
from aiokafka_lite.processing import Retry

SCANS, TEXTS, FAILED = "scans", "texts", "scans.failed"
log = logging.getLogger("ocr")


async def read_text(scan: bytes) -> bytes:
    """Put your work here: a call of an OCR service, or a plain function in a thread."""
    await asyncio.sleep(2)
    if not scan:
        raise ValueError("an empty scan")
    return scan.upper()


async def work(consumer: AIOKafkaShareConsumer, producer: AIOKafkaProducer) -> None:
    async def handle(record: ConsumerRecord) -> None:
        if record.delivery_count > 1:
            log.warning("scan %s may be read for the second time", record.key)
        text = await read_text(record.value or b"")
        await producer.send_and_wait(TEXTS, text, key=record.key)  # then the scan is accepted

    retry = Retry(attempts=5, on=(ConnectionError, TimeoutError), dead=ValueError)
    try:
        async with consumer:
            await consumer.run(handle, concurrency=64, retry=retry, dead_letter=FAILED)
    except Exception:
        log.exception("the worker has ended; /health says so")
        await consumer.stop()  # also after a failed start: the health is then "dead"
        raise


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    logging.basicConfig(level=logging.INFO)  # uvicorn configures only its own loggers
    brokers = os.environ.get("KAFKA", "127.0.0.1:9092")
    app.state.consumer = AIOKafkaShareConsumer(SCANS, group_id="ocr", bootstrap_servers=brokers)
    async with AIOKafkaProducer(bootstrap_servers=brokers) as app.state.producer:
        worker = asyncio.create_task(work(app.state.consumer, app.state.producer))
        yield
        await app.state.consumer.stop(timeout=10)
        await asyncio.gather(worker, return_exceptions=True)


app = FastAPI(title="Text of scans", lifespan=lifespan)


@app.post("/scans", status_code=202)
async def queue(request: Request) -> dict[str, str]:
    job = uuid.uuid4().hex
    await app.state.producer.send_and_wait(SCANS, await request.body(), key=job.encode())
    return {"job": job}


@app.get("/health")
async def health(response: Response) -> dict[str, object]:
    found = app.state.consumer.health()
    response.status_code = 503 if found.verdict == "dead" else 200
    return {"verdict": found.verdict, "reasons": found.reasons}
