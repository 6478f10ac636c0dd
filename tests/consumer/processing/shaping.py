"""A run without a broker, whose handlers take a time of their own: which calls begin, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiokafka_lite import records
from aiokafka_lite._compat import timeout
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.processing.handling import DeadRecord, Handling
from aiokafka_lite.consumer.processing.run import Run
from aiokafka_lite.processing import Retry
from aiokafka_lite.structs import TopicPartition
from tests.consumer.processing.acking import Record
from tests.support.buffers import Buffers, no_transactions

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


class Shaped:
    """A run over some partitions.

    Args:
        seconds: How long the handler takes for a record.
        fails: Whether the handler raises for a record.
    """

    def __init__(
        self,
        *partitions: TopicPartition,
        seconds: Callable[[Record], float] = lambda record: 0,
        fails: Callable[[Record], bool] = lambda record: False,
        **settings: Any,
    ) -> None:
        self.buffers = Buffers(*(partitions or (A,)))
        self.seconds, self.fails = seconds, fails
        # When each call began, and of which records.
        self.calls: list[tuple[float, list[Record]]] = []
        self.done: list[Record] = []
        self.dead: list[DeadRecord] = []
        self.running_count = self.most_running = 0
        self._moved = asyncio.Event()
        self._ends: dict[TopicPartition, int] = {}
        arguments: dict[str, Any] = {
            "concurrency": 10,
            "order": "key",
            "batch_size": None,
            "max_uncommitted": 10_000,
            "retry": Retry(attempts=1),
            "dead_letter": self._bury,
            "breaker": None,
            **settings,
        }
        self.run = Run(
            self.buffers.state.core(
                ConsumerConfig(rebalance_hold_ms=5_000), buffer=self.buffers.buffer
            ),
            self._handle,
            Handling(**arguments),
            no_transactions,
        )

    def put(self, keys: Sequence[bytes | None], tp: TopicPartition = A) -> None:
        first = self._ends.get(tp, 0)
        self._ends[tp] = first + len(keys)
        batch = records.build_batch([(1, key, b"", ()) for key in keys], base_offset=first)
        self.buffers.put({tp: batch}, node_id=100 * first + tp.partition)

    @property
    def offsets(self) -> list[tuple[float, list[int]]]:
        return [(at, [each.offset for each in given]) for at, given in self.calls]

    async def _bury(self, record: DeadRecord) -> None:
        self.dead.append(record)
        self._moved.set()

    async def _handle(self, given: Record | list[Record]) -> None:
        of_call = given if isinstance(given, list) else [given]
        self.calls.append((round(now(), 6), of_call))
        self.running_count += 1
        self.most_running = max(self.most_running, self.running_count)
        try:
            if seconds := sum(map(self.seconds, of_call)):
                await asyncio.sleep(seconds)
            for record in of_call:
                if self.fails(record):
                    raise ValueError(record.offset)
        finally:
            self.running_count -= 1
        self.done += of_call
        self._moved.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        with self.run.opened():
            task = asyncio.ensure_future(self.run.run())
            try:
                yield task
            finally:
                await self.run.end(now())
                await asyncio.wait([task])
        if task.exception() is None:
            task.result()

    async def until_over(self, patience_s: float = 10) -> None:
        async with timeout(patience_s):
            while len(self.done) + len(self.dead) < sum(self._ends.values()):
                self._moved.clear()
                await self._moved.wait()


def now() -> float:
    return asyncio.get_running_loop().time()
