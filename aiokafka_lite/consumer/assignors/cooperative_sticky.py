"""The cooperative sticky assignor."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from aiokafka_lite.consumer.assignors.abstract import (
    AbstractPartitionAssignor,
    ClusterTopics,
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
    RebalanceProtocol,
    by_topic,
)
from aiokafka_lite.structs import TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.consumer.assignors.sticky import Claim

GENERATION: Final = struct.Struct(">i")


class CooperativeStickyPartitionAssignor(AbstractPartitionAssignor):
    """Lets members keep their partitions while the group rebalances (KIP-429).

    It assigns as `StickyPartitionAssignor`, except for partitions that another member still has:
    that member revokes them first, and a second rebalance assigns them. All others are read during
    the rebalance.

    To change a group over from another assignor, restart its members twice, one by one: first with
    both in `partition_assignment_strategy`, this one first, then with this one alone.

    Names and bytes are those of Kafka's ``CooperativeStickyAssignor``, so one group may have
    members of Java and librdkafka.
    """

    name = "cooperative-sticky"
    version = 3
    may_assign_in_thread = True
    is_rack_aware = True
    rebalance_protocols = frozenset({RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER})

    def __init__(self) -> None:
        self._generation = -1

    @classmethod
    def assign(
        cls, cluster: ClusterTopics, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        # Imported here, because every consumer has this assignor, and few lead a group.
        from aiokafka_lite.consumer.assignors.sticky import share_out

        claims = {member: read_owned(metadata) for member, metadata in members.items()}
        shares = share_out(cluster, members, claims)
        moving = _moving(shares, members)
        return {
            member: ConsumerProtocolMemberAssignment(
                0, by_topic(tp for tp in partitions if moving.get(tp) != member), b""
            )
            for member, partitions in shares.items()
        }

    # Not class methods, because each member has its own generation.
    def metadata(  # type: ignore[override]
        self, topics: Iterable[str]
    ) -> ConsumerProtocolMemberMetadata:
        user_data = GENERATION.pack(self._generation)
        return ConsumerProtocolMemberMetadata(self.version, sorted(topics), user_data)

    def on_assignment(  # type: ignore[override]
        self, assignment: ConsumerProtocolMemberAssignment
    ) -> None:
        """Do nothing: the subscription contains the member's partitions."""

    def on_generation_assignment(self, generation: int) -> None:
        """Remember the assignment's generation."""
        self._generation = generation


def read_owned(metadata: ConsumerProtocolMemberMetadata) -> Claim:
    """Return a member's partitions and their generation, from its subscription.

    Before version 2 the user data contain the generation: alone (Java), or as in StickyAssignor
    (librdkafka).
    """
    from aiokafka_lite.consumer.assignors.sticky import Claim, read_claim

    generation = metadata.generation
    if generation < 0 and len(metadata.user_data or b"") == GENERATION.size:
        (generation,) = GENERATION.unpack(metadata.user_data)
    elif generation < 0:
        generation = read_claim(metadata.user_data).generation
    return Claim(generation, tuple(metadata.owned_partitions))


def _moving(
    shares: Mapping[str, Iterable[TopicPartition]],
    members: Mapping[str, ConsumerProtocolMemberMetadata],
) -> dict[TopicPartition, str]:
    gained: dict[TopicPartition, str] = {}
    given_up: set[TopicPartition] = set()
    for member, partitions in shares.items():
        owned, assigned = set(members[member].owned_partitions), dict.fromkeys(partitions)
        gained.update((tp, member) for tp in assigned if tp not in owned)
        given_up |= owned - assigned.keys()
    return {tp: member for tp, member in gained.items() if tp in given_up}
