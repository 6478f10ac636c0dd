"""What an assignor is: a rule by which the group's leader shares out partitions.

The shapes are aiokafka's, so that assignors written for it work here; the fields behind the
first three of ``ConsumerProtocolMemberMetadata`` are ours and have defaults.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from aiokafka_lite.structs import TopicPartition

__all__ = [
    "AbstractPartitionAssignor",
    "Assignor",
    "ClusterTopics",
    "ConsumerProtocolMemberAssignment",
    "ConsumerProtocolMemberMetadata",
    "KnowsRacks",
    "LearnsGeneration",
    "RebalanceProtocol",
    "members_in_order",
]


class RebalanceProtocol(enum.IntEnum):
    """What a member does with its partitions while the group rebalances (Java's of this name)."""

    EAGER = 0  # it gives all of them back before it joins
    COOPERATIVE = 1  # it keeps them, and gives back afterwards what it is not assigned any more


class ClusterTopics(Protocol):
    """What an assignor may ask of the cluster."""

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Return the partition numbers of a topic; None when the topic is not known."""


@runtime_checkable
class KnowsRacks(Protocol):
    """What a cluster that knows where its replicas are answers on top."""

    def replica_racks(self, topic: str) -> Mapping[int, frozenset[str]]:
        """Return for each partition of a topic the racks of its replicas, as far as known."""


class ConsumerProtocolMemberMetadata(NamedTuple):
    """What a member says about itself when it joins."""

    version: int
    subscription: Sequence[str]
    user_data: bytes = b""
    group_instance_id: str | None = None
    # What it has, where it keeps that through the rebalance (KIP-429), and of which generation of
    # the group (KIP-792; -1: none, or not said).
    owned_partitions: Sequence[TopicPartition] = ()
    generation: int = -1
    # Where it is, as brokers' racks are named (KIP-881).
    rack_id: str | None = None

    def encode(self) -> bytes:
        """Return the bytes that members send: Kafka's ConsumerProtocolSubscription."""
        from aiokafka_lite.consumer.assignors.blobs import encode_subscription

        return encode_subscription(self)

    @classmethod
    def decode(cls, data: bytes) -> ConsumerProtocolMemberMetadata:
        """Read what a member has sent.

        Raises:
            KafkaProtocolError, UnsupportedVersionError: It makes no sense.
        """
        from aiokafka_lite.protocol.messages import consumer_protocol as protocol

        message = protocol.decode_versioned(protocol.ConsumerProtocolSubscription, data)
        return cls(0, message.topics, message.user_data or b"")


class ConsumerProtocolMemberAssignment(NamedTuple):
    """What the leader gives to one member: pairs of topic and partition numbers."""

    version: int
    assignment: Sequence[tuple[str, Sequence[int]]]
    user_data: bytes = b""

    def encode(self) -> bytes:
        """Return the bytes that leaders send: Kafka's ConsumerProtocolAssignment."""
        from aiokafka_lite.consumer.assignors.blobs import encode_assignments

        return encode_assignments({"": self})[""]

    @classmethod
    def decode(cls, data: bytes) -> ConsumerProtocolMemberAssignment:
        """Read what a leader has sent.

        Raises:
            KafkaProtocolError, UnsupportedVersionError: It makes no sense.
        """
        from aiokafka_lite.protocol.messages import consumer_protocol as protocol

        message = protocol.decode_versioned(protocol.ConsumerProtocolAssignment, data)
        shares = [(share.topic, share.partitions) for share in message.assigned_partitions]
        return cls(0, shares, message.user_data or b"")

    def partitions(self) -> list[TopicPartition]:
        """Return the assigned partitions in the order in which they were given."""
        return [
            TopicPartition(topic, partition)
            for topic, partitions in self.assignment
            for partition in partitions
        ]


class Assignor(Protocol):
    """An assignor as the group sees it: an object, or a class with class methods."""

    @property
    def name(self) -> str:
        """The name under which all members of a group must know the rule."""

    def assign(
        self, cluster: ClusterTopics, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> Mapping[str, ConsumerProtocolMemberAssignment]:
        """Share out the partitions of all subscribed topics."""

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        """Return what this member sends to the leader when it joins."""

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> object:
        """Learn what this member was given."""


@runtime_checkable
class LearnsGeneration(Protocol):
    """What an assignor may have on top, under the name that aiokafka's sticky assignor has."""

    def on_generation_assignment(self, generation: int) -> object:
        """Learn of which generation the assignment is; called after `on_assignment`."""


class AbstractPartitionAssignor(abc.ABC):
    """Base of assignors, under aiokafka's interface.

    A consumer makes its own instance of the class, so that an assignor which keeps state on
    ``self`` never shares it with another consumer of the process. One that has a method
    ``on_generation_assignment(generation)`` is told the group's generation as well.

    Attributes:
        rebalance_protocols: The protocols that the rule is good for. A member speaks the newest
            one that all of its assignors are good for.
        may_assign_in_thread: Whether `assign` uses nothing but its arguments, so that a large
            group's runs in a thread and does not hold the event loop. Ours may.
        is_rack_aware: Whether it makes a difference to `assign` in which racks members and
            replicas are. If so, the group shares out anew when replicas move to other racks.
    """

    rebalance_protocols: frozenset[RebalanceProtocol] = frozenset({RebalanceProtocol.EAGER})
    may_assign_in_thread: bool = False
    is_rack_aware: bool = False

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The name under which all members of a group must know the rule."""

    @classmethod
    @abc.abstractmethod
    def assign(
        cls, cluster: ClusterTopics, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        """Share out the partitions of all subscribed topics; only the leader is asked.

        Args:
            cluster: Answers ``partitions_for_topic(topic) -> set[int] | None``, and
                ``replica_racks(topic)`` with the racks of each partition's replicas.
            members: Metadata by member id, one entry for each member of the group.

        Returns:
            An assignment for every member, empty where there is nothing to give.
        """

    @classmethod
    @abc.abstractmethod
    def metadata(cls, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        """Return what this member sends to the leader when it joins."""

    @classmethod
    @abc.abstractmethod
    def on_assignment(cls, assignment: ConsumerProtocolMemberAssignment) -> None:
        """Learn what this member was given; called after each rebalance."""


def members_in_order(members: Mapping[str, ConsumerProtocolMemberMetadata]) -> list[str]:
    """Return the member ids in the order in which shares are dealt.

    Static members come first, by instance id: the member id of a restarted one is new, and an
    order by member id would move partitions for nothing (KIP-345). Metadata of assignors that
    were written for aiokafka has no instance id.
    """

    def rank(member_id: str) -> tuple[bool, str, str]:
        instance_id = getattr(members[member_id], "group_instance_id", None)
        return (instance_id is None, instance_id or "", member_id)

    return sorted(members, key=rank)
