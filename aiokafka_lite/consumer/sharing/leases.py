"""The leases of a share group's records, without I/O: the only writer of their states.

A broker locks offsets for a member (KIP-932). Offsets that were locked together, with one delivery
count, are a `LeaseRange`. One byte of it is the state of each offset, so that thousands of records
change their states at once:

    H          held: with the application, or waiting for it
    G A R J    settled by this side (gap, accept, release, reject), not sent yet
    g a r j    in the request that is in flight
    .          settled: the broker has confirmed it
    x          lost: the lock is over, so other members may get the record

    H --settle--> GARJ --take_acknowledgements--> garj --answered--> . | x | again GARJ
    H, GARJ --the lock's end, or a lost session--> x

At most one request a node is in flight. So a record that is settled while its lock is being renewed
is sent after the answer, and both cannot race.

A lock ends a time-out after the request that has acquired or renewed it was sent. That is never
later than at the broker. Brokers check a partition's acknowledgements together: a single lost
offset makes them refuse all. So after a refusal fewer offsets are sent at a time, down to one, and
only that one is lost.
"""

from __future__ import annotations

import enum
import math
import re
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Final, NamedTuple, TypeAlias

from aiokafka_lite.errors import InvalidRecordStateError, KafkaError, KafkaProtocolError
from aiokafka_lite.structs import ConsumerRecord, TopicPartition

Record: TypeAlias = ConsumerRecord

# Locks are renewed when this share of their time is left.
RENEWED_AT_SHARE: Final = 0.5
# A renewal takes with it the locks that are due soon.
RENEWED_WITH_SHARE: Final = 0.75
# How long a node is asked for no renewals after it has refused the first one.
RENEWALS_OFF_S: Final = 60.0
# Brokers archive a record after so many deliveries (share.delivery.count.limit). An undecodable one
# is rejected before that, so that this is told.
DELIVERY_COUNT_LIMIT: Final = 5
# Brokers lock at most share.partition.max.record.locks (2,000 by default, at most 10,000), and the
# rest of a batch.
MOST_ACQUIRED: Final = 10_000_000
# So many offsets are sent at a time without a limit of the partition.
UNLIMITED: Final = 1 << 20


# Reasons for a loss.
NOT_RENEWED: Final = "the lock was not renewed in time"
DELIVERED_AGAIN: Final = "the broker has delivered the record again"
HELD_TOO_LONG: Final = "the record was held for longer than max_lease_ms"


