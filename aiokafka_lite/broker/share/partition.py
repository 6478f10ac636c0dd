"""A share partition: the delivery states of one partition's records in one share group.

    AVAILABLE    → ACQUIRED       a fetch locks records for its member: the delivery count grows
    ACQUIRED     → ACKNOWLEDGED   accepted
    ACQUIRED     → ARCHIVED       a gap; or rejected, or released in its last allowed delivery: dead
    ACQUIRED     → AVAILABLE      released, or the lock or the session of the member ended
    AVAILABLE    → ARCHIVED       compacted, or deleted from the log

The window, from the start offset to the end offset, has all states. Records before are finished,
records behind were never acquired. Kafka: kafka.server.share.SharePartition.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, NamedTuple

from aiokafka_lite.broker.configs import ShareGroupSettings
from aiokafka_lite.errors import InvalidRecordStateError, InvalidRequestError
from aiokafka_lite.protocol.messages.coordinator_records import StateBatch

NO_OFFSET: Final = -1


class RecordState(enum.IntEnum):
    """A state, with Kafka's number for it in the log."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4


AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVED = RecordState
FINISHED: Final = (ACKNOWLEDGED, ARCHIVED)


class AcknowledgeType(enum.IntEnum):
    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class OffsetSpan(NamedTuple):
    first: int
    last: int


class Acknowledged(NamedTuple):
    """A range of a request with one type."""

    first: int
    last: int
    type: AcknowledgeType


class DeadSpan(NamedTuple):
    """Records that were archived because no delivery succeeded, with Kafka's words for it."""

    first: int
    last: int
    delivery_count: int
    reason: str


class AcquiredSpan(NamedTuple):
    first: int
    last: int
    delivery_count: int

    def without(self, spans: Iterable[OffsetSpan]) -> Iterator[AcquiredSpan]:
        """Yield what is left when records are removed, in order."""
        first = self.first
        for gone in spans:
            if gone.last >= first and gone.first <= self.last:
                if gone.first > first:
                    yield self._replace(first=first, last=gone.first - 1)
                first = gone.last + 1
        if first <= self.last:
            yield self._replace(first=first)


@dataclass(slots=True, eq=False)
class RecordRange:
    """Records of one state. `unit` has the records that were first acquired together."""

    first: int
    last: int
    unit: OffsetSpan
    state: RecordState = AVAILABLE
    delivery_count: int = 0
    member_id: str = ""
    until: float = 0.0  # the loop's time at which the lock ends

    @property
    def count(self) -> int:
        return self.last - self.first + 1

    def is_held_by(self, member_id: str) -> bool:
        return self.state is ACQUIRED and self.member_id == member_id


