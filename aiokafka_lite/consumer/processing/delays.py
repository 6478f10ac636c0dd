"""Retries that leave their lane: failed records wait in delay topics (`topic` of `Retry`).

A record without attempts left is written to a delay topic, which finishes it in its own partition.
The same consumer reads the delay topics. There is one topic for each delay, so the records of a
partition are due in the order of their offsets. The first one that is not due is held, and its
partition is read no further until then. When it is due, the handler receives the original record.

A delayed record is a `Job` of the delay topic's partition. So it is retried, committed, revoked and
written to the next delay topic or the dead letters as any other record. Its lane is one of that
partition: delayed records are not in order with other records of their key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from aiokafka_lite._virtual import wall_ms
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.processing.allowance import Allowance
from aiokafka_lite.consumer.processing.headers import Origin
from aiokafka_lite.consumer.processing.job import Job
from aiokafka_lite.errors import MessageSizeTooLargeError, RecordListTooLargeError
from aiokafka_lite.structs import ConsumerRecord

if TYPE_CHECKING:
    from aiokafka_lite.consumer.processing.attempts import Handled
    from aiokafka_lite.consumer.processing.handling import DeadLetterKeeper, Retry

AnyRecord: TypeAlias = ConsumerRecord[Any, Any]

# Of a record that a topic does not accept.
TOO_LARGE: Final = (MessageSizeTooLargeError, RecordListTooLargeError)
# Timers of some loops are early by as much.
TOLERANCE_S: Final = 0.005


class Delays:
    """The delay topics of one run. `writers` write to them, by name."""

    def __init__(
        self, retry: Retry, writers: Mapping[str, DeadLetterKeeper], group_id: str
    ) -> None:
        self._retry = retry
        self.writers: Final = writers
        self._group_id = group_id
        self._topics: Sequence[str] = retry.delay_topics
        self._delays_s = dict(zip(retry.delay_topics, retry.delays))  # noqa: B905 -- as many
        self.names: Final = frozenset(self._delays_s)

    def writer_for(self, error: BaseException, job: Handled) -> DeadLetterKeeper | None:
        """Return what delays a failed record. None: it is not delayed (again)."""
        count = 0 if job.origin is None else job.origin.delay_count
        if count >= len(self._topics) or not self._retry.may_delay(error):
            return None
        return self.writers[self._topics[count]]

    def is_writer(self, target: object) -> bool:
        return any(target is writer for writer in self.writers.values())

    def cannot_have(self, job: Job, failure: BaseException) -> bool:
        """Whether a record is too large for the delay topic that it would wait in."""
        return self.is_writer(job.letter) and isinstance(failure, TOO_LARGE)

    def is_foreign(self, job: Job) -> bool:
        """Whether another group has delayed a record in the same topic."""
        return job.origin is not None and job.origin.group_id not in ("", self._group_id)

    def wait_s(self, record: AnyRecord) -> float:
        """Return the time until a record is due, at most its topic's delay if clocks differ."""
        delay_s = self._delays_s[record.topic]
        written_ms: int | None = record.timestamp  # that of a message of magic 0 is missing
        if written_ms is None:
            return 0.0
        return min(delay_s, written_ms / 1000 + delay_s - wall_ms() / 1000)

    def due_count(self, records: Sequence[AnyRecord]) -> int:
        """Return how many of the records of a delay topic are taken now, at least one.

        Those that are due, and those whose timestamp is in the future: they wait alike from now on.
        """
        now_ms = wall_ms()
        later = (
            n
            for n, record in enumerate(records)
            if n and (record.timestamp or 0) <= now_ms and self.wait_s(record) > 0
        )
        return next(later, len(records))


class HeldRecords:
    """The records of a run that were read from delay topics and are not due, by partition.

    `release` receives those that are due.
    """

    def __init__(
        self,
        delays: Delays,
        allowance: Allowance,
        release: Callable[[list[Job]], None],
    ) -> None:
        self._delays = delays
        self._allowance = allowance
        self._release = release
        self._loop = asyncio.get_running_loop()
        # With the loop times at which they are due: a clock that is set does not change them.
        self._held: dict[Cursor, list[tuple[float, Job]]] = {}
        self._timers: dict[Cursor, asyncio.TimerHandle] = {}

    def __contains__(self, cursor: Cursor) -> bool:
        return cursor in self._held

    @property
    def count(self) -> int:
        return sum(map(len, self._held.values()))

    def admit(self, cursor: Cursor, records: list[AnyRecord]) -> int:
        """Count as many records as may be taken now, of a delay topic those that are due."""
        if cursor.tp.topic in self._delays.names:
            records = records[: self._delays.due_count(records)]
        return self._allowance.admit(cursor, records)

    def take(self, cursor: Cursor, jobs: list[Job]) -> tuple[list[Job], list[Job]]:
        """Hold records that are not due. Return those that are, and those of other groups."""
        if cursor.tp.topic not in self._delays.names:
            return jobs, []
        held = self._held.pop(cursor, [])
        foreign: list[Job] = []
        for job in jobs:
            due_at = self._loop.time() + self._delays.wait_s(job.record)
            if (origin := Origin.of(job.record)) is not None:
                job.continue_from(origin)
            if self._delays.is_foreign(job):
                foreign.append(job)
            else:
                held.append((due_at, job))
        return self._due(cursor, held), foreign

    def look(self, cursor: Cursor) -> None:
        """Release what is due of a partition, and forget what is no longer to be handled."""
        if (held := self._held.pop(cursor, None)) is not None and (due := self._due(cursor, held)):
            self._release(due)

    def forget_unassigned(self) -> None:
        for cursor in [each for each in self._held if not each.is_assigned]:
            self.look(cursor)

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()

    def wait_of(self, job: Job) -> float | None:
        """Return the time until a record is due. None: it is not held."""
        for due_at, held in self._held.get(job.cursor, ()):
            if held is job:
                return max(0.0, due_at - self._loop.time())
        return None

    def _due(self, cursor: Cursor, held: list[tuple[float, Job]]) -> list[Job]:
        """Hold the first record that is not due, and those after it. Return the others."""
        if (timer := self._timers.pop(cursor, None)) is not None:
            timer.cancel()
        held = [each for each in held if each[1].is_current]
        now = self._loop.time() + TOLERANCE_S
        count = next((n for n, (due_at, _) in enumerate(held) if due_at > now), len(held))
        due, held = [job for _, job in held[:count]], held[count:]
        if held:
            self._held[cursor] = held
            self._timers[cursor] = self._loop.call_at(held[0][0], self.look, cursor)
        self._allowance.withhold(cursor, bool(held))
        return due
