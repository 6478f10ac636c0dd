"""The assignor `range` (Java: RangeAssignor): co-partitioned topics go to the same members.

Each topic is cut into as many ranges as it has subscribers, which get them in one order for all
topics: static members by instance id, then the others by member id.
"""

from __future__ import annotations

from aiokafka_lite.broker.groups.kip848.assignors.spec import Assignment, GroupSpec


def assign_ranges(group: GroupSpec) -> dict[str, Assignment]:
    """Give each member a range of each topic that it subscribes to."""
    assigned: dict[str, dict[bytes, frozenset[int]]] = {name: {} for name in group.members}
    members = sorted(group.members, key=lambda member_id: _place(group, member_id))
    for topic_id in group.topic_ids:
        subscribers = [name for name in members if topic_id in group.members[name].topic_ids]
        size, longer = divmod(group.partition_counts[topic_id], len(subscribers))
        start = 0
        for index, member_id in enumerate(subscribers):
            end = start + size + (index < longer)
            if start < end:
                assigned[member_id][topic_id] = frozenset(range(start, end))
            start = end
    return dict(assigned)


def _place(group: GroupSpec, member_id: str) -> tuple[bool, str]:
    instance_id = group.members[member_id].instance_id
    return (instance_id is None, instance_id if instance_id is not None else member_id)
