"""The end of `consumer.run(until=…)`: an offset for each partition, found when it is assigned.

A record at or after the end becomes a job that no handler gets. So it stays the partition's first
unfinished record, before which commits end, and reads return it again after the run. From then on,
no further records of the partition are taken (`Allowance.complete`). As long as a partition's end
is not known, its jobs are kept. If its log is truncated, or its topic recreated, the end is looked
up again.

Positions also move over offsets without records (compaction, transactions) and are compared with
the ends at short intervals, because no signal tells about that.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from aiokafka_lite._arguments import is_int
from aiokafka_lite.consumer.assignment.cursor import Cursor, Truncation
from aiokafka_lite.consumer.processing.job import Job
from aiokafka_lite.errors import ConsumerStoppedError, KafkaError, UnknownTopicOrPartitionError
from aiokafka_lite.structs import OffsetAndTimestamp, TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.consumer.core import Core
    from aiokafka_lite.consumer.processing.run import Run

log = logging.getLogger(__name__)

# Between two comparisons of positions and ends.
LOOK_S: Final = 0.1
# How long a member of a group waits for its first partitions.
UNASSIGNED_S: Final = 10.0
# After this time, a partition that brokers do not know counts as missing: its end is NOWHERE.
NEW_S: Final = 5.0
NOWHERE: Final = -1


@dataclass(frozen=True)
class RunSummary:
    """What `consumer.run(until=...)` has done.

    Attributes:
        is_complete: Whether all assigned partitions were processed to their ends. False if the
            consumer was stopped before.
        records: The number of records that were read before the ends.
        finished: The number of records whose handlers have returned.
        dead: The number of records that were written to the dead letters.
        dropped: The number of failed records that were dropped, as `DROP` asks for.
        delayed: The number of failed records that were moved to a delay topic. They are retried
            later, perhaps after the run.
        failed: The number of handler calls that failed, including those that were retried.
        seconds: The duration of the run.
        topics: The number of records per topic.
    """

    is_complete: bool
    records: int
    finished: int
    dead: int
    dropped: int
    delayed: int
    failed: int
    seconds: float
    topics: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        topics = ", ".join(f"{topic}: {count:,}" for topic, count in self.topics.items())
        return (
            f"{self.finished:,} of {self.records:,} records finished in {self.seconds:.1f} s, "
            f"{self.dead:,} dead letters, {self.failed:,} failed calls"
            + (f", {self.dropped:,} dropped" if self.dropped else "")
            + (f", {self.delayed:,} delayed" if self.delayed else "")
            + (f" ({topics})" if topics else "")
            + ("" if self.is_complete else ", stopped before the end")
        )


def until_of(until: object) -> int | None:
    """Return the timestamp of `run`'s argument `until` in milliseconds. None: the logs' ends.

    Raises:
        TypeError, ValueError: It is invalid.
    """
    if until == "end":
        return None
    if isinstance(until, datetime):
        until = round(until.timestamp() * 1000)
    if not is_int(until):
        raise TypeError(
            f'until must be "end", a datetime, a timestamp in milliseconds, or None, not {until!r}'
        )
    if until < 0:
        raise ValueError(f"until must be a timestamp of 0 or more, not {until!r}")
    return until


class Offsets(Protocol):
    """A consumer's lookups of offsets."""

    async def end_offsets(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]: ...

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]: ...


class End(NamedTuple):
    """The end of one log: until that is truncated before it, or its topic recreated."""

    offset: int
    topic_id: bytes
    truncation: Truncation

    @property
    def is_cut_off(self) -> bool:
        return any(offset < self.offset for offset in self.truncation.end_offsets())


