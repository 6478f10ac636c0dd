"""Offsets that are committed with a transaction in which what came of their records is written.

The producer of the transaction sends them to the group's coordinator (TxnOffsetCommit), and not
`Commits`. So that neither undoes what the other has committed, `Commits` sends nothing from the
moment in which the offsets are looked at until the outcome of the transaction is known, and its
next commit says what has been finished by then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from contextlib import AbstractAsyncContextManager

from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.assignment.subscription import SubscriptionState
from aiokafka_lite.consumer.commits.commits import Commits
from aiokafka_lite.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

OffsetsByPartition = dict[TopicPartition, OffsetAndMetadata]


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

    def if_finished(self, records: Mapping[Cursor, Set[int]]) -> OffsetsByPartition:
        """Return what to commit so that these records count as finished.

        Raises:
            OffsetMetadataTooLargeError: So much is finished out of order that it does not say so.
        """
        return self._state.offsets_if_finished(records)

    async def are_committed(self, offsets: OffsetsByPartition) -> bool:
        """Whether a transaction whose outcome is not known has committed them.

        Raises:
            KafkaError: The coordinator refuses, or cannot be reached in time.
        """
        return await self._commits.committed_now(offsets) == offsets

    def note_committed(self, offsets: OffsetsByPartition) -> None:
        """Note what a transaction has committed."""
        for tp, offset in offsets.items():
            if (cursor := self._state.assignment.get(tp)) is not None:
                cursor.note_committed(offset)
