"""One assigned partition: the data that fetching needs about it.

Everything here is plain data changed synchronously on the event loop; nothing waits. Each field
has one writer, this module but for two; a test holds that (tests/consumer/test_one_writer.py):

    preferred_replica    replicas.py
    corrupt_at           bad_records.py

Who wants a change calls the method that says why: of SubscriptionState where others have to hear of
it (a new position, a pause, a revocation), or of the partition itself (a back-off, an answer).

Fetched and consumed offsets are kept apart: `position` is the next offset the application will
be handed, `fetched` the next offset to ask a broker for. Data between them lies in the buffer.

Stale answers: whatever makes data in flight or in the buffer worthless (seek, reset, revocation)
bumps the partition's `tag`. A fetch remembers the tag it was sent under, and its answer is
dropped when the tag is no longer the same.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from aiokafka_lite.errors import IllegalStateError
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition

NO_EPOCH: Final = -1


class FetchState(enum.Enum):
    """Whether a partition can be fetched (Kafka's SubscriptionState.FetchStates)."""

    INITIALIZING = enum.auto()  # assigned; its position is not known yet
    FETCHING = enum.auto()  # the position is known and good
    AWAIT_RESET = enum.auto()  # the position has to be looked up by time (ListOffsets)
    AWAIT_VALIDATION = enum.auto()  # the position has to be checked against the leader (KIP-320)


LEGAL_TRANSITIONS: Final[Mapping[FetchState, frozenset[FetchState]]] = MappingProxyType(
    {
        FetchState.INITIALIZING: frozenset(
            {FetchState.FETCHING, FetchState.AWAIT_RESET, FetchState.AWAIT_VALIDATION}
        ),
        FetchState.FETCHING: frozenset(
            {FetchState.FETCHING, FetchState.AWAIT_RESET, FetchState.AWAIT_VALIDATION}
        ),
        FetchState.AWAIT_RESET: frozenset({FetchState.FETCHING, FetchState.AWAIT_RESET}),
        FetchState.AWAIT_VALIDATION: frozenset(
            {FetchState.FETCHING, FetchState.AWAIT_RESET, FetchState.AWAIT_VALIDATION}
        ),
    }
)


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
    """Where a group has got to, and the leader epoch of the last record before (-1: not known)."""

    offset: int
    leader_epoch: int


class Range(NamedTuple):
    """Offsets that were handed out: from `first` to before `end`."""

    first: int
    end: int


def joined(one: Range | None, other: Range | None) -> Range | None:
    """Return the range from the first to the last offset of both."""
    if one is None or other is None:
        return one or other
    return Range(min(one.first, other.first), max(one.end, other.end))


class Cursor:
    """One assigned partition. Made anew for each assignment, so identity tells them apart."""

    __slots__ = (
        "committed",
        "corrupt_at",
        "failure_count",
        "fetch_state",
        "fetched",
        "high_watermark",
        "is_assigned",
        "is_paused",
        "is_revoking",
        "keeps_pause",
        "keeps_position",
        "last_fetch_at",
        "last_stable_offset",
        "leader_epoch",
        "log_start_offset",
        "position",
        "preferred_replica",
        "processed",
        "reach",
        "reset_from",
        "reset_reason",
        "reset_timestamp",
        "retry_at",
        "retry_reason",
        "run_start",
        "tag",
        "tp",
        "validated_epoch",
    )

    def __init__(self, tp: TopicPartition, reach: Range | None = None) -> None:
        self.tp = tp
        self.fetch_state = FetchState.INITIALIZING
        # Next offset to hand out; None until it is known.
        self.position: int | None = None
        # Where it was set to last: it has been handed out from there on.
        self.run_start: int | None = None
        # What was handed out before that, while nobody else can have had the partition.
        self.reach = reach
        # All before this was handed out before the latest get, or committed by the application:
        # what auto-commit may commit.
        self.processed: int | None = None
        # Next offset to ask a broker for: `position` plus what is buffered.
        self.fetched = -1
        # Leader epoch of the last batch handed out, sent with commits (KIP-320); -1: not known.
        self.leader_epoch = NO_EPOCH
        # The newest leader epoch in which the position was found to be good (KIP-320).
        self.validated_epoch = NO_EPOCH
        self.committed: OffsetAndMetadata | None = None
        self.high_watermark: int | None = None
        self.last_stable_offset: int | None = None
        self.log_start_offset: int | None = None
        # Loop time of the last answer of a broker about it.
        self.last_fetch_at: float | None = None
        self.is_paused = False
        self.is_assigned = True
        # A rebalance is under way, or about to begin, that may take it away.
        self.is_revoking = False
        # Whether the application has moved or paused it since: that holds if it comes back.
        self.keeps_position = False
        self.keeps_pause = False
        # While AWAIT_RESET: the ListOffsets timestamp to look up (-2 earliest, -1 latest).
        self.reset_timestamp: int | None = None
        # The position that was given up for that, and why; "": the application asked for it.
        self.reset_from: int | None = None
        self.reset_reason = ""
        # Loop time before which nothing is asked of a broker for it, and why.
        self.retry_at = 0.0
        self.retry_reason = ""
        self.failure_count = 0
        # The follower that it is read from; None: its leader.
        self.preferred_replica: PreferredReplica | None = None
        # Offset whose batch was found corrupt and is fetched once more before it is an error.
        self.corrupt_at = -1
        self.tag = 0

    def __repr__(self) -> str:
        topic, partition = self.tp
        paused = " paused" if self.is_paused else ""
        return f"<{topic}/{partition} {self.fetch_state.name} at {self.position}{paused}>"

    # --- Position -------------------------------------------------------------------------
    def void(self) -> None:
        """Make worthless what is in flight and what is buffered: see "Stale answers"."""
        self.tag += 1

    def start_at(
        self, offset: int, leader_epoch: int, validated_epoch: int, *, is_in_work: bool
    ) -> None:
        """Take a position that was asked for or found.

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
        self._move_to(offset)
        self.fetched = offset
        self.leader_epoch = leader_epoch
        self.validated_epoch = validated_epoch
        self.reset_timestamp = None
        self.end_back_off()

    def keep_sought(self) -> None:
        """Note that the application has moved it: that holds if a rebalance gives it back."""
        self.keeps_position = self.is_revoking

    def await_reset(self, timestamp: int, reason: str) -> None:
        """Give the position up until ListOffsets has found the one of a timestamp.

        Args:
            timestamp: That of ListOffsets: -2 for the first offset, -1 for the end.
            reason: Why; "": the application asked for it.
        """
        self.reset_from, self.reset_reason = self.position, reason
        self._move_to(None)
        if reason:
            self.processed = None
        self.leader_epoch = NO_EPOCH
        self.reset_timestamp = timestamp
        self.keeps_position = self.is_revoking and not reason
        self.end_back_off()

    def forget_log(self) -> None:
        """Forget all that is known of its log: there is another in its place."""
        self.committed = None
        self.high_watermark = self.last_stable_offset = self.log_start_offset = None
        self.reach = self.run_start = self.reset_from = None
        self.leader_epoch = self.validated_epoch = NO_EPOCH
        self.keeps_position = False
        if self.fetch_state is not FetchState.INITIALIZING:
            self.transition(FetchState.AWAIT_RESET)
            self.position = self.processed = self.reset_timestamp = None

    def validated(self, leader_epoch: int) -> None:
        """Note that the log of a leader epoch has what was read before the position."""
        self.transition(FetchState.FETCHING)
        self.validated_epoch = leader_epoch
        self.end_back_off()

    def note_committed(self, offset: OffsetAndMetadata | None) -> None:
        """Note what the group has committed of it, None: nothing."""
        self.committed = offset

    def _move_to(self, position: int | None) -> None:
        """Set the position, or give it up; keep in mind what was handed out up to the former."""
        self.reach = self.handed_out
        self.position = self.run_start = position

    @property
    def handed_out(self) -> Range | None:
        """What was handed out while nobody else can have had the partition, from end to end."""
        if self.run_start is None or self.position is None or self.position <= self.run_start:
            return self.reach
        return joined(self.reach, Range(self.run_start, self.position))

    # --- Assignment -----------------------------------------------------------------------
    def begin_revocation(self) -> None:
        """Hand out and fetch nothing: a rebalance may take it away."""
        if not self.is_revoking:
            self.is_revoking = True
            # What is still being looked up for the application is news when it is found.
            self.keeps_position = self.is_asked_to_reset
            self.keeps_pause = False

    def keep(self) -> None:
        """Hand out and fetch again: it is not given back after all."""
        self.is_revoking = False

    def end_assignment(self) -> None:
        """Belong to this consumer no more; another state stands for it if it comes back."""
        self.is_assigned = False

    def pause(self) -> None:
        """Hand out and fetch nothing until `resume`."""
        self.is_paused = True
        self.keeps_pause = self.is_revoking

    def resume(self) -> None:
        """Hand out and fetch again."""
        self.is_paused = self.keeps_pause = False

    # --- Fetching -------------------------------------------------------------------------
    def answered(
        self, high_watermark: int, last_stable_offset: int | None, log_start_offset: int
    ) -> None:
        """Note what a broker says of its log in an answer without an error."""
        self.failure_count = 0
        self.retry_reason = ""
        self.high_watermark = high_watermark
        self.last_stable_offset = last_stable_offset
        self.log_start_offset = log_start_offset

    def heard_at(self, now: float) -> None:
        """Note the loop time of a broker's answer about it, whatever it says."""
        self.last_fetch_at = now

    def buffered_to(self, end_offset: int) -> None:
        """Ask for what is behind `end_offset` next: what is ahead of it is buffered."""
        self.fetched = end_offset

    def refetch(self) -> None:
        """Ask for what is behind the position next: nothing is buffered."""
        if self.position is not None:
            self.fetched = self.position

    def back_off(self, until: float, reason: str) -> None:
        """Ask no broker for it before a loop time, and say why."""
        self.retry_at = until
        self.retry_reason = reason

    def failed(self, until: float, reason: str) -> None:
        """Do the same for one more failure in a row."""
        self.back_off(until, reason)
        self.failure_count += 1

    def end_back_off(self) -> None:
        """Let brokers be asked for it at once."""
        self.retry_at = 0.0

    def note_reason(self, reason: str) -> None:
        """Note what keeps the position from being found."""
        self.retry_reason = reason

    # --- What was handed out --------------------------------------------------------------
    def hand_out(self, next_position: int, leader_epoch: int) -> None:
        """Note that the get in progress hands out what lies before `next_position`."""
        self.position = next_position
        if leader_epoch != NO_EPOCH:
            self.leader_epoch = leader_epoch

    def pass_over(self, next_position: int) -> None:
        """Move the position over what is never handed out."""
        self.position = next_position

    def process_to(self, offset: int | None) -> None:
        """Count all before an offset as processed; None: it is not known how far that goes."""
        self.processed = offset

    def go_back_to(self, offset: int) -> None:
        """Count nothing from `offset` on as processed, nor what is being worked on."""
        if self.processed is not None:
            self.processed = min(self.processed, offset)

    @property
    def handed_out_to(self) -> int | None:
        """Next offset after what the application was handed.

        That is the position. While the application has another one looked up, it is the one given
        up for that; while it is given up because the log has lost it, there is none.
        """
        if self.position is None and not self.reset_reason:
            return self.reset_from
        return self.position

    @property
    def is_fetchable(self) -> bool:
        """Whether a broker may be asked for more of it, backoff aside."""
        return (
            self.fetch_state is FetchState.FETCHING and not self.is_paused and not self.is_revoking
        )

    @property
    def is_asked_to_reset(self) -> bool:
        """Whether a position is being looked up that the application asked for."""
        return (
            self.fetch_state is FetchState.AWAIT_RESET
            and self.reset_timestamp is not None
            and not self.reset_reason
        )

    def is_behind(self, *, is_read_committed: bool) -> bool:
        """Whether there was more to fetch when a broker answered last; False: it never has."""
        end = self.high_watermark
        if is_read_committed and self.last_stable_offset is not None:
            end = self.last_stable_offset
        return end is not None and self.fetched < end

    def needs_validation(self, current_epoch: int) -> bool:
        """Whether a leader of this epoch may not have the records before the position."""
        return (
            self.fetch_state is FetchState.FETCHING
            and self.leader_epoch != NO_EPOCH
            and current_epoch > max(self.leader_epoch, self.validated_epoch)
        )

    def transition(self, new: FetchState) -> None:
        """Change the fetch state.

        Raises:
            IllegalStateError: The table of legal transitions has no such step.
        """
        if new not in LEGAL_TRANSITIONS[self.fetch_state]:
            raise IllegalStateError(
                f"partition {self.tp} cannot go from {self.fetch_state.name} to {new.name}"
            )
        self.fetch_state = new
