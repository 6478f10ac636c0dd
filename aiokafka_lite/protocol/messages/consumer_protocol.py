"""Blobs in JoinGroup and SyncGroup that consumers write for each other.

The subscription and the assignment start with their versions: `encode_versioned`,
`decode_versioned`.
"""

from __future__ import annotations

from aiokafka_lite.protocol.fields import array, blob, int32, string
from aiokafka_lite.protocol.schema import Blob, Struct


class TopicPartition(Struct):
    topic: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class ConsumerProtocolSubscription(Blob, versions="0-3", is_forward_compatible=True):
    topics: list[str] = array(string, "0+")
    user_data: bytes | None = blob("0+", nullable="0+", default=None)
    owned_partitions: list[TopicPartition] = array(TopicPartition, "1+", ignorable=True)  # KIP-429
    generation_id: int = int32("2+", default=-1, ignorable=True)  # KIP-792
    rack_id: str | None = string("3+", nullable="3+", default=None, ignorable=True)  # KIP-881


class ConsumerProtocolAssignment(Blob, versions="0-3", is_forward_compatible=True):
    assigned_partitions: list[TopicPartition] = array(TopicPartition, "0+")
    user_data: bytes | None = blob("0+", nullable="0+", default=None)


class PreviousShare(Struct):
    topic: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class StickyUserData(Blob, versions="0-1"):
    """The sticky assignor's user data: a member's last assignment and its generation (KIP-341).

    It has no version in front and no definition file
    (org.apache.kafka.clients.consumer.StickyAssignor).
    """

    previous_assignment: list[PreviousShare] = array(PreviousShare, "0+")
    generation: int = int32("1+", default=-1, ignorable=True)
