"""Offsets that are committed with a transaction in which what came of their records is written.

The producer of the transaction sends them to the group's coordinator (TxnOffsetCommit), and not
`Commits`. So that neither undoes what the other has committed, `Commits` sends nothing from the
moment in which the offsets are looked at until the outcome of the transaction is known, and its
next commit says what has been finished by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from contextlib import AbstractAsyncContextManager

from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.assignment.subscription import SubscriptionState
from aiokafka_lite.consumer.commits.commits import Commits
from aiokafka_lite.structs import ConsumerGroupMetadata, OffsetAndMetadata

OffsetsByCursor = dict[Cursor, OffsetAndMetadata]


class OffsetsInTransaction:
    """What somebody's transaction may commit of a consumer that finishes records one by one.

    Args:
        state: What is assigned, and how far each partition is.
        commits: Of the same consumer.
        group_metadata: Says as whom the partitions are held.
    """

    def __init__(
        self,
        state: SubscriptionState,
        commits: Commits,
        group_metadata: Callable[[], ConsumerGroupMetadata],
    ) -> None:
        self._state = state
        self._commits = commits
        self._group_metadata = group_metadata

    def held(self) -> AbstractAsyncContextManager[None]:
        """Return a block within which the consumer commits nothing by itself."""
        return self._commits.held()

    def group(self) -> ConsumerGroupMetadata:
        """Return in whose name to commit.

        Raises:
            CommitFailedError: The partitions are lost.
        """
        return self._group_metadata()

    def if_finished(
        self, cursor: Cursor, records: Set[int]
    ) -> tuple[OffsetAndMetadata, Set[int]] | None:
        """Return what to commit so that records count as finished, and which of them do then.

        All of them, if the metadata have room to say so. Otherwise the first of them: as many as
        take from nothing that was finished before its room. None: not even one.
        """
        offset, is_all = self._state.offset_if_finished(cursor, records)
        if is_all:
            return offset, records
        in_order, fitting, too_many = sorted(records), 0, len(records)
        while too_many - fitting > 1:
            count = (fitting + too_many) // 2
            _, is_all = self._state.offset_if_finished(cursor, frozenset(in_order[:count]))
            fitting, too_many = (count, too_many) if is_all else (fitting, count)
        if not fitting and cursor.progress is not None:
            # The first that is unfinished takes no room: it gives some.
            fitting = in_order[0] == cursor.progress.first_unfinished
        if not fitting:
            return None
        kept = frozenset(in_order[:fitting])
        return self._state.offset_if_finished(cursor, kept)[0], kept

    def note_refused_metadata(self, offsets: OffsetsByCursor) -> None:
        """Note that the metadata of these are too long for the brokers."""
        self._state.limit_metadata(max(len(each.metadata) for each in offsets.values()))

    async def are_committed(self, offsets: OffsetsByCursor) -> bool:
        """Whether a transaction whose outcome is not known has committed them.

        Raises:
            KafkaError: The coordinator refuses, or cannot be reached in time.
        """
        wanted = {cursor.tp: offset for cursor, offset in offsets.items()}
        return await self._commits.committed_now(wanted) == wanted

    def note_committed(self, offsets: OffsetsByCursor) -> None:
        """Note what a transaction has committed."""
        for cursor, offset in offsets.items():
            if cursor.is_assigned:
                cursor.note_committed(offset)

    def begin_anew(self, cursors: Iterable[Cursor]) -> None:
        """Let partitions start from what is committed, as nobody here knows what that is.

        What is committed is read once the transaction that may change it is over. Until then
        there is no position, so that nothing is committed that lies behind it.
        """
        partitions = [cursor.tp for cursor in cursors if cursor.is_assigned]
        self._state.change(partitions, partitions)
