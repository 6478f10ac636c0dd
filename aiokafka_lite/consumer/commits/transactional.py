"""Commits offsets in a producer's transaction (TxnOffsetCommit).

`Commits` sends no commit from the time at which the offsets are computed until the transaction's
outcome is known, so that neither replaces the other's offsets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TypeAlias

from aiokafka_lite._transaction import BegunTransaction, DecidedOffsets
from aiokafka_lite.client.offsets import CommittedOffset
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.assignment.work import DeliveredRecords, Enlisted
from aiokafka_lite.consumer.commits.commits import Commits
from aiokafka_lite.consumer.core import Core
from aiokafka_lite.consumer.membership.protocol import Identity
from aiokafka_lite.errors import (
    AutoCommitError,
    BatchRevokedError,
    KafkaError,
    OffsetMetadataTooLargeError,
)
from aiokafka_lite.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

OffsetsByCursor = dict[Cursor, OffsetAndMetadata]


# The number of seeks of each cursor at one time.
Seeks = Mapping[Cursor, int]


def seeks_of(cursors: Iterable[Cursor]) -> Seeks:
    return {cursor: cursor.seeks for cursor in cursors}


class HeldGroup(ConsumerGroupMetadata):
    """Group metadata of a consumer, which checks the offsets that a transaction commits by name."""

    offsets: OffsetsInTransaction
    held_as: Identity
    cursors: Mapping[TopicPartition, Cursor]
    topic_ids: Mapping[TopicPartition, bytes]
    moved: Seeks

    def name(self, offsets: DecidedOffsets) -> NamedOffsets:
        return NamedOffsets(self, offsets)

    def __reduce__(self) -> tuple[type[ConsumerGroupMetadata], tuple[object, ...]]:
        return ConsumerGroupMetadata, tuple(self)


Deliver: TypeAlias = "Callable[[DeliveredRecords], DeliveryToCommit]"


class OffsetsInTransaction:
    def __init__(self, core: Core, commits: Commits) -> None:
        self.state, self._finished, self._observers = core.state, core.finished, core.observers
        self.commits = commits
        self._is_automatic = core.config.enable_auto_commit

    def held(self) -> AbstractAsyncContextManager[None]:
        return self.commits.held()

    def group(self) -> HeldGroup:
        held_as = self.commits.assigned_as
        if held_as is None:
            raise self.commits.member.why_lost()
        group_id, instance_id = self.commits.group
        group = HeldGroup(group_id, held_as.generation, held_as.member_id, instance_id)
        group.offsets, group.held_as = self, held_as
        group.cursors = dict(self.state.assignment)
        group.topic_ids = {tp: cursor.topic_id for tp, cursor in group.cursors.items()}
        group.moved = seeks_of(group.cursors.values())
        return group

    def raise_if_automatic(
        self,
        transaction: BegunTransaction,
        ends: Mapping[Cursor, int],
        *,
        is_all: bool = False,
        is_batch: bool = False,
    ) -> None:
        """Raise AutoCommitError if auto-commit may commit records even if the transaction aborts.

        `is_all`: all that the application has. `is_batch`: of batches, and not of earlier reads.
        """
        if not self._is_automatic or not ends:
            return
        others = {
            cursor: end
            for cursor, end in ends.items()
            if not (cursor.is_worked_on(end) or cursor.is_undecided(transaction, end))
        }
        if (
            len(others) == len(ends)
            or any(cursor.has_processed_in(transaction) and not is_batch for cursor in ends)
            or any(
                cursor.has_uncommitted(end) and not (is_all and cursor.has_processed(end))
                for cursor, end in others.items()
            )
        ):
            raise AutoCommitError(
                "auto-commit may commit the records of this transaction even if the transaction "
                "aborts: set enable_auto_commit=False, or read with consumer.batch()"
            )

    def await_outcome(
        self, transaction: BegunTransaction, ends: Mapping[Cursor, int], *, is_stored: bool = False
    ) -> None:
        """Block commits of these records until the transaction ends; `is_stored` as `Undecided`."""
        for cursor, end in ends.items():
            first, committed = cursor.started_at, cursor.committed
            if self._is_automatic and cursor.processed is not None:
                first = cursor.processed
            elif committed is not None and (first or 0) <= committed.offset <= end:
                first = committed.offset
            first = end if first is None else first
            cursor.await_outcome(transaction, first, is_stored=is_stored)

    def decided(self) -> None:
        self._observers.acted()
        self.commits.member.notify()  # last commits may wait for this transaction

    def if_finished(
        self, cursor: Cursor, records: Set[int]
    ) -> tuple[OffsetAndMetadata, Set[int]] | None:
        """Return the commit that finishes records, and the first ones that fit into its metadata.

        None: no record fits, or the topic was deleted.
        """
        if self.commits.topics.is_former(cursor.tp.topic, cursor.topic_id):
            return None
        offset, is_all = self._finished.offset_if_finished(cursor, records)
        if is_all:
            return offset, records

        def are_too_many(last: int) -> bool:
            until_last = frozenset(each for each in records if each <= last)
            return not self._finished.offset_if_finished(cursor, until_last)[1]

        in_order = sorted(records)
        fitting = bisect_left(in_order, True, key=are_too_many)
        if not fitting and cursor.progress is not None:
            # Finishing the first unfinished record shortens the list.
            fitting = in_order[0] == cursor.progress.first_unfinished
        if not fitting:
            return None
        kept = frozenset(in_order[:fitting])
        return self._finished.offset_if_finished(cursor, kept)[0], kept

    def note_refused_metadata(self, offsets: OffsetsByCursor) -> None:
        self._finished.limit_metadata(max(len(each.metadata) for each in offsets.values()))

    def settle_named(
        self,
        group: HeldGroup,
        offsets: DecidedOffsets,
        is_committed: bool | None,
    ) -> None:
        cursors, seeks = group.cursors, group.moved
        if is_committed:
            self.note_committed(group, offsets)
            found = {tp: OffsetAndMetadata(*offset[:2]) for tp, offset in offsets.items()}
            self._finished.finish_offsets(cursors, found)
        elif is_committed is None:
            self.begin_anew({cursors[tp]: seeks[cursors[tp]] for tp in offsets if tp in cursors})

    async def tell_apart(self, offsets: OffsetsByCursor) -> None:
        """Commit finished records without the transaction, if its offsets may be committed already.

        After a seek or a truncation, `are_committed` could otherwise be true though the transaction
        aborted.
        """
        unclear = {
            cursor.tp: self._finished.offset_if_finished(cursor, frozenset())[0]
            for cursor, offset in offsets.items()
            if cursor.committed in (None, offset)
        }
        if unclear:
            await self.commits.commit_held(unclear)

    async def are_committed(self, offsets: OffsetsByCursor) -> bool:
        """Whether a transaction of unknown outcome has committed them. See `tell_apart`."""
        wanted = {cursor.tp: offset for cursor, offset in offsets.items()}
        return await self.commits.committed(wanted, is_for_now=True) == wanted

    def to_commit(self, delivery: DeliveredRecords) -> dict[TopicPartition, CommittedOffset]:
        """Return the offsets that finish a delivery. See `DeliveryInTransaction.to_commit`."""
        delivery.leave_out_refused()
        self.raise_if_revoked(delivery)
        self.commits.topics.raise_if_former(delivery.topic_ids())
        offsets: OffsetsByCursor = {}
        for cursor, records in delivery.unfinished().items():
            offsets[cursor] = self._finishing(cursor, records)
        for cursor, end in delivery.ends.items():
            offsets[cursor] = self._finished.to_commit(cursor, end, cursor.progress)
        return {
            cursor.tp: CommittedOffset(*offset, cursor.epoch_before(offset.offset))
            for cursor, offset in offsets.items()
            if cursor.is_assigned
        }

    def raise_if_revoked(self, delivery: DeliveredRecords) -> None:
        if revoked := delivery.revoked():
            self._finished.forget_lost(revoked)
            raise _revoked(revoked)

    def _finishing(self, cursor: Cursor, records: Set[int]) -> OffsetAndMetadata:
        if not records:
            return self._finished.offset_if_finished(cursor, records)[0]
        found = self.if_finished(cursor, records)
        if found is None or found[1] != records:
            raise OffsetMetadataTooLargeError(
                f"the list of finished records of {cursor.tp} up to offset {max(records)} is too "
                "long for the commit metadata (offset.metadata.max.bytes of the brokers). Finish "
                "earlier records first"
            )
        return found[0]

    def finish(self, delivery: DeliveredRecords) -> None:
        self._finished.finish_delivery(delivery)

    def note_committed(self, group: HeldGroup, offsets: DecidedOffsets) -> None:
        """Apply a transaction's commit, also to partitions that were given up since."""
        for tp, (offset, metadata, leader_epoch) in offsets.items():
            cursor, topic_id = group.cursors.get(tp), group.topic_ids.get(tp, b"")
            if cursor is None or not cursor.is_of_topic(topic_id):
                continue
            committed = OffsetAndMetadata(offset, metadata)
            if cursor.is_assigned:
                cursor.note_committed(committed, leader_epoch, topic_id)
            self.commits.overtake(cursor, committed)

    def begin_anew(self, seeks: Seeks) -> None:
        """Restart partitions from their committed offsets, after a transaction of unknown outcome.

        Until its end they have no position, so no lower offset is committed. Later seeks hold.
        """
        self.state.return_to_committed(
            [cursor for cursor, count in seeks.items() if cursor.seeks == count]
        )
        self.state.forget_before_seek(
            [cursor for cursor, count in seeks.items() if cursor.seeks != count]
        )
        for cursor in seeks:
            self.commits.overtake(cursor, None)


