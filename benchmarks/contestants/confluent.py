"""confluent-kafka (librdkafka): blocking `consume` and `poll`, and its asyncio wrapper.

With its defaults, and with the settings that were found best for each figure.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Final

import confluent_kafka
from confluent_kafka.aio import AIOConsumer

from benchmarks.contestants.reader import Drained, Reader, Take
from benchmarks.measure import StarvedError, Workload

BATCH: Final = 10_000
CONNECT_TIMEOUT_S: Final = 10.0
_STOP_INTERVAL_S: Final = 1.0
"""How long one blocking call lasts when nothing comes, and so how long stopping may take."""

# Of some twenty settings tried, the one with the least CPU time: a short queue, which stays in the
# processor's cache, and a short pause between fetches.
LEAST_CPU: Final[Mapping[str, int]] = {"queued.min.messages": 20_000, "fetch.queue.backoff.ms": 1}

# Without a pause between fetches: the least wall time.
LEAST_WALL: Final[Mapping[str, int]] = {"fetch.queue.backoff.ms": 0}

# And a broker that does not keep an answer back: a fetch of partitions that were read to their end
# takes half a second otherwise, and how often that happens is chance.
NO_PAUSES: Final[Mapping[str, int]] = {**LEAST_WALL, "fetch.wait.max.ms": 10}

VERSION: Final = f"{confluent_kafka.version()}, librdkafka {confluent_kafka.libversion()[0]}"

Message = confluent_kafka.Message
Get = Callable[[float], Sequence[Message]]
"""Returns messages, after so many seconds none."""


def consume(workload: Workload) -> AbstractAsyncContextManager[Reader]:
    """Read with `consume(10000)` and the defaults."""
    return _blocking(workload, {}, _consume)


def consume_least_cpu(workload: Workload) -> AbstractAsyncContextManager[Reader]:
    """Read with `consume(10000)` and the settings that take the least CPU time."""
    return _blocking(workload, LEAST_CPU, _consume)


def consume_least_wall(workload: Workload) -> AbstractAsyncContextManager[Reader]:
    """Read with `consume(10000)` and the settings that take the least wall time."""
    return _blocking(workload, LEAST_WALL, _consume)


def consume_without_pauses(workload: Workload) -> AbstractAsyncContextManager[Reader]:
    """Read with `consume(10000)`, and wait for nothing: to measure a broker."""
    return _blocking(workload, NO_PAUSES, _consume)


def poll(workload: Workload) -> AbstractAsyncContextManager[Reader]:
    """Read with `poll()`: `consume` would wait until it has as many messages as it may return."""
    return _blocking(workload, {}, _poll)


@asynccontextmanager
async def aio(workload: Workload) -> AsyncIterator[Reader]:
    """Read with `await AIOConsumer.poll()`."""
    consumer = AIOConsumer(_settings(workload, {}), max_workers=2)
    try:
        await consumer.list_topics(timeout=CONNECT_TIMEOUT_S)
        yield AioReader(consumer, workload)
    finally:
        await consumer.close()


class BlockingReader:
    """Reads with a method that blocks."""

    version: Final = VERSION

    def __init__(self, consumer: confluent_kafka.Consumer, workload: Workload, get: Get) -> None:
        self._consumer: Final = consumer
        self._workload: Final = workload
        self._get: Final = get

    async def assign(self) -> None:
        self._consumer.assign(_partitions(self._workload))

    async def rewind(self) -> None:
        await self.assign()

    async def drain(self, records: int) -> Drained:
        consume = self._consumer.consume
        read = touched_bytes = 0
        while read < records:
            messages = consume(min(BATCH, records - read), timeout=self._workload.wait_s)
            if not messages:
                raise StarvedError(f"consume: nothing after {read} records")
            for message in messages:
                error = message.error()
                if error is not None:
                    raise confluent_kafka.KafkaException(error)
                # No record of these topics lacks a key or a value, and a check would cost time.
                touched_bytes += len(message.key()) + len(message.value())  # type: ignore[arg-type]
            read += len(messages)
        return Drained(read, touched_bytes)

    async def read(self, take: Take, pause_s: float = 0.0) -> None:
        stopped = threading.Event()
        reading = asyncio.ensure_future(asyncio.to_thread(self._read, take, pause_s, stopped))
        try:
            await asyncio.shield(reading)
        finally:
            # The thread has to be out of the consumer before anybody closes that.
            stopped.set()
            await asyncio.wait([reading])

    def _read(self, take: Take, pause_s: float, stopped: threading.Event) -> None:
        while not stopped.is_set():
            messages = self._get(_STOP_INTERVAL_S)
            if messages and not take(_values(messages)):
                return
            if pause_s:
                time.sleep(pause_s * len(messages))


class AioReader:
    """Reads with confluent-kafka's asyncio wrapper, which has a thread wait for each message."""

    version: Final = VERSION

    def __init__(self, consumer: AIOConsumer, workload: Workload) -> None:
        self._consumer: Final = consumer
        self._workload: Final = workload

    async def assign(self) -> None:
        await self._consumer.assign(_partitions(self._workload))

    async def rewind(self) -> None:
        await self.assign()

    async def drain(self, records: int) -> Drained:
        read = touched_bytes = 0
        while read < records:
            messages = await self._consumer.consume(
                min(BATCH, records - read), timeout=self._workload.wait_s
            )
            if not messages:
                raise StarvedError(f"consume: nothing after {read} records")
            for message in messages:
                touched_bytes += len(message.key()) + len(message.value())
            read += len(messages)
        return Drained(read, touched_bytes)

    async def read(self, take: Take, pause_s: float = 0.0) -> None:
        while True:
            message = await self._consumer.poll(_STOP_INTERVAL_S)
            if message is None:
                continue
            if not take(_values((message,))):
                return
            if pause_s:
                await asyncio.sleep(pause_s)


@asynccontextmanager
async def _blocking(
    workload: Workload,
    settings: Mapping[str, int],
    get: Callable[[confluent_kafka.Consumer, float], Sequence[Message]],
) -> AsyncIterator[Reader]:
    consumer = confluent_kafka.Consumer(_settings(workload, settings))
    try:
        consumer.list_topics(timeout=CONNECT_TIMEOUT_S)
        yield BlockingReader(consumer, workload, partial(get, consumer))
    finally:
        consumer.close()


def _consume(consumer: confluent_kafka.Consumer, timeout_s: float) -> Sequence[Message]:
    return consumer.consume(BATCH, timeout_s)


def _poll(consumer: confluent_kafka.Consumer, timeout_s: float) -> Sequence[Message]:
    message = consumer.poll(timeout_s)
    return () if message is None else (message,)


def _settings(workload: Workload, settings: Mapping[str, int]) -> dict[str, str | int | bool]:
    return {
        "bootstrap.servers": workload.bootstrap_servers,
        "group.id": f"bench-{uuid.uuid4().hex}",
        "auto.offset.reset": workload.start,
        "enable.auto.commit": False,
        **settings,
    }


def _partitions(workload: Workload) -> list[confluent_kafka.TopicPartition]:
    offset = {
        "earliest": confluent_kafka.OFFSET_BEGINNING,
        "latest": confluent_kafka.OFFSET_END,
    }[workload.start]
    return [
        confluent_kafka.TopicPartition(topic, number, offset)
        for topic, number in workload.partitions()
    ]


def _values(messages: Sequence[Message]) -> list[bytes | None]:
    values = []
    for message in messages:
        error = message.error()
        if error is not None:
            raise confluent_kafka.KafkaException(error)
        values.append(message.value())
    return values