class BrokerSharePartition:
    """The states at one leader. `settings` returns the group's current ones."""

    def __init__(
        self,
        start_offset: int,
        leader_epoch: int,
        settings: Callable[[], ShareGroupSettings],
        stored: Iterable[StateBatch] = (),
    ) -> None:
        self.leader_epoch = leader_epoch
        self.start_offset = self.end_offset = start_offset
        self._settings = settings
        # All records of the window, in order.
        self._ranges: list[RecordRange] = []
        self._dead: list[DeadSpan] = []
        for batch in stored:
            self._extend(batch.first_offset - 1, AVAILABLE)
            added = self._extend(batch.last_offset, RecordState(batch.delivery_state))
            added.delivery_count = batch.delivery_count

    # Looking up

    @property
    def next_offset(self) -> int:
        """The first offset that a fetch could acquire, if the window has room."""
        available = (each.first for each in self._ranges if each.state is AVAILABLE)
        return next(available, self.end_offset)

    @property
    def room(self) -> int:
        """The number of records that the window may grow by."""
        return self._settings().partition_max_record_locks - (self.end_offset - self.start_offset)

    @property
    def can_acquire(self) -> bool:
        return self.next_offset < self.end_offset or self.room > 0

    @property
    def next_deadline(self) -> float | None:
        return min((each.until for each in self._ranges if each.state is ACQUIRED), default=None)

    def stored(self) -> Iterator[StateBatch]:
        """Yield the states to store. Locked records are as they were before."""
        states = (
            (each, AVAILABLE, each.delivery_count - 1)
            if each.state is ACQUIRED
            else (each, each.state, each.delivery_count)
            for each in self._ranges
        )
        for (state, count), same in groupby(states, key=lambda each: each[1:]):
            ranges = [each for each, _, _ in same]
            if state is not AVAILABLE or count:
                yield StateBatch(
                    first_offset=ranges[0].first,
                    last_offset=ranges[-1].last,
                    delivery_state=state,
                    delivery_count=count,
                )

    # Acquiring

    def acquire(
        self,
        member_id: str,
        batches: Sequence[OffsetSpan],
        max_records: int,
        *,
        batch_size: int,
        is_exact: bool,
        until: float,
    ) -> list[AcquiredSpan]:
        """Lock records of the batches that were read from `next_offset` on.

        With `is_exact`, that are `max_records` at most. Otherwise, the last batch is complete.
        """
        found = OffsetSpan(batches[0].first, batches[-1].last)
        # The batches of records before were deleted by compaction.
        self._archive(self.next_offset, found.first - 1)
        taken: list[RecordRange] = []
        left = max_records
        throttled_from = _throttled_from(self._settings().delivery_count_limit)
        for unit in self._units(found):
            is_throttled = any(each.delivery_count >= throttled_from for each in unit)
            if left <= 0 or (is_throttled and taken):
                left = 0
                break
            of_unit = self._throttled(unit) if is_throttled else unit
            for each in of_unit:
                each = self._cut(each, left) if is_exact else each
                taken.append(each)
                left -= each.count
                if is_exact and left <= 0:
                    break
            if is_throttled:
                left = 0
        if left > 0 and found.last >= self.end_offset and self.room > 0:
            taken += self._grow(batches, min(left, self.room), batch_size, is_exact=is_exact)
        for each in taken:
            each.state, each.member_id, each.until = ACQUIRED, member_id, until
            each.delivery_count += 1
        return [
            AcquiredSpan(spans[0].first, spans[-1].last, count)
            for (_, count), same in groupby(taken, lambda each: (each.unit, each.delivery_count))
            for spans in _adjacent(list(same))
        ]

    def _units(self, found: OffsetSpan) -> Iterator[list[RecordRange]]:
        """Yield the available ranges of `found`, by unit."""
        self._split(found.last + 1)
        available = [
            each
            for each in self._ranges
            if each.state is AVAILABLE and found.first <= each.first <= found.last
        ]
        for _, unit in groupby(available, lambda each: each.unit):
            yield list(unit)

    def _throttled(self, unit: Sequence[RecordRange]) -> Iterator[RecordRange]:
        """Yield fewer records the more often they failed, and one alone for its last delivery."""
        most = self._settings().delivery_count_limit
        throttled_from = _throttled_from(most)
        limit: int | None = None
        count = 0
        for each in unit:
            is_last = each.delivery_count == most - 1 > 1
            if is_last and count:
                return
            if limit is None and each.delivery_count >= throttled_from:
                size = each.unit.last - each.unit.first + 1
                limit = max(1, size >> (each.delivery_count - throttled_from + 1))
                limit = max(limit, count + 1)
            if is_last:
                yield self._cut(each, 1)
                return
            part = each if limit is None else self._cut(each, limit - count)
            count += part.count
            yield part
            if limit is not None and count >= limit:
                return

    def _grow(
        self, batches: Sequence[OffsetSpan], limit: int, batch_size: int, *, is_exact: bool
    ) -> list[RecordRange]:
        """Add records to the end of the window, in units of whole batches if possible."""
        new = [each for each in batches if each.last >= self.end_offset]
        self._extend(new[0].first - 1, ARCHIVED)  # a gap
        first = self.end_offset
        last = first + limit - 1
        if not is_exact:
            last = next((each.last for each in new if each.last >= last), last)
        last = min(last, new[-1].last)
        grown: list[RecordRange] = []
        for batch in new:
            end = min(batch.last, last)
            if end == last or end - self.end_offset + 1 >= batch_size:
                grown.append(self._extend(end, AVAILABLE))
            if end == last:
                break
        return grown

    # Acknowledging

    def acknowledge(
        self, member_id: str, acknowledged: Sequence[Acknowledged], *, until: float
    ) -> bool:
        """Apply all acknowledgements of a request, or none. Return whether states have changed.

        Raises:
            InvalidRequestError: Some of the offsets were never acquired.
            InvalidRecordStateError: The member does not hold some of the records.
        """
        settings = self._settings()
        for first, last, _ in acknowledged:
            if last >= self.end_offset:
                which = "first" if first >= self.end_offset else "last"
                raise InvalidRequestError(
                    f"Batch record not found. The {which} offset in request is past acquired "
                    "records."
                )
        done: list[tuple[RecordRange, AcknowledgeType]] = []
        past = NO_OFFSET
        for first, last, kind in acknowledged:
            if kind is AcknowledgeType.RENEW and not settings.renew_acknowledge_enable:
                raise InvalidRecordStateError(
                    "Renewing acquisition locks is not enabled for the group."
                )
            held = list(self._between(first, last))
            if first <= past or not all(each.is_held_by(member_id) for each in held):
                raise InvalidRecordStateError(
                    "The offset cannot be acknowledged. The offset is not acquired."
                )
            done += ((each, kind) for each in held)
            past = last
        for each, kind in done:
            if kind is AcknowledgeType.RENEW:
                each.until = until
            elif kind is AcknowledgeType.RELEASE:
                self._release(each)
            elif kind is AcknowledgeType.REJECT:
                self._bury(each, "Offset rejected by client.")
            else:
                each.state = ACKNOWLEDGED if kind is AcknowledgeType.ACCEPT else ARCHIVED
        return any(kind is not AcknowledgeType.RENEW for _, kind in done)

    def release_if(self, is_over: Callable[[RecordRange], bool]) -> bool:
        """End the locks of some records. Return whether there were any."""
        over = [each for each in self._ranges if each.state is ACQUIRED and is_over(each)]
        for each in over:
            self._release(each)
        return bool(over)

    def _release(self, each: RecordRange) -> None:
        if each.delivery_count >= self._settings().delivery_count_limit:
            self._bury(each, "Offset delivery count exceeded the threshold.")
        else:
            each.state = AVAILABLE

    def _bury(self, each: RecordRange, reason: str) -> None:
        each.state = ARCHIVED
        self._dead.append(DeadSpan(each.first, each.last, each.delivery_count, reason))

    def take_dead(self) -> Sequence[DeadSpan]:
        """Return the records that have become dead letters since the last call."""
        dead, self._dead = self._dead, []
        return dead

    def archive(self, spans: Iterable[OffsetSpan]) -> None:
        """Archive records of aborted transactions, which are acquired."""
        for first, last in spans:
            for each in self._between(first, last):
                each.state = ARCHIVED

    def _archive(self, first: int, last: int) -> None:
        for each in self._between(first, last):
            if each.state is AVAILABLE:
                each.state = ARCHIVED

    def advance(self, log_start_offset: int = 0) -> None:
        """Move the start offset over finished records, and to the start of the log."""
        self._archive(self.start_offset, log_start_offset - 1)
        finished = 0
        for each in self._ranges:
            if each.state not in FINISHED:
                break
            finished += 1
            self.start_offset = each.last + 1
        del self._ranges[:finished]
        if not self._ranges:
            self.end_offset = self.start_offset = max(self.end_offset, log_start_offset)

    # Ranges

    def _extend(self, last: int, state: RecordState) -> RecordRange:
        """Add records up to `last` to the window. There may be none."""
        first = self.end_offset
        added = RecordRange(first, last, OffsetSpan(first, last), state)
        if last >= first:
            self._ranges.append(added)
            self.end_offset = last + 1
        return added

    def _between(self, first: int, last: int) -> Iterator[RecordRange]:
        """Yield the ranges of the window that have exactly these records."""
        if last < first or last < self.start_offset:
            return
        begin = self._split(max(first, self.start_offset))
        end = self._split(last + 1)
        yield from self._ranges[begin:end]

    def _split(self, offset: int) -> int:
        """Let a range begin at an offset, and return its index, or the number of ranges."""
        index = bisect_right(self._ranges, offset, key=lambda each: each.first) - 1
        if index < 0:
            return 0
        found = self._ranges[index]
        if found.first == offset:
            return index
        if found.last < offset:
            return index + 1
        self._ranges.insert(index + 1, replace(found, first=offset))
        found.last = offset - 1
        return index + 1

    def _cut(self, each: RecordRange, count: int) -> RecordRange:
        """Let a range have `count` records at most."""
        if each.count > count:
            self._split(each.first + count)
        return each


def _throttled_from(delivery_count_limit: int) -> int:
    """Return after how many deliveries few records are delivered at once, to isolate a bad one."""
    return max(2, -(-delivery_count_limit // 2))


def _adjacent(ranges: Sequence[RecordRange]) -> Iterator[list[RecordRange]]:
    """Group ranges without a gap in between."""
    group: list[RecordRange] = []
    for each in ranges:
        if group and each.first != group[-1].last + 1:
            yield group
            group = []
        group.append(each)
    yield group