def _revoked(partitions: Collection[TopicPartition]) -> BatchRevokedError:
    names = ", ".join(f"{tp.topic}/{tp.partition}" for tp in sorted(partitions))
    return BatchRevokedError(
        f"records of {names} cannot be committed: a rebalance revoked the partitions, or their "
        "topic was recreated. Other members read records of revoked partitions again. To avoid "
        f"rebalances during a transaction, {BatchRevokedError.remedy}",
        partitions=frozenset(partitions),
    )


class _OfConsumer(ABC):
    """Offsets of a consumer's group in a transaction (producing/group_offsets.py)."""

    def __init__(self, offsets: OffsetsInTransaction, group: HeldGroup | None) -> None:
        self._offsets = offsets
        self._group = group

    @abstractmethod
    def topic_ids(self) -> set[tuple[TopicPartition, bytes]]: ...

    def alone(self) -> AbstractAsyncContextManager[None]:
        return self._offsets.commits.alone

    async def confirm_topics(self, deadline: float) -> None:
        await self._offsets.commits.topics.confirm(self.topic_ids(), deadline)

    def refused(self, error: KafkaError) -> bool:
        if self._group is None:
            return False
        held_as, commits = self._group.held_as, self._offsets.commits
        commits.note_refusal(held_as, error)
        return commits.is_over(held_as, error)


