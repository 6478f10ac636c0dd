"""Lanes keep records in order: the records of one lane are handled one after the other.

A lane is a key of a partition (order "key"), or a partition (order "partition"). Its first record
is ready, is being handled, or waits for another attempt. The others follow by `Job.follower`. Only
the last is kept under the lane's name, so an empty lane uses no memory.

Lanes do not depend on the assignment: if a partition is revoked and assigned again, its records
follow a record that is still in a handler.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, Literal

from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.structs import ConsumerRecord, TopicPartition

Order = Literal["key", "partition"] | None
Lane = dict[Hashable, "Job"]


class JobState(enum.Enum):
    # By a handler, in a list with others if `batch_size` is set.
    LISTED = enum.auto()
    # By a handler, in no list: a list with the record has failed.
    ALONE = enum.auto()
    # By no handler: only the dead letter is still to be written.
    DEAD = enum.auto()


MOVES: Final[Mapping[JobState, frozenset[JobState]]] = MappingProxyType(
    {
        JobState.LISTED: frozenset({JobState.ALONE, JobState.DEAD}),
        JobState.ALONE: frozenset({JobState.DEAD}),
        JobState.DEAD: frozenset(),
    }
)
# Compared for each record, and an enum looks its members up in Python.
LISTED: Final = JobState.LISTED
DEAD: Final = JobState.DEAD


class Job:
    """One record on its way through a handler.

    Attributes:
        lane: The lanes of its partition, if it is in one.
        name: The key of its lane among them.
        follower: The next record of its lane.
        began_at: The loop time at which its latest attempt began.
        success_count: How many calls had succeeded when it was first tried.
    """

    __slots__ = (
        "attempts",
        "began_at",
        "cursor",
        "error",
        "follower",
        "lane",
        "name",
        "record",
        "state",
        "success_count",
    )

    def __init__(
        self,
        cursor: Cursor,
        lane: Lane | None,
        error: BaseException | None,
        record: ConsumerRecord,
    ) -> None:
        self.record = record
        self.cursor = cursor
        self.lane = lane
        self.name: Hashable = None
        self.follower: Job | None = None
        self.attempts = 0
        self.began_at: float | None = None
        self.error = error
        self.state = LISTED if error is None else DEAD
        self.success_count = 0

    def enter(self, state: JobState) -> None:
        if state is not self.state and state not in MOVES[self.state]:
            raise AssertionError(
                f"a job cannot change its state from {self.state.name} to {state.name}"
            )
        self.state = state

    @property
    def is_current(self) -> bool:
        """Whether it is still to be finished here: no other member may have its partition."""
        progress = self.cursor.progress
        return progress is not None and progress.is_held_by(self.record.offset, self)

    @property
    def order_key(self) -> Hashable:
        return None if self.lane is None else (self.cursor.tp, self.name)


class Lanes:
    def __init__(self, order: Order) -> None:
        self.order: Final = order
        self.ready: deque[Job] = deque()
        self._lanes: dict[TopicPartition, Lane] = {}

    def of(self, tp: TopicPartition) -> Lane | None:
        if self.order is None:
            return None
        if (lane := self._lanes.get(tp)) is None:
            lane = self._lanes[tp] = {}
        return lane

    def put(self, jobs: Iterable[Job]) -> None:
        ready, is_by_key = self.ready, self.order == "key"
        name: Hashable = None
        for job in jobs:
            lane = job.lane
            if lane is not None and is_by_key:
                name = job.name = job.record.key
                if name is None:
                    lane = job.lane = None  # no order without a key
            if lane is None:
                ready.append(job)
                continue
            try:
                last = lane.get(name)
            except TypeError as error:
                raise TypeError(
                    f'order="key" needs hashable keys, but {name!r} is not hashable: let the '
                    "key_deserializer return something hashable, or leave keys as bytes"
                ) from error
            lane[name] = job
            if last is None:
                ready.append(job)
            else:
                last.follower = job

    def put_again(self, jobs: Iterable[Job]) -> None:
        """Add records whose lanes have continued: they are in order among themselves only."""
        lanes: dict[Cursor, Lane] = {}
        again = list(jobs)
        for job in again:
            job.lane = None if self.order is None else lanes.setdefault(job.cursor, {})
            job.follower = None
        self.put(again)

    def leave(self, job: Job) -> None:
        """Take a record, and those before it, out of its lane: the next one may begin."""
        lane = job.lane
        if lane is None:
            return
        follower, job.follower = job.follower, None
        if follower is None:
            del lane[job.name]
        else:
            self.ready.append(follower)

    @staticmethod
    def chain(first: Job, most: int) -> list[Job]:
        """Return a record and the next ones of its lane that may share a list, at most `most`."""
        found = [first]
        while len(found) < most and (follower := found[-1].follower) is not None:
            if follower.state is not LISTED or not follower.is_current:
                break
            found.append(follower)
        return found
