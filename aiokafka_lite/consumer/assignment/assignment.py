"""Holds what is assigned to a consumer: one cursor a partition.

Whoever decides what is assigned calls `Assignment.change` with what goes and what comes; the rest
is not touched. Others ask for changes of one partition by the methods here, and hear of them as
observers (observers.py). cursor.py says who writes which field of a cursor.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from aiokafka_lite.consumer.assignment.cursor import NO_EPOCH, Cursor, Range, joined
from aiokafka_lite.consumer.assignment.finished_ranges import decode
from aiokafka_lite.consumer.assignment.observers import Observers
from aiokafka_lite.consumer.assignment.progress import Progress
from aiokafka_lite.consumer.assignment.reads import Reads
from aiokafka_lite.errors import IllegalStateError
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition


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
        "_observers",
        "_of_former_logs",
        "_reads",
        "_taken",
        "lost_in_hand",
    )

    def __init__(self, observers: Observers, reads: Reads) -> None:
        self._observers = observers
        self._reads = reads
        self._assignment: dict[TopicPartition, Cursor] = {}
        # What was assigned and is not any more, though the application has not said so.
        self._taken: set[TopicPartition] = set()
        # What was handed out of partitions before another member may have had them.
        self._handed_out_earlier: dict[TopicPartition, Range] = {}
        # What was taken away though the application was still at work on it, as far as is known.
        self.lost_in_hand: dict[TopicPartition, Cursor] = {}
        # What was handed out of topics that were recreated since.
        self._of_former_logs: dict[TopicPartition, Range] = {}

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
        """Note that what the application is at work on is taken away, as far as is known."""
        if (end := cursor.handed_out_to) is not None and cursor.has_uncommitted(end):
            self.lost_in_hand[cursor.tp] = cursor

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

    def return_to(self, cursor: Cursor, offset: int) -> None:
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
        self._observers.discarded(partition)
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
        self._observers.partition_changed(partition)

    def request_reset(self, partition: Cursor, timestamp: int, *, reason: str = "") -> None:
        """Give up the position, and look it up by ListOffsets with `timestamp`.

        An event will tell of it, unless `reason` is empty because the application asked for it.
        """
        self._reads.settle()
        self._observers.discarded(partition)
        if reason and partition.search is not None and partition.search.is_first:
            partition.forget_undecided()
        partition.await_reset(timestamp, reason)
        self._observers.partition_changed(partition)

    def replace_log(self, partition: Cursor, topic_id: bytes) -> None:
        """Forget all that is known of a partition's log: another topic has its topic's name.

        Its position is unknown then, until one is asked for by `request_reset` or `seek`.
        """
        self._reads.settle()
        self._observers.discarded(partition)
        self._note_lost(partition)
        tp, former = partition.tp, self._of_former_logs
        for handed_out in (self._handed_out_earlier.pop(tp, None), partition.handed_out):
            if handed_out is not None:
                former[tp] = joined(former.get(tp), handed_out)
        partition.forget_log(topic_id)
        self._observers.partition_changed(partition)

    def return_to_committed(self, cursors: Iterable[Cursor]) -> None:
        """Read partitions from their committed offsets again: it is not known what was committed.

        What is in hand of them is finished by nobody.
        """
        self._reads.settle()
        for cursor in cursors:
            if cursor.is_assigned:
                self._observers.discarded(cursor)
                cursor.await_committed()
                self._observers.partition_changed(cursor)

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
        self._observers.discarded(partition)
        partition.await_validation()
        self._observers.partition_changed(partition)

    def forget_epochs(self, partition: Cursor, void_epoch: int) -> None:
        """Fetch from the position again, whatever leader epoch the records before it are of.

        What was finished behind the position is forgotten: nobody can tell whether the log has it.
        """
        self._reads.settle()
        self._observers.discarded(partition)
        partition.forget_epochs(void_epoch)
        partition.refetch()
        self._observers.partition_changed(partition)

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
        self._observers.partition_changed(partition)

    def keep(self, partition: Cursor) -> None:
        """Fetch and hand out a partition that is not given back after all."""
        partition.keep()
        self._observers.partition_changed(partition)

    def refetch(self, partition: Cursor) -> None:
        """Drop what is buffered and on its way, and fetch from the position again."""
        self._reads.settle()
        self._observers.discarded(partition)
        partition.refetch()
        self._observers.partition_changed(partition)

    def pause(self, partition: Cursor) -> None:
        """Stop fetching and handing out; what is buffered stays for `resume`."""
        self._reads.settle()
        partition.pause()
        self._observers.partition_changed(partition)

    def resume(self, partition: Cursor) -> None:
        """Fetch and hand out again."""
        partition.resume()
        self._observers.partition_changed(partition)

    def start_behind(self, cursor: Cursor, ahead: Iterable[Range], leader_epoch: int) -> None:
        """Note what was finished behind the committed offset that a partition starts from."""
        if cursor.progress is None:
            cursor.track(Progress(ahead, leader_epoch))
        else:
            cursor.progress.look_ahead(ahead, leader_epoch)

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
