"""Chooses the replica of a partition: its leader, or a follower nearby (KIP-392). No I/O.

A leader that receives our rack may answer with the follower to read from. The choice holds for
metadata_max_age_ms, and ends earlier if

    leader or leader epoch change           the new leader is asked
    the follower left the cluster           \
    it cannot be reached, or disconnects     > the leader is asked
    it answers with an error of any kind    /

A leader learns late of a follower's failure, and would name it again. So after a failure leaders do
not receive our rack for a while.

References: Java's SubscriptionState.preferredReadReplica, AbstractFetch.selectReadReplica and
FetchCollector.handleInitializeErrors. Java retries an unreachable follower until its leader knows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from aiokafka_lite.client.view import ClusterView, PartitionView
from aiokafka_lite.consumer.assignment.cursor import Cursor, PreferredReplica
from aiokafka_lite.consumer.config import ConsumerConfig

# About the time in which Kafka detects a dead broker (broker.session.timeout.ms: 9 s).
LEADERS_ONLY_S: Final = 10.0


class ReplicaChoice:
    """The only writer of `Cursor.preferred_replica`.

    Attributes:
        lease_ends_at: When to call `end_leases`.
    """

    def __init__(self, config: ConsumerConfig) -> None:
        self.lease_ends_at = math.inf
        self._rack_id = config.client_rack or ""
        self._lease_s = config.metadata_max_age_s
        self._leaders_only_until = 0.0

    def rack_id(self, now: float) -> str:
        """Return the rack for a request, "" while leaders are to serve us themselves."""
        return self._rack_id if now >= self._leaders_only_until else ""

    def source(self, cursor: Cursor, leader: PartitionView, view: ClusterView) -> int:
        """Return the id of the node to read a partition from, and drop a void choice."""
        chosen = cursor.preferred_replica
        if chosen is None:
            return leader.leader
        if (chosen.leader, chosen.leader_epoch) == (
            leader.leader,
            leader.leader_epoch,
        ) and is_replica(chosen.node_id, leader, view):
            return chosen.node_id
        cursor.preferred_replica = None
        return leader.leader

    def prefer(self, cursor: Cursor, node_id: int, view: ClusterView, now: float) -> bool:
        leader = view.leader(cursor.tp)
        if leader is None or not is_replica(node_id, leader, view):
            self._leaders_only_until = now + LEADERS_ONLY_S
            return False
        expires_at = now + self._lease_s
        cursor.preferred_replica = PreferredReplica(
            node_id, leader.leader, leader.leader_epoch, expires_at
        )
        self.lease_ends_at = min(self.lease_ends_at, expires_at)
        return True

    def give_back(self, cursor: Cursor, now: float) -> None:
        cursor.preferred_replica = None
        self._leaders_only_until = now + LEADERS_ONLY_S

    def end_leases(self, partitions: Iterable[Cursor], now: float) -> list[Cursor]:
        ended = []
        self.lease_ends_at = math.inf
        for cursor in partitions:
            chosen = cursor.preferred_replica
            if chosen is not None and chosen.expires_at <= now:
                cursor.preferred_replica = None
                ended.append(cursor)
            elif chosen is not None:
                self.lease_ends_at = min(self.lease_ends_at, chosen.expires_at)
        return ended


def is_replica(node_id: int, cursor: PartitionView, view: ClusterView) -> bool:
    return node_id in view.nodes and node_id in cursor.replicas