class DeliveryToCommit(_OfConsumer):
    def __init__(self, offsets: OffsetsInTransaction, delivery: DeliveredRecords) -> None:
        super().__init__(offsets, None)
        self._delivery = delivery
        self._committed: Mapping[TopicPartition, CommittedOffset] = {}
        self._seeks = seeks_of(delivery.cursors)

    @property
    def source(self) -> object:
        return self._offsets.commits

    def enlist(self, transaction: BegunTransaction, *, is_stored: bool = False) -> None:
        delivery = self._delivery
        self._offsets.raise_if_automatic(
            transaction, delivery.ends, is_all=delivery.is_all, is_batch=not delivery.is_all
        )
        for receipt in self._delivery.receipts:
            receipt.enlist(transaction)
        for block in self._delivery.blocks:
            block.enlist(transaction)
        self._offsets.await_outcome(transaction, self._delivery.ends, is_stored=is_stored)

    def join(self, other: DeliveryToCommit) -> None:
        self._delivery.join(other._delivery)
        self._seeks = {**other._seeks, **self._seeks}

    def topic_ids(self) -> set[tuple[TopicPartition, bytes]]:
        return self._delivery.topic_ids()

    def to_commit(self) -> tuple[HeldGroup, DecidedOffsets]:
        self._committed = self._offsets.to_commit(self._delivery)
        self._group = self._offsets.group()
        return self._group, self._committed

    def raise_if_revoked(self) -> None:
        self._offsets.raise_if_revoked(self._delivery)

    def settle(self, transaction: BegunTransaction, *, is_committed: bool | None) -> None:
        """Apply the outcome. If it is unknown, uncommitted records are read again."""
        for receipt in self._delivery.receipts:
            receipt.enlist(None)
        if is_committed:
            if self._group is not None:
                self._offsets.note_committed(self._group, self._committed)
            self._offsets.finish(self._delivery)
        elif is_committed is None:
            self._offsets.begin_anew(self._seeks)
        for block in self._delivery.blocks:
            block.decide(transaction, is_committed=bool(is_committed))
        self._offsets.decided()


