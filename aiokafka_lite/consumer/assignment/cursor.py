"""A cursor is one assigned partition: its position, what is buffered of it, and its place.

A cursor is at exactly one place, and the place has one keeper, who says what happens to it next:

============  =========================================  ==========================================
place         meaning                                    keeper, and what takes it on
============  =========================================  ==========================================
UNPOSITIONED  its position is searched for (`search`)    positions/: the answer, or a seek
READY         may be asked for with the next request     its source: the request lends it
IN_FLIGHT     lent to its source's fetch session         its source: an answer about it, or a recall
              (`loan`)
BACKING_OFF   nothing is asked for before `retry_at`     its source: the end of the back-off
FULL          enough of it is buffered                   the buffer: the application takes some
FAILED        an error comes after what is buffered      the buffer: a get raises it, or a seek
============  =========================================  ==========================================

Two switches lie across the places: `is_paused` and `is_revoking`. A cursor with one of them set is
not lent, and nothing of it is handed out. While it `has_enough` nothing is handed out either: the
application has to finish some of what it was handed before.

Whoever asks a broker about a cursor holds a loan, or a search. The answer counts only while the
cursor still has that one. A seek, a reset and a revocation take it away: then the answer is void,
whatever it says. A cursor tells its source of each move (`CursorSource.moved`), so nobody has to
look through lists for it.

Fetched and consumed offsets are kept apart: `position` is the next offset the application will be
handed, `fetched` the next offset to ask a broker for. What lies between them is buffered.

Everything here is plain data changed synchronously on the event loop; nothing waits. Each field
has one writer. That is this module, except for two fields; a test checks it, also in what is
compiled (tests/consumer/test_one_writer.py):

    corrupt_at           bad_records.py
    preferred_replica    replicas.py

Whoever wants a change calls the method that says why. If others have to hear of it (a new position,
a pause, a revocation), that is a method of Assignment; otherwise one of the cursor (a
back-off, an answer).
"""

from __future__ import annotations

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
# Of a topic whose id is not known.
NO_IDS: Final = (b"", ZERO_UUID)
# Of one partition: the chunk that is worked on, and the one that is asked for meanwhile.
MOST_CHUNKS: Final = 2
# Of one partition: leader epochs of returned records that are kept for commits.
MOST_EPOCH_STARTS: Final = 16
NOTHING: Final[Mapping[tuple[BegunTransaction, object], Undecided]] = MappingProxyType({})


class Place(enum.Enum):
    """Says where a cursor is; the table is in the module's docstring."""

    # Looked up with each record of a trickle: an enum's own hash is a function in Python.
    __hash__ = object.__hash__

    UNPOSITIONED = enum.auto()
    READY = enum.auto()
    IN_FLIGHT = enum.auto()
    BACKING_OFF = enum.auto()
    FULL = enum.auto()
    FAILED = enum.auto()


class Sought(enum.Enum):
    """Says what is searched for (Kafka's SubscriptionState.FetchStates)."""

    COMMITTED = enum.auto()  # the group's committed offset (OffsetFetch)
    RESET = enum.auto()  # the offset of a timestamp (ListOffsets)
    VALIDATION = enum.auto()  # whether the leader has what was read before (KIP-320)