class AckType(enum.IntEnum):
    """The types of acknowledgements, as in AcknowledgementBatch."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class LeaseState(enum.Enum):
    HELD = enum.auto()
    SETTLING = enum.auto()  # settled, and not confirmed by the broker yet
    SETTLED = enum.auto()
    LOST = enum.auto()


HELD, SETTLED, LOST = b"H", b".", b"x"
TO_SEND, IN_FLIGHT = b"GARJ", b"garj"  # in the order of AckType
STATES: Final[Mapping[int, LeaseState]] = {
    HELD[0]: LeaseState.HELD,
    **dict.fromkeys(TO_SEND + IN_FLIGHT, LeaseState.SETTLING),
    SETTLED[0]: LeaseState.SETTLED,
    LOST[0]: LeaseState.LOST,
}
HELD_RUN: Final = re.compile(rb"H+")
RUN_TO_SEND: Final = re.compile(rb"G+|A+|R+|J+")
# What an application would see twice. A lost release is none, because it comes back anyway.
TOLD_RUN: Final = re.compile(rb"[HAJ]+")

_SEND: Final = bytes.maketrans(TO_SEND, IN_FLIGHT)
_SEND_AGAIN: Final = bytes.maketrans(IN_FLIGHT, TO_SEND)
_CONFIRM: Final = bytes.maketrans(IN_FLIGHT, SETTLED * 4)
_LOSE_SENT: Final = bytes.maketrans(IN_FLIGHT, LOST * 4)
_LOSE: Final = bytes.maketrans(HELD + TO_SEND, LOST * 5)
_SETTLE: Final = tuple(bytes.maketrans(HELD, bytes([code])) for code in TO_SEND)


class SharePartition:
    """A partition of a topic id, at the node that leads it: another leader has another one.

    Attributes:
        key: As brokers name it, whoever leads it.
        most: Offsets in one acknowledgement, after the broker has refused more together.
    """

    __slots__ = ("key", "most", "node_id", "topic_id", "tp")

    def __init__(self, topic_id: bytes, tp: TopicPartition, node_id: int) -> None:
        self.topic_id: Final = topic_id
        self.tp: Final = tp
        self.key: Final = (topic_id, tp.partition)
        self.node_id: Final = node_id
        self.most = UNLIMITED

    def __repr__(self) -> str:
        return f"<{self.tp.topic}/{self.tp.partition} at node {self.node_id}>"


class LeaseRange:
    """Consecutive offsets that were locked together. Written by `Leases`.

    Attributes:
        delivery_count: How often the records were delivered, this time included.
        until: Loop time of the end of the locks.
        acquired_at: The time of the request that acquired them.
        is_renewable: False: a renewal was refused, so the locks end at `until`.
    """

    __slots__ = (
        "acquired_at",
        "delivery_count",
        "first_offset",
        "is_renewable",
        "lock_s",
        "partition",
        "states",
        "taken",
        "until",
    )

    def __init__(
        self, partition: SharePartition, acquired: Acquired, lock_s: float, acquired_at: float
    ) -> None:
        self.partition: Final = partition
        self.first_offset: Final = acquired.first_offset
        self.delivery_count: Final = acquired.delivery_count
        count = acquired.last_offset - acquired.first_offset + 1
        self.states = bytearray(HELD * count)
        self.acquired_at: Final = acquired_at
        self.lock_s = lock_s
        self.until = acquired_at + lock_s
        self.is_renewable = True
        # Leases of single records, by offset: for the records that `Leases.lease` was called for.
        self.taken: dict[int, RecordLease] = {}

    @property
    def last_offset(self) -> int:
        return self.first_offset + len(self.states) - 1

    @property
    def held_count(self) -> int:
        return self.states.count(HELD)

    def has_unsettled(self, first_offset: int, last_offset: int) -> bool:
        """Whether the broker has not confirmed the end of some of these offsets."""
        start = max(first_offset - self.first_offset, 0)
        return bool(self.states[start : last_offset + 1 - self.first_offset].strip(SETTLED + LOST))

    def __repr__(self) -> str:
        return f"<{self.partition} {self.first_offset}-{self.last_offset} {bytes(self.states)!r}>"


class RecordLease:
    """One record, and its place in a range."""

    __slots__ = ("range", "record")

    def __init__(self, of: LeaseRange, record: Record) -> None:
        self.range: Final = of
        self.record: Final = record

    @property
    def partition(self) -> SharePartition:
        return self.range.partition

    @property
    def offset(self) -> int:
        return self.record.offset

    @property
    def until(self) -> float:
        """Loop time of the end of the lock, which renewals move."""
        return self.range.until

    @property
    def state(self) -> LeaseState:
        return STATES[self.range.states[self.record.offset - self.range.first_offset]]

    def __repr__(self) -> str:
        return f"<{self.partition} {self.offset} {self.state.name}>"


class Acquired(NamedTuple):
    """As AcquiredRecords of a response."""

    first_offset: int
    last_offset: int
    delivery_count: int


class LeasedRecords:
    """Records of one range that were not given to the application yet."""

    __slots__ = ("position", "range", "records")

    def __init__(self, of: LeaseRange, records: Sequence[Record], position: int = 0) -> None:
        self.range: Final = of
        self.records: Final = records
        self.position = position

    def __len__(self) -> int:
        return len(self.records) - self.position


class Portion(NamedTuple):
    """Offsets of one range in one request."""

    range: LeaseRange
    start: int  # index of `states`
    stop: int
    type: AckType

    @property
    def first_offset(self) -> int:
        return self.range.first_offset + self.start

    @property
    def last_offset(self) -> int:
        return self.range.first_offset + self.stop - 1

    @property
    def size(self) -> int:
        return self.stop - self.start


# What one request acknowledges or renews, by partition, in the order of offsets.
Acknowledgements = Mapping[SharePartition, Sequence[Portion]]


class LostLeases(NamedTuple):
    """Leases of one range that were lost, although no confirmed acknowledgement has ended them.

    Attributes:
        offsets: First and last ones of records that other members may get.
        leases: The single records among them, as far as `Leases.lease` was called for them.
    """

    range: LeaseRange
    offsets: Sequence[tuple[int, int]]
    leases: Sequence[RecordLease]
    reason: str

    @property
    def record_count(self) -> int:
        return sum(last - first + 1 for first, last in self.offsets)


class LeaseCounts:
    """Totals of records."""

    def __init__(self) -> None:
        self.acquired = self.accepted = self.released = self.rejected = 0
        self.renewed = self.lost = self.gaps = self.undecodable = 0


def merged(acquired: Iterable[Acquired]) -> list[Acquired]:
    """Sort ranges of offsets, and drop from each what an earlier one has: each offset counts once.

    Neighbours of the same delivery count become one.

    Raises:
        KafkaProtocolError: A range is empty, or larger than a response can be.
    """
    ranges: list[Acquired] = []
    for each in sorted(acquired):
        if not 0 <= each.last_offset - each.first_offset < MOST_ACQUIRED:
            raise KafkaProtocolError(
                f"a broker acquired the invalid range of offsets {each.first_offset} to "
                f"{each.last_offset}"
            )
        last = ranges[-1] if ranges else None
        first_offset = each.first_offset
        if last is not None:
            first_offset = max(first_offset, last.last_offset + 1)
        if first_offset > each.last_offset:
            continue
        if last is not None and (first_offset, each.delivery_count) == (
            last.last_offset + 1,
            last.delivery_count,
        ):
            ranges[-1] = last._replace(last_offset=each.last_offset)
        else:
            ranges.append(each._replace(first_offset=first_offset))
    return ranges


class Leases:
    """The leases of one member. Times are loop times.

    `on_lost` is called for records that the application has, or has had, and for records that it
    has settled in vain. It is not called for records that nobody has seen.
    """

    def __init__(
        self,
        on_lost: Callable[[LostLeases], None] = lambda lost: None,
        *,
        delivery_count_limit: int = DELIVERY_COUNT_LIMIT,
    ) -> None:
        self._on_lost = on_lost
        self._delivery_count_limit = delivery_count_limit
        # By node. The values are sets in the order of their ends.
        self._ranges: dict[int, dict[LeaseRange, None]] = {}
        # With offsets to send.
        self._unsent: dict[int, dict[LeaseRange, None]] = {}
        self.waiting: deque[LeasedRecords] = deque()
        self.waiting_count = 0
        # Records that wait, or that the application has.
        self.held_count = 0
        # Locks are not renewed beyond this age.
        self.max_lease_s = math.inf
        self.counts = LeaseCounts()
        # How long after half of a lock's time the latest renewal was sent.
        self.renewal_late_s = 0.0
        # By node, from when on locks are renewed. -inf: a renewal has succeeded.
        self._renewed_from: dict[int, float] = {}

    # --- Acquiring ------------------------------------------------------------------------
    def acquire(
        self,
        partition: SharePartition,
        records: Sequence[Record],
        acquired: Iterable[Acquired],
        *,
        lock_s: float,
        asked_at: float,
        undecodable: Collection[tuple[int, int]] = (),
    ) -> int:
        """Take over the locked records of a response, and return how many wait now.

        Records that are not locked are dropped. Locked offsets without a record are gaps.
        `undecodable` are the first and last offsets of batches that cannot be decoded: they are
        released, and rejected if the broker would soon archive them.

        An offset that is delivered again shows that its earlier lock is over.
        """
        count = 0
        for each in merged(acquired):
            if each.delivery_count > 1 and (over := self._overlapping(partition, each)):
                self.lose(over, DELIVERED_AGAIN)
            lease_range = LeaseRange(partition, each, lock_s, asked_at)
            self._insert(lease_range)
            low = bisect_left(records, each.first_offset, key=_offset_of)
            high = bisect_left(records, each.last_offset + 1, low, key=_offset_of)
            mine = records[low:high]
            if len(mine) < len(lease_range.states):
                self._note_holes(lease_range, mine, undecodable)
            if mine:
                self.waiting.append(LeasedRecords(lease_range, mine))
                count += len(mine)
        self.waiting_count += count
        self.held_count += count
        self.counts.acquired += count
        return count

    def _insert(self, lease_range: LeaseRange) -> None:
        """Keep the order of ends: an answer may be taken over after that to a later request."""
        at_node = self._ranges.setdefault(lease_range.partition.node_id, {})
        later = list(takewhile(lambda each: each.until > lease_range.until, reversed(at_node)))
        at_node[lease_range] = None
        for each in reversed(later):
            at_node[each] = at_node.pop(each)

    def _overlapping(self, partition: SharePartition, acquired: Acquired) -> list[LeaseRange]:
        return [
            each
            for each in self.ranges(partition.node_id)
            if each.partition is partition
            and each.first_offset <= acquired.last_offset
            and acquired.first_offset <= each.last_offset
            and each.has_unsettled(acquired.first_offset, acquired.last_offset)
        ]

    def _note_holes(
        self,
        lease_range: LeaseRange,
        records: Sequence[Record],
        undecodable: Collection[tuple[int, int]],
    ) -> None:
        states, first_offset = lease_range.states, lease_range.first_offset
        states[:] = bytes([TO_SEND[AckType.GAP]]) * len(states)
        is_last = lease_range.delivery_count >= self._delivery_count_limit - 1
        for first, last in undecodable:
            start, stop = max(first - first_offset, 0), min(last + 1 - first_offset, len(states))
            if start < stop:
                code = TO_SEND[AckType.REJECT if is_last else AckType.RELEASE]
                states[start:stop] = bytes([code]) * (stop - start)
                self.counts.undecodable += stop - start
        for record in records:
            states[record.offset - first_offset] = HELD[0]
        self._note_unsent(lease_range)

    def _note_unsent(self, lease_range: LeaseRange) -> None:
        self._unsent.setdefault(lease_range.partition.node_id, {})[lease_range] = None

    # --- The application ------------------------------------------------------------------
    def take(self, most: int) -> list[LeasedRecords]:
        """Return the first waiting records, which the application has from now on."""
        taken: list[LeasedRecords] = []
        while most > 0 and self.waiting:
            first = self.waiting[0]
            start = first.position
            first.position = stop = min(start + most, len(first.records))
            if first.position == len(first.records):
                self.waiting.popleft()
            self.waiting_count -= stop - start
            most -= stop - start
            taken.append(LeasedRecords(first.range, first.records[start:stop]))
        return taken

    def put_back(self, taken: Iterable[LeasedRecords]) -> None:
        """Let records wait again, before all others: the read that has taken them was cancelled."""
        for each in reversed(list(taken)):
            if each.range.held_count:
                self.waiting.appendleft(each)
                self.waiting_count += len(each)

    def lease(self, lease_range: LeaseRange, record: Record) -> RecordLease:
        """Return the lease of one taken record, which `on_lost` will name."""
        lease = lease_range.taken[record.offset] = RecordLease(lease_range, record)
        return lease

    def settle(self, lease: RecordLease, ack_type: AckType) -> bool:
        """Settle one record. Return False if it is settled already, or lost."""
        states, index = lease.range.states, lease.offset - lease.range.first_offset
        if states[index] != HELD[0]:
            return False
        states[index] = TO_SEND[ack_type]
        self.held_count -= 1
        self._note_unsent(lease.range)
        return True

    def settle_records(
        self, lease_range: LeaseRange, records: Sequence[Record], ack_type: AckType
    ) -> int:
        """Settle consecutive records of a range; return how many were held until now."""
        if not records:
            return 0
        start = records[0].offset - lease_range.first_offset
        stop = records[-1].offset - lease_range.first_offset + 1
        return self._settle(lease_range, start, stop, ack_type)

    def _settle(self, lease_range: LeaseRange, start: int, stop: int, ack_type: AckType) -> int:
        states = lease_range.states
        count = states.count(HELD, start, stop)
        if count:
            states[start:stop] = states[start:stop].translate(_SETTLE[ack_type])
            self.held_count -= count
            self._note_unsent(lease_range)
        return count

    def release_waiting(self, partition: SharePartition | None = None) -> int:
        """Release the records that wait, of all partitions or one."""
        kept, count = deque[LeasedRecords](), 0
        for each in self.waiting:
            if partition is None or each.range.partition is partition:
                records = each.records[each.position :]
                count += self.settle_records(each.range, records, AckType.RELEASE)
                self.waiting_count -= len(each)
            else:
                kept.append(each)
        self.waiting = kept
        return count

    def release_all(self) -> None:
        """Release all held records, also those that the application has."""
        self.waiting.clear()
        self.waiting_count = 0
        for ranges in self._ranges.values():
            for each in ranges:
                self._settle(each, 0, len(each.states), AckType.RELEASE)

    # --- Queries --------------------------------------------------------------------------
    def ranges(self, node_id: int) -> list[LeaseRange]:
        """Return a copy. May be called by another thread."""
        return list(self._ranges.get(node_id, ()))

    def has_unsent(self, node_id: int) -> bool:
        return bool(self._unsent.get(node_id))

    def has_results(self, node_id: int) -> bool:
        """Whether what is to be sent is more than the end of the session does by itself."""
        unsent = self._unsent.get(node_id, ())
        return any(b"A" in each.states or b"J" in each.states for each in unsent)

    def is_holding(self, node_id: int) -> bool:
        """Whether locks of this node are held, or being settled."""
        return bool(self._ranges.get(node_id))

    def held_at_limit(self) -> int:
        """Count the records that the broker will archive if their leases are released or lost."""
        return sum(
            each.held_count
            for ranges in self._ranges.values()
            for each in ranges
            if each.delivery_count >= self._delivery_count_limit
        )

    def held_by_partition(self) -> Counter[TopicPartition]:
        found = Counter[TopicPartition]()
        for ranges in self._ranges.values():
            for each in ranges:
                found[each.partition.tp] += each.held_count
        return found

    # --- Renewals -------------------------------------------------------------------------
    def connected(self, node_id: int, *, can_renew: bool) -> None:
        """Note that a node offers renewals. Whether the group allows them shows the first one."""
        self._renewed_from.pop(node_id, None)
        if not can_renew:
            self._renewed_from[node_id] = math.inf

    def can_renew(self, node_id: int, now: float) -> bool:
        """Whether the node renews locks, as far as known. May be called by another thread."""
        return now >= self._renewed_from.get(node_id, -math.inf)

    def renewal_due_at(self, node_id: int) -> float:
        """Return the time of the next renewal, or of the next end of a lock."""
        due_at, renewed_from = math.inf, self._renewed_from.get(node_id, -math.inf)
        for each in self.ranges(node_id):  # in the order of their ends
            if self._is_renewed(each) and renewed_from < each.until:
                half_at = each.until - each.lock_s * RENEWED_AT_SHARE
                return min(due_at, max(half_at, renewed_from))
            due_at = min(due_at, each.until)
        return due_at

    def _is_renewed(self, lease_range: LeaseRange) -> bool:
        end_at = lease_range.acquired_at + self.max_lease_s
        may_renew = lease_range.is_renewable and lease_range.until < end_at
        return may_renew and HELD in lease_range.states

    def renewals(self, node_id: int, now: float) -> Acknowledgements:
        """Return the locks to renew now, as one request. Empty: none is due.

        May be called by another thread, while this one sends nothing.
        """
        if now < self.renewal_due_at(node_id) or not self.can_renew(node_id, now):
            return {}
        portions: dict[SharePartition, list[Portion]] = {}
        left: dict[SharePartition, int] = {}
        for each in self.ranges(node_id):
            if each.until - now >= each.lock_s * RENEWED_WITH_SHARE or not self._is_renewed(each):
                continue
            partition, held_count = each.partition, each.held_count
            most = left.get(partition, partition.most)
            if held_count > most and partition in portions:
                continue  # at least one range
            left[partition] = most - held_count
            portions.setdefault(partition, []).extend(
                Portion(each, *run.span(), AckType.RENEW)
                for run in HELD_RUN.finditer(bytes(each.states))
            )
        return in_order(portions)

    def renewed(
        self,
        sent: Acknowledgements,
        errors: Mapping[SharePartition, KafkaError],
        *,
        lock_s: float,
        asked_at: float,
    ) -> None:
        """Take over the answer to `renewals`. Partitions without an error are renewed."""
        for partition, portions in sent.items():
            ranges = dict.fromkeys(portion.range for portion in portions)
            if (error := errors.get(partition)) is None:
                self._renewed_from[partition.node_id] = -math.inf
                self._note_success(partition)
                at_node = self._ranges.get(partition.node_id, {})
                half_at = min(each.until - each.lock_s * RENEWED_AT_SHARE for each in ranges)
                self.renewal_late_s = max(0.0, asked_at - half_at)
                for each in ranges:
                    each.until, each.lock_s = asked_at + lock_s, lock_s
                    self.counts.renewed += each.held_count
                    if each in at_node:
                        del at_node[each]
                        self._insert(each)
            elif isinstance(error, InvalidRecordStateError):
                if not self._note_refusal(partition, portions, len(ranges) > 1):
                    for each in ranges:
                        each.is_renewable = False
                    # Without a success before, the group has switched renewals off.
                    if self._renewed_from.pop(partition.node_id, None) != -math.inf:
                        self._renewed_from[partition.node_id] = asked_at + RENEWALS_OFF_S
            elif not may_pass(error):
                self.lose(ranges, str(error))

    # --- Acknowledgements -----------------------------------------------------------------
    def take_acknowledgements(self, node_id: int) -> Acknowledgements:
        """Return what to send in one request, which is in flight from now on."""
        unsent = self._unsent.get(node_id)
        if not unsent:
            return {}
        portions: dict[SharePartition, list[Portion]] = {}
        for each in tuple(unsent):
            partition, states = each.partition, each.states
            mine = portions.setdefault(partition, [])
            left = partition.most - sum(each.size for each in mine)
            for run in RUN_TO_SEND.finditer(bytes(states)):
                if left <= 0:
                    break
                start, stop = run.start(), min(run.end(), run.start() + left)
                left -= stop - start
                ack_type = AckType(TO_SEND.index(states[start]))
                mine.append(Portion(each, start, stop, ack_type))
                states[start:stop] = states[start:stop].translate(_SEND)
            if left > 0:
                del unsent[each]
        return in_order(portions)

    def answered(self, sent: Acknowledgements, errors: Mapping[SharePartition, KafkaError]) -> None:
        """Take over the answer to `take_acknowledgements`; retriable errors send again.

        An error that shows that the leader or the topic has changed is not retriable here: the
        locks are gone.
        """
        for partition, portions in sent.items():
            error = errors.get(partition)
            if error is None:
                self._note_success(partition)
                for portion in portions:
                    self._confirm(portion)
            elif self._is_sent_again(partition, portions, error):
                for portion in portions:
                    self._translate(portion, _SEND_AGAIN)
                    self._note_unsent(portion.range)
            else:
                for portion in portions:
                    self._lose_sent(portion, str(error))
            for portion in portions:
                self._end_if_done(portion.range)

    def _is_sent_again(
        self, partition: SharePartition, portions: Sequence[Portion], error: KafkaError
    ) -> bool:
        if isinstance(error, InvalidRecordStateError):
            return self._note_refusal(partition, portions, sum(each.size for each in portions) > 1)
        return may_pass(error)

    def failed(self, sent: Acknowledgements, reason: str) -> None:
        """Note that no answer to `take_acknowledgements` will come, so their effect is unknown."""
        for portions in sent.values():
            for portion in portions:
                self._lose_sent(portion, reason)
                self._end_if_done(portion.range)

    def _note_refusal(
        self, partition: SharePartition, portions: Sequence[Portion], has_several: bool
    ) -> bool:
        """Send fewer at a time, to find the lost ones. Return whether there were several."""
        if has_several:
            partition.most = max(1, sum(each.size for each in portions) // 2)
        return has_several

    def _note_success(self, partition: SharePartition) -> None:
        partition.most = min(partition.most * 2, UNLIMITED)

    def _translate(self, portion: Portion, table: bytes) -> None:
        states, start, stop = portion.range.states, portion.start, portion.stop
        states[start:stop] = states[start:stop].translate(table)

    def _confirm(self, portion: Portion) -> None:
        self._translate(portion, _CONFIRM)
        counts, count = self.counts, portion.size
        if portion.type is AckType.ACCEPT:
            counts.accepted += count
        elif portion.type is AckType.RELEASE:
            counts.released += count
        elif portion.type is AckType.REJECT:
            counts.rejected += count
        else:
            counts.gaps += count
        for lease in _leases_in(portion.range, portion.start, portion.stop):
            del portion.range.taken[lease.offset]

    # --- Losses ---------------------------------------------------------------------------
    def expire(self, node_id: int, now: float) -> None:
        """Lose what was not renewed in time."""
        for each in self.ranges(node_id):
            if each.until > now:
                break
            is_old = each.until >= each.acquired_at + self.max_lease_s
            self.lose([each], HELD_TOO_LONG if is_old else NOT_RENEWED)

    def lose_partition(self, partition: SharePartition, reason: str) -> None:
        ranges = self.ranges(partition.node_id)
        self.lose([each for each in ranges if each.partition is partition], reason)

    def lose_node(self, node_id: int, reason: str) -> None:
        self.lose(self.ranges(node_id), reason)

    def lose(self, ranges: Iterable[LeaseRange], reason: str) -> None:
        """Note that the broker no longer holds these locks for us, except for those in flight.

        `answered` decides about these.
        """
        gone = dict.fromkeys(ranges)
        waiting, self.waiting = self.waiting, deque()
        for each in waiting:
            if each.range in gone:
                self.waiting_count -= len(each)
                self.counts.lost += len(each)
                self.held_count -= len(each)
                # Not beyond: after a cancelled read, the application may have later ones.
                first_offset = each.range.first_offset
                start = each.records[each.position].offset - first_offset
                stop = each.records[-1].offset - first_offset + 1
                each.range.states[start:stop] = each.range.states[start:stop].translate(_LOSE)
            else:
                self.waiting.append(each)
        for lost in gone:
            states = bytes(lost.states)
            self.held_count -= states.count(HELD)
            lost.states[:] = states.translate(_LOSE)
            self._tell(lost, [run.span() for run in TOLD_RUN.finditer(states)], reason)
            self._end_if_done(lost)

    def _lose_sent(self, portion: Portion, reason: str) -> None:
        self._translate(portion, _LOSE_SENT)
        if portion.type in (AckType.ACCEPT, AckType.REJECT):
            self._tell(portion.range, [(portion.start, portion.stop)], reason)

    def _tell(self, lease_range: LeaseRange, runs: Sequence[tuple[int, int]], reason: str) -> None:
        if not runs:
            return
        first = lease_range.first_offset
        offsets = [(first + start, first + stop - 1) for start, stop in runs]
        leases = [each for start, stop in runs for each in _leases_in(lease_range, start, stop)]
        for lease in leases:
            del lease_range.taken[lease.offset]
        lost = LostLeases(lease_range, offsets, leases, reason)
        self.counts.lost += lost.record_count
        self._on_lost(lost)

    def _end_if_done(self, lease_range: LeaseRange) -> None:
        node_id, states = lease_range.partition.node_id, lease_range.states
        if states.count(SETTLED) + states.count(LOST) == len(states):
            for by_node in (self._ranges, self._unsent):
                if (ranges := by_node.get(node_id)) is not None:
                    ranges.pop(lease_range, None)


def may_pass(error: KafkaError) -> bool:
    """Whether the same request may succeed later: the broker still has our locks."""
    return error.retriable and not error.invalid_metadata


def _offset_of(record: Record) -> int:
    return record.offset


def in_order(portions: Mapping[SharePartition, list[Portion]]) -> Acknowledgements:
    """Sort by offset, as brokers demand: a range may lie in the holes of another one."""
    return {
        partition: sorted(mine, key=lambda portion: portion.first_offset)
        for partition, mine in portions.items()
        if mine
    }


def _leases_in(lease_range: LeaseRange, start: int, stop: int) -> list[RecordLease]:
    taken, first = lease_range.taken, lease_range.first_offset
    if not taken:
        return []
    if stop - start < len(taken):
        found = map(taken.get, range(first + start, first + stop))
        return [lease for lease in found if lease is not None]
    return [lease for offset, lease in taken.items() if start <= offset - first < stop]
