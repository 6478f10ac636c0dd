"""The cluster: its topics, who leads their partitions, and how a test changes either.

This is the part of `Broker` that neither listens nor runs tasks; the handlers of all nodes answer
from it, and its public methods are what may happen to a cluster in years of production.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from aiokafka_lite.broker.catalog import TopicCatalog
from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.direct import DirectAccess
from aiokafka_lite.broker.groups.coordinator_log import partition_for
from aiokafka_lite.broker.leadership import Leadership
from aiokafka_lite.broker.log.disk import DiskQueue
from aiokafka_lite.broker.topics import (
    GROUP_METADATA_TOPIC,
    NO_LEADER,
    TRANSACTION_STATE_TOPIC,
    NewTopic,
    Partition,
    PartitionKey,
    Topic,
)
from aiokafka_lite.errors import (
    CoordinatorNotAvailableError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.structs import TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.broker.node import BrokerNode

COORDINATORS_TOPICS: Final = (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC)
# What Kafka gives them.
OFFSETS_TOPIC_CONFIG: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    "compression.type": "producer",
    "segment.bytes": "104857600",
}
TRANSACTION_TOPIC_CONFIG: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    "compression.type": "uncompressed",
    "segment.bytes": "104857600",
    "unclean.leader.election.enable": "false",
}


class EmbeddedCluster(DirectAccess):
    """Topics and leaders. Call its methods in the broker's event loop.

    Args:
        config: The settings.
        nodes: By id, in order.
        clock: Returns the wall-clock time in milliseconds.
        rng: Where ids come from.
        on_change: Told of each partition in which something happened.
    """

    def __init__(
        self,
        config: BrokerConfig,
        nodes: Mapping[int, BrokerNode],
        *,
        clock: Callable[[], int],
        rng: random.Random,
        on_change: Callable[[PartitionKey], None],
    ) -> None:
        self.config = config
        self.nodes = nodes
        self.clock = clock
        self.rng = rng
        self.disk = DiskQueue()
        self.catalog = TopicCatalog(config, self.disk, rng, on_change)
        self._leadership = Leadership(
            list(nodes),
            is_up=lambda node_id: nodes[node_id].is_up,
            min_in_sync=self._min_in_sync,
            on_election=self._leader_elected,
        )

    # Leaders and replicas

    def leader_of(self, tp: TopicPartition) -> int:
        """Return the id of a partition's leader, -1 when it has none.

        Raises:
            UnknownTopicOrPartitionError: There is no such partition.
        """
        return self.partition(*tp).leader_id

    def move_leader(self, tp: TopicPartition, node_id: int | None = None) -> int:
        """Make another node lead a partition, in a new leader epoch; return its id.

        Args:
            tp: The partition.
            node_id: The new leader, by default the next replica in sync; one that has no replica
                gets that of the old leader.

        Raises:
            BrokerNotAvailableError: The node is down, or there is no other replica in sync.
            UnknownTopicOrPartitionError: There is no such partition.
        """
        leader = self._leadership.move(self.partition(*tp), node_id)
        self.catalog.leaders_changed()
        return leader

    def coordinator_of(self, group_id: str) -> int:
        """Return the id of the node that coordinates a group, -1 when there is none."""
        if not self.has_topic(GROUP_METADATA_TOPIC):
            return NO_LEADER
        return self.leader_of(self._coordinating_partition(group_id))

    def expire_session(self, group_id: str, member_id: str) -> None:
        """Do now what happens when a member of a group was not heard of for its session timeout.

        Raises:
            CoordinatorNotAvailableError: No node coordinates the group now.
            CoordinatorLoadInProgressError: The group may not have been loaded yet.
            GroupIdNotFound: There is no such group.
            UnknownMemberIdError: The group has no such member.
        """
        node = self.nodes.get(self.coordinator_of(group_id))
        if node is None:
            raise CoordinatorNotAvailableError(f"nobody coordinates group {group_id!r} now")
        node.groups.expire_session(group_id, member_id)

    def move_coordinator(self, group_id: str, node_id: int | None = None) -> int:
        """Make another node coordinate a group, and all groups of its partition; return its id.

        The new coordinator reads the groups from the log; requests parked at the old one are
        answered with NOT_COORDINATOR. See `move_leader` for what it raises.
        """
        return self.move_leader(self._coordinating_partition(group_id), node_id)

    def _coordinating_partition(self, group_id: str) -> TopicPartition:
        return TopicPartition(
            GROUP_METADATA_TOPIC, partition_for(group_id, self.offsets_topic_partitions)
        )

    def hold_replica(self, tp: TopicPartition, node_id: int) -> None:
        """Give a follower no more records: it stays where it is and leaves the ones in sync.

        Raises:
            BrokerNotAvailableError: The node is no follower of the partition.
            UnknownTopicOrPartitionError: There is no such partition.
        """
        self._leadership.hold(self.partition(*tp), node_id)
        self.catalog.leaders_changed()

    def release_replica(self, tp: TopicPartition, node_id: int) -> None:
        """Make a held follower catch up.

        Raises:
            UnknownTopicOrPartitionError: There is no such partition.
        """
        self._leadership.release(self.partition(*tp), node_id)
        self.catalog.leaders_changed()

    def _partitions(self) -> Iterator[Partition]:
        for topic in self.topics.values():
            yield from topic.partitions

    def truncate(self, tp: TopicPartition, offset: int) -> int:
        """Lose a partition's newest records, as the unclean election of a lagging replica does.

        The batch that holds `offset` goes too, and the next replica in sync leads, or the same
        node again when there is no other: in a new leader epoch in any case (KIP-320).

        Returns:
            The new log end offset.

        Raises:
            UnknownTopicOrPartitionError: There is no such partition.
        """
        partition = self.partition(*tp)
        # Nobody is told before there is a new epoch: the old leader answers nothing any more.
        end_offset = partition.log.truncate_to(offset)
        self._leadership.elect_again(partition)
        self.catalog.leaders_changed()
        return end_offset

    def _min_in_sync(self, partition: Partition) -> int:
        return self.known_topic(partition.topic).config.min_insync_replicas

    def _leader_elected(self, partition: Partition) -> None:
        if partition.topic in COORDINATORS_TOPICS:
            self._elect_coordinator(partition)

    def _elect_coordinators(self) -> None:
        """Make the leaders of the coordinators' topics coordinate what is in their partitions."""
        for name in COORDINATORS_TOPICS:
            topic = self.topic(name)
            if topic is not None:
                self._elect_coordinators_of(topic)

    def _elect_coordinators_of(self, topic: Topic) -> None:
        for partition in topic.partitions:
            self._elect_coordinator(partition)

    def _elect_coordinator(self, partition: Partition) -> None:
        for node in self.nodes.values():
            if node.id != partition.leader_id:
                node.coordinator(partition.topic).resign(partition.index)
        leader = self.nodes.get(partition.leader_id)
        if leader is not None:
            leader.coordinator(partition.topic).elect(partition.index)

    # Topics

    @property
    def offsets_topic_partitions(self) -> int:
        """What there are: groups are assigned to partitions by it, so the stored number counts."""
        topic = self.topic(GROUP_METADATA_TOPIC)
        return self.config.offsets_topic_partitions if topic is None else topic.partition_count

    @property
    def cluster_id(self) -> str:
        """The id that clients are told; with a data directory the same after a restart."""
        return self.catalog.cluster_id

    @property
    def topics(self) -> Mapping[str, Topic]:
        """Every topic by name, internal ones included; a live view."""
        return self.catalog.topics

    def topic(self, name: str) -> Topic | None:
        """Return a topic, None if there is none of that name."""
        return self.catalog.by_name(name)

    def topic_by_id(self, topic_id: bytes) -> Topic | None:
        """Return a topic by the 16 bytes of its id (KIP-516), None if there is none."""
        return self.catalog.by_id(topic_id)

    def has_topic(self, name: str) -> bool:
        """Return whether there is a topic of that name."""
        return self.catalog.by_name(name) is not None

    def partition(self, topic: str, index: int) -> Partition:
        """Return a partition.

        Raises:
            UnknownTopicOrPartitionError: There is none.
        """
        known = self.topic(topic)
        partition = None if known is None else known.partition(index)
        if partition is None:
            raise UnknownTopicOrPartitionError(f"there is no partition {topic}-{index}")
        return partition

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        configs: Mapping[str, str] | None = None,
        *,
        replication_factor: int | None = None,
    ) -> Topic:
        """Create a topic at once. Must be called in the broker's event loop.

        Raises:
            InvalidTopicError: The name is not allowed.
            TopicAlreadyExistsError: There is one of that name.
            InvalidPartitionsError: The number of partitions is not positive, or too large.
            InvalidReplicationFactorError: There are not so many nodes.
            InvalidConfigurationError: A configuration is unknown or has a wrong value.
        """
        count = self.config.num_partitions if partitions is None else partitions
        self.catalog.check_name(name)
        if self.has_topic(name):
            raise TopicAlreadyExistsError(f"topic {name!r} exists")
        replicas = self.place_replicas(count, replication_factor)
        return self.catalog.create(
            NewTopic(name, replicas, self.catalog.parse_config(configs or {}))
        )

    def place_replicas(
        self, partitions: int, replication_factor: int | None = None
    ) -> Sequence[Sequence[int]]:
        """Return on which nodes the replicas of new partitions go, the leader first.

        Raises:
            InvalidPartitionsError: The number of partitions is not positive.
            PolicyViolationError: There would be too many partitions.
            InvalidReplicationFactorError: There are not so many nodes.
        """
        self.catalog.check_growth(partitions)
        replication = self.config.replication if replication_factor is None else replication_factor
        return self._leadership.place(partitions, replication, self.catalog.partition_count)

    def add_partitions(self, name: str, total: int) -> None:
        """Add partitions to a topic until it has `total`.

        Raises:
            UnknownTopicOrPartitionError: There is no such topic.
            InvalidPartitionsError: It has as many already.
        """
        topic = self.known_topic(name)
        replication = len(topic.partitions[0].replicas)
        more = total - topic.partition_count
        self.catalog.add_partitions(topic, self.place_replicas(more, replication))

    async def open_offsets_topic(self) -> Topic:
        """Return the topic of committed offsets and groups; it is made when there is none yet.

        Raises:
            KafkaStorageError: The disk did not take it: then nothing is promised to any group.
        """
        return await self._open_coordinators_topic(
            GROUP_METADATA_TOPIC, self.config.offsets_topic_partitions, OFFSETS_TOPIC_CONFIG
        )

    async def open_transaction_topic(self) -> Topic:
        """Return the topic of transactional ids; it is made when there is none yet.

        Raises:
            KafkaStorageError: The disk did not take it: then nothing is promised to any producer.
        """
        return await self._open_coordinators_topic(
            TRANSACTION_STATE_TOPIC,
            self.config.transaction_topic_partitions,
            TRANSACTION_TOPIC_CONFIG,
        )

    async def _open_coordinators_topic(
        self, name: str, partitions: int, configs: Mapping[str, str]
    ) -> Topic:
        topic = self.topic(name) or self.create_topic(name, partitions, configs)
        await self.disk.settled()
        self._elect_coordinators_of(topic)
        return topic

    def delete_topic(self, topic: Topic | str) -> None:
        """Delete a topic, its records and the offsets committed for it.

        With a coordinators' topic goes all that they know; the next request for one makes it anew.

        Raises:
            UnknownTopicOrPartitionError: There is no topic of that name.
        """
        known = self.known_topic(topic) if isinstance(topic, str) else topic
        if known.name in COORDINATORS_TOPICS:
            # Before: what is in a partition is told by how many there are.
            for partition in known.partitions:
                for node in self.nodes.values():
                    node.coordinator(known.name).resign(partition.index)
        self.catalog.delete(known)
        for node in self.nodes.values():
            node.groups.removal.topic_deleted(known.name, known.topic_id)

    def recreate_topic(self, name: str, partitions: int | None = None) -> Topic:
        """Delete a topic and create it anew, empty and with another id; return the new one.

        Raises:
            UnknownTopicOrPartitionError: There is no topic of that name.
        """
        old = self.known_topic(name)
        self.delete_topic(old)
        return self.create_topic(
            name,
            old.partition_count if partitions is None else partitions,
            old.config.overrides,
            replication_factor=len(old.partitions[0].replicas),
        )

    def known_topic(self, name: str) -> Topic:
        """Return a topic.

        Raises:
            UnknownTopicOrPartitionError: There is none of that name.
        """
        topic = self.topic(name)
        if topic is None:
            raise UnknownTopicOrPartitionError(f"there is no topic {name!r}")
        return topic
