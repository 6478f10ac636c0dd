"""Which partitions of its topic a coordinator answers for, and whether they are loaded.

absent  → LOADING   elected: another node, or nobody, coordinated its groups
LOADING → ACTIVE    every record has been replayed
LOADING, ACTIVE → absent   resigned: its groups are forgotten, the log stays

One task loads all partitions, one after the other; it ends when there is nothing left to load.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Generic, Protocol, TypeVar

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.broker.groups.values import ErrorType
from aiokafka_lite.errors import (
    CoordinatorLoadInProgressError,
    NoError,
    NotCoordinatorError,
)


class PartitionState(enum.Enum):
    """What a partition that this coordinator was elected for is doing."""

    LOADING = enum.auto()
    ACTIVE = enum.auto()


LOADING: Final = PartitionState.LOADING
ACTIVE: Final = PartitionState.ACTIVE


RecordT = TypeVar("RecordT")


class RecordSource(Protocol[RecordT]):
    """The log of a coordinator."""

    def is_empty(self, partition: int) -> bool: ...

    def read(self, partition: int) -> Iterator[list[RecordT]]: ...


class CoordinatedPartitions(Generic[RecordT]):
    """The partitions of the offsets topic whose groups live here, or of another coordinator's.

    Args:
        source: Where the records are.
        scope: Gives the loading its task; damage found in a log is the scope's failure.
        replay: Applies one record.
        loaded: Called when a partition has been read to its end.
        unload: Forgets everything that belongs to a partition.
        task_name: Of the task that loads.
    """

    def __init__(
        self,
        source: RecordSource[RecordT],
        scope: TaskScope,
        *,
        replay: Callable[[RecordT], None],
        loaded: Callable[[int], None],
        unload: Callable[[int], None],
        task_name: str = "group-load",
    ) -> None:
        self._log = source
        self._task_name = task_name
        self._scope = scope
        self._replay = replay
        self._loaded = loaded
        self._unload = unload
        self._states: dict[int, PartitionState] = {}
        # Tells one term as the partition's coordinator from the next: (re-)elected while loading,
        # the task must not go on with what it read for an earlier term.
        self._terms: dict[int, int] = {}
        self._load_task: asyncio.Task[None] | None = None

    @property
    def is_loading(self) -> bool:
        return LOADING in self._states.values()

    def availability(self, partition: int) -> ErrorType:
        """Say whether requests about a partition's groups can be answered."""
        state = self._states.get(partition)
        if state is None:
            return NotCoordinatorError
        return CoordinatorLoadInProgressError if state is LOADING else NoError

    def elect(self, partitions: Iterable[int]) -> None:
        """Begin to answer for partitions; those with records are read first, in a task."""
        for partition in partitions:
            if partition in self._states:
                continue
            self._terms[partition] = self._terms.get(partition, 0) + 1
            self._states[partition] = ACTIVE if self._log.is_empty(partition) else LOADING
        if self.is_loading and (self._load_task is None or self._load_task.done()):
            self._load_task = self._scope.spawn(self._load(), name=self._task_name)

    def resign(self, partitions: Iterable[int]) -> None:
        """Answer no longer for partitions, whether or not they have been loaded."""
        for partition in partitions:
            if self._states.pop(partition, None) is not None:
                self._unload(partition)

    async def until_loaded(self) -> None:
        """Wait until nothing is being read; raises what the reading raised."""
        if self._load_task is not None:
            await asyncio.shield(self._load_task)

    async def _load(self) -> None:
        while (partition := self._next_to_load()) is not None:
            if await self._read(partition):
                self._states[partition] = ACTIVE
                self._loaded(partition)

    def _next_to_load(self) -> int | None:
        return next((p for p, state in self._states.items() if state is LOADING), None)

    async def _read(self, partition: int) -> bool:
        """Replay a partition; False when it was taken away meanwhile."""
        term = self._terms[partition]
        for records in self._log.read(partition):
            for record in records:
                self._replay(record)
            await asyncio.sleep(0)  # a long log must not hold the loop
            if partition not in self._states or self._terms[partition] != term:
                return False
        return True
