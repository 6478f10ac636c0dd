"""Holds what is assigned to a consumer: one cursor a partition, and what gets have taken of them.

Whoever decides what is assigned calls `Assignment.change` with what goes and what comes; the rest
is not touched. Others ask for changes of one partition by the methods here, and hear of them as
observers (observers.py). cursor.py says who writes which field of a cursor.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Final, TypeVar

from aiokafka_lite._transaction import BegunTransaction
from aiokafka_lite.consumer.assignment.cursor import (
    NO_EPOCH,
    Cursor,
    Epochs,
    Range,
    joined,
)
from aiokafka_lite.consumer.assignment.delivery import DeliveredRecords, Enlisted
from aiokafka_lite.consumer.assignment.finished_ranges import (
    LEAST_CHARACTERS,
    MOST_CHARACTERS,
    decode,
    encode_what_fits,
)
from aiokafka_lite.consumer.assignment.observers import Observers
from aiokafka_lite.consumer.assignment.progress import Progress
from aiokafka_lite.consumer.assignment.reads import Reads
from aiokafka_lite.consumer.assignment.work import Processing, Work
from aiokafka_lite.errors import IllegalStateError
from aiokafka_lite.structs import ConsumerRecord, OffsetAndMetadata, TopicPartition

log = logging.getLogger(__name__)

HolderT = TypeVar("HolderT")

PROCESSING_TOTALS: Final = ("finished_total", "failed_total", "dead_total", "passed_over_total")


class Assignment:
    """The cursors of one consumer.

    Plain data changed synchronously on the event loop; nothing waits.

    Args:
        observers: Told of changes.
        reads: Know what was handed out of them last.
    """

    __slots__ = (
        "_assignment",
        "_handed_out_earlier",
        "_lost_in_hand",
        "_of_former_logs",
        "_reads",
        "_run_failure",
        "_taken",
        "most_metadata",
        "observers",
        "processing_totals",
        "works",
    )

    def __init__(self, observers: Observers, reads: Reads) -> None:
        self.observers = observers
        self._reads = reads
        self._assignment: dict[TopicPartition, Cursor] = {}
        # What was assigned and is not any more, though the application has not said so.
        self._taken: set[TopicPartition] = set()
        # What was handed out of partitions before another member may have had them.
        self._handed_out_earlier: dict[TopicPartition, Range] = {}
        # What was taken away though the application was still at work on it, as far as is known.
        self._lost_in_hand: dict[TopicPartition, Cursor] = {}
        # What was handed out of topics that were recreated since.
        self._of_former_logs: dict[TopicPartition, Range] = {}
        # What says itself when its records are finished.
        self.works: list[Work] = []
        # What all of these together have done since the consumer was made; they count.
        self.processing_totals = dict.fromkeys(PROCESSING_TOTALS, 0)
        # Characters of metadata that brokers take with a commit.
        self.most_metadata = MOST_CHARACTERS
        # What ended the latest run, and how much had been handed out by then.
        self._run_failure: tuple[BaseException, int] | None = None

    # --- What is assigned ------------------------------------------------------------------
    @property
    def assignment(self) -> Mapping[TopicPartition, Cursor]:
        """The partitions assigned, by topic and number."""
        return self._assignment

    def partition(self, tp: TopicPartition) -> Cursor:
        """Return the state of an assigned partition.

        Raises:
            IllegalStateError: It is not assigned to this consumer.
        """
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
        """Check that a partition is assigned, or was so until a rebalance took it away.

        Raises:
            IllegalStateError: It never was, or the application has given it up.
        """
        if tp not in self._taken:
            self.partition(tp)

    def has_lost_any(self, named: Collection[TopicPartition]) -> bool:
        """Whether a rebalance took away one of these partitions; of all, where none is named."""
        if named:
            return not self._taken.isdisjoint(named)
        return bool(self._taken) and not self._assignment

    def has_any(self, wanted: Collection[TopicPartition]) -> bool:
        """Whether one of these partitions is assigned; none named stands for all there may be."""
        return not wanted or any(tp in self._assignment for tp in wanted)

    def begin_revocation(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch and hand out nothing more of partitions: what is buffered of them is dropped.

        They stay assigned, with positions to commit and to show to callbacks, until `change`.
        """
        for tp in tuple(partitions):
            cursor = self._assignment[tp]
            cursor.begin_revocation()
            self.refetch(cursor)

    def withhold(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch and hand out nothing of new partitions until `keep`: a listener is told first.

        It may seek and pause them meanwhile.
        """
        self.begin_revocation(partitions)

    def change(
        self,
        revoke: Iterable[TopicPartition],
        assign: Iterable[TopicPartition],
        *,
        topic_ids: Mapping[TopicPartition, bytes] = MappingProxyType({}),
        is_unbroken: bool = False,
    ) -> None:
        """Take partitions away and assign others; what is named in neither stays as it is.

        What stays keeps its position, what is buffered of it and whether it is paused, and is
        fetched all the while. What is assigned starts from its committed offset. So does one
        that is in both. But the application may have moved or paused it since its revocation
        began: then it starts paused, and from there unless somebody else can have had it.

        Args:
            revoke: Partitions that are not assigned are ignored.
            assign: Partitions that are assigned, and are not revoked, are ignored.
            topic_ids: Of those that are assigned by the ids of their topics.
            is_unbroken: Nobody else can have had, in between, what is in both.
        """
        self._reads.settle()
        wanted = frozenset(assign)
        earlier, kept = self._handed_out_earlier, dict[TopicPartition, Range]()
        gone: dict[TopicPartition, Cursor] = {}
        for tp in tuple(revoke):
            if (cursor := self._assignment.pop(tp, None)) is None:
                continue
            gone[tp] = cursor
            self._note_lost(cursor)
            cursor.end_assignment()
            self.observers.discarded(cursor)
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
        self.observers.assignment_changed()

    def _note_lost(self, cursor: Cursor) -> None:
        """Note that what the application is at work on is taken away, as far as is known."""
        if (end := cursor.handed_out_to) is not None and cursor.has_uncommitted(end):
            self._lost_in_hand[cursor.tp] = cursor

    def _carry_over(self, old: Cursor, new: Cursor) -> None:
        """Apply to a partition that comes back a seek of the application in the meantime.

        The transactions that are open go on to decide on its records.
        """
        if old.keeps_position:
            if old.position is not None:
                self.start_at(new, old.position)
            elif old.search is not None and old.search.timestamp is not None:
                self.request_reset(new, old.search.timestamp)
            if self._reads.is_in_hand(old):
                # What was handed out before is in work: nothing is processed until the next get.
                new.process_to(None)
                self._reads.replace(old, new)
        new.await_outcomes_of(old)

    # --- One partition --------------------------------------------------------------------
    def seek(self, partition: Cursor, offset: int) -> None:
        """Move the position, as the application asks; what is buffered or on its way is dropped.

        What the latest get handed out stays unprocessed: the next one tells that it is done.
        """
        self.start_at(partition, offset, is_asked_for=True)
        partition.keep_sought()

    def seek_to_committed(self, partition: Cursor, committed: OffsetAndMetadata) -> None:
        """Move the position to a committed offset, and pass over the records finished behind it."""
        self.start_at(partition, committed.offset, is_asked_for=True)
        partition.keep_sought(is_committed=True)
        finished = decode(partition.topic_id, *committed)
        if finished is not None:
            self.start_behind(partition, finished.ranges, finished.leader_epoch)
            self._compare_with_leader(partition)

    def skip_to(self, partition: Cursor, offset: int) -> None:
        """Move the position behind a record that cannot be returned; what is finished stays so."""
        self.start_at(partition, offset, partition.leader_epoch, partition.validated_epoch)

    def _return_to(self, cursor: Cursor, offset: int) -> None:
        """Have records returned again from an offset on, if the log has what lies before them."""
        self.start_at(cursor, offset, cursor.epoch_before(offset))
        self._compare_with_leader(cursor)

    def _compare_with_leader(self, cursor: Cursor) -> None:
        """Have the leader asked for what was returned or finished before it was the leader."""
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
        """Set a position that was asked for or looked up; otherwise as `seek`.

        Args:
            partition: Whose.
            offset: Of the next record to hand out.
            leader_epoch: Of the record before it, where that is known.
            validated_epoch: The leader epoch in which it is known to be good.
            is_asked_for: By the application, as is one that was looked up for it: then all records
                from there on are returned, also those that were finished before.
        """
        self._reads.settle()
        self.observers.discarded(partition)
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
        self.observers.partition_changed(partition)

    def request_reset(self, partition: Cursor, timestamp: int, *, reason: str = "") -> None:
        """Give up the position, and look it up by ListOffsets with `timestamp`.

        An event will tell of it, unless `reason` is empty because the application asked for it.
        """
        self._reads.settle()
        self.observers.discarded(partition)
        if reason and partition.search is not None and partition.search.is_first:
            partition.forget_undecided()
        partition.await_reset(timestamp, reason)
        self.observers.partition_changed(partition)

    def replace_log(self, partition: Cursor, topic_id: bytes) -> None:
        """Forget all that is known of a partition's log: another topic has its topic's name.

        Its position is unknown then, until one is asked for by `request_reset` or `seek`.
        """
        self._reads.settle()
        self.observers.discarded(partition)
        self._note_lost(partition)
        tp, former = partition.tp, self._of_former_logs
        for handed_out in (self._handed_out_earlier.pop(tp, None), partition.handed_out):
            if handed_out is not None:
                former[tp] = joined(former.get(tp), handed_out)
        partition.forget_log(topic_id)
        self.observers.partition_changed(partition)

    def return_to_committed(self, cursors: Iterable[Cursor]) -> None:
        """Read partitions from their committed offsets again: it is not known what was committed.

        What is in hand of them is finished by nobody.
        """
        self._reads.settle()
        for cursor in cursors:
            if cursor.is_assigned:
                self.observers.discarded(cursor)
                cursor.await_committed()
                self.observers.partition_changed(cursor)

    def forget_before_seek(self, cursors: Iterable[Cursor]) -> None:
        """Take from its holders what lies before where the application has moved partitions.

        It is not known what of that was committed: none of it is returned again.
        """
        for cursor in cursors:
            if cursor.is_assigned:
                cursor.forget_before_seek()
                self._reads.settle_progress(cursor)

    def request_validation(self, partition: Cursor) -> None:
        """Fetch nothing more until the position was compared with the leader's log (KIP-320).

        So is what was finished behind the position. What is buffered is dropped: it may be of a
        log that is no more.
        """
        self._reads.settle()
        self.observers.discarded(partition)
        partition.await_validation()
        self.observers.partition_changed(partition)

    def forget_epochs(self, partition: Cursor, void_epoch: int) -> None:
        """Fetch from the position again, whatever leader epoch the records before it are of.

        What was finished behind the position is forgotten: nobody can tell whether the log has it.
        """
        self._reads.settle()
        self.observers.discarded(partition)
        partition.forget_epochs(void_epoch)
        partition.refetch()
        self.observers.partition_changed(partition)

    def verify_ahead(self, partition: Cursor, epoch_end: int | None, leader_epoch: int) -> None:
        """Keep what was finished behind the position as far as the log of that epoch has it.

        Args:
            partition: Whose position is being compared with the leader's log.
            epoch_end: Where `newest_epoch` ends in that log; None: it has no records of it.
            leader_epoch: Of that leader.
        """
        if partition.progress is not None:
            partition.progress.verify_ahead(epoch_end, leader_epoch)

    def validated(self, partition: Cursor, leader_epoch: int) -> None:
        """Go on from the position: the log of that leader epoch has what was read before."""
        partition.validated(leader_epoch)
        self.observers.partition_changed(partition)

    def keep(self, partition: Cursor) -> None:
        """Fetch and hand out a partition that is not given back after all."""
        partition.keep()
        self.observers.partition_changed(partition)

    def refetch(self, partition: Cursor) -> None:
        """Drop what is buffered and on its way, and fetch from the position again."""
        self._reads.settle()
        self.observers.discarded(partition)
        partition.refetch()
        self.observers.partition_changed(partition)

    def pause(self, partition: Cursor) -> None:
        """Stop fetching and handing out; what is buffered stays for `resume`."""
        self._reads.settle()
        partition.pause()
        self.observers.partition_changed(partition)

    def resume(self, partition: Cursor) -> None:
        """Fetch and hand out again."""
        partition.resume()
        self.observers.partition_changed(partition)

    # --- What was handed out --------------------------------------------------------------
    def being_processed(self) -> dict[TopicPartition, Range]:
        """Return the offsets of the latest get and of all works, by partition."""
        self._reads.settle()
        found = {
            partition.tp: Range(partition.processed, partition.position)
            for partition in self._reads.latest
            if partition.processed is not None and partition.position is not None
        }
        for work in self.works:
            found |= work.undone(self._assignment)
        return found

    def unfinished(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Range]:
        """Return what the application still works on, of these partitions.

        That is what the latest get handed out, or with several readers the latest of each, what
        is in works, less what the application has committed itself, and what is in transactions.
        """
        self._reads.settle()
        wanted = frozenset(partitions)
        found = self.undecided(wanted)
        for work in self.works:
            found |= work.undone(wanted)
        for tp in wanted - found.keys():
            cursor = self._assignment.get(tp)
            if cursor is None or cursor.position is None or cursor.worked_by is not None:
                continue
            if self._reads.readers is not None:
                if (at_work := self._reads.readers.awaited(cursor)) is not None:
                    found[tp] = at_work
                continue
            done = cursor.processed if cursor in self._reads.latest else None
            if done is not None and done < cursor.position:
                found[tp] = Range(done, cursor.position)
        return found

    def start_to_commit(self, cursor: Cursor, start: int) -> OffsetAndMetadata | None:
        """Return a start that a search found, with what is finished behind it.

        None: the application may still work on records before it that are not committed.
        """
        self._reads.settle()
        is_open = self._reads.is_in_hand(cursor) or cursor.decided_to(start) < start
        if is_open and cursor.has_uncommitted(start):
            return None
        progress = cursor.progress
        return self.to_commit(cursor, start, progress and progress.if_gone_back_to(start))

    def undecided(
        self,
        partitions: Iterable[TopicPartition],
        besides: BegunTransaction | None = None,
    ) -> dict[TopicPartition, Range]:
        """Return what open transactions decide on of partitions, but for one of them."""
        found: dict[TopicPartition, Range] = {}
        for tp in partitions:
            cursor = self._assignment.get(tp)
            if cursor is not None and cursor.undecided and cursor.position is not None:
                decided = cursor.decided_to(cursor.position, besides)
                if decided < cursor.position:
                    found[tp] = Range(decided, cursor.position)
        return found

    def processed_offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what auto-commit may commit: all handed out before the latest get.

        What an open transaction decides on is not.
        """
        self._reads.settle()
        return {
            tp: self._decided(partition, partition.processed)
            for tp, partition in self._assignment.items()
            if partition.processed is not None
        }

    def _decided(self, cursor: Cursor, offset: int) -> OffsetAndMetadata:
        """Return what to commit of what lies before an offset, less what transactions decide on."""
        return self.to_commit(cursor, cursor.decided_to(offset), cursor.progress)

    def offset_if_finished(
        self, cursor: Cursor, records: Set[int]
    ) -> tuple[OffsetAndMetadata, bool]:
        """Return what may be committed of a partition if these records were finished, too.

        Returns:
            That, and whether its metadata say of all that is finished behind the offset.
        """
        if cursor.progress is None or cursor.handed_out_to is None:
            raise IllegalStateError(
                f"cannot commit an offset of {cursor.tp}, because no records of this partition "
                "have been returned yet"
            )
        progress = cursor.progress.if_finished(records)
        first = progress.first_unfinished
        offset = cursor.handed_out_to if first is None else first
        return self._with_metadata(cursor, offset, progress)

    def _with_metadata(
        self, cursor: Cursor, offset: int, progress: Progress
    ) -> tuple[OffsetAndMetadata, bool]:
        """Return an offset with what is finished behind it, and whether the metadata say all."""
        epoch = cursor.finished_epoch(progress)
        ranges = progress.finished_ranges(offset)
        metadata, is_all = encode_what_fits(
            cursor.topic_id, offset, epoch, ranges, self.most_metadata
        )
        return OffsetAndMetadata(offset, metadata), is_all

    def to_commit(
        self, cursor: Cursor, offset: int, progress: Progress | None
    ) -> OffsetAndMetadata:
        if progress is None:
            return OffsetAndMetadata(offset, "")
        return self._with_metadata(cursor, offset, progress)[0]

    def limit_metadata(self, refused: int) -> None:
        """Write shorter metadata from now on: the broker has refused so many characters."""
        if refused > self.most_metadata:
            return  # they were made before the limit was known
        half = refused // 2
        self.most_metadata = half if half >= LEAST_CHARACTERS else 0
        log.warning(
            "the brokers reject commit metadata of %d characters (offset.metadata.max.bytes), so "
            "commits have at most %d characters of metadata from now on. The metadata lists the "
            "records that finished out of order. Records that do not fit are processed again "
            "after a rebalance or a crash",
            refused,
            self.most_metadata,
        )

    def handed_out_offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the positions."""
        self._reads.settle()
        return {
            tp: self.to_commit(partition, offset, partition.progress)
            for tp, partition in self._assignment.items()
            if (offset := self._handed_out_and_done(partition)) is not None
        }

    def offsets_to_commit(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what commit() commits: the positions, less what open transactions decide on."""
        return {
            tp: self._decided(self._assignment[tp], offset.offset)
            if self._assignment[tp].undecided
            else offset
            for tp, offset in self.handed_out_offsets().items()
        }

    def _handed_out_and_done(self, partition: Cursor) -> int | None:
        """Return the position; of what handlers work on, the first offset that is not finished."""
        processing = self._reads.processing
        is_processed = processing is not None and partition.worked_by is processing
        return partition.processed if is_processed else partition.position

    def finished_offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what a clean stop commits: as commit(), but nothing of what is in works."""
        offsets = self.offsets_to_commit()
        for tp, partition in self._assignment.items():
            if (
                tp in offsets
                and partition.processed is not None
                and partition.worked_by is not None
            ):
                offsets[tp] = self._decided(partition, partition.processed)
        return offsets

    def note_finished(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Count as processed what the application itself commits, whatever comes of that commit."""
        self._reads.settle()
        for tp, offset in offsets.items():
            partition = self._assignment[tp]
            done, position = partition.processed, partition.position
            if done is not None and position is not None and done < offset.offset <= position:
                if partition.progress is not None:
                    partition.progress.finish_before(offset.offset)
                partition.process_to(offset.offset)
                if self._reads.readers is not None:
                    self._reads.readers.finish_before(partition, offset.offset)
                    self._reads.release([partition])
                self._reads.settle_progress(partition)

    def finish_named(
        self, offsets: dict[TopicPartition, OffsetAndMetadata]
    ) -> tuple[dict[TopicPartition, OffsetAndMetadata], set[TopicPartition]]:
        """Count as processed what the application commits by name.

        In `consumer.run` other handlers have records before the offset, and queued ones have none
        yet. So it finishes the records of the current task, and what is finished is committed.

        Returns:
            What is to be committed, and the partitions of which that is exactly what was named. Of
            the others it is what is finished by then.

        Raises:
            IllegalStateError: `run` goes on, and it would finish records of other handlers.
        """
        processing = self._reads.processing
        own = None if processing is None else processing.own_records()
        if own is None:
            self.note_finished(offsets)
            exact = {tp for tp, offset in offsets.items() if not self._is_as_finished(tp, offset)}
            for tp in offsets.keys() - exact:
                cursor = self._assignment[tp]
                offsets[tp] = self.to_commit(cursor, offsets[tp].offset, cursor.progress)
            return offsets, exact
        for tp, (offset, metadata) in offsets.items():
            records = own.get(self._assignment[tp])
            if not records:
                raise IllegalStateError(
                    f"during run(), only a handler that processes a record of {tp} may commit an "
                    f"offset of {tp}, because run() itself commits the offsets of finished records"
                )
            if offset > (end := max(records) + 1):
                raise IllegalStateError(
                    "during run(), a handler may commit only its own records: commit at most "
                    f"offset {end} of {tp}, not offset {offset}"
                )
            if metadata:
                raise IllegalStateError(
                    f"run() uses the commit metadata of {tp} to list records that finished out of "
                    "order: call commit() without metadata"
                )
        for tp, (offset, _) in offsets.items():
            cursor = self._assignment[tp]
            for record, holder in own[cursor].items():
                if record < offset:
                    self.finish(cursor, record, holder)
            self.observers.partition_changed(cursor)
        finished = self.processed_offsets()
        return {tp: finished[tp] for tp in offsets if tp in finished}, set()

    def _is_as_finished(self, tp: TopicPartition, named: OffsetAndMetadata) -> bool:
        """Whether `commit()` would commit an offset that the application names, too.

        Then it says as much: what is finished behind it.
        """
        cursor = self._assignment[tp]
        if cursor.progress is None or named.metadata:
            return False
        first = cursor.progress.first_unfinished
        return named.offset == (cursor.handed_out_to if first is None else first)

    # --- Deliveries -----------------------------------------------------------------------
    def delivery(self) -> DeliveredRecords:
        """Return all that the application has in hand; it answers for what was taken away of that.

        Raises:
            IllegalOperation: Handlers of `run` are at work on it.
        """
        self._reads.settle()
        blocks = [each for each in self.works if isinstance(each, Enlisted)]
        if (processing := self._reads.processing) is not None:
            return DeliveredRecords(receipts=processing.receipts(), blocks=blocks)
        ends = {
            cursor: end
            for cursor in self._assignment.values()
            if (end := cursor.handed_out_to) is not None
        }
        return DeliveredRecords(ends, lost=self._lost_in_hand, blocks=blocks, is_all=True)

    def forget_lost(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that the application has heard that it lost partitions that it was at work on."""
        for tp in partitions:
            self._lost_in_hand.pop(tp, None)

    def finish_delivery(self, delivery: DeliveredRecords) -> None:
        """Note that a transaction has committed a delivery."""
        self._reads.settle()
        for cursor, end in delivery.ends.items():
            done, position = cursor.processed, cursor.handed_out_to
            if done is not None and position is not None and done < end <= position:
                cursor.process_to(end)
        for receipt in delivery.receipts:
            receipt.ack()
        self.observers.acted()

    def finish_offsets(
        self,
        cursors: Mapping[TopicPartition, Cursor],
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
    ) -> None:
        """Note that a transaction has committed these offsets of these cursors, by name."""
        found = {
            tp: offset
            for tp, offset in offsets.items()
            if tp in cursors and cursors[tp].is_assigned
        }
        processing = self._reads.processing
        if processing is None or processing.own_records() is None:
            self.note_finished(found)
        self.observers.acted()

    # --- Works ----------------------------------------------------------------------------
    def begin_work(self, work: Work, partitions: Iterable[TopicPartition]) -> dict[Cursor, Range]:
        """Give a work what a get has handed out, before anybody else runs.

        Whoever has got it is at work on that, and on nothing that a later get would finish.

        Returns:
            Its cursors, with the offsets of its records of each.
        """
        readers = self._reads.readers
        hand = None if readers is None else readers.hand_of(asyncio.current_task())
        spans: dict[Cursor, Range] = {}
        for tp in partitions:
            cursor = self._assignment[tp]
            assert cursor.position is not None  # noqa: S101 -- the read has just moved it
            first = cursor.processed
            if hand is not None and cursor in hand.ranges:  # others may have some before
                first = hand.ranges.pop(cursor).first
            spans[cursor] = Range(cursor.position if first is None else first, cursor.position)
            cursor.enter_work(work, is_enough=True)
        self.works.append(work)
        self._reads.keep_latest(lambda cursor: cursor.worked_by is None)
        return spans

    def end_work(
        self,
        work: Work,
        spans: Mapping[Cursor, Range],
        *,
        is_done: bool,
        moved: Collection[Cursor] = (),
    ) -> None:
        """Count what `begin_work` gave as processed, or have it handed out again.

        Where the application has moved the position since, it stays where that is.

        Args:
            work: Ends.
            spans: The offsets of its records.
            is_done: They are processed.
            moved: The application has moved these, if only to where they were.
        """
        self.works.remove(work)
        reads = self._reads
        for cursor, (first, end) in spans.items():
            cursor.leave_work()
            if self._lost_in_hand.get(cursor.tp) is cursor:
                del self._lost_in_hand[cursor.tp]
            if not cursor.is_assigned:
                continue
            if reads.readers is not None and reads.readers.first_of(cursor) is not None:
                reads.latest[cursor] = None
            if is_done:
                reads.release([cursor])
            elif (
                cursor.position == end
                and cursor not in moved
                and cursor.processed not in (None, end)
            ):
                self._return_to(cursor, max(first, cursor.processed))
            self.observers.partition_changed(cursor)
        self.observers.acted()

    def return_again(self, cursor: Cursor, first: int, end: int) -> None:
        """Have records returned again that counted as processed, unless they are committed.

        So are those behind them. What is being worked on of these is given up.
        """
        committed = cursor.committed
        if not cursor.has_uncommitted(end):
            return
        if cursor.worked_by is not None:
            cursor.worked_by.give_up([cursor.tp], asyncio.get_running_loop().time())
        self._return_to(cursor, first if committed is None else max(first, committed.offset))

    def give_up_work(self, partitions: Collection[TopicPartition], now: float) -> None:
        """Tell all works that partitions go, whatever is left to do of them."""
        for work in self.works:
            work.give_up(partitions, now)

    def is_work_ending(self, partitions: Collection[TopicPartition]) -> bool:
        """Whether what was given up of these partitions is still coming to its end."""
        return any(work.is_ending(partitions) for work in self.works)

    # --- Records that are finished one by one ----------------------------------------------
    def open_processing(self, processing: Processing) -> None:
        """Hand records out to nobody else, until `close_processing`.

        Raises:
            IllegalStateError: Another takes them already, or a get waits.
        """
        reads = self._reads
        if reads.processing is not None:
            raise IllegalStateError(
                "consumer.run() is already active: only one run() at a time is allowed"
            )
        if reads.is_in_get:
            raise IllegalStateError(
                "run() cannot start while a read is waiting for records: cancel the read, or wait "
                "for its result"
            )
        reads.forget_readers()
        reads.begin_get()
        self._run_failure = None
        reads.processing = processing
        self.works.append(processing)

    @property
    def run_failure(self) -> BaseException | None:
        """The error that ended `run`, if no record was returned since and no read waits."""
        failure, reads = self._run_failure, self._reads
        if failure is None or reads.is_in_get or reads.hand_out_count != failure[1]:
            return None
        return failure[0]

    def close_processing(
        self, processing: Processing, failure: BaseException | None = None
    ) -> None:
        """Let gets hand out again, from the first record on that is not finished.

        Args:
            processing: Takes no more records.
            failure: The error that ended it, if one did.
        """
        self._reads.processing = None
        self._run_failure = None if failure is None else (failure, self._reads.hand_out_count)
        self.works.remove(processing)
        for cursor in self._assignment.values():
            progress = cursor.progress
            if progress is None:
                continue
            first = progress.first_unfinished
            progress.interrupt(cursor.finished_epoch(progress))
            cursor.leave_work()
            if first is not None and cursor.position is not None:
                self._return_to(cursor, first)
            self.observers.partition_changed(cursor)
        self.observers.acted()

    def hand_out_each(
        self,
        cursor: Cursor,
        records: Sequence[ConsumerRecord],
        epochs: Epochs,
        holder_of: Callable[[ConsumerRecord], HolderT],
    ) -> list[HolderT]:
        """Hand out records that are finished one by one, but for those that were finished before.

        Args:
            cursor: Of their partition.
            records: In offset order, behind all that were handed out.
            epochs: Of the batches that they are from.
            holder_of: Makes who works on a record.

        Returns:
            Who works on them, in their order.
        """
        if (progress := cursor.progress) is None:
            progress = Progress()
            cursor.track(progress)
        if not progress.keep_ahead_in(epochs, cursor.leader_epoch):
            holders = [holder_of(record) for record in records]
            progress.hand_out([record.offset for record in records], holders)
            return holders
        holders = []
        for record in records:
            if progress.passes_over(record.offset):
                self.processing_totals["passed_over_total"] += 1
            else:
                holders.append(holder_of(record))
                progress.hand_out([record.offset], holders[-1:])
        return holders

    def pass_over_finished(
        self, cursor: Cursor, records: Sequence[ConsumerRecord], epochs: Epochs
    ) -> tuple[int, int]:
        """Hand out the first records that were finished before.

        Args:
            cursor: Of their partition.
            records: In offset order, behind all that were handed out.
            epochs: Of the batches that they are from.

        Returns:
            How many these are, and where the run of others ends that comes next.
        """
        progress, count = cursor.progress, len(records)
        if progress is None or not progress.keep_ahead_in(epochs, cursor.leader_epoch):
            return 0, count
        first = next(
            (n for n in range(count) if not progress.passes_over(records[n].offset)), count
        )
        self.processing_totals["passed_over_total"] += first
        ahead = progress.first_ahead
        if ahead is None:
            return first, count
        return first, next((n for n in range(first, count) if records[n].offset >= ahead), count)

    def start_behind(self, cursor: Cursor, ahead: Iterable[Range], leader_epoch: int) -> None:
        """Note what was finished behind the committed offset that a partition starts from."""
        if cursor.progress is None:
            cursor.track(Progress(ahead, leader_epoch))
        else:
            cursor.progress.look_ahead(ahead, leader_epoch)

    def put_into_processing(self, cursor: Cursor, *, is_enough: bool) -> None:
        """Note that records of a partition are handed out to `processing`."""
        reads = self._reads
        if reads.processing is not None:
            cursor.enter_work(reads.processing, is_enough=is_enough)
            reads.latest.pop(cursor, None)  # it was sought while it was revoked (_carry_over)
            reads.settle_progress(cursor)

    def finish(self, cursor: Cursor, offset: int, holder: object) -> None:
        """Note that a record is finished, if it is still its holder's."""
        progress = cursor.progress
        if progress is None or (is_first := progress.finish(offset, holder)) is None:
            return
        if is_first:
            first = progress.first_unfinished
            if first is not None and cursor.worked_by is self._reads.processing is not None:
                cursor.process_to(first)  # as settle_progress, without its call
            else:
                self._reads.settle_progress(cursor)
        if self.observers.of_progress:
            self.observers.progressed()

    def take_more(self, cursor: Cursor) -> None:
        """Hand out more of a partition that had enough."""
        if cursor.worked_by is not None and cursor.has_enough:
            cursor.enter_work(cursor.worked_by, is_enough=False)
            self.observers.partition_changed(cursor)

    def is_of_former_log(self, tp: TopicPartition, offset: int) -> bool:
        """Whether an offset can only mean records of a topic that was recreated since."""
        return self._is_of_before(self._of_former_logs, tp, offset)

    def _was_handed_out_earlier(self, tp: TopicPartition, offset: int) -> bool:
        """Whether an offset can only mean records that another member may have had since."""
        return self._is_of_before(self._handed_out_earlier, tp, offset)

    def _is_of_before(
        self, before: Mapping[TopicPartition, Range], tp: TopicPartition, offset: int
    ) -> bool:
        """Whether an offset comes after a record that was handed out before.

        This assignment, of the present log, has neither handed that out nor gone to it.
        """
        earlier, partition = before.get(tp), self._assignment.get(tp)
        if earlier is None or not earlier.first < offset <= earlier.end:
            return False
        self._reads.settle()
        if partition is None or partition.position == offset:
            return partition is None
        present = partition.handed_out
        return present is None or not present.first <= offset <= present.end
