"""The members near partitions: in the rack of one of their replicas (KIP-881).

A member that reads from a replica in its own rack causes no traffic between racks (`client_rack`,
KIP-392). So of equally balanced assignments, the one with more partitions near their owners is
better. Racks have no effect while no member is in a rack with replicas, or while every partition
has a replica in all racks.

References: KIP-881, Kafka's RangeAssignor.java and AbstractStickyAssignor.java.
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
    """Return each member's rack; None for members without one."""
    # Metadata of assignors that were written for aiokafka has no rack.
    return {member: getattr(said, "rack_id", None) or None for member, said in members.items()}


def racks_of_partitions(
    cluster: ClusterTopics, topic: str, numbers: Sequence[int]
) -> dict[int, Racks]:
    """Return the known racks of each partition's replicas."""
    known = cluster.replica_racks(topic) if isinstance(cluster, KnowsRacks) else {}
    return {number: known.get(number, NOWHERE) for number in numbers}


def do_racks_matter(of_members: Iterable[str | None], of_partitions: Iterable[Racks]) -> bool:
    """Whether the racks of members and partitions can affect an assignment."""
    named = {rack for rack in of_members if rack is not None}
    different = set(of_partitions)
    every = NOWHERE.union(*different)
    return not named.isdisjoint(every) and different != {every}
