"""Groups with members that change from one protocol to the other (KIP-848, online migration).

A classic group becomes a KIP-848 group when the first member of the consumer protocol joins, and a
classic group again when the last one leaves (Kafka: ConsumerGroup.fromClassicGroup,
ClassicGroup.fromConsumerGroup).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import cast

from aiokafka_lite.broker.catalog import TopicCatalog
from aiokafka_lite.broker.groups.classic.machine import ClassicGroup
from aiokafka_lite.broker.groups.classic.members import ClassicGroupMember, Members
from aiokafka_lite.broker.groups.coordinator_log import CoordinatorRecord, group_tombstone
from aiokafka_lite.broker.groups.kip848.group import ConsumerGroup
from aiokafka_lite.broker.groups.kip848.member import ClassicSide, ConsumerGroupMember
from aiokafka_lite.broker.groups.kip848.records import (
    assignment_record,
    epoch_record,
    group_tombstones,
    member_record,
    target_epoch_record,
    target_record,
)
from aiokafka_lite.broker.groups.values import CONSUMER_PROTOCOL_TYPE, Protocols
from aiokafka_lite.errors import GroupIdNotFound, KafkaError
from aiokafka_lite.protocol.codec import decode_versioned, encode_versioned
from aiokafka_lite.protocol.messages.coordinator_records import (
    ConsumerGroupKey,
    ConsumerGroupValue,
    GroupMetadataKey,
    GroupMetadataValue,
)
from aiokafka_lite.protocol.messages.group_members import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)


def owned_by(
    subscription: ConsumerProtocolSubscription, catalog: TopicCatalog
) -> dict[bytes, Collection[int]]:
    owned = (
        (catalog.by_name(item.topic), item.partitions) for item in subscription.owned_partitions
    )
    return {topic.topic_id: partitions for topic, partitions in owned if topic is not None}


def encode_assignment(
    partitions: Mapping[bytes, Collection[int]], catalog: TopicCatalog, protocols: Protocols
) -> bytes:
    """Encode an assignment in the version that the member itself uses."""
    found = ((catalog.by_id(topic_id), held) for topic_id, held in partitions.items())
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[
            TopicPartition(topic=topic.name, partitions=sorted(held))
            for topic, held in found
            if topic is not None
        ],
        user_data=None,
    )
    version = int.from_bytes(protocols[0][1][:2], "big")
    newest = ConsumerProtocolAssignment.versions.last
    return encode_versioned(assignment, min(version, newest))


def upgraded(
    group: ClassicGroup, catalog: TopicCatalog
) -> tuple[ConsumerGroup, list[CoordinatorRecord]]:
    try:
        members = [_upgraded_member(group, member, catalog) for member in group.members.values()]
    except GroupIdNotFound:
        raise
    except (KafkaError, ValueError) as error:
        raise GroupIdNotFound(
            f"Cannot upgrade classic group {group.group_id} to consumer group because the embedded "
            f"consumer protocol is malformed."
        ) from error
    group_id, epoch = group.group_id, group.generation
    names = frozenset().union(*(member.topic_names for member in members))
    new = [
        *(member_record(group_id, member) for member in members),
        epoch_record(group_id, epoch, catalog.metadata_hash(names)),
        *(
            target_record(group_id, m.member_id, {t: frozenset(p) for t, p in m.assigned.items()})
            for m in members
        ),
        target_epoch_record(group_id, epoch, 0),
        *(assignment_record(group_id, member) for member in members),
    ]
    upgrade = ConsumerGroup(group_id)
    replay(upgrade, new)
    return upgrade, [group_tombstone(group_id), *new]


def _upgraded_member(
    group: ClassicGroup, member: ClassicGroupMember, catalog: TopicCatalog
) -> ConsumerGroupMember:
    metadata = dict(member.protocols).get(group.protocol or "", member.protocols[0][1])
    subscription = decode_versioned(ConsumerProtocolSubscription, metadata)
    assigned: dict[bytes, Mapping[int, int]] = {}
    if member.assignment:
        assignment = decode_versioned(ConsumerProtocolAssignment, member.assignment)
        if assignment.user_data:
            raise GroupIdNotFound(
                f"Cannot upgrade classic group {group.group_id} to consumer group because an "
                f"unsupported custom assignor is in use. Please refer to the documentation or "
                f"switch to a default assignor before re-attempting the upgrade."
            )
        for item in assignment.assigned_partitions:
            topic = catalog.by_name(item.topic)
            if topic is not None:
                assigned[topic.topic_id] = dict.fromkeys(item.partitions, group.generation)
    return ConsumerGroupMember(
        member.member_id,
        epoch=group.generation,
        previous_epoch=group.generation,
        instance_id=member.instance_id,
        rack_id=subscription.rack_id or None,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        client_id=member.client_id,
        client_host=member.client_host,
        topic_names=frozenset(subscription.topics),
        assigned=assigned,
        classic=ClassicSide(member.session_timeout_ms, member.protocols),
    )


def downgraded(
    group: ConsumerGroup, leaving: Collection[str], catalog: TopicCatalog, clock: Callable[[], int]
) -> list[CoordinatorRecord]:
    """All remaining members must be classic."""
    members = Members()
    for member in group.members.values():
        if member.member_id not in leaving and member.classic is not None:
            members.add(
                ClassicGroupMember(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    member.classic.session_timeout_ms,
                    member.rebalance_timeout_ms,
                    member.classic.protocols,
                    assignment=encode_assignment(
                        group.target_of(member), catalog, member.classic.protocols
                    ),
                )
            )
    protocol = members.select_protocol()
    value = GroupMetadataValue(
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        generation=group.epoch,
        protocol=protocol,
        leader=members.leader_id,
        current_state_timestamp=clock(),
        members=[member.stored(protocol, member.assignment) for member in members.values()],
    )
    record = CoordinatorRecord(GroupMetadataKey(group=group.group_id), value)
    return [*group_tombstones(group), record]


def replay(group: ConsumerGroup, records: Collection[CoordinatorRecord]) -> None:
    """Apply records to a group that is not the stored one, to see its next state."""
    for key, value, _ in records:
        group.replay(cast("ConsumerGroupKey", key), cast("ConsumerGroupValue | None", value))
