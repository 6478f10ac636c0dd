"""Finds the members in the rack of one of a partition's replicas (KIP-881).

They read without traffic between racks (`client_rack`, KIP-392), so of equally balanced
assignments, the one with more such partitions is better. As Kafka's RangeAssignor and
AbstractStickyAssignor.
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
