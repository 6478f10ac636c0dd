"""Holds the assignment of a consumer, one cursor per partition, and its subscription.

cursor.py lists the writer of each field.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.client.offsets import EARLIEST, CommittedOffset
from aiokafka_lite.consumer.assignment.cursor import NO_EPOCH, Cursor, Range, joined
from aiokafka_lite.consumer.assignment.finished import decode
from aiokafka_lite.consumer.assignment.observers import Departure, Observers
from aiokafka_lite.consumer.assignment.progress import Progress
from aiokafka_lite.consumer.assignment.reads import Reads
from aiokafka_lite.errors import CommitFailedError, IllegalStateError, UnknownTopicOrPartitionError
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.client.cluster import Cluster
    from aiokafka_lite.client.view import ClusterView


class SubscriptionMode(enum.Enum):
    """The source of the assignment, fixed until `unsubscribe`."""

    NONE = enum.auto()
    TOPICS = enum.auto()  # subscribe(topics)
    PATTERN = enum.auto()  # subscribe(pattern=...)
    ASSIGNED = enum.auto()  # assign(partitions)


# The name under which subscribed and assigned topics are watched.
SUBSCRIPTION: Final = "subscription"


class SubscriptionState:
    """The subscription and the assignment, as in Java, which observers follow."""

    def __init__(self, observers: Observers, reads: Reads) -> None:
        self.mode = SubscriptionMode.NONE
        # In the mode PATTERN.
        self.pattern: re.Pattern[str] | None = None
        self.listener: ConsumerRebalanceListener | None = None
        # Goes up with every change of the subscription: membership compares it to rejoin.
        self.subscription_version = 0
        # The version after the last `unsubscribe`.
        self.unsubscribed_version = -1
        self._topics: frozenset[str] | None = None
        # Those that the application has named, in the mode TOPICS.
        self._named: frozenset[str] = frozenset()
        # Those of which `run` reads every record, whatever auto_offset_reset is.
        self._complete_topics: frozenset[str] = frozenset()
        self._observers = observers
        self._reads = reads
        self._assignment: dict[TopicPartition, Cursor] = {}
        # Revoked by a rebalance, not unassigned by the application.
        self._taken: set[TopicPartition] = set()
        # Returned offsets of partitions before another member may have had them.
        self._handed_out_earlier: dict[TopicPartition, Range] = {}
        # Revoked while the application was still processing records, as far as is known.
        self.lost_in_hand: dict[TopicPartition, Cursor] = {}
        # Returned offsets of topics that were recreated since.
        self._of_former_logs: dict[TopicPartition, Range] = {}

    # --- What is assigned ------------------------------------------------------------------
    @property
    def assignment(self) -> Mapping[TopicPartition, Cursor]:
        return self._assignment

    def partition(self, tp: TopicPartition) -> Cursor:
        """Return the cursor of a partition. Raises IllegalStateError if it is not assigned."""
        try:
            return self._assignment[tp]
        except KeyError:
            why = ""
            if tp in self._taken:
                why = " any more: a rebalance revoked it"
            elif not self._assignment:
                why = ". No partitions assigned"  # aiokafka's words
            raise IllegalStateError(
                f"Partition {tp} is not assigned to this consumer{why}"
            ) from None

    def require_known(self, tp: TopicPartition) -> None:
        """Check that a partition is assigned, or was until a rebalance revoked it."""
        if tp not in self._taken:
            self.partition(tp)

    def has_lost_any(self, named: Collection[TopicPartition]) -> bool:
        """Whether a rebalance revoked one of these partitions, or without names all of them."""
        if named:
            return not self._taken.isdisjoint(named)
        return bool(self._taken) and not self._assignment

    def has_any(self, wanted: Collection[TopicPartition]) -> bool:
        return not wanted or any(tp in self._assignment for tp in wanted)

    def withhold(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop buffered records of partitions, and fetch and return none until `release`.

        They may be revoked, or are new and the listener is called first.
        """
        for tp in sorted(partitions):
            cursor = self._assignment[tp]
            cursor.withhold()
            self.refetch(cursor)

    def change(
        self,
        revoke: Iterable[TopicPartition],
        assign: Iterable[TopicPartition],
        *,
        topic_ids: Mapping[TopicPartition, bytes] = MappingProxyType({}),
        is_unbroken: bool = False,
    ) -> None:
        """Revoke and assign partitions. The others keep position, buffer and pause.

        An assigned partition starts from its committed offset, also if it is in both sets. If the
        application moved or paused it since its revocation began, it starts paused, and if the
        assignment is unbroken (no other member can have had it meanwhile), from the new position.

        `topic_ids` are those of partitions that are assigned by topic id.
        """
        self._reads.settle()
        wanted = frozenset(assign)
        earlier, kept = self._handed_out_earlier, dict[TopicPartition, Range]()
        gone: dict[TopicPartition, Cursor] = {}
        for tp in sorted(revoke):
            if (cursor := self._assignment.pop(tp, None)) is None:
                continue
            gone[tp] = cursor
            self._note_lost(cursor)
            cursor.end_assignment()
            self._observers.discarded(cursor)
            if (handed_out := cursor.handed_out) is None:
                continue
            if is_unbroken and tp in wanted:
                kept[tp] = handed_out
            else:
                earlier[tp] = joined(earlier.get(tp), handed_out)
        for tp in sorted(wanted - self._assignment.keys()):
            cursor = self._assignment[tp] = Cursor(tp, kept.get(tp), topic_ids.get(tp, b""))
            if tp in gone:
                if gone[tp].keeps_pause:
                    cursor.pause()
                if is_unbroken:
                    self._carry_over(gone[tp], cursor)
        for cursor in gone.values():
            if cursor.progress is not None:
                cursor.progress.interrupt(cursor.finished_epoch(cursor.progress))
        self._taken = (self._taken | gone.keys()) - wanted
        self._reads.forget(gone.values())
        self._observers.assignment_changed()

    def _note_lost(self, cursor: Cursor) -> None:
        if (end := cursor.returned_to()) is not None and cursor.has_uncommitted(end):
            self.lost_in_hand[cursor.tp] = cursor

    def _carry_over(self, old: Cursor, new: Cursor) -> None:
        if old.keeps_position:
            if old.position is not None:
                self.start_at(new, old.position)
            elif old.search is not None and old.search.timestamp is not None:
                self.request_reset(new, old.search.timestamp)
            if self._reads.is_in_hand(old):
                # The records returned before are processed by the next read, and no earlier.
                new.process_to(None)
                self._reads.replace(old, new)
        new.await_outcomes_of(old)

    # --- One partition --------------------------------------------------------------------
    @contextmanager
    def _without_records(self, partition: Cursor) -> Iterator[None]:
        """Drop a partition's buffered records, and notify of a change in the block."""
        self._reads.settle()
        self._observers.discarded(partition)
        yield
        self._observers.partition_changed(partition)

    def seek(self, partition: Cursor, offset: int) -> None:
        """Move the position. The latest returned records stay unprocessed until the next read."""
        self.start_at(partition, offset, is_asked_for=True)
        partition.keep_sought()

    def seek_to_committed(self, partition: Cursor, committed: CommittedOffset) -> None:
        self.start_at(partition, committed.offset, committed.leader_epoch, is_asked_for=True)
        partition.keep_sought(is_committed=True)
        finished = decode(partition.topic_id, committed.offset, committed.metadata)
        if finished is not None:
            self.start_behind(partition, finished.ranges, finished.leader_epoch)
        self._compare_with_leader(partition)

    def skip_to(self, partition: Cursor, offset: int) -> None:
        self.start_at(partition, offset, partition.leader_epoch, partition.validated_epoch)

    def return_to(self, cursor: Cursor, offset: int) -> None:
        """Return records again from an offset on, if the log still has those before it."""
        self.start_at(cursor, offset, cursor.epoch_before(offset))
        self._compare_with_leader(cursor)

    def _compare_with_leader(self, cursor: Cursor) -> None:
        if cursor.needs_validation(cursor.current_epoch):
            self.request_validation(cursor)

    def start_at(
        self,
        partition: Cursor,
        offset: int,
        leader_epoch: int = NO_EPOCH,
        validated_epoch: int = NO_EPOCH,
        *,
        is_asked_for: bool = False,
    ) -> None:
        """Set a position that was found, or `is_asked_for` and returns finished records, too."""
        with self._without_records(partition):
            search = partition.search
            if not is_asked_for and search is not None and search.is_first:
                partition.forget_undecided()
            is_sought = is_asked_for or (search is not None and search.is_asked_for)
            if is_sought:
                partition.note_sought(offset)
            if partition.progress is not None and is_sought:
                partition.progress.return_from(offset)
            elif partition.progress is not None:
                partition.progress.go_back_to(offset)
            is_in_work = self._reads.is_in_hand(partition)
            partition.start_at(offset, leader_epoch, validated_epoch, is_in_work=is_in_work)
            self._reads.settle_progress(partition)

    def request_reset(self, partition: Cursor, timestamp: int, *, reason: str = "") -> None:
        """Look up a position by ListOffsets. A `reason` is reported; "": the application asked."""
        with self._without_records(partition):
            if reason and partition.search is not None and partition.search.is_first:
                partition.forget_undecided()
            partition.await_reset(timestamp, reason)

    def replace_log(self, partition: Cursor, topic_id: bytes) -> None:
        """Forget the log of a recreated topic, and the position until `request_reset` or `seek`."""
        with self._without_records(partition):
            self._note_lost(partition)
            tp, former = partition.tp, self._of_former_logs
            for handed_out in (self._handed_out_earlier.pop(tp, None), partition.handed_out):
                if handed_out is not None:
                    former[tp] = joined(former.get(tp), handed_out)
            partition.forget_log(topic_id)

    def return_to_committed(self, cursors: Iterable[Cursor]) -> None:
        """Read from the committed offsets again, because a commit's outcome is unknown."""
        for cursor in cursors:
            if cursor.is_assigned:
                with self._without_records(cursor):
                    cursor.await_committed()

    def forget_before_seek(self, cursors: Iterable[Cursor]) -> None:
        """Do not return records before a sought position again: a commit's outcome is unknown."""
        for cursor in cursors:
            if cursor.is_assigned:
                cursor.forget_before_seek()
                self._reads.settle_progress(cursor)

    def request_validation(self, partition: Cursor, *, is_start: bool = False) -> None:
        """Fetch no more until the leader's log confirms position and finished ranges (KIP-320).

        `is_start`: the application has not seen the position, which is found only then.
        """
        with self._without_records(partition):
            partition.await_validation(is_start=is_start)

    def forget_epochs(self, partition: Cursor, void_epoch: int) -> None:
        """Fetch from the position again, and forget finished ranges, which cannot be validated."""
        with self._without_records(partition):
            partition.forget_epochs(void_epoch)
            partition.refetch()

    def verify_ahead(self, partition: Cursor, epoch_end: int | None, leader_epoch: int) -> None:
        if partition.progress is not None:
            partition.progress.verify_ahead(epoch_end, leader_epoch)

    def validated(self, partition: Cursor, leader_epoch: int) -> None:
        partition.validated(leader_epoch)
        self._observers.partition_changed(partition)

    def release(self, partition: Cursor) -> None:
        partition.release()
        self._observers.partition_changed(partition)

    def refetch(self, partition: Cursor) -> None:
        with self._without_records(partition):
            partition.refetch()

    def pause(self, partition: Cursor) -> None:
        self._reads.settle()
        partition.pause()
        self._observers.partition_changed(partition)

    def resume(self, partition: Cursor) -> None:
        partition.resume()
        self._observers.partition_changed(partition)

    def start_behind(self, cursor: Cursor, ahead: Iterable[Range], leader_epoch: int) -> None:
        if cursor.progress is None:
            cursor.track(Progress(ahead, leader_epoch))
        else:
            cursor.progress.look_ahead(ahead, leader_epoch)

    def _is_of_before(
        self, before: Mapping[TopicPartition, Range], tp: TopicPartition, offset: int
    ) -> bool:
        """Whether an offset follows a record of `before`, unless this assignment has reached it."""
        earlier, partition = before.get(tp), self._assignment.get(tp)
        if earlier is None or not earlier.first < offset <= earlier.end:
            return False
        self._reads.settle()
        if partition is None or partition.position == offset:
            return partition is None
        present = partition.handed_out
        return present is None or not present.first <= offset <= present.end

    def _subscription_changed(self) -> None:
        self.subscription_version += 1
        self._observers.subscription_changed()

    # --- Subscription ---------------------------------------------------------------------
    @property
    def subscription(self) -> frozenset[str] | None:
        return self._topics

    @property
    def is_subscribed(self) -> bool:
        return self.mode in (SubscriptionMode.TOPICS, SubscriptionMode.PATTERN)

    def _require_mode(self, mode: SubscriptionMode) -> None:
        if self.mode not in (SubscriptionMode.NONE, mode):
            raise IllegalStateError(
                "subscribe(topics), subscribe(pattern=...) and assign() exclude each other: "
                "call unsubscribe() first"
            )

    def subscribe(
        self, topics: Iterable[str], listener: ConsumerRebalanceListener | None = None
    ) -> None:
        """Subscribe to topics instead of the earlier ones, whose records are withheld."""
        self._require_mode(SubscriptionMode.TOPICS)
        self.mode = SubscriptionMode.TOPICS
        self.listener = listener
        self._named = frozenset(topics)
        self._topics = wanted = self._named | self._complete_topics
        self.withhold(tp for tp in self._assignment if tp.topic not in wanted)
        self._subscription_changed()

    def add_complete_topics(self, topics: frozenset[str]) -> None:
        """Subscribe to further topics until they are removed, and read them from their beginning.

        Raises:
            IllegalStateError: No topics are subscribed, or a pattern that does not match these.
        """
        if not self.is_subscribed:
            raise IllegalStateError("further topics need a consumer that is subscribed to topics")
        if self.pattern is not None and not all(map(self.pattern.match, topics)):
            raise IllegalStateError(
                f"the subscribed pattern {self.pattern.pattern!r} has to match the topics "
                f"{', '.join(sorted(topics))}, too"
            )
        self._complete_topics |= topics
        if self.pattern is None and not topics <= self._named:
            self.subscribe(self._named, self.listener)

    @property
    def has_complete_topics(self) -> bool:
        return bool(self._complete_topics)

    def remove_complete_topics(self) -> None:
        added, self._complete_topics = self._complete_topics, frozenset()
        if self.mode is SubscriptionMode.TOPICS and not added <= self._named:
            self.subscribe(self._named, self.listener)

    def reset_timestamp(self, tp: TopicPartition, by_config: int | None) -> int | None:
        """Return where a position without a committed offset starts. None: that is an error."""
        return EARLIEST if tp.topic in self._complete_topics else by_config

    def subscribe_pattern(
        self, pattern: re.Pattern[str], listener: ConsumerRebalanceListener | None = None
    ) -> None:
        self._require_mode(SubscriptionMode.PATTERN)
        self.mode = SubscriptionMode.PATTERN
        self.listener = listener
        self.pattern = pattern
        self._topics = frozenset()
        self.withhold(tp for tp in self._assignment if not pattern.match(tp.topic))
        self._subscription_changed()

    def set_matched_topics(self, topics: Iterable[str]) -> bool:
        matched = frozenset(topics)
        if self.mode is not SubscriptionMode.PATTERN or matched == self._topics:
            return False
        self._topics = matched
        self._subscription_changed()
        return True

    def match_pattern(self, view: ClusterView, *, exclude_internal_topics: bool) -> None:
        if (pattern := self.pattern) is not None:
            self.set_matched_topics(
                name
                for name, topic in view.topics.items()
                if pattern.match(name) and not (topic.is_internal and exclude_internal_topics)
            )

    def watch_topics(self, cluster: Cluster) -> None:
        is_pattern = self.mode is SubscriptionMode.PATTERN
        cluster.watch(SUBSCRIPTION, None if is_pattern else self.topics)

    def unsubscribe(self) -> None:
        """Forget subscription and assignment. Commit as at a clean stop, without open batches."""
        self._depart(self._assignment.keys())
        self.mode = SubscriptionMode.NONE
        self.pattern = None
        self.listener = None
        self._topics = None
        self.change(self._assignment, ())
        self._taken.clear()
        self._subscription_changed()
        self.unsubscribed_version = self.subscription_version

    def subscribes_any(self, partitions: Iterable[TopicPartition]) -> bool:
        if self.pattern is not None:
            return any(self.pattern.match(tp.topic) for tp in partitions)
        topics = self._topics or ()
        return any(tp.topic in topics for tp in partitions)

    @property
    def topics(self) -> set[str]:
        return {*(self._topics or ()), *(tp.topic for tp in self._assignment)}

    def assign_from_user(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign exactly these partitions. Partitions that stay keep their position."""
        self._require_mode(SubscriptionMode.ASSIGNED)
        self.mode = SubscriptionMode.ASSIGNED
        wanted = frozenset(partitions)
        gone = self._assignment.keys() - wanted
        self._depart(gone)
        self.change(gone, wanted)
        self._taken.clear()
        self._subscription_changed()

    def add_from_user(self, partitions: Iterable[TopicPartition]) -> None:
        self.assign_from_user(self._assignment.keys() | frozenset(partitions))

    def remove_from_user(self, partitions: Iterable[TopicPartition]) -> None:
        gone = dict.fromkeys(partitions)
        for tp in gone:
            self.partition(tp)
        self.assign_from_user(self._assignment.keys() - gone.keys())

    def _depart(self, gone: Set[TopicPartition]) -> None:
        if gone:
            self._observers.departed(Departure(frozenset(gone), self.listener))

    def refuse_former_records(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Raise CommitFailedError for offsets of an earlier assignment or a recreated topic."""
        for tp, (offset, _) in offsets.items():
            if self._is_of_before(self._of_former_logs, tp, offset):
                raise of_another_log(f"offset {offset} of {tp}")
            is_shared = self.mode is not SubscriptionMode.ASSIGNED
            if is_shared and self._is_of_before(self._handed_out_earlier, tp, offset):
                raise CommitFailedError(
                    f"cannot commit offset {offset} of {tp}: its records were returned "
                    "under an earlier assignment, and another member may have owned the partition "
                    "since. To commit the offset anyway, first seek to the offset"
                )


def of_another_log(what: str) -> CommitFailedError:
    return CommitFailedError(
        f"{what} cannot be committed: the topic was deleted and recreated since its records "
        "were read, and offsets of the old topic are invalid in the new topic. To commit "
        "an offset anyway, first seek to that offset"
    )


class Placement(NamedTuple):
    # By partition.
    replicas: Sequence[tuple[int, ...]]
    # Of all known nodes, None if unknown.
    racks: Mapping[int, str | None]

    def racks_of(self, replicas: Iterable[int]) -> set[str | None]:
        return {self.racks.get(node) for node in replicas} - {None}


class SharedOut(NamedTuple):
    """The topics as a group's leader knew them when it computed the assignment."""

    # How many partitions each topic had, 0 for those that were not known.
    counts: Mapping[str, int] = MappingProxyType({})
    # Empty if racks make no difference.
    placements: Mapping[str, Placement] = MappingProxyType({})


def known_of(view: ClusterView, topics: Iterable[str], *, with_racks: bool) -> SharedOut:
    names = sorted(topics)
    return SharedOut(
        {name: _count(view, name) for name in names},
        {name: _placement(view, name) for name in names} if with_racks else {},
    )


def have_changed(shared_out: SharedOut, view: ClusterView) -> bool:
    """Whether partitions were added, removed or moved to other racks since the assignment.

    Missing metadata, and missing racks, count as unchanged. A topic called unknown was deleted.
    """
    for topic, count in shared_out.counts.items():
        now = _count(view, topic)
        if now == count:
            continue
        known = view.topics.get(topic)
        if now or (known is not None and known.error is UnknownTopicOrPartitionError):
            return True
    return any(
        _have_moved(before, _placement(view, topic))
        for topic, before in shared_out.placements.items()
    )


def _count(view: ClusterView, topic: str) -> int:
    known = view.topics.get(topic)
    return 0 if known is None else len(known.partitions)


def _placement(view: ClusterView, topic: str) -> Placement:
    known = view.topics.get(topic)
    partitions = () if known is None else known.partitions.values()
    racks = {node.id: node.rack or None for node in view.nodes.values()}
    return Placement([partition.replicas for partition in partitions], racks)


def _have_moved(before: Placement, now: Placement) -> bool:
    """Whether some partition is in other racks; of 100,000 the usual answer takes some 5 ms."""
    pairs: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
    if now.replicas != before.replicas:  # an empty list means unknown
        both = zip(before.replicas, now.replicas, strict=False)
        pairs = {pair for pair in both if pair[0] != pair[1]}
    if moved := {node for node, _ in now.racks.items() - before.racks.items()}:
        on_moved = {each for each in set(now.replicas) if not moved.isdisjoint(each)}
        if on_moved:
            pairs |= {(each, each) for each in on_moved.intersection(before.replicas)}
    # An answer about a coordinator adds a node without its rack.
    known = {node for node, rack in now.racks.items() if rack or not before.racks.get(node)}
    return any(
        known >= set(replicas) and now.racks_of(replicas) != before.racks_of(were)
        for were, replicas in pairs
    )