class NamedOffsets(_OfConsumer):
    """Offsets by name. Unless `is_told`, the caller applies the outcome to the consumer."""

    def __init__(self, group: HeldGroup, offsets: DecidedOffsets, *, is_told: bool = True) -> None:
        super().__init__(group.offsets, group)
        self._group: HeldGroup = group
        self.offsets = offsets
        self._topic_ids = {tp: group.topic_ids.get(tp, b"") for tp in offsets}
        self._is_told = is_told
        # Open batches with these records.
        self._blocks: dict[Enlisted, None] = {}

    @property
    def source(self) -> object:
        return self._group

    def enlist(self, transaction: BegunTransaction, *, is_stored: bool = False) -> None:
        if self._is_told:
            cursors = self._group.cursors
            named = {cursors[tp]: each[0] for tp, each in self.offsets.items() if tp in cursors}
            self._offsets.raise_if_automatic(transaction, named)
            works = [cursor.worked_by for cursor, end in named.items() if cursor.is_worked_on(end)]
            self._blocks = {
                each: None for each in works if each is not None and isinstance(each, Enlisted)
            }
            for block in self._blocks:
                block.enlist(transaction)
            self._offsets.await_outcome(transaction, named, is_stored=is_stored)

    def join(self, other: NamedOffsets) -> None:
        self._group, self.offsets = other._group, {**self.offsets, **other.offsets}
        self._topic_ids = {**self._topic_ids, **other._topic_ids}
        self._blocks |= other._blocks

    def alone(self) -> AbstractAsyncContextManager[None]:
        return super().alone() if self._is_told else nullcontext()

    def topic_ids(self) -> set[tuple[TopicPartition, bytes]]:
        return {*self._topic_ids.items()}

    def to_commit(self) -> tuple[HeldGroup, DecidedOffsets]:
        named = {tp: OffsetAndMetadata(*offset[:2]) for tp, offset in self.offsets.items()}
        # The coordinator may accept the former epoch of a member that has joined again, and this
        # member has read the committed offsets since.
        self.raise_if_revoked()
        self._offsets.commits.topics.raise_if_former(self.topic_ids())
        self._offsets.state.refuse_former_records(named)
        return self._group, self.offsets

    def raise_if_revoked(self) -> None:
        cursors = self._group.cursors
        if lost := [tp for tp in self.offsets if tp in cursors and not cursors[tp].is_assigned]:
            raise _revoked(lost)

    def settle(self, transaction: BegunTransaction, *, is_committed: bool | None) -> None:
        if self._is_told:
            self._offsets.settle_named(self._group, self.offsets, is_committed)
            for block in self._blocks:
                block.decide(transaction, is_committed=bool(is_committed))
            self._offsets.decided()
