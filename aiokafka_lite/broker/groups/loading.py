"""The partitions that a coordinator serves, and whether they are loaded.

absent  → LOADING   elected
LOADING → ACTIVE    all records have been replayed, by a task that loads partitions in turn
LOADING, ACTIVE → absent   resigned: the groups are dropped, the log remains
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.broker.groups.coordinator_log import InternalTopicLog
from aiokafka_lite.broker.groups.values import ErrorType
from aiokafka_lite.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    KafkaError,
    NoError,
    NotCoordinatorError,
)

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Term:
    is_loading: bool


RecordT = TypeVar("RecordT")


class PartitionCoordinator(ABC, Generic[RecordT]):
    """Serves the partitions of its internal topic that its node leads.

    A damaged log is a failure of `scope`, which runs the load task.
    """

    load_task_name = "group-load"

    def __init__(self, source: InternalTopicLog[RecordT], scope: TaskScope) -> None:
        self._source = source
        self._scope = scope
        self._terms: dict[int, Term] = {}
        self._load_task: asyncio.Task[None] | None = None
        self._is_open = True

    @abstractmethod
    def _replay(self, record: RecordT) -> None: ...

    @abstractmethod
    def _loaded(self, partition: int) -> None:
        """Continue after the last record of a partition."""

    @abstractmethod
    def _unload(self, partition: int) -> None:
        """Drop the state of a partition."""

    @property
    def is_loading(self) -> bool:
        """Whether the state of some partitions may be incomplete."""
        return any(term.is_loading for term in self._terms.values())

    def partition_for(self, key: str) -> int:
        return self._source.partition_for(key)

    def _keys_in(self, partition: int, keys: Iterable[str]) -> list[str]:
        return [key for key in keys if self.partition_for(key) == partition]

    def availability(self, key: str) -> ErrorType:
        """Return NoError if this coordinator serves the key now."""
        if not self._is_open:
            return CoordinatorNotAvailableError
        return self.availability_of(self.partition_for(key))

    def availability_of(self, partition: int) -> ErrorType:
        term = self._terms.get(partition)
        if term is None:
            return NotCoordinatorError
        return CoordinatorLoadInProgressError if term.is_loading else NoError

    def elect(self, partitions: Iterable[int]) -> None:
        """Serve partitions, which the node leads now.

        Requests fail with COORDINATOR_LOAD_IN_PROGRESS until a task has read the log.
        """
        for partition in partitions:
            if partition not in self._terms:
                self._terms[partition] = Term(is_loading=not self._source.is_empty(partition))
        if self.is_loading and (self._load_task is None or self._load_task.done()):
            self._load_task = self._scope.spawn(self._load(), name=self.load_task_name)

    def resign(self, partitions: Iterable[int]) -> None:
        for partition in partitions:
            if self._terms.pop(partition, None) is not None:
                self._unload(partition)

    def _written(self, what: str, write: Callable[[], None]) -> ErrorType:
        """Write to the log. If that fails, clients look for another coordinator, as in Kafka."""
        try:
            write()
        except (KafkaError, OSError) as error:
            log.error("cannot write %s to %s: %s", what, self._source.topic, error)
            return NotCoordinatorError
        return NoError

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
        for records in self._source.read(partition):
            for record in records:
                self._replay(record)
            await asyncio.sleep(0)  # a long log must not hold the loop
            if self._terms.get(partition) is not term:
                return False
        return True
