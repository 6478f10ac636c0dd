"""The interface of assignors, which compute a group's assignment on the leader.

Assignors written for aiokafka work here. ``ConsumerProtocolMemberMetadata`` has further fields
after aiokafka's three, with defaults.
"""

from __future__ import annotations

import abc
import enum
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from aiokafka_lite._compat import override
from aiokafka_lite.structs import TopicPartition

log = logging.getLogger(__name__)


class RebalanceProtocol(enum.IntEnum):
    """Which partitions a member revokes in a rebalance (Java's class of this name)."""

    EAGER = 0  # all, before it joins
    COOPERATIVE = 1  # those with new owners, after the rebalance


class ClusterTopics(Protocol):
    """The cluster as an assignor sees it."""

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Return a topic's partition numbers; None if the topic is unknown."""


@runtime_checkable
class KnowsRacks(Protocol):
    def replica_racks(self, topic: str) -> Mapping[int, frozenset[str]]:
        """Return, for each partition of a topic, the known racks of its replicas."""


class ConsumerProtocolMemberMetadata(NamedTuple):
    """The subscription that a member sends when it joins."""

    version: int
    subscription: Sequence[str]
    user_data: bytes = b""
    group_instance_id: str | None = None
    # Of a cooperative member (KIP-429), with their generation (KIP-792; -1: unknown).
    owned_partitions: Sequence[TopicPartition] = ()
    generation: int = -1
    # KIP-881.
    rack_id: str | None = None

    def encode(self) -> bytes:
        """Return the bytes of Kafka's ConsumerProtocolSubscription."""
        from aiokafka_lite.consumer.assignors.blobs import encode_subscription

        return encode_subscription(self)

    @classmethod
    def decode(cls, data: bytes) -> ConsumerProtocolMemberMetadata:
        """Decode a subscription, or raise KafkaProtocolError or UnsupportedVersionError."""
        from aiokafka_lite.protocol.codec import decode_versioned
        from aiokafka_lite.protocol.messages import group_members as protocol

        message = decode_versioned(protocol.ConsumerProtocolSubscription, data)
        owned = [
            TopicPartition(each.topic, number)
            for each in message.owned_partitions
            for number in each.partitions
        ]
        rack_id = message.rack_id or None  # some clients send ""
        user_data, generation = message.user_data or b"", message.generation_id
        return cls(0, message.topics, user_data, None, tuple(owned), generation, rack_id)


class ConsumerProtocolMemberAssignment(NamedTuple):
    """One member's assignment: pairs of topic and partition numbers."""

    version: int
    assignment: Sequence[tuple[str, Sequence[int]]]
    user_data: bytes = b""

    def encode(self) -> bytes:
        """Return the bytes of Kafka's ConsumerProtocolAssignment."""
        from aiokafka_lite.consumer.assignors.blobs import encode_assignments

        return encode_assignments({"": self})[""]

    @classmethod
    def decode(cls, data: bytes) -> ConsumerProtocolMemberAssignment:
        """Decode an assignment, or raise KafkaProtocolError or UnsupportedVersionError."""
        from aiokafka_lite.protocol.codec import decode_versioned
        from aiokafka_lite.protocol.messages import group_members as protocol

        message = decode_versioned(protocol.ConsumerProtocolAssignment, data)
        shares = [(share.topic, share.partitions) for share in message.assigned_partitions]
        return cls(0, shares, message.user_data or b"")

    def partitions(self) -> list[TopicPartition]:
        """Return the assigned partitions in the assignment's order."""
        return [
            TopicPartition(topic, partition)
            for topic, partitions in self.assignment
            for partition in partitions
        ]


