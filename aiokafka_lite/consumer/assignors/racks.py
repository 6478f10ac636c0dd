"""Which members are near which partitions: in the rack of one of their replicas (KIP-881).

Who reads from a replica in its own rack pays for no traffic between racks (`client_rack`, KIP-392).
So of shares that are equally balanced those are better that have more partitions near their owners.
Racks count only where they make a difference: not while no member names a rack that partitions
are in, and not while every partition is in all of the racks there are.

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
    """Return where each member is; None for those that do not say."""
    # Metadata of assignors that were written for aiokafka has no rack.
    return {member: getattr(said, "rack_id", None) or None for member, said in members.items()}


def racks_of_partitions(
    cluster: ClusterTopics, topic: str, numbers: Sequence[int]
) -> dict[int, Racks]:
    """Return in which racks each partition has replicas, as far as the cluster knows."""
    known = cluster.replica_racks(topic) if isinstance(cluster, KnowsRacks) else {}
    return {number: known.get(number, NOWHERE) for number in numbers}


def do_racks_matter(of_members: Iterable[str | None], of_partitions: Iterable[Racks]) -> bool:
    """Whether shares can be better or worse by where members and partitions are."""
    named = {rack for rack in of_members if rack is not None}
    different = set(of_partitions)
    every = NOWHERE.union(*different)
    return not named.isdisjoint(every) and different != {every}
