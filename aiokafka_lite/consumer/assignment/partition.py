"""One assigned partition: the data that fetching needs about it.

Everything here is plain data changed synchronously on the event loop; nothing waits. Each field
has one writer; everybody else reads, or calls the method of SubscriptionState that asks for the
change:

    fetch_state       subscription.py, at the request of: the position resolver, the caller
                      (seek), the fetcher (offset out of range)
    position          the caller, through `hand_out` (get), `seek`; the position resolver
    run_start, reach  subscription.py, with `position`
    processed         subscription.py, from `hand_out`, `begin_get`, `seek` and `commit`
    fetched           line.py, when it takes data; subscription.py, when that is dropped
    reset_timestamp, reset_from, reset_reason:
                      subscription.py, from `request_reset`
    committed         commits.py and committed.py; subscription.py forgets it with the log it is of
    watermarks, log_start_offset, last_fetch_at, retry_at, retry_reason, failure_count,
    preferred_replica:
                      the fetcher
    corrupt_at        bad_records.py
    leader_epoch      the caller, with `position`
    validated_epoch   the position resolver
    is_paused         the caller
    keeps_position, keeps_pause:
                      subscription.py, from what the caller asks for while it is being given back
    is_revoking       subscription.py, from `begin_rebalance`, and `subscribe` to other topics

Fetched and consumed offsets are kept apart: `position` is the next offset the application will
be handed, `fetched` the next offset to ask a broker for. Data between them lies in the queue.

Stale answers: whatever makes data in flight or in the queue worthless (seek, reset, revocation)
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


class PartitionState:
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

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.fetch_state = FetchState.INITIALIZING
        # Next offset to hand out; None until it is known.
        self.position: int | None = None
        # Where it was set to last: it has been handed out from there on.
        self.run_start: int | None = None
        # What was handed out before that, while nobody else can have had the partition.
        self.reach: Range | None = None
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

    def move_to(self, position: int | None) -> None:
        """Set the position, or give it up; keep in mind what was handed out up to the former."""
        self.reach = self.handed_out
        self.position = self.run_start = position

    @property
    def handed_out(self) -> Range | None:
        """What was handed out while nobody else can have had the partition, from end to end."""
        if self.run_start is None or self.position is None or self.position <= self.run_start:
            return self.reach
        return joined(self.reach, Range(self.run_start, self.position))

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
