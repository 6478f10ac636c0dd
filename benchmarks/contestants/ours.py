"""aiokafka_lite, with its defaults."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from aiokafka_lite import AIOKafkaConsumer, TopicPartition, __version__
from benchmarks.contestants.asyncio_api import WAIT_MS, read_batches, read_one_by_one
from benchmarks.measure import Measurement, Workload


async def poll(workload: Workload) -> Measurement:
    """Read with `await consumer.poll()`."""
    async with _consumer(workload) as consumer:
        get = partial(consumer.poll, timeout_ms=WAIT_MS)
        return await read_batches(get, _assign(consumer, workload), workload, __version__)


async def getmany(workload: Workload) -> Measurement:
    """Read with `await consumer.getmany()`."""
    async with _consumer(workload) as consumer:
        get = partial(consumer.getmany, timeout_ms=WAIT_MS)
        return await read_batches(get, _assign(consumer, workload), workload, __version__)


async def async_for(workload: Workload) -> Measurement:
    """Read with `async for record in consumer`."""
    async with _consumer(workload) as consumer:
        return await read_one_by_one(consumer, _assign(consumer, workload), workload, __version__)


@asynccontextmanager
async def _consumer(workload: Workload) -> AsyncIterator[AIOKafkaConsumer]:
    async with AIOKafkaConsumer(
        bootstrap_servers=workload.bootstrap_servers,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:
        yield consumer


def _assign(consumer: AIOKafkaConsumer, workload: Workload) -> partial[None]:
    partitions = [
        TopicPartition(workload.topic, number) for number in range(workload.partition_count)
    ]
    return partial(consumer.assign, partitions)
