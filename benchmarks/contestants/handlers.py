"""Handle the records of one partition many at a time. Imports its client by itself."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, Protocol

from benchmarks.measure import Workload

CONCURRENCY: Final = 500
GROUP: Final = "bench-handling"


class Handled(Protocol):
    """A record, as far as all clients have it alike."""

    @property
    def key(self) -> bytes: ...

    @property
    def offset(self) -> int: ...


Handler = Callable[[Handled], Awaitable[None]]


def open_handling(
    subject: str, workload: Workload, group: str, handler: Handler
) -> AbstractAsyncContextManager[str]:
    """Handle records until the block ends, as the function that `subject` names does.

    The block gets the client's version.
    """
    open_: Callable[[Workload, str, Handler], AbstractAsyncContextManager[str]]
    open_ = globals()[subject]
    return open_(workload, group, handler)


@asynccontextmanager
async def run(workload: Workload, group: str, handler: Handler) -> AsyncIterator[str]:
    """Handle with `run` of ours, in order by key."""
    import aiokafka_lite

    consumer = aiokafka_lite.AIOKafkaConsumer(
        *workload.topics,
        bootstrap_servers=workload.bootstrap_servers,
        group_id=group,
        auto_offset_reset="earliest",
    )
    async with consumer:
        task = asyncio.ensure_future(
            consumer.run(handler, concurrency=CONCURRENCY)  # type: ignore[type-var]
        )
        yield aiokafka_lite.__version__
        await consumer.stop()
        await task


@asynccontextmanager
async def semaphore(workload: Workload, group: str, handler: Handler) -> AsyncIterator[str]:
    """Handle with aiokafka in a task for each record, as many as a semaphore lets in.

    Offsets are committed by its auto-commit, as programs do that are written by hand.
    """
    import aiokafka

    gate = asyncio.Semaphore(CONCURRENCY)
    tasks: set[asyncio.Task[None]] = set()

    async def handle(record: Handled) -> None:
        try:
            await handler(record)
        finally:
            gate.release()

    async def read() -> None:
        async for record in consumer:
            await gate.acquire()
            task = asyncio.ensure_future(handle(record))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    consumer = aiokafka.AIOKafkaConsumer(
        *workload.topics,
        bootstrap_servers=workload.bootstrap_servers,
        group_id=group,
        auto_offset_reset="earliest",
        auto_commit_interval_ms=1000,
    )
    await consumer.start()
    reading = asyncio.ensure_future(read())
    try:
        yield aiokafka.__version__
    finally:
        reading.cancel()
        await asyncio.wait([reading])
        await consumer.stop()


@asynccontextmanager
async def faststream(workload: Workload, group: str, handler: Handler) -> AsyncIterator[str]:
    """Handle with FastStream's workers, which share the records out as they come."""
    from faststream.kafka import KafkaBroker, KafkaMessage

    broker = KafkaBroker(workload.bootstrap_servers, logger=None, log_level=logging.CRITICAL)

    @broker.subscriber(
        *workload.topics, group_id=group, auto_offset_reset="earliest", max_workers=CONCURRENCY
    )
    async def handle(body: bytes, message: KafkaMessage) -> None:
        record = message.raw_message
        assert not isinstance(record, tuple)
        await handler(record)

    await broker.start()
    try:
        yield importlib.import_module("importlib.metadata").version("faststream")
    finally:
        await broker.stop()