class Search:
    """A search for a cursor's position; its answer counts while the cursor still has it.

    Attributes:
        cursor: Whose position is searched for.
        sought: What is searched for.
        timestamp: For RESET that of ListOffsets: -2 for the first offset, -1 for the end; None: not
            known yet.
        replaced: For RESET the position that was given up; None: there was none. For COMMITTED
            where to begin if nothing is committed; None: as auto_offset_reset says.
        reason: Why it was given up; "": the application asked for it.
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
        """Whether its answer still counts."""
        return self.cursor.search is self and self.cursor.is_assigned

    @property
    def is_first(self) -> bool:
        """Whether it is where an assignment begins that is searched for."""
        return self.sought is Sought.COMMITTED and self.replaced is None

    @property
    def is_asked_for(self) -> bool:
        """Whether the application has asked for another position."""
        return self.sought is Sought.RESET and self.timestamp is not None and not self.reason


class Loan:
    """A cursor lent to a fetch session: what its broker is to send of it."""

    __slots__ = ("cursor", "leader_epoch", "max_bytes", "offset", "topic_id")

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
        """Whether the next request has to say something else of the cursor, or nothing."""
        cursor = self.cursor
        return (
            not cursor.is_fetchable
            or self.leader_epoch != cursor.current_epoch
            or self.topic_id != cursor.topic_id
        )


class CursorSource(Protocol):
    """What reads a cursor's partition from a broker."""

    @property
    def node_id(self) -> int: ...

    def moved(self, cursor: Cursor) -> None:
        """Note where a cursor of this source is now: its place, or a switch, has changed."""

    def left(self, cursor: Cursor) -> None:
        """Forget a cursor: it is read from elsewhere, or assigned no more."""


class PreferredReplica(NamedTuple):
    """A follower that a leader told to read from instead (KIP-392).

    It is given back to the leader, which may name it again, at loop time `expires_at`, and when
    leader or leader epoch change.
    """

    node_id: int
    leader: int
    leader_epoch: int
    expires_at: float


class CommittedPosition(NamedTuple):
    """Where a group has got to, the leader epoch of the last record before, and the metadata.

    The epoch is -1 where it is not known.
    """

    offset: int
    leader_epoch: int
    metadata: str = ""


# The (base offset, leader epoch) of each batch whose epoch is not that of the one before it.
Epochs: TypeAlias = Sequence[tuple[int, int]]


class EpochStart(NamedTuple):
    """The first returned offset whose record is of a leader epoch."""

    offset: int
    leader_epoch: int


class Undecided(NamedTuple):
    """Records of a partition that an open transaction decides on: from `first` on.

    If `is_stored`, it has sent offsets of them to the group before its end. The coordinator keeps
    the later of two commits, even if the earlier one counts later: no other one may follow.
    """

    first: int
    is_stored: bool


class Range(NamedTuple):
    """Offsets that were handed out: from `first` to before `end`."""

    first: int
    end: int


class Truncation:
    """The next truncation of a log; once it has happened, it leads to the one after it.

    A batch and a commit hold the one that is next when they begin. What they do not hold is
    forgotten.
    """

    __slots__ = ("end_offset", "later")

    def __init__(self) -> None:
        self.end_offset = NO_OFFSET
        self.later: Truncation | None = None

    def end_offsets(self) -> Iterator[int]:
        """Yield the offset at which the log ended after each truncation, from this one on."""
        each = self
        while each.later is not None:
            yield each.end_offset
            each = each.later


def joined(one: Range | None, other: Range) -> Range:
    """Return the range from the first to the last offset of both."""
    if one is None:
        return other
    return Range(min(one.first, other.first), max(one.end, other.end))


