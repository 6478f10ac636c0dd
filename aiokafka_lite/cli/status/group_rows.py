"""How groups and their members are shown, those of the classic protocol and those of KIP-848."""

from __future__ import annotations

from itertools import islice
from typing import Final

from aiokafka_lite._pages import ROWS, Json, clip
from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.groups.classic.members import ClassicGroupMember
from aiokafka_lite.broker.groups.kip848.driver import Group
from aiokafka_lite.broker.groups.kip848.group import ConsumerGroup
from aiokafka_lite.broker.groups.kip848.machine import preferred_assignor
from aiokafka_lite.broker.groups.kip848.member import ConsumerGroupMember
from aiokafka_lite.broker.node import BrokerNode
from aiokafka_lite.cli.status.values import numbers_text
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.protocol.codec import decode_versioned
from aiokafka_lite.protocol.messages.consumer_protocol import ConsumerProtocolAssignment

# Decoding more than that would hold the loop.
MOST_DECODED_BYTES: Final = 16 << 10


def group_fields(coordinator: BrokerNode, group: Group) -> dict[str, Json]:
    """Return what every view shows of a group."""
    if isinstance(group, ConsumerGroup):
        kind, generation = "consumer", group.epoch
        assignor: str | None = preferred_assignor(group.members.values())
    else:
        kind, generation, assignor = "classic", group.generation, group.protocol
    return {
        "id": group.group_id,
        "state": group.state.value,
        "type": kind,
        "protocol": clip(assignor or ""),
        "generation": generation,
        "members": len(group.members),
        "coordinator": coordinator.id,
    }


def member_rows(broker: Broker, group: Group) -> list[Json]:
    """Return the first members of a group."""
    if isinstance(group, ConsumerGroup):
        members = islice(group.members.values(), ROWS)
        return [_row(member, _assigned_text(broker, member)) for member in members]
    return [
        _row(member, _decoded_text(member.assignment)) for member in islice(group.members, ROWS)
    ]


def _row(member: ClassicGroupMember | ConsumerGroupMember, assignment: str) -> dict[str, Json]:
    return {
        "member": clip(member.member_id),
        "instance": None if member.instance_id is None else clip(member.instance_id),
        "client": clip(member.client_id),
        "host": member.client_host.removeprefix("/"),
        "assignment": assignment,
    }


def _assigned_text(broker: Broker, member: ConsumerGroupMember) -> str:
    named = []
    for topic_id, partitions in member.assigned.items():
        topic = broker.topic_by_id(topic_id)
        if topic is not None:
            named.append(f"{topic.name} {numbers_text(sorted(partitions))}")
    return clip(", ".join(named))


def _decoded_text(assignment: bytes) -> str:
    """Say which partitions a member has, as far as what its leader wrote can be understood."""
    if not assignment:
        return ""
    if len(assignment) > MOST_DECODED_BYTES:
        return f"{len(assignment):,} bytes"
    try:
        topics = decode_versioned(ConsumerProtocolAssignment, assignment).assigned_partitions
    except (KafkaError, ValueError):
        return f"{len(assignment):,} bytes that cannot be decoded"
    return clip(", ".join(f"{each.topic} {numbers_text(each.partitions)}" for each in topics))
