"""The range assignor: each topic is cut into one run of partitions per member."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from aiokafka_lite.consumer.assignors.abstract import (
    AbstractPartitionAssignor,
    ClusterTopics,
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
    members_in_order,
)

log = logging.getLogger(__name__)


class RangePartitionAssignor(AbstractPartitionAssignor):
    """Gives each subscriber of a topic a run of neighbouring partitions of it.

    Every topic is dealt on its own: with P partitions and M subscribers each gets P // M, and
    the first P % M subscribers one more. Topics with the same number of partitions and the same
    subscribers are cut alike, so that one member holds the same partition numbers of all of
    them. Two members, topics ``a`` and ``b`` with 3 partitions each: the first member gets
    a0 a1 b0 b1, the second a2 b2.
    """

    name = "range"
    version = 0
    may_assign_in_thread = True

    @classmethod
    def assign(
        cls, cluster: ClusterTopics, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        """Cut each topic into as many runs as it has subscribers."""
        shares: dict[str, list[tuple[str, list[int]]]] = {member: [] for member in members}
        subscribers: dict[str, list[str]] = {}
        for member in members_in_order(members):
            for topic in set(members[member].subscription):
                subscribers.setdefault(topic, []).append(member)
        for topic in sorted(subscribers):
            partitions = cluster.partitions_for_topic(topic)
            if not partitions:
                log.warning("topic %s has no known partitions: nothing of it is assigned", topic)
                continue
            numbers = sorted(partitions)
            size, longer_runs = divmod(len(numbers), len(subscribers[topic]))
            start = 0
            for turn, member in enumerate(subscribers[topic]):
                end = start + size + (turn < longer_runs)
                if end > start:
                    shares[member].append((topic, numbers[start:end]))
                start = end
        return {
            member: ConsumerProtocolMemberAssignment(cls.version, share, b"")
            for member, share in shares.items()
        }

    @classmethod
    def metadata(cls, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        """Return the topics alone: the rule needs nothing else."""
        return ConsumerProtocolMemberMetadata(cls.version, sorted(topics), b"")

    @classmethod
    def on_assignment(cls, assignment: ConsumerProtocolMemberAssignment) -> None:
        """Keep nothing: the rule has no memory."""
