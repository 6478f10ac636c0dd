"""aiokafka_lite, with its defaults."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from aiokafka_lite import AIOKafkaConsumer, TopicPartition, __version__
from benchmarks.contestants.asyncio_api import BatchReader, IteratorReader
from benchmarks.contestants.reader import Reader
from benchmarks.measure import Workload


@asynccontextmanager
async def poll(workload: Workload) -> AsyncIterator[Reader]:
    """Read with `await consumer.poll()`."""
    async with _consumer(workload) as consumer:
        get = partial(consumer.poll, timeout_ms=int(workload.wait_s * 1000))
        yield BatchReader(consumer, _partitions(workload), __version__, get)


@asynccontextmanager
async def getmany(workload: Workload) -> AsyncIterator[Reader]:
    """Read with `await consumer.getmany()`."""
    async with _consumer(workload) as consumer:
        get = partial(consumer.getmany, timeout_ms=int(workload.wait_s * 1000))
        yield BatchReader(consumer, _partitions(workload), __version__, get)


@asynccontextmanager
async def async_for(workload: Workload) -> AsyncIterator[Reader]:
    """Read with `async for record in consumer`."""
    async with _consumer(workload) as consumer:
        yield IteratorReader(consumer, _partitions(workload), __version__, workload.wait_s)


@asynccontextmanager
async def batches(workload: Workload) -> AsyncIterator[Reader]:
    """Read with `async for batch in consumer.batches()`."""
    from benchmarks.contestants.arrow_reader import ArrowReader  # pyarrow is for who asks for it

    async with _consumer(workload) as consumer:
        yield ArrowReader(consumer, _partitions(workload), workload.wait_s)


def _consumer(workload: Workload) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        bootstrap_servers=workload.bootstrap_servers,
        auto_offset_reset=workload.start,
        enable_auto_commit=False,
    )


def _partitions(workload: Workload) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for topic, number in workload.partitions()]
