"""Which partitions of its topic a coordinator answers for, and whether they are loaded.

absent  → LOADING   elected: another node, or nobody, coordinated its groups
LOADING → ACTIVE    every record has been replayed
LOADING, ACTIVE → absent   resigned: its groups are forgotten, the log stays

One task loads all partitions, one after the other; it ends when there is nothing left to load.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.broker.groups.values import ErrorType
from aiokafka_lite.errors import (
    CoordinatorLoadInProgressError,
    NoError,
    NotCoordinatorError,
)


@dataclass(eq=False)
class Term:
    """The time between an election and the resignation that follows it."""

    is_loading: bool


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
        self._terms: dict[int, Term] = {}
        self._load_task: asyncio.Task[None] | None = None

    @property
    def is_loading(self) -> bool:
        return any(term.is_loading for term in self._terms.values())

    def availability(self, partition: int) -> ErrorType:
        """Say whether requests about a partition's groups can be answered."""
        term = self._terms.get(partition)
        if term is None:
            return NotCoordinatorError
        return CoordinatorLoadInProgressError if term.is_loading else NoError

    def elect(self, partitions: Iterable[int]) -> None:
        """Begin to answer for partitions; those with records are read first, in a task."""
        for partition in partitions:
            if partition not in self._terms:
                self._terms[partition] = Term(is_loading=not self._log.is_empty(partition))
        if self.is_loading and (self._load_task is None or self._load_task.done()):
            self._load_task = self._scope.spawn(self._load(), name=self._task_name)

    def resign(self, partitions: Iterable[int]) -> None:
        """Answer no longer for partitions, whether or not they have been loaded."""
        for partition in partitions:
            if self._terms.pop(partition, None) is not None:
                self._unload(partition)

    async def until_loaded(self) -> None:
        """Wait until nothing is being read; raises what the reading raised."""
        if self._load_task is not None:
            await asyncio.shield(self._load_task)

    async def _load(self) -> None:
        while (partition := self._next_to_load()) is not None:
            term = self._terms[partition]
            if await self._read(partition, term):
                term.is_loading = False
                self._loaded(partition)

    def _next_to_load(self) -> int | None:
        return next((index for index, term in self._terms.items() if term.is_loading), None)

    async def _read(self, partition: int, term: Term) -> bool:
        """Replay a partition; False if the term has ended meanwhile, even if another has begun."""
        for records in self._log.read(partition):
            for record in records:
                self._replay(record)
            await asyncio.sleep(0)  # a long log must not hold the loop
            if self._terms.get(partition) is not term:
                return False
        return True