class Assignor(Protocol):
    """An assignor: an object, or a class with class methods. See `AbstractPartitionAssignor`."""

    @property
    def name(self) -> str: ...

    def assign(
        self, cluster: ClusterTopics, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> Mapping[str, ConsumerProtocolMemberAssignment]: ...

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata: ...

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> object: ...


@runtime_checkable
class LearnsGeneration(Protocol):
    """An optional method of assignors, with the name in aiokafka's sticky assignor."""

    def on_generation_assignment(self, generation: int) -> object: ...


class AbstractPartitionAssignor(abc.ABC):
    """Base of assignors, with aiokafka's interface.

    A consumer creates its own instance of the class. A method
    ``on_generation_assignment(generation)``, if there is one, receives the group's generation.

    Attributes:
        rebalance_protocols: The supported protocols. A member uses the newest one that all its
            assignors support.
        may_assign_in_thread: Whether `assign` uses only its arguments. For a large group it then
            runs in a thread and does not block the event loop. True for this package's assignors.
        is_rack_aware: Whether `assign` uses the racks of members and replicas. If so, the group
            rebalances when replicas move to other racks.
    """

    rebalance_protocols: frozenset[RebalanceProtocol] = frozenset({RebalanceProtocol.EAGER})
    may_assign_in_thread: bool = False
    is_rack_aware: bool = False

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The assignor's name in the protocol, the same in all members of a group."""

    @classmethod
    @abc.abstractmethod
    def assign(
        cls, cluster: ClusterTopics, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        """Assign the partitions of all subscribed topics. Called in the leader only.

        Args:
            cluster: Has the partitions, and perhaps ``replica_racks(topic)``.
            members: Metadata by member id, for each member of the group.

        Returns:
            An assignment for every member, perhaps an empty one.
        """

    @classmethod
    @abc.abstractmethod
    def metadata(cls, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        """Return the subscription that this member sends when it joins."""

    @classmethod
    @abc.abstractmethod
    def on_assignment(cls, assignment: ConsumerProtocolMemberAssignment) -> None:
        """Receive this member's assignment. Called after each rebalance."""


class StatelessAssignor(AbstractPartitionAssignor):
    """Sends only the topics, and keeps nothing of an assignment."""

    @classmethod
    @override
    def metadata(cls, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        return ConsumerProtocolMemberMetadata(0, sorted(topics), b"")

    @classmethod
    @override
    def on_assignment(cls, assignment: ConsumerProtocolMemberAssignment) -> None:
        pass


def members_in_order(members: Mapping[str, ConsumerProtocolMemberMetadata]) -> list[str]:
    """Return the member ids in order: static members first, by instance id (KIP-345)."""

    def rank(member_id: str) -> tuple[bool, str, str]:
        instance_id = getattr(members[member_id], "group_instance_id", None)
        return (instance_id is None, instance_id or "", member_id)

    return sorted(members, key=rank)


def subscribers_of(
    members: Mapping[str, ConsumerProtocolMemberMetadata],
) -> dict[str, list[str]]:
    subscribers: dict[str, list[str]] = {}
    for member in members_in_order(members):
        for topic in dict.fromkeys(members[member].subscription):
            subscribers.setdefault(topic, []).append(member)
    return subscribers


def by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    numbers: dict[str, list[int]] = {}
    for tp in sorted(partitions):
        numbers.setdefault(tp.topic, []).append(tp.partition)
    return list(numbers.items())


def assigned_numbers(cluster: ClusterTopics, topic: str) -> list[int]:
    """Return a topic's partitions in order, and warn if there are none."""
    numbers = sorted(cluster.partitions_for_topic(topic) or ())
    if not numbers:
        log.warning(
            "topic %s is not assigned to any member, because the cluster's metadata has no "
            "partitions of the topic",
            topic,
        )
    return numbers


Racks = frozenset[str]
NOWHERE: Racks = frozenset()


def racks_of_members(
    members: Mapping[str, ConsumerProtocolMemberMetadata],
) -> dict[str, str | None]:
    # Metadata of aiokafka's assignors has no rack.
    return {member: getattr(said, "rack_id", None) or None for member, said in members.items()}


def racks_of_partitions(
    cluster: ClusterTopics, topic: str, numbers: Sequence[int]
) -> dict[int, Racks]:
    known = cluster.replica_racks(topic) if isinstance(cluster, KnowsRacks) else {}
    return {number: known.get(number, NOWHERE) for number in numbers}


def do_racks_matter(of_members: Iterable[str | None], of_partitions: Iterable[Racks]) -> bool:
    """Whether racks can affect an assignment (KIP-881)."""
    named = {rack for rack in of_members if rack is not None}
    different = set(of_partitions)
    every = NOWHERE.union(*different)
    return not named.isdisjoint(every) and different != {every}
