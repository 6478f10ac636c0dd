"""A cursor is one assigned partition: its position, its buffered records and its place.

docs/design.md describes the places. Each has one keeper, which alone moves the cursor on. A cursor
that `is_paused` or `is_withheld`, in any place, is not lent, and its records are withheld. They are
also withheld while it `has_enough`: the application has to finish some first.

A response counts only while the cursor has the loan or search of its request. A seek, a reset and a
revocation end both. A cursor notifies its source of each move.

All changes are synchronous. Each field has one writer (tests/consumer/test_one_writer.py): this
module, except for `corrupt_at` (decode.py) and `preferred_replica` (replicas.py). Changes that
concern others (position, pause, revocation) go through SubscriptionState.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from aiokafka_lite.errors import IllegalStateError, KafkaError
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite._transaction import BegunTransaction
    from aiokafka_lite.consumer.assignment.progress import Progress
    from aiokafka_lite.consumer.assignment.work import Work
    from aiokafka_lite.consumer.buffer.chunk import Chunk

NO_EPOCH: Final = -1
NO_OFFSET: Final = -1
# The ids of a topic whose id is not known.
NO_IDS: Final = (b"", ZERO_UUID)
# Chunks of a partition: one that is being read, and one that is fetched at the same time.
MOST_CHUNKS: Final = 2
# Leader epochs of a partition's returned records that are kept for commits.
MOST_EPOCH_STARTS: Final = 16
NOTHING: Final[Mapping[tuple[BegunTransaction, object], Undecided]] = MappingProxyType({})


class Place(enum.Enum):
    # Looked up with each record of a trickle: an enum's own hash is a function in Python.
    __hash__ = object.__hash__

    UNPOSITIONED = enum.auto()
    READY = enum.auto()
    IN_FLIGHT = enum.auto()
    BACKING_OFF = enum.auto()
    FULL = enum.auto()
    FAILED = enum.auto()


class Sought(enum.Enum):
    """The purpose of a search (Kafka's SubscriptionState.FetchStates)."""

    COMMITTED = enum.auto()  # the group's committed offset (OffsetFetch)
    RESET = enum.auto()  # the offset of a timestamp (ListOffsets)
    VALIDATION = enum.auto()  # whether the leader has the records that were read (KIP-320)


class Search:
    """A search for a cursor's position; its result counts while the cursor still has it.

    Attributes:
        timestamp: As in ListOffsets: -2 for the first offset, -1 for the end; None: not known yet.
        replaced: The former position. For COMMITTED the position if there is no committed offset;
            None: auto_offset_reset decides. For VALIDATION the position, None: it is not found yet.
        reason: The reason for a RESET; "": the application asked for it.
    """

    __slots__ = ("cursor", "reason", "replaced", "sought", "timestamp")

    def __init__(
        self,
        cursor: Cursor,
        sought: Sought,
        *,
        timestamp: int | None = None,
        replaced: int | None = None,
        reason: str = "",
    ) -> None:
        self.cursor = cursor
        self.sought = sought
        self.timestamp = timestamp
        self.replaced = replaced
        self.reason = reason

    @property
    def is_current(self) -> bool:
        return self.cursor.search is self and self.cursor.is_assigned

    @property
    def is_first(self) -> bool:
        return self.sought is Sought.COMMITTED and self.replaced is None

    @property
    def is_asked_for(self) -> bool:
        return self.sought is Sought.RESET and self.timestamp is not None and not self.reason


class Loan:
    """A cursor lent to a fetch session, with the fields of the request."""

    def __init__(
        self, cursor: Cursor, offset: int, leader_epoch: int, topic_id: bytes, max_bytes: int
    ) -> None:
        self.cursor = cursor
        self.offset = offset
        self.leader_epoch = leader_epoch
        self.topic_id = topic_id
        self.max_bytes = max_bytes

    @property
    def is_outdated(self) -> bool:
        """Whether the next request needs other fields for the cursor, or must leave it out."""
        cursor = self.cursor
        return (
            not cursor.is_fetchable
            or self.leader_epoch != cursor.current_epoch
            or self.topic_id != cursor.topic_id
        )


class CursorSource(Protocol):
    @property
    def node_id(self) -> int: ...

    def moved(self, cursor: Cursor) -> None:
        """Note that its place or a switch has changed."""

    def left(self, cursor: Cursor) -> None:
        """Forget a cursor of another source, or of no assignment."""


class PreferredReplica(NamedTuple):
    """A follower to read from (KIP-392), until a loop time, or another leader or leader epoch."""

    node_id: int
    leader: int
    leader_epoch: int
    expires_at: float


# The (base offset, leader epoch) of each batch whose epoch is not that of the one before it.
Epochs: TypeAlias = Sequence[tuple[int, int]]


class EpochStart(NamedTuple):
    offset: int
    leader_epoch: int


class Undecided(NamedTuple):
    """Records, from `first` on, whose completion an open transaction decides.

    `is_stored`: the transaction has sent their offsets to the group. The coordinator keeps the
    later of two commits, even if the earlier one takes effect later, so no other commit may follow.
    """

    first: int
    is_stored: bool


class Holder(Protocol):
    """Has one record until it is finished."""

    @property
    def size_bytes(self) -> int: ...


class Range(NamedTuple):
    first: int
    end: int


class Truncation:
    """The next truncation of a log, for batches and commits. Later it links to the next one."""

    __slots__ = ("end_offset", "later")

    def __init__(self) -> None:
        self.end_offset = NO_OFFSET
        self.later: Truncation | None = None

    def end_offsets(self) -> Iterator[int]:
        """Yield the log's end offset after each truncation from here on."""
        each = self
        while each.later is not None:
            yield each.end_offset
            each = each.later


def joined(one: Range | None, other: Range) -> Range:
    if one is None:
        return other
    return Range(min(one.first, other.first), max(one.end, other.end))


class Cursor:
    """One assigned partition; each assignment creates another cursor."""

    def __init__(
        self, tp: TopicPartition, reach: Range | None = None, assigned_id: bytes = b""
    ) -> None:
        self.tp = tp
        # The topic id that the group has assigned (KIP-848): another topic of the same name is
        # not this member's. Empty: assigned by name.
        self.assigned_id = assigned_id
        self.place = Place.UNPOSITIONED
        # Set while the position is unknown or not validated.
        self.search: Search | None = Search(self, Sought.COMMITTED)
        # Set while it is in flight.
        self.loan: Loan | None = None
        # None while no leader is known.
        self.source: CursorSource | None = None
        # Leader epoch and topic id for the source's requests.
        self.current_epoch = NO_EPOCH
        self.topic_id = assigned_id
        # The id of a topic that has replaced that one, until a read or a seek in it: commits of
        # earlier records need the former id.
        self.new_topic_id = assigned_id
        # Buffered chunks in offset order.
        self.chunks: tuple[Chunk, ...] = ()
        # The next offset to return; None until it is known.
        self.position: int | None = None
        # The first offset that was returned since the position was last set.
        self.started_at: int | None = None
        # The offsets returned before that, while no other member can have had the partition.
        self.reach = reach
        # Auto-commit may commit this offset: earlier records were returned before the latest read,
        # or the application has committed them.
        self.processed: int | None = None
        # The next offset to fetch.
        self.fetched = NO_OFFSET
        # Leader epoch of the record before the position (KIP-320); -1: not known.
        self.leader_epoch = NO_EPOCH
        # The leader epochs of returned records, in offset order.
        self.epoch_starts: tuple[EpochStart, ...] = ()
        # The newest leader epoch in which the position was validated (KIP-320).
        self.validated_epoch = NO_EPOCH
        # The newest leader epoch before the log's epochs began again.
        self.void_epoch = NO_EPOCH
        # The group's latest known committed offset, and its leader epoch.
        self._committed: OffsetAndMetadata | None = None
        self._committed_epoch = NO_EPOCH
        self.high_watermark: int | None = None
        self.last_stable_offset: int | None = None
        self.log_start_offset: int | None = None
        # Loop time of the last response about it.
        self.last_fetch_at: float | None = None
        self.is_paused = False
        self.is_assigned = True
        # By transaction and block; some of the transactions may have ended.
        self.undecided: Mapping[tuple[BegunTransaction, object], Undecided] = NOTHING
        # The latest transaction in whose block a read has counted records as processed, and the
        # offset after them.
        self.processed_in: tuple[BegunTransaction, int] | None = None
        # Held by running batches and commits.
        self.next_truncation = Truncation()
        # The work that has unfinished records of it: reads do not finish these.
        self.worked_by: Work | None = None
        # Withhold records until the work has finished some.
        self.has_enough = False
        # Finished records; None unless records are finished one by one.
        self.progress: Progress | None = None
        # A rebalance that may revoke it is running or about to begin, or it is new and the
        # rebalance listener has not returned.
        self.is_withheld = False
        # Whether the application has moved or paused it since: kept if it is reassigned.
        self.keeps_position = False
        # How often the application has moved it, except for seeks in a rebalance.
        self.seeks = 0
        # The offset of the latest move; None: being looked up.
        self.sought_to: int | None = None
        self.keeps_pause = False
        # Loop time before which it is not fetched, or 0; and the reason.
        self.retry_at = 0.0
        self.retry_reason = ""
        self.failure_count = 0
        # The follower that it is read from; None: its leader.
        self.preferred_replica: PreferredReplica | None = None
        # Offset of a corrupt batch, which is fetched once more before it is an error.
        self.corrupt_at = NO_OFFSET

    def __repr__(self) -> str:
        topic, partition = self.tp
        paused = " paused" if self.is_paused else ""
        return f"<{topic}/{partition} {self.place.name} at {self.position}{paused}>"

    # --- Place ----------------------------------------------------------------------------
    def _move(self, place: Place) -> None:
        """Set the place; this ends the loan."""
        self.place = place
        self.loan = None
        if self.source is not None:
            self.source.moved(self)

    def _notify_source(self) -> None:
        if self.source is not None:
            self.source.moved(self)

    def _rest(self) -> None:
        """Choose the place by chunks and back-off; the position is known."""
        chunks = self.chunks
        if chunks and chunks[-1].failure is not None:
            self._move(Place.FAILED)
        elif chunks and (len(chunks) >= MOST_CHUNKS or chunks[-1].end_offset is None):
            self._move(Place.FULL)
        elif self.retry_at:
            self._move(Place.BACKING_OFF)
        else:
            self._move(Place.READY)

    def _search(self, search: Search) -> None:
        self.search = search
        self._move(Place.UNPOSITIONED)

    @property
    def is_fetchable(self) -> bool:
        return self.search is None and not self.is_paused and not self.is_withheld

    # --- Position -------------------------------------------------------------------------
    @property
    def is_found(self) -> bool:
        """Whether the position is known. The log may lack records before a committed offset."""
        search = self.search
        return self.position is not None and (search is None or search.replaced is not None)

    def start_at(
        self, offset: int, leader_epoch: int, validated_epoch: int, *, is_in_work: bool
    ) -> None:
        """Set a position. The buffer is empty; `is_in_work`: the latest records are in work."""
        if is_in_work:
            self.go_back_to(offset)
        else:
            self.processed = offset
        self._keep_epochs_before(offset, leader_epoch)
        self._set_position(offset)
        self.fetched = offset
        self.leader_epoch = leader_epoch
        self.validated_epoch = validated_epoch
        self.search = None
        self.retry_at = 0.0
        self._rest()

    def _keep_epochs_before(self, offset: int, leader_epoch: int) -> None:
        """Keep leader epochs of records before a new position; called before that is set."""
        end = self.returned_to()
        starts = tuple(each for each in self.epoch_starts if each.offset < offset)
        if not starts or end is None or end < offset:
            if starts and end is not None:  # records between were not returned
                starts += (EpochStart(end, NO_EPOCH),)
            starts += (EpochStart(offset - 1, leader_epoch),)
        elif leader_epoch not in (starts[-1].leader_epoch, NO_EPOCH):
            starts += (EpochStart(offset, leader_epoch),)
        self.epoch_starts = starts

    def epoch_before(self, offset: int) -> int:
        """Return the leader epoch of the last returned record before an offset, for commits."""
        end = self.returned_to()
        if end is not None and offset > end:  # as after a seek back
            return NO_EPOCH
        for start in reversed(self.epoch_starts):
            if start.offset < offset:
                return start.leader_epoch
        return NO_EPOCH

    def keep_sought(self, *, is_committed: bool = False) -> None:
        """Note the application's move, which a rebalance that reassigns the partition keeps."""
        self._name(self.new_topic_id or self.topic_id)
        self.keeps_position = self.is_withheld and not is_committed
        self._count_seek()

    def _count_seek(self) -> None:
        # Listeners restore stored positions in a rebalance: that finishes no records.
        if not self.is_withheld:
            self.seeks += 1

    def note_sought(self, offset: int) -> None:
        self.sought_to = offset

    def await_reset(self, timestamp: int, reason: str) -> None:
        """Drop the position until ListOffsets has found another one; see `Search`."""
        replaced = self.position
        self._set_position(None)
        if reason:
            self.processed = None
        else:
            self._count_seek()
            self.sought_to = None
        self.leader_epoch = NO_EPOCH
        self.keeps_position = self.is_withheld and not reason
        self.retry_at = 0.0
        self._search(
            Search(self, Sought.RESET, timestamp=timestamp, replaced=replaced, reason=reason)
        )

    def await_validation(self, *, is_start: bool = False) -> None:
        """Stop fetching until the leader has confirmed the records before the position."""
        self._fetch_from_position()
        replaced = None if is_start else self.position
        self._search(Search(self, Sought.VALIDATION, replaced=replaced))

    def await_committed(self) -> None:
        """Drop the position for the committed offset, or else the first returned record."""
        returned = self.handed_out
        first = self.position if returned is None else returned.first
        self._set_position(None)
        self.processed = None
        self.leader_epoch = NO_EPOCH
        self.keeps_position = False
        self.retry_at = 0.0
        if self.progress is not None:
            self.progress.go_back_to(0)
            self.progress.forget_ahead()
        self._search(Search(self, Sought.COMMITTED, replaced=first))

    def forget_before_seek(self) -> None:
        """Do not return records before the application's new position again."""
        if self.progress is None:
            return
        if self.sought_to is None:  # being looked up
            self.progress.go_back_to(0)
        else:
            self.progress.finish_before(self.sought_to)

    def forget_log(self, topic_id: bytes) -> None:
        """Forget the log, because the topic was recreated; an assigned topic id stays."""
        self.new_topic_id = self.assigned_id or topic_id
        self._committed = None
        self.high_watermark = self.last_stable_offset = self.log_start_offset = None
        self.reach = self.started_at = None
        self.leader_epoch = self.validated_epoch = NO_EPOCH
        self.epoch_starts = ()
        self.undecided = NOTHING
        if self.progress is not None:
            self.progress.go_back_to(0)
            self.progress.forget_ahead()
        if self.search is not None and self.search.sought is Sought.COMMITTED:
            self._search(Search(self, Sought.COMMITTED))
        else:
            self.position = self.processed = None
            self._search(Search(self, Sought.RESET))

    def truncated(self, end_offset: int) -> None:
        this, self.next_truncation = self.next_truncation, Truncation()
        this.end_offset, this.later = end_offset, self.next_truncation

    def forget_epochs(self, void_epoch: int) -> None:
        """Forget leader epochs because the log's epochs have begun again; keep the position."""
        self.void_epoch = void_epoch
        self.leader_epoch = self.validated_epoch = NO_EPOCH
        self.epoch_starts = ()
        if self.progress is not None:
            self.progress.forget_ahead()
        if self.search is not None and self.search.sought is Sought.VALIDATION:
            self.search = None

    def validated(self, leader_epoch: int) -> None:
        self.validated_epoch = leader_epoch
        self.search = None
        self.retry_at = 0.0
        self._rest()

    def is_of_topic(self, topic_id: bytes) -> bool:
        return topic_id in (self.topic_id, *NO_IDS) or self.topic_id in NO_IDS

    def note_committed(
        self, offset: OffsetAndMetadata | None, leader_epoch: int, topic_id: bytes
    ) -> None:
        """Note the group's committed offset, unless it belongs to another topic."""
        if self.is_of_topic(topic_id):
            self._committed, self._committed_epoch = offset, leader_epoch

    @property
    def committed(self) -> OffsetAndMetadata | None:
        """The latest known committed offset of the present log.

        One of another leader epoch belongs to truncated records, and is committed again.
        """
        committed = self._committed
        if committed is None:
            return None
        epochs = {self._committed_epoch, self.epoch_before(committed.offset)} - {NO_EPOCH}
        return committed if len(epochs) < 2 else None

    def is_committed(self, offset: OffsetAndMetadata) -> bool:
        """Whether an offset, and its metadata if it has any, is committed."""
        committed = self.committed
        return (
            committed is not None
            and committed.offset == offset.offset
            and (not offset.metadata or committed.metadata == offset.metadata)
        )

    def _set_position(self, position: int | None) -> None:
        """Set or drop the position; remember the range that was returned before."""
        self.reach = self.handed_out
        self.position = self.started_at = position

    @property
    def handed_out(self) -> Range | None:
        """The range returned while no other member can have had the partition."""
        if self.started_at is None or self.position is None or self.position <= self.started_at:
            return self.reach
        return joined(self.reach, Range(self.started_at, self.position))

    def has_uncommitted(self, end: int) -> bool:
        returned, committed = self.handed_out, self.committed
        is_returned = returned is not None and returned.first < end
        return is_returned and (committed is None or committed.offset < end)

    # --- Assignment -----------------------------------------------------------------------
    def withhold(self) -> None:
        """Withhold records and stop fetching: see `is_withheld`."""
        if not self.is_withheld:
            self.is_withheld = True
            # A position that is still being looked up for the application has to be kept.
            self.keeps_position = self.search is not None and self.search.is_asked_for
            self.keeps_pause = False
            self._notify_source()

    def release(self) -> None:
        self.is_withheld = False
        self._notify_source()

    def end_assignment(self) -> None:
        self.is_assigned = False
        self.come_back()
        self.read_from(None)

    def pause(self) -> None:
        self.is_paused = True
        self.keeps_pause = self.is_withheld
        self._notify_source()

    def resume(self) -> None:
        self.is_paused = self.keeps_pause = False
        self._notify_source()

    # --- Source ---------------------------------------------------------------------------
    def read_from(
        self,
        source: CursorSource | None,
        current_epoch: int = NO_EPOCH,
        topic_id: bytes | None = None,
    ) -> None:
        """Set source, leader epoch and topic id. Another source ends the loan; chunks stay.

        A topic id of zeros: requests name the topic. None: keep the id for commits of earlier
        records.
        """
        before = self.source
        if topic_id is None or self.assigned_id:
            topic_id = self.topic_id
        if source is before and (current_epoch, topic_id) == (self.current_epoch, self.topic_id):
            return
        self.source = source
        self.current_epoch = current_epoch
        self._name(topic_id)
        if before is not None and before is not source:
            self.come_back()
            before.left(self)
        self._notify_source()

    def _name(self, topic_id: bytes) -> None:
        """Set the topic id; commits to another topic do not count for this log."""
        if topic_id == self.topic_id:
            return
        if not self.is_of_topic(topic_id):
            self._committed = None
        self.topic_id = self.new_topic_id = topic_id

    @property
    def node_id(self) -> int | None:
        return None if self.source is None else self.source.node_id

    def lend(self, max_bytes: int) -> Loan:
        if self.place is not Place.READY or not self.is_fetchable:
            raise IllegalStateError(f"partition {self.tp} cannot be fetched: {self!r}")
        self.place = Place.IN_FLIGHT
        return self._lend(max_bytes)

    def lend_on(self, offset: int, max_bytes: int) -> Loan:
        """Stay in flight after a chunk was buffered: the next request continues at `offset`."""
        self.fetched = offset
        return self._lend(max_bytes)

    def _lend(self, max_bytes: int) -> Loan:
        self.loan = loan = Loan(self, self.fetched, self.current_epoch, self.topic_id, max_bytes)
        return loan

    def come_back(self) -> None:
        """End the loan without a chunk."""
        if self.loan is not None:
            self._rest()

    # --- Fetching -------------------------------------------------------------------------
    def answered(
        self,
        now: float,
        high_watermark: int,
        last_stable_offset: int | None,
        log_start_offset: int,
    ) -> None:
        self.last_fetch_at = now
        self.failure_count = 0
        self.retry_reason = ""
        self.high_watermark = high_watermark
        self.last_stable_offset = last_stable_offset
        self.log_start_offset = log_start_offset

    def log_ends_at(self, offset: int, now: float, *, is_stable: bool) -> None:
        self.last_fetch_at = now
        if is_stable:
            self.last_stable_offset = offset
            offset = max(offset, self.high_watermark or 0)
        self.high_watermark = offset

    def heard_at(self, now: float) -> None:
        """Note the time of an error response."""
        self.last_fetch_at = now

    def add_chunk(self, chunk: Chunk) -> None:
        self.chunks = (*self.chunks, chunk)

    def remove_chunk(self) -> None:
        self.chunks = self.chunks[1:]

    def drop_chunks(self) -> tuple[Chunk, ...]:
        chunks, self.chunks = self.chunks, ()
        return chunks

    def buffered(self, end_offset: int | None, *, is_sticky: bool = False) -> None:
        """Note that a chunk was buffered; see its fields."""
        if end_offset is not None:
            self.fetched = end_offset
        if self.search is None:
            self._rest()
        elif is_sticky:
            self._move(Place.FAILED)

    def chunks_changed(self) -> None:
        """Choose the place after a chunk was used up, or an error raised or found."""
        if self.search is None and self.loan is None:
            self._rest()

    def refetch(self) -> None:
        """Fetch from the position again, with an empty buffer; restart a search."""
        self._fetch_from_position()
        search = self.search
        if search is None:
            self._rest()
            return
        self._search(copy.copy(search))

    def _fetch_from_position(self) -> None:
        if self.position is not None:
            self.fetched = self.position

    def back_off(self, until: float, reason: str) -> None:
        self.retry_at = until
        self.retry_reason = reason
        if self.search is None:
            self._rest()

    def failed(self, until: float, reason: str) -> None:
        self.failure_count += 1
        self.back_off(until, reason)

    def end_back_off(self) -> None:
        self.retry_at = 0.0
        if self.place is Place.BACKING_OFF:
            self._rest()

    def note_reason(self, reason: str) -> None:
        self.retry_reason = reason

    # --- Buffered records -----------------------------------------------------------------
    @property
    def first_chunk(self) -> Chunk | None:
        return self.chunks[0] if self.chunks else None

    @property
    def failure(self) -> KafkaError | None:
        return self.chunks[-1].failure if self.chunks else None

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another response, or no offset to continue at."""
        if not self.chunks:
            return False
        last = self.chunks[-1]
        return (
            len(self.chunks) >= MOST_CHUNKS or last.end_offset is None or last.failure is not None
        )

    # --- Returned records -----------------------------------------------------------------
    def advance(self, next_position: int, epochs: Epochs) -> None:
        """Move the position behind records of these batches that are returned or skipped."""
        if epochs and epochs[-1][1] != self.leader_epoch:
            self._note_epochs(next_position, epochs)
        self.position = next_position

    def _note_epochs(self, next_position: int, epochs: Epochs) -> None:
        position = self.position
        assert position is not None  # noqa: S101 -- records are returned from there on
        read = [start for start in epochs if start[0] < next_position]
        while len(read) > 1 and read[1][0] <= position:
            del read[0]
        for offset, leader_epoch in read:
            if leader_epoch != self.leader_epoch:
                # Leaders move rarely, so one or two matter; older ones are not committed.
                start = EpochStart(max(offset, position), leader_epoch)
                self.epoch_starts = (*self.epoch_starts[1 - MOST_EPOCH_STARTS :], start)
                self.leader_epoch = leader_epoch

    def process_to(self, offset: int | None) -> None:
        self.processed = offset

    def go_back_to(self, offset: int) -> None:
        """Count no records from `offset` on as processed."""
        if self.processed is not None:
            self.processed = min(self.processed, offset)

    def await_outcome(
        self,
        transaction: BegunTransaction,
        first: int,
        *,
        block: object = None,
        is_stored: bool = False,
    ) -> None:
        """Let a transaction decide whether records from `first` on, of a block, are finished."""
        earlier = self.undecided.get((transaction, block), Undecided(first, is_stored))
        self.undecided = {
            **{each: what for each, what in self.undecided.items() if not each[0].is_settled},
            (transaction, block): Undecided(
                min(first, earlier.first), is_stored or earlier.is_stored
            ),
        }

    def commit_apart(self, block: object) -> None:
        """Exclude a block's records, which it commits itself, from all transactions."""
        self.undecided = {
            each: what for each, what in self.undecided.items() if each[1] is not block
        }

    def is_undecided_of(self, block: object) -> bool:
        """Whether transactions decide, or have just decided, on records of a block."""
        return any(each[1] is block for each in self.undecided)

    def await_outcomes_of(self, former: Cursor) -> None:
        """Take over the undecided records of the partition's former cursor."""
        self.undecided = former.undecided

    def forget_undecided(self) -> None:
        """Drop undecided records of the previous assignment: none can be committed any more."""
        self.undecided = NOTHING

    def decided_to(self, offset: int, besides: BegunTransaction | None = None) -> int:
        """Return the largest offset up to `offset` that no other open transaction holds back."""
        for (transaction, _), what in self.undecided.items():
            if transaction is not besides and not transaction.is_settled:
                offset = min(offset, what.first)
        return offset

    def is_undecided(self, transaction: BegunTransaction, before: int) -> bool:
        return any(
            each[0] is transaction and what.first < before for each, what in self.undecided.items()
        )

    @property
    def has_stored_offsets(self) -> bool:
        """Whether an open transaction has sent offsets of it, which no commit may follow."""
        return any(
            what.is_stored and not each[0].is_settled for each, what in self.undecided.items()
        )

    def note_transaction(self, transaction: BegunTransaction) -> None:
        """Note that a read in a transaction's block counts the returned records as processed."""
        if (end := self.returned_to()) is not None:
            self.processed_in = (transaction, end)

    def has_processed_in(self, transaction: BegunTransaction) -> bool:
        """Whether a read in its block has counted uncommitted records as processed."""
        if self.processed_in is None or self.processed_in[0] is not transaction:
            return False
        return self.has_uncommitted(self.processed_in[1])

    def has_processed(self, before: int) -> bool:
        return self.processed is not None and self.processed >= before

    def is_worked_on(self, before: int) -> bool:
        return self.worked_by is not None and not self.has_processed(before)

    @property
    def finished_to(self) -> int | None:
        """The first unfinished offset, for auto-commit."""
        if self.position is None:
            return None
        return self.decided_to(self.position if self.processed is None else self.processed)

    def enter_work(self, work: Work, *, is_enough: bool) -> None:
        """Note the work that has records of it; `is_enough`: withhold more for now."""
        self.worked_by = work
        self.has_enough = is_enough

    def leave_work(self) -> None:
        self.worked_by = None
        self.has_enough = False

    def track(self, progress: Progress) -> None:
        self.progress = progress

    def returned_to(self) -> int | None:
        """The offset after the returned records.

        It is the former position while one that the application asked for is looked up, and None if
        the position was dropped otherwise.
        """
        search = self.search
        if self.position is None and search is not None and search.is_asked_for:
            return search.replaced
        return self.position

    def end_offset(self, *, is_read_committed: bool) -> int | None:
        """The end of the log that reads can reach; None before the first response."""
        is_stable = is_read_committed and self.last_stable_offset is not None
        return self.last_stable_offset if is_stable else self.high_watermark

    def is_behind(self, *, is_read_committed: bool) -> bool:
        """Whether the latest response left records to fetch; False before the first one."""
        end = self.end_offset(is_read_committed=is_read_committed)
        return end is not None and self.fetched < end

    @property
    def is_in_doubt(self) -> bool:
        """Whether the position was dropped for the committed offset, which is not known yet."""
        search = self.search
        return search is not None and search.sought is Sought.COMMITTED and not search.is_first

    def finished_epoch(self, progress: Progress) -> int:
        """Return the newest leader epoch of finished records after the first unfinished one."""
        last = progress.last_finished
        before = NO_EPOCH if last is None else self.epoch_before(last + 1)
        return max(progress.ahead_epoch, before)

    @property
    def newest_epoch(self) -> int:
        """The newest leader epoch of returned or earlier finished records, for validation.

        A log that has this epoch has all records before it, because logs diverge at epochs. Ranges
        of an older epoch than the position's are compared first: a commit may carry the epoch of a
        later record.
        """
        progress = self.progress
        if progress is None or not progress.has_finished_before:
            return self.leader_epoch
        if not progress.is_verified and progress.ahead_epoch != NO_EPOCH:
            return progress.ahead_epoch
        return max(self.leader_epoch, progress.ahead_epoch)

    def needs_validation(self, current_epoch: int) -> bool:
        """Whether a leader of this epoch may lack returned records."""
        newest = self.newest_epoch
        return (
            self.search is None
            and newest != NO_EPOCH
            and current_epoch > max(newest, self.validated_epoch)
        )

    def knows_void_epochs(self, current_epoch: int, void_epoch: int) -> bool:
        """Whether it knows epochs after the leader's, although epochs to `void_epoch` are void."""
        return (
            current_epoch < void_epoch != self.void_epoch
            and max(self.newest_epoch, self.validated_epoch) > current_epoch
        )
