"""What the members of a group subscribe to, read from what they say to each other.

The broker does not need it to coordinate; it protects the offsets of topics in use (KIP-496).
"""

from __future__ import annotations

from collections.abc import Iterable

from aiokafka_lite.broker.groups.classic.machine import ClassicGroup
from aiokafka_lite.broker.groups.kip848.group import ConsumerGroup
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.protocol.codec import decode_versioned
from aiokafka_lite.protocol.messages.consumer_protocol import ConsumerProtocolSubscription


def is_subscribed_to(group: ClassicGroup | ConsumerGroup, topic: str) -> bool:
    """Say whether a group consumes a topic, as far as its members can be understood.

    Of a consumer group whose metadata cannot be read it must be assumed.
    """
    if isinstance(group, ConsumerGroup):
        return group.is_subscribed_to(topic)
    topics = _subscribed_topics(group)
    return topics is None or topic in topics


def consumed_of(group: ClassicGroup | ConsumerGroup, topics: Iterable[str]) -> frozenset[str]:
    """Return those of the topics that a group consumes."""
    return frozenset(topic for topic in {*topics} if is_subscribed_to(group, topic))


def _subscribed_topics(group: ClassicGroup) -> frozenset[str] | None:
    topics: set[str] = set()
    for member in group.members:
        try:
            metadata = member.metadata(group.protocol or "")
            topics.update(decode_versioned(ConsumerProtocolSubscription, metadata).topics)
        except (ValueError, KafkaError):
            return None
    return frozenset(topics)