class Cursor:
    """One assigned partition. Made anew for each assignment, so identity tells them apart."""

    __slots__ = (
        "_committed",
        "_committed_epoch",
        "assigned_id",
        "chunks",
        "corrupt_at",
        "current_epoch",
        "epoch_starts",
        "failure_count",
        "fetched",
        "has_enough",
        "high_watermark",
        "is_assigned",
        "is_paused",
        "is_revoking",
        "keeps_pause",
        "keeps_position",
        "last_fetch_at",
        "last_stable_offset",
        "leader_epoch",
        "loan",
        "log_start_offset",
        "new_topic_id",
        "next_truncation",
        "place",
        "position",
        "preferred_replica",
        "processed",
        "processed_in",
        "progress",
        "reach",
        "retry_at",
        "retry_reason",
        "search",
        "seeks",
        "sought_to",
        "source",
        "started_at",
        "topic_id",
        "tp",
        "undecided",
        "validated_epoch",
        "void_epoch",
        "worked_by",
    )

    def __init__(
        self, tp: TopicPartition, reach: Range | None = None, assigned_id: bytes = b""
    ) -> None:
        self.tp = tp
        # The id of the topic that the group has assigned (KIP-848). Another topic of its name is
        # not this member's. Empty: it is assigned by name.
        self.assigned_id = assigned_id
        self.place = Place.UNPOSITIONED
        # While its position is not known, or not known to be good.
        self.search: Search | None = Search(self, Sought.COMMITTED)
        # While it is in flight.
        self.loan: Loan | None = None
        # What reads it; None while no leader is known.
        self.source: CursorSource | None = None
        # What a request to that names it by: the leader's epoch, and the topic's id.
        self.current_epoch = NO_EPOCH
        self.topic_id = assigned_id
        # The id of the topic that has replaced that one, until it is read, or sought in it: commits
        # of what was read before need the former.
        self.new_topic_id = assigned_id
        # What is buffered of it, in offset order.
        self.chunks: tuple[Chunk, ...] = ()
        # Next offset to hand out; None until it is known.
        self.position: int | None = None
        # Where the position was set to last: it has been handed out from there on.
        self.started_at: int | None = None
        # What was handed out before that, while nobody else can have had the partition.
        self.reach = reach
        # All before this was handed out before the latest get, or committed by the application:
        # what auto-commit may commit.
        self.processed: int | None = None
        # Next offset to ask a broker for: `position` plus what is buffered.
        self.fetched = NO_OFFSET
        # Leader epoch of the record before the position (KIP-320); -1: not known.
        self.leader_epoch = NO_EPOCH
        # From which offset on returned records are of which leader epoch, in offset order.
        self.epoch_starts: tuple[EpochStart, ...] = ()
        # The newest leader epoch in which the position was found to be good (KIP-320).
        self.validated_epoch = NO_EPOCH
        # The newest leader epoch of its log before those began again.
        self.void_epoch = NO_EPOCH
        # What the group was last known to have committed, and in which leader epoch.
        self._committed: OffsetAndMetadata | None = None
        self._committed_epoch = NO_EPOCH
        self.high_watermark: int | None = None
        self.last_stable_offset: int | None = None
        self.log_start_offset: int | None = None
        # Loop time of the last answer of a broker about it.
        self.last_fetch_at: float | None = None
        self.is_paused = False
        self.is_assigned = True
        # What open transactions decide on, by transaction and block; and what some have decided.
        self.undecided: Mapping[tuple[BegunTransaction, object], Undecided] = NOTHING
        # The latest transaction in whose block a read has counted records as processed, and the
        # offset behind these.
        self.processed_in: tuple[BegunTransaction, int] | None = None
        # What tells the batches that begin before it where the log lost records of theirs.
        self.next_truncation = Truncation()
        # What has records of it that are not finished: then not the next get says when they are.
        self.worked_by: Work | None = None
        # Nothing more is handed out of it until the work has finished some.
        self.has_enough = False
        # Which records are finished, where each is finished for itself; None: nobody asks.
        self.progress: Progress | None = None
        # A rebalance is under way, or about to begin, that may take it away.
        self.is_revoking = False
        # Whether the application has moved or paused it since: that holds if it comes back.
        self.keeps_position = False
        # How often the application has moved it, but for seeks in a rebalance.
        self.seeks = 0
        # Where to; None: that is being looked up.
        self.sought_to: int | None = None
        self.keeps_pause = False
        # Loop time before which nothing is asked of a broker for it, 0: at once; and why.
        self.retry_at = 0.0
        self.retry_reason = ""
        self.failure_count = 0
        # The follower that it is read from; None: its leader.
        self.preferred_replica: PreferredReplica | None = None
        # Offset whose batch was found corrupt and is fetched once more before it is an error.
        self.corrupt_at = NO_OFFSET

    def __repr__(self) -> str:
        topic, partition = self.tp
        paused = " paused" if self.is_paused else ""
        return f"<{topic}/{partition} {self.place.name} at {self.position}{paused}>"

    # --- Place ----------------------------------------------------------------------------
    def _move(self, place: Place) -> None:
        """Go to a place; a loan ends with that."""
        self.place = place
        self.loan = None
        if self.source is not None:
            self.source.moved(self)

    def _tell_source(self) -> None:
        if self.source is not None:
            self.source.moved(self)

    def _rest(self) -> None:
        """Go to where chunks and back-off put it; its position is known."""
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
        """Whether a broker may be asked for more of it, wherever it is."""
        return self.search is None and not self.is_paused and not self.is_revoking

    # --- Position -------------------------------------------------------------------------
    def start_at(
        self, offset: int, leader_epoch: int, validated_epoch: int, *, is_in_work: bool
    ) -> None:
        """Take a position that was asked for or found; nothing is buffered.

        Args:
            offset: Of the next record to hand out, and to fetch.
            leader_epoch: Of the record before it; -1: not known.
            validated_epoch: In which the position was found to be good; -1: it was not looked at.
            is_in_work: The application still works on what the latest get handed out of it.
        """
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
        """Keep the leader epochs of records before a new position; call it before that is set."""
        end = self.handed_out_to
        starts = tuple(each for each in self.epoch_starts if each.offset < offset)
        if not starts or end is None or end < offset:  # what lies in between was never returned
            starts += (EpochStart(offset - 1, leader_epoch),)
        elif leader_epoch not in (starts[-1].leader_epoch, NO_EPOCH):  # of the record there
            starts += (EpochStart(offset, leader_epoch),)
        self.epoch_starts = starts

    def epoch_before(self, offset: int) -> int:
        """Return the leader epoch of the returned record before an offset; -1: not known.

        A commit of that offset carries it, as those of Java's client do
        (SubscriptionState.allConsumed).
        """
        for start in reversed(self.epoch_starts):
            if start.offset < offset:
                return start.leader_epoch
        return NO_EPOCH

    def keep_sought(self, *, is_committed: bool = False) -> None:
        """Note that the application has moved it: that holds if a rebalance gives it back.

        The committed offset needs no keeping: a partition that comes back begins there, and
        passes over what is finished behind it.
        """
        self._name(self.new_topic_id or self.topic_id)
        self.keeps_position = self.is_revoking and not is_committed
        self._count_seek()

    def _count_seek(self) -> None:
        # In a rebalance listeners restore positions that they keep: no word on what is in work.
        if not self.is_revoking:
            self.seeks += 1

    def note_sought(self, offset: int) -> None:
        """Note where the application has moved it, once that is known."""
        self.sought_to = offset

    def await_reset(self, timestamp: int, reason: str) -> None:
        """Give the position up until ListOffsets has found the one of a timestamp.

        Args:
            timestamp: That of ListOffsets: -2 for the first offset, -1 for the end.
            reason: Why; "": the application asked for it.
        """
        replaced = self.position
        self._set_position(None)
        if reason:
            self.processed = None
        else:
            self._count_seek()
            self.sought_to = None
        self.leader_epoch = NO_EPOCH
        self.keeps_position = self.is_revoking and not reason
        self.retry_at = 0.0
        self._search(
            Search(self, Sought.RESET, timestamp=timestamp, replaced=replaced, reason=reason)
        )

    def await_validation(self) -> None:
        """Fetch nothing until the leader has said whether it has what was read before."""
        self._fetch_from_position()
        self._search(Search(self, Sought.VALIDATION))

    def await_committed(self) -> None:
        """Give the position up for the committed offset; the application finishes nothing more.

        Without one the search leads back to the first record that was returned.
        """
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
        """Have nobody finish what lies before where the application has moved the position."""
        if self.progress is None:
            return
        if self.sought_to is None:  # it is being looked up
            self.progress.go_back_to(0)
        else:
            self.progress.finish_before(self.sought_to)

    def forget_log(self, topic_id: bytes) -> None:
        """Forget all that is known of its log: there is another in its place.

        Args:
            topic_id: Of the topic that is there now. The one that is assigned stays.
        """
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
        """Note that the log has lost its records from an offset on."""
        this, self.next_truncation = self.next_truncation, Truncation()
        this.end_offset, this.later = end_offset, self.next_truncation

    def forget_epochs(self, void_epoch: int) -> None:
        """Forget all leader epochs: those of its log have begun again. The position stays."""
        self.void_epoch = void_epoch
        self.leader_epoch = self.validated_epoch = NO_EPOCH
        self.epoch_starts = ()
        if self.progress is not None:
            self.progress.forget_ahead()
        if self.search is not None and self.search.sought is Sought.VALIDATION:
            self.search = None

    def validated(self, leader_epoch: int) -> None:
        """Note that the log of a leader epoch has what was read before the position."""
        self.validated_epoch = leader_epoch
        self.search = None
        self.retry_at = 0.0
        self._rest()

    def is_of_topic(self, topic_id: bytes) -> bool:
        """Whether its log is of the topic with this id, as far as known."""
        return topic_id in (self.topic_id, *NO_IDS) or self.topic_id in NO_IDS

    def note_committed(
        self, offset: OffsetAndMetadata | None, leader_epoch: int, topic_id: bytes
    ) -> None:
        """Note what the group has committed of it, None: nothing.

        Args:
            offset: With its metadata.
            leader_epoch: Of the record before it.
            topic_id: Of the topic whose offset it is; of a former one it is not noted.
        """
        if self.is_of_topic(topic_id):
            self._committed, self._committed_epoch = offset, leader_epoch

    @property
    def committed(self) -> OffsetAndMetadata | None:
        """What the group has committed, as far as known; None: nothing of the present log.

        In another leader epoch it is of records that a truncation took away: the same offset is
        committed again, in the epoch of the records that replaced them.
        """
        committed = self._committed
        if committed is None:
            return None
        epochs = {self._committed_epoch, self.epoch_before(committed.offset)} - {NO_EPOCH}
        return committed if len(epochs) < 2 else None

    def is_committed(self, offset: OffsetAndMetadata) -> bool:
        """Whether the group has committed an offset, with its metadata if it has any."""
        committed = self.committed
        return (
            committed is not None
            and committed.offset == offset.offset
            and (not offset.metadata or committed.metadata == offset.metadata)
        )

    def _set_position(self, position: int | None) -> None:
        """Set the position, or give it up; keep in mind what was handed out up to the former."""
        self.reach = self.handed_out
        self.position = self.started_at = position

    @property
    def handed_out(self) -> Range | None:
        """What was handed out while nobody else can have had the partition, from end to end."""
        if self.started_at is None or self.position is None or self.position <= self.started_at:
            return self.reach
        return joined(self.reach, Range(self.started_at, self.position))

    def has_uncommitted(self, end: int) -> bool:
        """Whether records before an offset were returned that are not known to be committed."""
        returned, committed = self.handed_out, self.committed
        is_returned = returned is not None and returned.first < end
        return is_returned and (committed is None or committed.offset < end)

    # --- Assignment -----------------------------------------------------------------------
    def begin_revocation(self) -> None:
        """Hand out and fetch nothing: a rebalance may take it away."""
        if not self.is_revoking:
            self.is_revoking = True
            # What is still being looked up for the application is news when it is found.
            self.keeps_position = self.search is not None and self.search.is_asked_for
            self.keeps_pause = False
            self._tell_source()

    def keep(self) -> None:
        """Hand out and fetch again: it is not revoked after all."""
        self.is_revoking = False
        self._tell_source()

    def end_assignment(self) -> None:
        """Belong to this consumer no more; another cursor stands for it if it comes back."""
        self.is_assigned = False
        self.come_back()
        self.read_from(None)

    def pause(self) -> None:
        """Hand out and fetch nothing until `resume`."""
        self.is_paused = True
        self.keeps_pause = self.is_revoking
        self._tell_source()

    def resume(self) -> None:
        """Hand out and fetch again."""
        self.is_paused = self.keeps_pause = False
        self._tell_source()

    # --- Source ---------------------------------------------------------------------------
    def read_from(
        self,
        source: CursorSource | None,
        current_epoch: int = NO_EPOCH,
        topic_id: bytes | None = None,
    ) -> None:
        """Be read from another broker, or under another name; None: from nowhere.

        A loan to the source before is over. What was sent of it by then is buffered, and stays.

        Args:
            source: Reads it from now on.
            current_epoch: The epoch of the leader, as far as metadata know.
            topic_id: What the topic is called in requests; sixteen zeros: by its name; None: as
                before, which commits of what was read still need. The one that is assigned stays.
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
        self._tell_source()

    def _name(self, topic_id: bytes) -> None:
        """Be called by the id of a topic; what was committed of another one is not of its log."""
        if topic_id == self.topic_id:
            return
        if not self.is_of_topic(topic_id):
            self._committed = None
        self.topic_id = self.new_topic_id = topic_id

    @property
    def node_id(self) -> int | None:
        """The node that it is read from; None while no leader is known."""
        return None if self.source is None else self.source.node_id

    def lend(self, max_bytes: int) -> Loan:
        """Go in flight: the source that asks for it holds the loan."""
        if self.place is not Place.READY or not self.is_fetchable:
            raise IllegalStateError(f"partition {self.tp} cannot be fetched: {self!r}")
        self.place = Place.IN_FLIGHT
        return self._lend(max_bytes)

    def lend_on(self, offset: int, max_bytes: int) -> Loan:
        """Stay in flight: more was buffered, and the next request asks for what is behind it.

        Args:
            offset: The offset behind what was buffered.
            max_bytes: The most that the broker is to send of it.
        """
        self.fetched = offset
        return self._lend(max_bytes)

    def _lend(self, max_bytes: int) -> Loan:
        self.loan = loan = Loan(self, self.fetched, self.current_epoch, self.topic_id, max_bytes)
        return loan

    def come_back(self) -> None:
        """Be lent no more, though nothing was sent of it."""
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
        """Note what a broker says of its log in an answer without an error, at loop time `now`."""
        self.last_fetch_at = now
        self.failure_count = 0
        self.retry_reason = ""
        self.high_watermark = high_watermark
        self.last_stable_offset = last_stable_offset
        self.log_start_offset = log_start_offset

    def log_ends_at(self, offset: int, now: float, *, is_stable: bool) -> None:
        """Note the end of the log, or the last stable offset, that a broker has named at `now`."""
        self.last_fetch_at = now
        if is_stable:
            self.last_stable_offset = offset
            offset = max(offset, self.high_watermark or 0)
        self.high_watermark = offset

    def heard_at(self, now: float) -> None:
        """Note the loop time of a broker's answer about it that is an error."""
        self.last_fetch_at = now

    def add_chunk(self, chunk: Chunk) -> None:
        """Put a chunk behind those that are buffered."""
        self.chunks = (*self.chunks, chunk)

    def remove_chunk(self) -> None:
        """Remove the first chunk."""
        self.chunks = self.chunks[1:]

    def drop_chunks(self) -> tuple[Chunk, ...]:
        """Remove all chunks, and return them."""
        chunks, self.chunks = self.chunks, ()
        return chunks

    def buffered(self, end_offset: int | None, *, is_sticky: bool = False) -> None:
        """Note that a chunk was buffered: the offset after it is asked for next.

        Args:
            end_offset: Offset after the chunk; None: nothing can be fetched beyond it.
            is_sticky: It is an error that stays until the application seeks.
        """
        if end_offset is not None:
            self.fetched = end_offset
        if self.search is None:
            self._rest()
        elif is_sticky:
            self._move(Place.FAILED)

    def chunks_changed(self) -> None:
        """Note that a chunk was used up, that an error was raised, or that one was met."""
        if self.search is None and self.loan is None:
            self._rest()

    def refetch(self) -> None:
        """Fetch from the position again: nothing is buffered any more.

        A search for a position begins anew.
        """
        self._fetch_from_position()
        search = self.search
        if search is None:
            self._rest()
            return
        self._search(
            Search(
                self,
                search.sought,
                timestamp=search.timestamp,
                replaced=search.replaced,
                reason=search.reason,
            )
        )

    def _fetch_from_position(self) -> None:
        if self.position is not None:
            self.fetched = self.position

    def back_off(self, until: float, reason: str) -> None:
        """Ask no broker for it before a loop time, and say why."""
        self.retry_at = until
        self.retry_reason = reason
        if self.search is None:
            self._rest()

    def failed(self, until: float, reason: str) -> None:
        """Back off after one more failure in a row."""
        self.failure_count += 1
        self.back_off(until, reason)

    def end_back_off(self) -> None:
        """Let brokers be asked for it at once."""
        self.retry_at = 0.0
        if self.place is Place.BACKING_OFF:
            self._rest()

    def note_reason(self, reason: str) -> None:
        """Note what keeps the position from being found."""
        self.retry_reason = reason

    # --- What is buffered -----------------------------------------------------------------
    @property
    def first_chunk(self) -> Chunk | None:
        """What a get looks at first; None: nothing is buffered."""
        return self.chunks[0] if self.chunks else None

    @property
    def failure(self) -> KafkaError | None:
        """The error that comes after its records, until a get has raised it, or a seek."""
        return self.chunks[-1].failure if self.chunks else None

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another response, or no offset known to ask for."""
        if not self.chunks:
            return False
        last = self.chunks[-1]
        return (
            len(self.chunks) >= MOST_CHUNKS or last.end_offset is None or last.failure is not None
        )

    # --- What was handed out --------------------------------------------------------------
    def advance(self, next_position: int, epochs: Epochs) -> None:
        """Move the position behind what is returned, or never will be.

        Args:
            next_position: The offset behind it.
            epochs: Of the batches that it is from; more may have been opened.
        """
        if epochs and epochs[-1][1] != self.leader_epoch:
            self._note_epochs(next_position, epochs)
        self.position = next_position

    def _note_epochs(self, next_position: int, epochs: Epochs) -> None:
        """Note which leader epochs the records between the position and the next one are of."""
        position = self.position
        assert position is not None  # noqa: S101 -- records are returned from there on
        read = [start for start in epochs if start[0] < next_position]
        while len(read) > 1 and read[1][0] <= position:
            del read[0]
        for offset, leader_epoch in read:
            if leader_epoch != self.leader_epoch:
                # As long as leaders move rarely these are one or two; older ones are not committed.
                start = EpochStart(max(offset, position), leader_epoch)
                self.epoch_starts = (*self.epoch_starts[1 - MOST_EPOCH_STARTS :], start)
                self.leader_epoch = leader_epoch

    def process_to(self, offset: int | None) -> None:
        """Count all before an offset as processed; None: it is not known how far that goes."""
        self.processed = offset

    def go_back_to(self, offset: int) -> None:
        """Count nothing from `offset` on as processed, nor what is being worked on."""
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
        """Count nothing from an offset on as finished until a transaction is over.

        Args:
            transaction: Decides on it.
            first: That offset.
            block: Whose records these are; it may commit them apart from the transaction.
            is_stored: See `Undecided`.
        """
        earlier = self.undecided.get((transaction, block), Undecided(first, is_stored))
        self.undecided = {
            **{each: what for each, what in self.undecided.items() if not each[0].is_settled},
            (transaction, block): Undecided(
                min(first, earlier.first), is_stored or earlier.is_stored
            ),
        }

    def commit_apart(self, block: object) -> None:
        """Let no transaction decide on the records of a block that it does not commit."""
        self.undecided = {
            each: what for each, what in self.undecided.items() if each[1] is not block
        }

    def is_undecided_of(self, block: object) -> bool:
        """Whether transactions decide on records of a block, or have done so just now."""
        return any(each[1] is block for each in self.undecided)

    def await_outcomes_of(self, former: Cursor) -> None:
        """Count nothing as finished until the transactions of a former cursor are over."""
        self.undecided = former.undecided

    def forget_undecided(self) -> None:
        """Let transactions of the assignment before decide on nothing.

        What they have not committed is returned again, and they cannot commit it any more.
        """
        self.undecided = NOTHING

    def decided_to(self, offset: int, besides: BegunTransaction | None = None) -> int:
        """Return how much of what lies before an offset no open transaction decides on.

        Args:
            offset: Behind what is asked for.
            besides: A transaction that does not count.
        """
        for (transaction, _), what in self.undecided.items():
            if transaction is not besides and not transaction.is_settled:
                offset = min(offset, what.first)
        return offset

    def is_undecided(self, transaction: BegunTransaction, before: int) -> bool:
        """Whether this transaction decides on records before an offset."""
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
        """Note that a read in the block of a transaction counts as processed what was returned."""
        if (end := self.handed_out_to) is not None:
            self.processed_in = (transaction, end)

    def has_processed_in(self, transaction: BegunTransaction) -> bool:
        """Whether a read in its block has counted records as processed that are not committed."""
        if self.processed_in is None or self.processed_in[0] is not transaction:
            return False
        return self.has_uncommitted(self.processed_in[1])

    def has_processed(self, before: int) -> bool:
        """Whether all records before an offset count as processed."""
        return self.processed is not None and self.processed >= before

    def is_worked_on(self, before: int) -> bool:
        """Whether a work has records before an offset that are not finished."""
        return self.worked_by is not None and not self.has_processed(before)

    @property
    def finished_to(self) -> int | None:
        """The first unfinished offset, which auto-commit commits; None: it is not known."""
        if self.position is None:
            return None
        return self.decided_to(self.position if self.processed is None else self.processed)

    def enter_work(self, work: Work, *, is_enough: bool) -> None:
        """Note that a work has records of it, and whether it may have more before it is done."""
        self.worked_by = work
        self.has_enough = is_enough

    def leave_work(self) -> None:
        """Note that all is finished that was handed out."""
        self.worked_by = None
        self.has_enough = False

    def track(self, progress: Progress) -> None:
        """Keep which records are finished, each for itself."""
        self.progress = progress

    @property
    def handed_out_to(self) -> int | None:
        """Next offset after what the application was handed.

        That is the position. While the application has another one looked up, it is the one given
        up for that. While it is given up because the log has lost it, or for the committed offset,
        there is none.
        """
        search = self.search
        if self.position is None and search is not None and search.is_asked_for:
            return search.replaced
        return self.position

    def is_behind(self, *, is_read_committed: bool) -> bool:
        """Whether there was more to fetch when a broker answered last; False: it never has."""
        end = self.high_watermark
        if is_read_committed and self.last_stable_offset is not None:
            end = self.last_stable_offset
        return end is not None and self.fetched < end

    @property
    def is_in_doubt(self) -> bool:
        """Whether its position was given up for the committed offset, which is not known yet."""
        search = self.search
        return search is not None and search.sought is Sought.COMMITTED and not search.is_first

    def finished_epoch(self, progress: Progress) -> int:
        """Return the newest leader epoch of what is finished behind the first unfinished record.

        The position may be elsewhere: a seek moves it, and what is finished stays so.
        """
        last = progress.last_finished
        before = NO_EPOCH if last is None else self.epoch_before(last + 1)
        return max(progress.ahead_epoch, before)

    @property
    def newest_epoch(self) -> int:
        """The leader epoch to be compared: of a returned record, or of one finished before.

        It is the newest one. A log that has it has all records before it, too: logs part where
        epochs do. Ranges of an older epoch than the position's are compared first, by their own:
        a commit may have the epoch of a later record than the one before its offset.
        """
        progress = self.progress
        if progress is None or not progress.has_finished_before:
            return self.leader_epoch
        if not progress.is_verified and progress.ahead_epoch != NO_EPOCH:
            return progress.ahead_epoch
        return max(self.leader_epoch, progress.ahead_epoch)

    def needs_validation(self, current_epoch: int) -> bool:
        """Whether a leader of this epoch may not have the records that were returned."""
        newest = self.newest_epoch
        return (
            self.search is None
            and newest != NO_EPOCH
            and current_epoch > max(newest, self.validated_epoch)
        )

    def knows_void_epochs(self, current_epoch: int, void_epoch: int) -> bool:
        """Whether it knows epochs after the leader's, though those up to `void_epoch` are void."""
        return (
            current_epoch < void_epoch != self.void_epoch
            and max(self.newest_epoch, self.validated_epoch) > current_epoch
        )
