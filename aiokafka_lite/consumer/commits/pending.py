"""One commit that has not finished: its caller, its state, and the offsets that are left."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from functools import cached_property
from math import inf
from typing import Final

from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.caller import is_in_callback
from aiokafka_lite.consumer.membership.protocol import Identity, Offsets
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition

Cursors = Mapping[TopicPartition, Cursor]


class CommitKind(enum.Enum):
    """The caller of a commit, and its offsets. Only the application's wait for rebalances."""

    # The application, of its positions: `commit()`.
    POSITIONS = enum.auto()
    # The application, of given offsets: it fails if one cannot be committed.
    NAMED = enum.auto()
    # Auto-commit.
    AUTOMATIC = enum.auto()
    # The consumer, before a revocation.
    LAST = enum.auto()
    # The consumer, of partitions that the application has given up, or at a stop.
    DEPARTED = enum.auto()


class PendingCommit:
    """A commit that has not finished, by its number. Offsets of `exact` are committed exactly."""

    def __init__(
        self,
        sequence: int,
        offsets: Offsets,
        made_as: Identity | None,
        kind: CommitKind,
        *,
        cursors: Cursors,
        cluster: Cluster,
        exact: Collection[TopicPartition] = (),
    ) -> None:
        self.kind: Final = kind
        self.sequence: Final = sequence
        # Whether it has waited for a rebalance, whether the coordinator may have received it, and
        # whether it was refused because of a rebalance that the member may not know of yet.
        self.has_waited = self.was_sent = self.was_put_off = False
        # The application makes it.
        self.is_asked_for: Final = kind in (CommitKind.POSITIONS, CommitKind.NAMED)
        # It is the last commit of its partitions.
        self.is_departed: Final = kind is CommitKind.DEPARTED
        self.left = dict(offsets)
        # A later offset is never replaced by an earlier one.
        self.said_at = dict.fromkeys(offsets, sequence)
        # Another cursor is another assignment, even of the same member.
        self.cursors = {tp: cursors.get(tp) for tp in offsets}
        # The ids under which the partitions were read. Empty: unknown.
        self.topic_ids: dict[TopicPartition, bytes] = {}
        for tp, cursor in self.cursors.items():
            read_as = b"" if cursor is None else cursor.topic_id
            self.topic_ids[tp] = read_as or cluster.view.topic_id(tp.topic) or b""
        # Each log's next truncation after its offset was set.
        self._truncations = {
            tp: cursor.next_truncation for tp, cursor in self.cursors.items() if cursor is not None
        }
        self.made_as = made_as
        self.exact = {*exact}
        # Revoked since without a commit; POSITIONS only.
        self.revoked: dict[TopicPartition, OffsetAndMetadata] = {}

    @property
    def can_wait(self) -> bool:
        """Whether it waits for a rebalance, which itself waits for its callbacks."""
        if self.is_departed:
            return not is_in_callback()
        return self.is_asked_for and not self._is_of_callback

    @cached_property
    def _is_of_callback(self) -> bool:
        return is_in_callback()  # first asked by the task that makes the commit

    def put_off(self) -> None:
        self.has_waited = self.was_put_off = True

    # --- Its offsets ----------------------------------------------------------------------
    def say(self, tp: TopicPartition, offset: OffsetAndMetadata, sequence: int) -> None:
        self.left[tp], self.said_at[tp] = offset, sequence
        if (cursor := self.cursors[tp]) is not None:
            self._truncations[tp] = cursor.next_truncation

    def take_over(self, tp: TopicPartition, other: PendingCommit) -> None:
        self.left[tp] = other.left[tp]
        self.exact = self.exact - {tp} | (other.exact & {tp})
        self.said_at[tp] = max(self.said_at[tp], other.said_at[tp])
        if tp in other._truncations:
            self._truncations[tp] = other._truncations[tp]

    def end_of_log(self, tp: TopicPartition) -> float:
        """Return the log's lowest end since the offset was set, inf without a truncation."""
        truncation = self._truncations.get(tp)
        return inf if truncation is None else min(truncation.end_offsets(), default=inf)
