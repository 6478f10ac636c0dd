"""A coordinator reads each partition once that it is elected for, unless it loses it meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import ClassVar

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.broker.groups.coordinator_log import InternalTopicLog, PartitionCoordinator
from aiokafka_lite.errors import (
    CoordinatorLoadInProgressError,
    NoError,
    NotCoordinatorError,
)
from aiokafka_lite.records import BatchHeader

EMPTY = 9


class Logs(InternalTopicLog[str]):
    """Partitions of three batches each, but for one that is empty; what was read and loaded."""

    topic: ClassVar[str] = "t"

    def __init__(self) -> None:
        self.replayed: list[str] = []
        self.loaded: list[int] = []
        self.unloaded: list[int] = []
        self.scope = TaskScope("test")
        self.partitions = Partitions(self)

    def partition_for(self, key: str) -> int:
        return int(key)

    def _entries(self, partition: int, header: BatchHeader, batch: memoryview) -> Iterator[str]:
        raise NotImplementedError

    def is_empty(self, partition: int) -> bool:
        return partition == EMPTY

    def read(self, partition: int) -> Iterator[list[str]]:
        for batch in "abc":
            yield [f"{partition}{batch}"]


class Partitions(PartitionCoordinator[str]):
    def __init__(self, logs: Logs) -> None:
        super().__init__(logs, logs.scope)
        self._logs = logs

    def _replay(self, record: str) -> None:
        self._logs.replayed.append(record)

    def _loaded(self, partition: int) -> None:
        self._logs.loaded.append(partition)

    def _unload(self, partition: int) -> None:
        self._logs.unloaded.append(partition)


async def test_partitions_are_read_once_whenever_they_are_elected() -> None:
    logs = Logs()
    partitions = logs.partitions
    partitions.elect([EMPTY])
    assert (partitions.availability_of(EMPTY), partitions.is_loading) == (NoError, False)
    partitions.elect([0])
    partitions.elect([0, 1])
    states = [partitions.availability_of(index) for index in (0, 1, 2)]
    assert states == [CoordinatorLoadInProgressError] * 2 + [NotCoordinatorError]
    await partitions.until_loaded()
    partitions.elect([0, 2])
    assert partitions.availability_of(0) is NoError
    await partitions.until_loaded()
    assert logs.replayed == [f"{index}{batch}" for index in range(3) for batch in "abc"]
    assert (logs.loaded, logs.unloaded, partitions.is_loading) == ([0, 1, 2], [], False)
    await logs.scope.close()


async def test_partition_that_is_lost_while_it_is_read_is_not_loaded() -> None:
    logs = Logs()
    logs.partitions.elect([0])
    await asyncio.sleep(0)
    logs.partitions.resign([0, 1])
    await logs.partitions.until_loaded()
    assert (logs.replayed, logs.loaded, logs.unloaded) == (["0a"], [], [0])
    assert logs.partitions.availability_of(0) is NotCoordinatorError
    await logs.scope.close()


async def test_partition_that_is_won_again_is_read_from_its_start() -> None:
    logs = Logs()
    logs.partitions.elect([0])
    await asyncio.sleep(0)
    logs.partitions.resign([0])
    logs.partitions.elect([0])
    await logs.partitions.until_loaded()
    assert (logs.replayed, logs.loaded) == (["0a", "0a", "0b", "0c"], [0])
    await logs.scope.close()
