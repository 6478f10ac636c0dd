"""What a consumer is subscribed to, and per partition what fetching needs to know.

Everything here is plain data changed synchronously on the event loop; nothing waits. Each field
has one writer; everybody else reads, or calls the method of SubscriptionState that asks for the
change:

    fetch_state       this module, at the request of: the position resolver, the caller (seek),
                      the fetcher (offset out of range)
    position          the caller, through `hand_out` (get), `seek`; the position resolver
    processed         this module, from `hand_out` and `begin_get`
    fetched           the fetch queue, when it accepts or drops data
    committed         the commits module
    watermarks, log_start_offset, retry_at, retry_reason, failure_count    the fetcher
    corrupt_at        the fetch queue
    leader_epoch      the caller, with `position`
    is_paused         the caller
    is_revoking       this module, from `begin_rebalance`

Fetched and consumed offsets are kept apart: `position` is the next offset the application will
be handed, `fetched` the next offset to ask a broker for. Data between them lies in the queue.

Stale answers: whatever makes data in flight or in the queue worthless (seek, reset, revocation)
bumps the partition's `tag`. A fetch remembers the tag it was sent under, and its answer is
dropped when the tag is no longer the same.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.errors import IllegalStateError
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition

EARLIEST_TIMESTAMP: Final = -2
LATEST_TIMESTAMP: Final = -1
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


class SubscriptionMode(enum.Enum):
    """How the assignment comes about; one consumer uses only one way until it unsubscribes."""

    NONE = enum.auto()
    TOPICS = enum.auto()  # subscribe(topics)
    PATTERN = enum.auto()  # subscribe(pattern=...)
    ASSIGNED = enum.auto()  # assign(partitions)


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
        "last_poll_timestamp_ms",
        "last_stable_offset",
        "leader_epoch",
        "log_start_offset",
        "position",
        "processed",
        "reset_timestamp",
        "retry_at",
        "retry_reason",
        "tag",
        "tp",
    )

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.fetch_state = FetchState.INITIALIZING
        # Next offset to hand out; None until it is known.
        self.position: int | None = None
        # All before this was handed out before the latest get: what auto-commit may commit.
        self.processed: int | None = None
        # Next offset to ask a broker for: `position` plus what is buffered.
        self.fetched = -1
        # Leader epoch of the last batch handed out, sent with commits (KIP-320); -1: not known.
        self.leader_epoch = NO_EPOCH
        self.committed: OffsetAndMetadata | None = None
        self.high_watermark: int | None = None
        self.last_stable_offset: int | None = None
        self.log_start_offset: int | None = None
        self.last_poll_timestamp_ms: int | None = None
        self.is_paused = False
        self.is_assigned = True
        # A rebalance is under way that may take it away.
        self.is_revoking = False
        # While AWAIT_RESET: the ListOffsets timestamp to look up (-2 earliest, -1 latest).
        self.reset_timestamp: int | None = None
        # Loop time before which nothing is asked of a broker for it, and why.
        self.retry_at = 0.0
        self.retry_reason = ""
        self.failure_count = 0
        # Offset whose batch was found corrupt and is fetched once more before it is an error.
        self.corrupt_at = -1
        self.tag = 0

    def __repr__(self) -> str:
        topic, partition = self.tp
        paused = " paused" if self.is_paused else ""
        return f"<{topic}/{partition} {self.fetch_state.name} at {self.position}{paused}>"

    @property
    def handed_out(self) -> int | None:
        """Next offset after what the application was handed: the same as the position."""
        return self.position

    @property
    def is_fetchable(self) -> bool:
        """Whether a broker may be asked for more of it, backoff aside."""
        return (
            self.fetch_state is FetchState.FETCHING and not self.is_paused and not self.is_revoking
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


def _nothing() -> None:
    """Stand in for a hook that nobody has set."""


class SubscriptionState:
    """Subscription and assignment of one consumer; see the module's docstring for who writes."""

    def __init__(self) -> None:
        self.mode = SubscriptionMode.NONE
        self.pattern: re.Pattern[str] | None = None
        self.listener: ConsumerRebalanceListener | None = None
        # Goes up with every change of the subscription: membership compares it to rejoin.
        self.subscription_version = 0
        self._topics: frozenset[str] | None = None
        self._assignment: dict[TopicPartition, PartitionState] = {}
        # For max_poll_interval, which counts only the time between gets.
        self._gets_in_progress = 0
        self._idle_since = 0.0
        self._hand_out_count = 0
        self._seen_hand_out_count = 0
        self._get_observers: list[Callable[[], None]] = []
        # What the latest get handed out from; everything else handed out has been processed.
        self._latest: list[PartitionState] = []
        self._subscription_observers: list[Callable[[], None]] = []
        self._assignment_observers: list[Callable[[], None]] = []
        self._discard_observers: list[Callable[[PartitionState], None]] = []
        self._settle: Callable[[], None] = _nothing

    # --- Observers ------------------------------------------------------------------------
    def on_subscription_change(self, observer: Callable[[], None]) -> None:
        """Call `observer` after each change of topics, pattern or mode."""
        self._subscription_observers.append(observer)

    def add_listener(self, observer: Callable[[], None]) -> None:
        """Call `observer` after each change of the subscription, and when a get begins."""
        self._subscription_observers.append(observer)
        self._get_observers.append(observer)

    def on_assignment_change(self, observer: Callable[[], None]) -> None:
        """Call `observer` after partitions were given, taken, paused, resumed or moved."""
        self._assignment_observers.append(observer)

    def on_discard(self, observer: Callable[[PartitionState], None]) -> None:
        """Call `observer` when what is buffered of a partition must not be handed out."""
        self._discard_observers.append(observer)

    def set_settler(self, settle: Callable[[], None]) -> None:
        """Set what brings positions up to date before they are read.

        The per-message path keeps no books: how far it got is worked out when somebody asks.
        """
        self._settle = settle

    def _subscription_changed(self) -> None:
        self.subscription_version += 1
        for observer in self._subscription_observers:
            observer()

    def notify_assignment_change(self) -> None:
        """Tell the observers that partitions came, went or became fetchable."""
        for observer in self._assignment_observers:
            observer()

    def _discard(self, partition: PartitionState) -> None:
        partition.tag += 1
        for observer in self._discard_observers:
            observer(partition)

    # --- Subscription ---------------------------------------------------------------------
    @property
    def subscription(self) -> frozenset[str] | None:
        """Topics subscribed to (for a pattern: those it matched so far); None if none are."""
        return self._topics

    def _require_mode(self, mode: SubscriptionMode) -> None:
        if self.mode not in (SubscriptionMode.NONE, mode):
            raise IllegalStateError(
                "subscribe(topics), subscribe(pattern=...) and assign() exclude each other: "
                "call unsubscribe() first"
            )

    def subscribe(
        self, topics: Iterable[str], listener: ConsumerRebalanceListener | None = None
    ) -> None:
        """Subscribe to topics, in place of those subscribed before.

        Raises:
            IllegalStateError: A pattern or a manual assignment is in use.
        """
        self._require_mode(SubscriptionMode.TOPICS)
        self.mode = SubscriptionMode.TOPICS
        self.listener = listener
        self._topics = frozenset(topics)
        self._subscription_changed()

    def subscribe_pattern(
        self, pattern: re.Pattern[str], listener: ConsumerRebalanceListener | None = None
    ) -> None:
        """Subscribe to every topic whose name the pattern matches.

        Raises:
            IllegalStateError: Topics or a manual assignment are in use.
        """
        self._require_mode(SubscriptionMode.PATTERN)
        self.mode = SubscriptionMode.PATTERN
        self.listener = listener
        self.pattern = pattern
        self._topics = frozenset()
        self._subscription_changed()

    def set_pattern_topics(self, topics: Iterable[str]) -> bool:
        """Set the topics that the pattern matches now; return whether they have changed."""
        matched = frozenset(topics)
        if self.mode is not SubscriptionMode.PATTERN or matched == self._topics:
            return False
        self._topics = matched
        self._subscription_changed()
        return True

    def unsubscribe(self) -> None:
        """Forget topics, pattern, listener and assignment."""
        self.mode = SubscriptionMode.NONE
        self.pattern = None
        self.listener = None
        self._topics = None
        self._replace_assignment(frozenset())
        self._subscription_changed()

    # --- Assignment -----------------------------------------------------------------------
    @property
    def assignment(self) -> Mapping[TopicPartition, PartitionState]:
        """The partitions assigned, by topic and number."""
        return self._assignment

    def partition(self, tp: TopicPartition) -> PartitionState:
        """Return the state of an assigned partition.

        Raises:
            IllegalStateError: It is not assigned to this consumer.
        """
        try:
            return self._assignment[tp]
        except KeyError:
            raise IllegalStateError(f"partition {tp} is not assigned to this consumer") from None

    def assign_from_user(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign exactly these partitions; those assigned already keep their position.

        Raises:
            IllegalStateError: Topics or a pattern are subscribed.
        """
        self._require_mode(SubscriptionMode.ASSIGNED)
        self.mode = SubscriptionMode.ASSIGNED
        self._replace_assignment(frozenset(partitions))
        self._subscription_changed()

    def begin_rebalance(self) -> None:
        """Stop handing out: gets wait, what is buffered is dropped, until the assignment comes.

        The assignment stays readable, with its positions, for commits and callbacks meanwhile.
        """
        self._settle()
        for partition in self._assignment.values():
            partition.is_revoking = True
            self.refetch(partition)

    def assign_from_group(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign exactly these partitions.

        Those assigned already keep their state, unless `begin_rebalance` was called since they
        were assigned: then all start afresh from their committed offsets.
        """
        self._replace_assignment(frozenset(partitions))

    def revoke(self, partitions: Iterable[TopicPartition]) -> None:
        """Take partitions away; what is buffered of them is dropped."""
        self._replace_assignment(self._assignment.keys() - frozenset(partitions))

    def _replace_assignment(self, wanted: frozenset[TopicPartition] | set[TopicPartition]) -> None:
        self._settle()
        for tp, partition in tuple(self._assignment.items()):
            if tp not in wanted or partition.is_revoking:
                del self._assignment[tp]
                partition.is_assigned = False
                self._discard(partition)
        for tp in sorted(wanted - self._assignment.keys()):
            self._assignment[tp] = PartitionState(tp)
        self._latest = [partition for partition in self._latest if partition.is_assigned]
        self.notify_assignment_change()

    # --- Positions ------------------------------------------------------------------------
    def seek(self, partition: PartitionState, offset: int, leader_epoch: int = NO_EPOCH) -> None:
        """Move the position; what is buffered or on its way is dropped."""
        self._settle()
        partition.transition(FetchState.FETCHING)
        self._discard(partition)
        partition.position = partition.processed = partition.fetched = offset
        partition.leader_epoch = leader_epoch
        partition.reset_timestamp = None
        partition.retry_at = 0.0
        self.notify_assignment_change()

    def request_reset(self, partition: PartitionState, timestamp: int) -> None:
        """Give up the position and have it looked up by ListOffsets with `timestamp`."""
        self._settle()
        partition.transition(FetchState.AWAIT_RESET)
        self._discard(partition)
        partition.position = partition.processed = None
        partition.leader_epoch = NO_EPOCH
        partition.reset_timestamp = timestamp
        partition.retry_at = 0.0
        self.notify_assignment_change()

    def refetch(self, partition: PartitionState) -> None:
        """Drop what is buffered and on its way, and fetch from the position again."""
        self._settle()
        self._discard(partition)
        if partition.position is not None:
            partition.fetched = partition.position

    def pause(self, partition: PartitionState) -> None:
        """Stop fetching and handing out; what is buffered stays for `resume`."""
        self._settle()
        partition.is_paused = True
        self.notify_assignment_change()

    def resume(self, partition: PartitionState) -> None:
        """Fetch and hand out again."""
        partition.is_paused = False
        self.notify_assignment_change()

    # --- Gets -------------------------------------------------------------------------------
    def enter_get(self) -> None:
        """Note that the application waits for records; every call is matched by `leave_get`."""
        self.begin_get()
        self._gets_in_progress += 1
        for observer in self._get_observers:
            observer()

    def leave_get(self, now: float) -> None:
        """Note that the get ended, with or without records, at loop time `now`."""
        self._gets_in_progress -= 1
        self._idle_since = now

    def idle_s(self, now: float) -> float:
        """Return how long the application has not asked for records; 0 inside a get.

        Records handed out message by message are noticed only here, so the answer may be too
        small by the time since it was last asked, never too large.
        """
        self._settle()
        if self._gets_in_progress:
            return 0.0
        if self._hand_out_count != self._seen_hand_out_count:
            self._seen_hand_out_count = self._hand_out_count
            self._idle_since = now
        return now - self._idle_since

    def restart_idle(self, now: float) -> None:
        """Start counting idle time anew, as when the first assignment comes."""
        self._idle_since = now

    # --- What was handed out --------------------------------------------------------------
    def begin_get(self) -> None:
        """Note that the application is back for more: all it was handed so far is processed."""
        for partition in self._latest:
            partition.processed = partition.position
        self._latest.clear()

    def hand_out(
        self, partition: PartitionState, first_offset: int, next_position: int, leader_epoch: int
    ) -> None:
        """Note that the get in progress hands out the records of [first, next)."""
        if partition not in self._latest:  # one or few: a get's partitions
            self._latest.append(partition)
            partition.processed = first_offset
        partition.position = next_position
        self._hand_out_count += 1
        if leader_epoch != NO_EPOCH:
            partition.leader_epoch = leader_epoch

    def pass_over(self, partition: PartitionState, next_position: int) -> None:
        """Move the position over what is never handed out: control batches, gaps, aborted."""
        if partition not in self._latest:
            partition.processed = next_position
        partition.position = next_position

    def settle(self) -> None:
        """Bring the positions up to date with what was handed out message by message."""
        self._settle()

    def processed_offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what auto-commit may commit: all handed out before the latest get."""
        self._settle()
        return {
            tp: OffsetAndMetadata(partition.processed, "")
            for tp, partition in self._assignment.items()
            if partition.processed is not None
        }

    def handed_out_offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the positions: what commit() and a clean stop commit."""
        self._settle()
        return {
            tp: OffsetAndMetadata(partition.position, "")
            for tp, partition in self._assignment.items()
            if partition.position is not None
        }
