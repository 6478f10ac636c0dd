"""Finds the members near partitions: in the rack of one of their replicas (KIP-881).

A member that reads from a replica in its own rack causes no traffic between racks (`client_rack`,
KIP-392). So of equally balanced assignments, the one with more partitions near their owners is
better. References: Kafka's RangeAssignor.java and AbstractStickyAssignor.java.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from aiokafka_lite.consumer.assignors.abstract import (
    ClusterTopics,
    ConsumerProtocolMemberMetadata,
    KnowsRacks,
)

Racks = frozenset[str]
NOWHERE: Racks = frozenset()


def racks_of_members(
    members: Mapping[str, ConsumerProtocolMemberMetadata],
) -> dict[str, str | None]:
    """Return each member's rack, if any."""
    # Metadata of aiokafka's assignors has no rack.
    return {member: getattr(said, "rack_id", None) or None for member, said in members.items()}


def racks_of_partitions(
    cluster: ClusterTopics, topic: str, numbers: Sequence[int]
) -> dict[int, Racks]:
    known = cluster.replica_racks(topic) if isinstance(cluster, KnowsRacks) else {}
    return {number: known.get(number, NOWHERE) for number in numbers}


def do_racks_matter(of_members: Iterable[str | None], of_partitions: Iterable[Racks]) -> bool:
    """Whether racks can affect an assignment.

    They do not if no member is in a rack with replicas, or all partitions have replicas in all
    racks.
    """
    named = {rack for rack in of_members if rack is not None}
    different = set(of_partitions)
    every = NOWHERE.union(*different)
    return not named.isdisjoint(every) and different != {every}
