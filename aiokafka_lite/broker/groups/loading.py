"""The partitions that a coordinator serves, and whether they are loaded.

absent  → LOADING   elected
LOADING → ACTIVE    all records have been replayed, by a task that loads partitions in turn
LOADING, ACTIVE → absent   resigned: the groups are dropped, the log remains
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
    is_loading: bool


RecordT = TypeVar("RecordT")


class RecordSource(Protocol[RecordT]):
    def is_empty(self, partition: int) -> bool: ...

    def read(self, partition: int) -> Iterator[list[RecordT]]: ...


class CoordinatedPartitions(Generic[RecordT]):
    """The partitions of a coordinator's internal topic that this node leads.

    A damaged log is a failure of `scope`, which runs the load task. `unload` drops the state of a
    partition, and `loaded` completes it.
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
        """Return NoError, or the error for requests about a partition."""
        term = self._terms.get(partition)
        if term is None:
            return NotCoordinatorError
        return CoordinatorLoadInProgressError if term.is_loading else NoError

    def elect(self, partitions: Iterable[int]) -> None:
        """Serve partitions, once the load task has read their records."""
        for partition in partitions:
            if partition not in self._terms:
                self._terms[partition] = Term(is_loading=not self._log.is_empty(partition))
        if self.is_loading and (self._load_task is None or self._load_task.done()):
            self._load_task = self._scope.spawn(self._load(), name=self._task_name)

    def resign(self, partitions: Iterable[int]) -> None:
        for partition in partitions:
            if self._terms.pop(partition, None) is not None:
                self._unload(partition)

    async def until_loaded(self) -> None:
        """Wait for the load task, and raise its error."""
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
        """Replay a partition. Return False if its term ended, even if another term has begun."""
        for records in self._log.read(partition):
            for record in records:
                self._replay(record)
            await asyncio.sleep(0)  # a long log must not hold the loop
            if self._terms.get(partition) is not term:
                return False
        return True