class RunBounds:
    """The ends of one run, and the jobs that it keeps back."""

    def __init__(
        self, core: Core, offsets: Offsets, timestamp: int | None, is_settled: Callable[[], bool]
    ) -> None:
        self._cursors = core.state.assignment
        self._totals = core.works.totals
        self._offsets, self._timestamp, self._is_settled = offsets, timestamp, is_settled
        self._loop = asyncio.get_running_loop()
        self._began_at = self._loop.time()
        self._totals_before = dict(self._totals)
        self._ends: dict[TopicPartition, End] = {}
        self._unknown_since: dict[TopicPartition, float] = {}
        # Jobs of partitions whose ends are not known yet.
        self._awaiting_end: dict[Cursor, list[Job]] = {}
        #: Partitions of which no more records are needed.
        self.complete: set[Cursor] = set()
        self._topics: Counter[str] = Counter()
        self._is_complete = False

    def admit(self, cursor: Cursor, jobs: list[Job]) -> list[Job]:
        """Return the jobs of records before the end."""
        end = self.end_of(cursor)
        if end is None:
            self._awaiting_end.setdefault(cursor, []).extend(jobs)
            return []
        if jobs and jobs[-1].offset >= end:
            self.complete.add(cursor)
            jobs = [job for job in jobs if job.offset < end]
        self._topics[cursor.tp.topic] += len(jobs)
        return jobs

    def end_of(self, cursor: Cursor) -> int | None:
        """Return the end of a partition. None: it is not known yet."""
        end = self._ends.get(cursor.tp)
        if end is None or end.is_cut_off or not cursor.is_of_topic(end.topic_id):
            return None
        return end.offset

    async def watch(self, run: Run) -> None:
        """Look up ends, and end the run as soon as all assigned partitions have reached them."""
        waits_until = self._loop.time() + UNASSIGNED_S
        while True:
            missing = [
                tp
                for tp, cursor in self._cursors.items()
                if self.end_of(cursor) is None and cursor not in self.complete
            ]
            if missing:
                await self._find(run, missing)
            has_waited = bool(self._cursors) or self._loop.time() >= waits_until
            if (
                has_waited
                and self._is_settled()
                and all(map(self._is_done, self._cursors.values()))
            ):
                self._is_complete = True
                run.complete()
                return
            await asyncio.sleep(LOOK_S)

    async def _find(self, run: Run, partitions: Collection[TopicPartition]) -> None:
        try:
            self._note_ends(run, await self._look_up(partitions))
        except UnknownTopicOrPartitionError:
            if len(partitions) > 1:
                for tp in partitions:
                    await self._find(run, [tp])
                return
            (tp,) = partitions
            # Brokers may not know a new partition yet.
            if self._loop.time() >= self._unknown_since.setdefault(tp, self._loop.time()) + NEW_S:
                self._note_ends(run, {tp: NOWHERE})
        except ConsumerStoppedError:
            return
        except KafkaError as error:
            if not error.retriable:
                raise
            log.warning("the ends of partitions are looked up again, because of %r", error)

    async def _look_up(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        ends = await self._offsets.end_offsets(partitions)
        if self._timestamp is not None:
            at = await self._offsets.offsets_for_times(dict.fromkeys(partitions, self._timestamp))
            ends |= {tp: found.offset for tp, found in at.items() if found is not None}
        return ends

    def _note_ends(self, run: Run, ends: Mapping[TopicPartition, int]) -> None:
        """Set ends and let the jobs kept until then begin, before jobs of later records."""
        for tp, offset in ends.items():
            if (cursor := self._cursors.get(tp)) is not None:
                self._ends[tp] = End(offset, cursor.topic_id, cursor.next_truncation)
        known = [
            each
            for each in self._awaiting_end
            if self.end_of(each) is not None or not each.is_assigned
        ]
        for cursor in known:
            jobs = [job for job in self._awaiting_end.pop(cursor) if job.is_current]
            if jobs:
                run.put(cursor, self.admit(cursor, jobs))

    def _is_done(self, cursor: Cursor) -> bool:
        first = None if cursor.progress is None else cursor.progress.first_unfinished
        end = self.end_of(cursor)
        if end is None:  # a recreated topic whose records were all read before has no more
            return first is None and cursor in self.complete
        reached = cursor.position if first is None else first
        return end == NOWHERE or (reached is not None and reached >= end)

    @property
    def has_read_all(self) -> bool:
        return all(
            cursor.position is not None
            and (end := self.end_of(cursor)) is not None
            and cursor.position >= end
            for cursor in self._cursors.values()
        )

    def summary(self) -> RunSummary:
        done = {name: count - self._totals_before[name] for name, count in self._totals.items()}
        return RunSummary(
            is_complete=self._is_complete,
            records=self._topics.total(),
            finished=done["finished_total"],
            dead=done["dead_total"],
            dropped=done["dropped_total"],
            delayed=done["delayed_total"],
            failed=done["failed_total"],
            seconds=self._loop.time() - self._began_at,
            topics={topic: count for topic, count in sorted(self._topics.items()) if count},
        )
