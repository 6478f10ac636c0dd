"""Holds the assignment of a consumer: one cursor per partition.

cursor.py lists the writer of each field.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from aiokafka_lite.consumer.assignment.cursor import NO_EPOCH, Cursor, Range, joined
from aiokafka_lite.consumer.assignment.finished_ranges import decode
from aiokafka_lite.consumer.assignment.observers import Observers
from aiokafka_lite.consumer.assignment.progress import Progress
from aiokafka_lite.consumer.assignment.reads import Reads
from aiokafka_lite.errors import IllegalStateError
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition


class Assignment:
    def __init__(self, observers: Observers, reads: Reads) -> None:
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
        assignment is unbroken, from the new position.

        Args:
            revoke: Those that are not assigned are ignored.
            assign: Those that are assigned and not revoked are ignored.
            topic_ids: Of partitions that are assigned by topic id.
            is_unbroken: No other member can have had the partitions that are in both sets.
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
        """Move the position for the application, and drop buffered and requested records.

        The latest returned records stay unprocessed until the next read.
        """
        self.start_at(partition, offset, is_asked_for=True)
        partition.keep_sought()

    def seek_to_committed(self, partition: Cursor, committed: OffsetAndMetadata) -> None:
        self.start_at(partition, committed.offset, is_asked_for=True)
        partition.keep_sought(is_committed=True)
        finished = decode(partition.topic_id, *committed)
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
        """Set a position that was requested or looked up; see `Cursor.start_at`.

        `is_asked_for`: the application did so, and records that were finished before are returned,
        too.
        """
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
        """Look up a new position by ListOffsets with `timestamp`.

        An event reports the `reason`, if there is one. Otherwise the application requested it.
        """
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
        """Read from the committed offsets again, because a commit's outcome is unknown.

        Records being processed cannot be finished any more.
        """
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

    def request_validation(self, partition: Cursor) -> None:
        """Fetch no more until the leader's log confirms position and finished ranges (KIP-320).

        Buffered records may be of a truncated log.
        """
        with self._without_records(partition):
            partition.await_validation()

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

    def is_of_former_log(self, tp: TopicPartition, offset: int) -> bool:
        """Whether an offset can only mean records of the topic before it was recreated."""
        return self._is_of_before(self._of_former_logs, tp, offset)

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
