"""Encodes and decodes subscriptions and assignments, which the coordinator does not read."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from aiokafka_lite.consumer.assignors.abstract import (
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
    by_topic,
)
from aiokafka_lite.errors import KafkaProtocolError, UnsupportedVersionError
from aiokafka_lite.protocol.codec import decode_versioned, encode_versioned
from aiokafka_lite.protocol.messages.group_members import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    JoinGroupResponseMember,
)
from aiokafka_lite.protocol.messages.group_members import (
    TopicPartition as WireTopicPartition,
)
from aiokafka_lite.structs import TopicPartition

log = logging.getLogger(__name__)

PROTOCOL_TYPE: Final = "consumer"

# Older members ignore the fields that they do not know.
NEWEST_SUBSCRIPTION: Final = 3


def encode_subscription(
    metadata: ConsumerProtocolMemberMetadata,
    owned: Collection[TopicPartition] | None = None,
    generation: int = -1,
    rack_id: str | None = None,
) -> bytes:
    """Encode a subscription, in the newest version if the owned partitions are given."""
    message = ConsumerProtocolSubscription(
        topics=list(metadata.subscription), user_data=metadata.user_data
    )
    if owned is None:
        return encode_versioned(message, metadata.version)
    message.owned_partitions = [
        WireTopicPartition(topic=topic, partitions=numbers) for topic, numbers in by_topic(owned)
    ]
    message.generation_id = generation
    message.rack_id = rack_id
    return encode_versioned(message, NEWEST_SUBSCRIPTION)


def decode_subscriptions(
    members: Iterable[JoinGroupResponseMember],
) -> dict[str, ConsumerProtocolMemberMetadata]:
    """Decode members' subscriptions, by member id. Malformed bytes count as no topics."""
    decoded: dict[str, ConsumerProtocolMemberMetadata] = {}
    for member in members:
        try:
            metadata = ConsumerProtocolMemberMetadata.decode(member.metadata)
        except (KafkaProtocolError, UnsupportedVersionError) as error:
            log.warning(
                "member %s gets no partitions, because the subscription that it sent cannot be "
                "decoded: %s",
                member.member_id,
                error,
            )
            metadata = ConsumerProtocolMemberMetadata(0, ())
        instance_id = member.group_instance_id
        decoded[member.member_id] = metadata._replace(group_instance_id=instance_id)
    return decoded


def encode_assignments(
    assignments: Mapping[str, ConsumerProtocolMemberAssignment],
) -> dict[str, bytes]:
    return {
        member_id: encode_versioned(
            ConsumerProtocolAssignment(
                assigned_partitions=[
                    WireTopicPartition(topic=topic, partitions=list(partitions))
                    for topic, partitions in assignment.assignment
                ],
                user_data=assignment.user_data,
            ),
            assignment.version,
        )
        for member_id, assignment in assignments.items()
    }


def decode_assignment(blob: bytes, topics: frozenset[str]) -> ConsumerProtocolMemberAssignment:
    """Decode this member's assignment. Invalid partitions are ignored with a warning."""
    if not blob:
        return ConsumerProtocolMemberAssignment(0, [])
    try:
        message = decode_versioned(ConsumerProtocolAssignment, blob)
    except UnsupportedVersionError as error:
        raise KafkaProtocolError(
            f"the assignment that the group leader sent cannot be decoded: {error}"
        ) from error
    shares: list[tuple[str, list[int]]] = []
    for share in message.assigned_partitions:
        numbers = sorted({number for number in share.partitions if number >= 0})
        if share.topic not in topics:
            log.warning(
                "the group leader assigned partitions of %s, but this member ignores them, "
                "because it does not subscribe to that topic",
                share.topic,
            )
            continue
        if len(numbers) < len(share.partitions):
            log.warning(
                "the group leader assigned negative or duplicate partitions of %s, which are "
                "ignored",
                share.topic,
            )
        shares.append((share.topic, numbers))
    return ConsumerProtocolMemberAssignment(0, shares, message.user_data or b"")
