"""Gathers ready records for lists that wait for more records, or that have one key or partition.

The records wait before a handler has them: a list that waits takes none of the handlers, and a
rebalance does not wait for it. A list is due when it is full, or when its first record has waited
for `batch_wait_ms`. Lists begin in the order in which they became due, so that full lists without
end do not delay others. Only records that have not failed are gathered.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from heapq import heappop, heappush
from itertools import count, takewhile
from typing import Any, Final, Literal, NamedTuple

from aiokafka_lite.consumer.processing.job import LISTED, Job
from aiokafka_lite.consumer.processing.lanes import Lanes
from aiokafka_lite.consumer.processing.limits import Concurrency
from aiokafka_lite.structs import ConsumerRecord

BatchBy = Literal["key", "partition"] | None
# Returns the same for records that may share a list.
ListOf = Callable[[ConsumerRecord[Any, Any]], Hashable]


class Due(NamedTuple):
    """A list that is not full is due at a loop time, unless its first record has begun before."""

    at: float
    number: int
    name: Hashable


class WaitingLists:
    """The lists of one run that wait, by name, and the first records of lanes in them.

    If handlers are by topic, a list has records of one handler only (`list_of`). A list by key has
    the records of one lane, if lanes are by key. Records without a key share one list for each
    partition.

    Attributes:
        count: The records of `ready` that were gathered, for twice as many lists as calls: with
            more, the feeder would read on while there is no handler for their lists.
        kept_count: Those that were left there, because they wait for no list.
    """

    def __init__(
        self,
        lanes: Lanes,
        by: BatchBy,
        list_of: ListOf | None,
        size: int,
        wait_s: float,
        concurrency: Concurrency,
    ) -> None:
        self._lanes = lanes
        self._by: Final = by
        self._list_of = list_of
        self._size: Final = size
        self._wait_s: Final = wait_s
        self._concurrency = concurrency
        self.count = self.kept_count = 0
        # Each record with the time from which on it waits.
        self._groups: dict[Hashable, deque[tuple[float, Job]]] = {}
        self._dues: list[Due] = []
        self._numbers = count()
        # Full lists, and since when, the earliest first.
        self._full: dict[Hashable, float] = {}
        # The lists of which it is to be found out whether they are full.
        self._changed: dict[Hashable, None] = {}

    def name_of(self, job: Job) -> Hashable:
        """Return the name of the list that a record waits for."""
        list_of = None if self._list_of is None else self._list_of(job.record)
        if self._by is None:
            return list_of
        if self._by == "partition":
            return list_of, job.cursor
        return list_of, job.cursor, job.name if self._lanes.is_by_name else job.record.key

    def chain(self, first: Job, most: int) -> list[Job]:
        """Return a record and the next ones of its lane that may be in its list, at most `most`."""
        found = self._lanes.chain(first, most)
        has_one_name = self._by != "key" and self._list_of is None
        if has_one_name or len(found) == 1:
            return found
        name = self.name_of(first)
        return list(takewhile(lambda job: self.name_of(job) == name, found))

    def note_accepted(self, jobs: Iterable[Job]) -> None:
        """Note new records: some follow in their lanes those that were gathered."""
        for job in jobs:
            try:
                self._changed[self.name_of(job)] = None
            except TypeError as error:
                raise TypeError(
                    f'batch_by="key" needs hashable keys, but {job.record.key!r} is not hashable: '
                    "let the key_deserializer return something hashable, or leave keys as bytes"
                ) from error

    def gather(self, now: float) -> None:
        ready = self._lanes.ready
        kept: list[Job] = []
        most = 2 * self._concurrency.value * self._size
        while ready and self.count < most:
            job = ready.popleft()
            if job.state is not LISTED or job.error is not None or job.list_limit:
                kept.append(job)
                continue
            name = self.name_of(job)
            group = self._groups.setdefault(name, deque())
            group.append((now, job))
            if len(group) == 1:
                self._begin_wait(name, now)
            self.count += 1
            self._changed[name] = None
        ready.extendleft(reversed(kept))
        self.kept_count = len(kept)
        for name in self._changed:
            if self._is_full(name):
                self._full.setdefault(name, now)
        self._changed.clear()

    def give_back(self) -> None:
        """Make all gathered records ready again, those first that have waited longest."""
        waiting = [each for group in self._groups.values() for each in group]
        waiting.sort(key=lambda each: each[0])
        self._lanes.ready.extendleft(job for _, job in reversed(waiting))
        self._groups.clear()
        self._dues.clear()
        self._full.clear()
        self.count, self.kept_count = 0, len(self._lanes.ready)

    def wait_no_longer(self, now: float) -> None:
        """Make all lists due, because no more records come."""
        for name in self._groups:
            self._full.setdefault(name, now)

    def due_at(self) -> float | None:
        """Return when a list is due that is not full. None: no list waits."""
        while self._dues and not self._is_present(self._dues[0]):
            heappop(self._dues)
        return self._dues[0].at if self._dues else None

    def wait_of(self, job: Job, now: float) -> float | None:
        """Return how long a record waits at most for others of its list. None: not any longer."""
        group = self._groups.get(name := self.name_of(job))
        if group is None or name in self._full or all(each is not job for _, each in group):
            return None
        wait_s = group[0][0] + self._wait_s - now
        return wait_s if wait_s > 0 else None

    def is_due(self, now: float) -> bool:
        due_at = self.due_at()
        return bool(self._full) or (due_at is not None and due_at <= now)

    def make_ready(self, now: float) -> None:
        """Make the records of the list that became due first ready, before all others."""
        if not self.is_due(now):
            return
        name = self._first_due()
        self._full.pop(name, None)
        group, taken, left = self._groups[name], [], self._size
        while group and left > 0:
            taken.append(group.popleft()[1])
            left -= self._count(taken[-1], left)
        self._lanes.ready.extendleft(reversed(taken))
        self.count -= len(taken)
        if not group:
            del self._groups[name]
            return
        self._begin_wait(name, group[0][0])
        if self._is_full(name):
            self._full[name] = now

    def _first_due(self) -> Hashable:
        name, full_at = next(iter(self._full.items()), (None, math.inf))
        due_at = self.due_at()
        return name if due_at is None or full_at <= due_at else self._dues[0].name

    def _begin_wait(self, name: Hashable, since: float) -> None:
        heappush(self._dues, Due(since + self._wait_s, next(self._numbers), name))

    def _is_present(self, due: Due) -> bool:
        group = self._groups.get(due.name)
        return group is not None and group[0][0] + self._wait_s == due.at

    def _is_full(self, name: Hashable) -> bool:
        left = self._size
        for _, job in self._groups.get(name, ()):
            left -= self._count(job, left)
            if left <= 0:
                return True
        return False

    def _count(self, first: Job, most: int) -> int:
        """Return how many records of a lane may begin in one list, at most `most`."""
        return len(self.chain(first, most)) if first.may_begin else 0
