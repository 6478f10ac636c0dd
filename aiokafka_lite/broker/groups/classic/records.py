"""The record that stores a classic group (Kafka: GroupCoordinatorRecordHelpers.java)."""

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
    """Return the record of a group with these assignments by member id."""
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.protocol,
        leader=group.members.leader_id,
        current_state_timestamp=group.state_since_ms,
        members=[
            stored_member(group.members[member_id], group.protocol or "", assignment)
            for member_id, assignment in assignments.items()
        ],
    )
    return CoordinatorRecord(GroupMetadataKey(group=group.group_id), value)


def stored_member(member: ClassicGroupMember, protocol: str, assignment: bytes) -> MemberMetadata:
    return MemberMetadata(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=member.session_timeout_ms,
        subscription=member.metadata(protocol),
        assignment=assignment,
    )


def group_tombstone(group_id: str) -> CoordinatorRecord:
    return CoordinatorRecord(GroupMetadataKey(group=group_id), None)


def restore_group(group: ClassicGroup, value: GroupMetadataValue) -> None:
    members = [
        ClassicGroupMember(
            stored.member_id,
            stored.group_instance_id,
            stored.client_id,
            stored.client_host,
            stored.session_timeout,
            # Before version 1 of the layout there was no rebalance timeout.
            stored.session_timeout if stored.rebalance_timeout < 0 else stored.rebalance_timeout,
            # Metadata of other protocols is not stored. It is unknown until the member rejoins.
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
