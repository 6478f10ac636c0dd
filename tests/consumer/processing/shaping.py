"""Runs without a broker: of any handler, or of one that takes a time of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiokafka_lite import records
from aiokafka_lite._compat import override, timeout
from aiokafka_lite.consumer.buffer.deserialising import AnyDeserializer
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.processing.handling import DeadRecord, Handling
from aiokafka_lite.consumer.processing.run import Run
from aiokafka_lite.processing import Retry
from aiokafka_lite.structs import TopicPartition
from tests.consumer.processing.acking import Record
from tests.support.buffers import Buffers, no_transactions

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


class BareRun:
    """A run over some partitions, of `handle`."""

    def __init__(
        self,
        *partitions: TopicPartition,
        key_deserializer: AnyDeserializer | None = None,
        **settings: Any,
    ) -> None:
        self.buffers = Buffers(*partitions, key_deserializer=key_deserializer)
        arguments: dict[str, Any] = {
            "concurrency": 10,
            "order": "key",
            "batch_size": None,
            "max_uncommitted": 10_000,
            "retry": Retry(attempts=1),
            "dead_letter": None,
            "breaker": None,
            **settings,
        }
        core = self.buffers.state.core(
            ConsumerConfig(rebalance_hold_ms=5_000), buffer=self.buffers.buffer
        )
        self.run = Run(core, self.handle, Handling(**arguments), no_transactions)

    async def handle(self, given: Any, _: object = None) -> None:
        raise NotImplementedError

    @asynccontextmanager
    async def running(self, *, fails: bool = False) -> AsyncIterator[asyncio.Task[None]]:
        """Run, and end the run after the block. If it `fails`, only the task has its error."""
        with self.run.opened():
            task = asyncio.ensure_future(self.run.run())
            try:
                yield task
            finally:
                await self.run.end(now())
                await asyncio.wait([task])
        if not fails:
            task.result()


class Shaped(BareRun):
    """A run whose handler takes a time of its own: which calls begin, and when.

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
        self.seconds, self.fails = seconds, fails
        # When each call began, and of which records.
        self.calls: list[tuple[float, list[Record]]] = []
        self.done: list[Record] = []
        self.dead: list[DeadRecord] = []
        self.running_count = self.most_running = 0
        self._moved = asyncio.Event()
        self._ends: dict[TopicPartition, int] = {}
        super().__init__(*(partitions or (A,)), **{"dead_letter": self._bury, **settings})

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

    @override
    async def handle(self, given: Record | list[Record], _: object = None) -> None:
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

    async def until_over(self, patience_s: float = 10) -> None:
        async with timeout(patience_s):
            while len(self.done) + len(self.dead) < sum(self._ends.values()):
                self._moved.clear()
                await self._moved.wait()


def now() -> float:
    return asyncio.get_running_loop().time()
