"""Jobs: each is one record on its way through a handler. Compiled in place (job.pxd)."""

from __future__ import annotations

import enum
from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.structs import ConsumerRecord

if TYPE_CHECKING:
    from aiokafka_lite.consumer.processing.handling import DeadLetter
    from aiokafka_lite.consumer.processing.headers import Origin

# Of one partition: the last record of each lane, by the lane's name.
Lane: TypeAlias = "dict[Hashable, Job]"


class JobState(enum.Enum):
    # By a handler, in a list with others if `batch_size` is set.
    LISTED = enum.auto()
    # By a handler, in no list: the record has failed, or a list of two with it.
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
        record: The record as the handler receives it: the original one of a delayed record.
        offset: The offset in the partition of `cursor`.
        size_bytes: The serialised key and value, as read.
        origin: The failures of a delayed record. None: it was not delayed.
        letter: What finishes it instead of a handler, once it is dead.
        lane: The lanes of its partition, if it is in one.
        name: The key of its lane among them.
        follower: The next record of its lane.
        began_at: The loop time at which its latest attempt began.
        list_limit: The most records of a list with it, since such a list failed. 0: `batch_size`.
        success_count: How many calls had succeeded when it was first tried.
    """

    def __init__(self, cursor: Cursor, lane: Lane | None, record: ConsumerRecord) -> None:
        self.record = record
        self.offset = record.offset
        self.size_bytes = record.serialized_key_size + record.serialized_value_size
        self.cursor = cursor
        self.origin: Origin | None = None
        self.letter: DeadLetter | None = None
        self.lane = lane
        self.name: Hashable = None
        self.follower: Job | None = None
        self.attempts = 0
        self.began_at: float | None = None
        self.error: BaseException | None = None
        self.state = LISTED
        self.list_limit = self.success_count = 0

    def continue_from(self, origin: Origin) -> None:
        """Take the original record of a delayed one, with the attempts before the delay."""
        self.origin, self.record, self.attempts = origin, origin.record, origin.attempts

    def begin(self, now: float, success_count: int) -> None:
        """Note that an attempt begins `now`, after so many calls that have succeeded."""
        self.began_at = now
        if self.error is None:
            self.success_count = success_count

    def enter(self, state: JobState) -> None:
        if state is not self.state and state not in MOVES[self.state]:
            raise AssertionError(
                f"a job cannot change its state from {self.state.name} to {state.name}"
            )
        self.state = state

    def die(self, error: BaseException, letter: DeadLetter) -> None:
        """Let no handler have the record any more: `letter` finishes it."""
        self.error, self.letter = error, letter
        self.enter(DEAD)

    @property
    def is_current(self) -> bool:
        """Whether it is still to be finished here: no other member may have its partition."""
        progress = self.cursor.progress
        return progress is not None and progress.is_held_by(self.offset, self)

    @property
    def is_finished(self) -> bool:
        """Whether it was finished here, other than by a revocation."""
        return self.cursor.is_assigned and not self.is_current

    @property
    def place(self) -> str:
        """Topic, partition and offset, for messages."""
        tp, record = self.cursor.tp, self.record
        place = f"{tp.topic}/{tp.partition} offset {self.offset}"
        if self.origin is None:
            return place
        return f"{place} (delayed {record.topic}/{record.partition} offset {record.offset})"

    @property
    def may_begin(self) -> bool:
        return self.is_current and not (self.cursor.is_withheld or self.cursor.is_paused)

    @property
    def order_key(self) -> Hashable:
        return None if self.lane is None else (self.cursor.tp, self.name)


def halve(jobs: Sequence[Job]) -> None:
    """Let lists with these records, of which a list has failed, have half as many."""
    limit = (len(jobs) + 1) // 2
    for job in jobs:
        job.list_limit = limit
        if limit == 1:
            job.enter(JobState.ALONE)
