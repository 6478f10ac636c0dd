"""The blobs in JoinGroup and SyncGroup that consumers write for each other.

v1 the partitions a member has (KIP-429); v2 the generation it had them in (KIP-792); v3 its rack
(KIP-881). Each blob starts with its version: `encode_versioned`, `decode_versioned`.
"""

from __future__ import annotations

from aiokafka_lite.protocol.codec import decode_versioned, encode_versioned
from aiokafka_lite.protocol.schema import Blob, Struct, array, blob, int32, string

__all__ = [
    "ConsumerProtocolAssignment",
    "ConsumerProtocolSubscription",
    "TopicPartition",
    "decode_versioned",
    "encode_versioned",
]


class TopicPartition(Struct):
    """Partitions of one topic."""

    topic: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class ConsumerProtocolSubscription(Blob, versions="0-3", is_forward_compatible=True):
    """What a member subscribes to, and what it has."""

    topics: list[str] = array(string, "0+")
    user_data: bytes | None = blob("0+", nullable="0+", default=None)
    owned_partitions: list[TopicPartition] = array(TopicPartition, "1+", ignorable=True)  # KIP-429
    generation_id: int = int32("2+", default=-1, ignorable=True)  # KIP-792
    rack_id: str | None = string("3+", nullable="3+", default=None, ignorable=True)  # KIP-881


class ConsumerProtocolAssignment(Blob, versions="0-3", is_forward_compatible=True):
    """What a member gets."""

    assigned_partitions: list[TopicPartition] = array(TopicPartition, "0+")
    user_data: bytes | None = blob("0+", nullable="0+", default=None)
