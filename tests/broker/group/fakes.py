"""A log in memory, a broker's services and invented time, for tests of the coordinator alone."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Coroutine
from typing import TypeVar

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.broker.group import GroupCoordinator
from aiokafka_lite.broker.group_values import GroupSettings
from aiokafka_lite.records import iter_batches, patch_batch

T = TypeVar("T")


class _Jump(selectors.SelectSelector):
    """Instead of waiting, says how long it was asked to wait."""

    skipped_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is not None:
            self.skipped_s += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time jumps to the next timer when nothing is left to do."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.skipped_s


def run_in_virtual_time(coro: Coroutine[object, None, T]) -> T:
    """Run a coroutine to its end; its sleeps and timers cost nothing."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(coro)
    finally:
        loop.close()


class MemoryLog:
    """One partition's batches; ``failure`` is raised by the next appends."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, bytes]] = []
        self.log_start_offset = 0
        self.high_watermark = 0
        self.failure: Exception | None = None

    def append(self, batch: bytes) -> int:
        if self.failure is not None:
            raise self.failure
        base_offset = self.high_watermark
        patched = bytearray(batch)
        patch_batch(patched, base_offset=base_offset, leader_epoch=0)
        ((header, _),) = iter_batches(memoryview(patched))
        self.batches.append((base_offset, bytes(patched)))
        self.high_watermark = header.last_offset + 1
        return base_offset

    def read(self, offset: int, max_bytes: int) -> memoryview:
        """Return one batch, however small ``max_bytes`` is."""
        return memoryview(next(b for start, b in reversed(self.batches) if start <= offset))


class Services:
    """What a coordinator asks of its broker; must be made inside a running loop."""

    def __init__(self, settings: GroupSettings | None = None, partitions: int = 2) -> None:
        self.now_ms = 1_000
        self.rng = random.Random(1)
        self.scope = TaskScope("test")
        self.group_settings = settings or GroupSettings(
            initial_rebalance_delay_ms=0, min_session_timeout_ms=10
        )
        self.offsets_topic_partitions = partitions
        self.logs: dict[int, MemoryLog] = {}

    def clock(self) -> int:
        return self.now_ms

    def partition(self, topic: str, index: int) -> MemoryLog:
        return self.logs.setdefault(index, MemoryLog())


def elect_all(coordinator: GroupCoordinator, services: Services) -> None:
    """Have a coordinator serve every group."""
    for partition in range(services.offsets_topic_partitions):
        coordinator.elect(partition)
