"""Consumers whose `run` hands every record to a handler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite._compat import timeout
from tests.support.cluster import KafkaHandle

PATIENCE_S = 20.0


def member(kafka: KafkaHandle, topic: str, group: str, **settings: object) -> AIOKafkaConsumer:
    arguments: dict[str, object] = {
        "bootstrap_servers": kafka.bootstrap_servers,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "fetch_max_wait_ms": 50,
        "auto_commit_interval_ms": 50,
        "heartbeat_interval_ms": 100,
        **settings,
    }
    return AIOKafkaConsumer(topic, **arguments)  # type: ignore[arg-type]


@asynccontextmanager
async def running(
    consumer: AIOKafkaConsumer, *args: object, **kwargs: object
) -> AsyncIterator[asyncio.Task[None]]:
    """A consumer that is started, and runs; at the end it is stopped, and `run` has returned."""
    async with timeout(PATIENCE_S):
        await consumer.start()
        task = asyncio.create_task(consumer.run(*args, **kwargs))  # type: ignore[call-overload]
        try:
            yield task
        finally:
            await consumer.stop()
            await asyncio.wait([task])
    if not task.cancelled() and task.exception() is None:
        task.result()
