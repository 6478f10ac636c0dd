"""The record that a classic group is stored as (Kafka: GroupCoordinatorRecordHelpers.java)."""

from __future__ import annotations

from collections.abc import Mapping

from aiokafka_lite.broker.groups.classic.machine import ClassicGroup
from aiokafka_lite.broker.groups.classic.members import ClassicGroupMember
from aiokafka_lite.broker.groups.coordinator_log import CoordinatorRecord
from aiokafka_lite.protocol.messages.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
)


def metadata_record(group: ClassicGroup, assignments: Mapping[str, bytes]) -> CoordinatorRecord:
    """Return the record that stores a group with these members' assignments."""
    members = []
    for member_id, assignment in assignments.items():
        member = group.members[member_id]
        members.append(
            MemberMetadata(
                member_id=member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.metadata(group.protocol or ""),
                assignment=assignment,
            )
        )
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.protocol,
        leader=group.members.leader_id,
        current_state_timestamp=group.state_since_ms,
        members=members,
    )
    return CoordinatorRecord(GroupMetadataKey(group=group.group_id), value)


def created_record(group: ClassicGroup) -> CoordinatorRecord:
    """Return the record of a group whose first rebalance has not ended yet."""
    value = GroupMetadataValue(
        protocol_type="",
        generation=0,
        protocol=None,
        leader=None,
        current_state_timestamp=group.state_since_ms,
        members=[],
    )
    return CoordinatorRecord(GroupMetadataKey(group=group.group_id), value)


def group_tombstone(group_id: str) -> CoordinatorRecord:
    """Return the record that ends a group."""
    return CoordinatorRecord(GroupMetadataKey(group=group_id), None)


def restore_group(group: ClassicGroup, value: GroupMetadataValue) -> None:
    """Bring an unused machine to the state that a record has stored."""
    members = [
        ClassicGroupMember(
            stored.member_id,
            stored.group_instance_id,
            stored.client_id,
            stored.client_host,
            stored.session_timeout,
            # Before version 1 of the layout there was no rebalance timeout.
            stored.session_timeout if stored.rebalance_timeout < 0 else stored.rebalance_timeout,
            # Only what the chosen protocol says is stored; the others are unknown until it rejoins.
            ((value.protocol or "", stored.subscription),),
            assignment=stored.assignment,
        )
        for stored in value.members
    ]
    group.restore(
        members,
        generation=value.generation,
        protocol_type=value.protocol_type or None,
        protocol=value.protocol,
        leader_id=value.leader,
        state_since_ms=value.current_state_timestamp,
    )
