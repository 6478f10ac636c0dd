"""The round-robin assignor."""

from __future__ import annotations

from collections.abc import Mapping

from aiokafka_lite.consumer.assignors.abstract import (
    ClusterTopics,
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
    StatelessAssignor,
    assigned_numbers,
    members_in_order,
)


class RoundRobinPartitionAssignor(StatelessAssignor):
    """Assigns the partitions of all topics, in order, to the members in turn.

    A member that does not subscribe to the next partition's topic is skipped. Two members, topics
    ``a`` and ``b`` with 3 partitions each: the first member has a0 a2 b1, the second a1 b0 b2.
    """

    name = "roundrobin"
    version = 0
    may_assign_in_thread = True

    @classmethod
    def assign(
        cls, cluster: ClusterTopics, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        order = members_in_order(members)
        topics_of = {member: set(members[member].subscription) for member in members}
        shares: dict[str, dict[str, list[int]]] = {member: {} for member in members}
        turn = 0
        for topic in sorted(set().union(*topics_of.values())):
            for partition in assigned_numbers(cluster, topic):
                # Terminates, because a member subscribes to the topic.
                while topic not in topics_of[order[turn % len(order)]]:
                    turn += 1
                shares[order[turn % len(order)]].setdefault(topic, []).append(partition)
                turn += 1
        return {
            member: ConsumerProtocolMemberAssignment(cls.version, sorted(share.items()), b"")
            for member, share in shares.items()
        }
