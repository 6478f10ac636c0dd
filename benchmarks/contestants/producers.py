"""Write records as fast as can be. Imports its client by itself: a run is of one of them.

All are idempotent, wait for all replicas and linger as long; the rest is the clients' defaults.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Final, Protocol

from benchmarks.loading import QUIET
from benchmarks.measure import RunError, StarvedError, Workload

if TYPE_CHECKING:
    import confluent_kafka

LINGER_MS: Final = 5
OUTSTANDING: Final = 10_000
"""So many records are sent before the outcomes of as many that were sent before are looked at."""
POLL_EVERY: Final = 100
_PAUSE_S: Final = 0.01


class Writer(Protocol):
    """Writes to one topic."""

    @property
    def version(self) -> str:
        """Of the client."""

    async def write(self, values: Sequence[bytes], records: int) -> None:
        """Write so many records, with the values in turn, and wait until all are acknowledged.

        Raises:
            RunError: Not all were.
        """


def open_writer(
    subject: str, workload: Workload, topic: str
) -> AbstractAsyncContextManager[Writer]:
    """Open what the function of this module that `subject` names writes with."""
    open_: Callable[[Workload, str], AbstractAsyncContextManager[Writer]] = globals()[subject]
    return open_(workload, topic)


def lite(workload: Workload, topic: str) -> AbstractAsyncContextManager[Writer]:
    """Write with a producer of ours."""
    return _asyncio("aiokafka_lite.producing", "aiokafka_lite", workload, topic)


def aiokafka(workload: Workload, topic: str) -> AbstractAsyncContextManager[Writer]:
    """Write with one of aiokafka's."""
    return _asyncio("aiokafka", "aiokafka", workload, topic)


class _Producer(Protocol):
    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def send(self, topic: str, value: bytes, /) -> Awaitable[object]: ...


@asynccontextmanager
async def _asyncio(
    module: str, package: str, workload: Workload, topic: str
) -> AsyncIterator[Writer]:
    new: Callable[..., _Producer] = importlib.import_module(module).AIOKafkaProducer
    producer = new(
        bootstrap_servers=workload.bootstrap_servers,
        enable_idempotence=True,
        acks="all",
        linger_ms=LINGER_MS,
    )
    await producer.start()
    try:
        version = importlib.import_module(package).__version__
        yield AsyncioWriter(producer, topic, version, workload.wait_s)
    finally:
        await producer.stop()


class AsyncioWriter:
    """Sends without waiting, and looks at each outcome later on, when it mostly is there."""

    def __init__(self, producer: _Producer, topic: str, version: str, wait_s: float) -> None:
        self.version: Final = version
        self._producer: Final = producer
        self._topic: Final = topic
        self._wait_s: Final = wait_s

    async def write(self, values: Sequence[bytes], records: int) -> None:
        send, topic = self._producer.send, self._topic
        turn = itertools.cycle(values)
        before: list[Awaitable[object]] = []
        for left in range(records, 0, -OUTSTANDING):
            sent = [await send(topic, next(turn)) for _ in range(min(left, OUTSTANDING))]
            await self._look_at(before)
            before = sent
        await self._look_at(before)

    async def _look_at(self, outcomes: Sequence[Awaitable[object]]) -> None:
        async def look() -> None:
            for outcome in outcomes:
                await outcome

        try:
            await asyncio.wait_for(look(), self._wait_s)
        except asyncio.TimeoutError:
            raise StarvedError(f"no acknowledgement for {self._wait_s:g} s") from None


@asynccontextmanager
async def confluent(workload: Workload, topic: str) -> AsyncIterator[Writer]:
    """Write with one of confluent-kafka's; it blocks the loop, where nothing else is."""
    from confluent_kafka import Producer

    from benchmarks.contestants.confluent import VERSION

    producer = Producer(
        {
            "bootstrap.servers": workload.bootstrap_servers,
            **QUIET,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": LINGER_MS,
        }
    )
    yield ConfluentWriter(producer, topic, VERSION, workload.wait_s)


class ConfluentWriter:
    """Produces while there is room, and has each outcome reported."""

    def __init__(
        self, producer: confluent_kafka.Producer, topic: str, version: str, wait_s: float
    ) -> None:
        self.version: Final = version
        self._producer: Final = producer
        self._topic: Final = topic
        self._wait_s: Final = wait_s

    async def write(self, values: Sequence[bytes], records: int) -> None:
        produce, poll, topic = self._producer.produce, self._producer.poll, self._topic
        failures: list[object] = []
        acknowledged = 0

        def delivered(error: object, _message: object) -> None:
            nonlocal acknowledged
            acknowledged += 1
            if error is not None:
                failures.append(error)

        for number, value in zip(range(records), itertools.cycle(values), strict=False):
            while True:
                try:
                    produce(topic, value, on_delivery=delivered)
                except BufferError:
                    poll(_PAUSE_S)
                else:
                    break
            if not number % POLL_EVERY:
                poll(0)
        left = self._producer.flush(self._wait_s)
        if left or failures or acknowledged != records:
            raise RunError(f"{left} records were not acknowledged, others failed: {failures[:1]}")
