"""The broker: a cluster of one node or several, and all that its nodes answer from.

    BrokerNode (node.py) per node ─ handlers/<api>.py ─┬─ TopicCatalog ─ logs
                                                       ├─ Purgatory (long polls)
                                                       ├─ GroupCoordinator
                                                       └─ Leadership (leadership.py)

Everything runs on one event loop and is written from it only; disk work that may take long is
done by the one thread of `DiskQueue`.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

from aiokafka_lite._compat import Self
from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.broker import handlers
from aiokafka_lite.broker.catalog import TopicCatalog
from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.direct import DirectAccess
from aiokafka_lite.broker.disk import DiskQueue
from aiokafka_lite.broker.group_log import partition_for
from aiokafka_lite.broker.group_values import GroupSettings
from aiokafka_lite.broker.leadership import Leadership
from aiokafka_lite.broker.node import BrokerNode
from aiokafka_lite.broker.purgatory import Purgatory
from aiokafka_lite.broker.topics import (
    GROUP_METADATA_TOPIC,
    NO_LEADER,
    NewTopic,
    Node,
    Partition,
    Topic,
)
from aiokafka_lite.errors import (
    BrokerNotAvailableError,
    CoordinatorNotAvailableError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.schema import Response
from aiokafka_lite.structs import TopicPartition

log = logging.getLogger(__name__)

# What Kafka gives the topic of the group coordinator.
OFFSETS_TOPIC_CONFIG: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    "compression.type": "producer",
    "segment.bytes": "104857600",
}


def wall_clock_ms() -> int:
    """Return the time that records are stamped with, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class Broker(DirectAccess):
    """An embedded Kafka broker: a cluster of one node or more, for tests and laptops.

    ::

        async with Broker() as broker:
            consumer = AIOKafkaConsumer("topic", bootstrap_servers=broker.bootstrap_servers)

    It listens on 127.0.0.1 and asks nobody for a password: it is not for production. Entering
    loads the data directory, if there is one, and listens; leaving ends waiting requests, closes
    the connections within `stop_timeout_s` and makes the data durable.

    With several nodes, each listens on a port of its own and leads some of the partitions. Their
    replicas are views of one log, so they are always in sync unless held back (`hold_replica`).
    Leaders move, nodes stop and start, logs are truncated by methods: what a consumer meets in
    years of production can happen to it in a test's milliseconds.

    Args:
        nodes: How many; their ids count from 1.
        host: The address to listen on.
        port: 0 takes a free one; several nodes take this one and those that follow.
        racks: One name for each node: leaders then send consumers to the replica in their rack
            (KIP-392).
        data_dir: Keeps topics, records and committed offsets across restarts; in memory if None.
        num_partitions: Of topics created without saying how many.
        auto_create_topics: Metadata requests that allow it create the topics they ask for.
        allow_remote: Accept a `host` that other machines can reach.
        config: All settings at once, instead of the ones above.
        clock: Returns the wall-clock time in milliseconds.
        rng: Where ids come from; seed it for the same ids each time.
        settings: Any other field of `BrokerConfig`.

    Raises (on entering):
        KafkaConnectionError: It cannot listen there.
        KafkaStorageError: The data directory is in use, or cannot be read.
    """

    def __init__(
        self,
        *,
        nodes: int = 1,
        host: str = "127.0.0.1",
        port: int = 0,
        racks: Sequence[str] = (),
        data_dir: str | Path | None = None,
        num_partitions: int = 1,
        auto_create_topics: bool = True,
        allow_remote: bool = False,
        config: BrokerConfig | None = None,
        clock: Callable[[], int] = wall_clock_ms,
        rng: random.Random | None = None,
        **settings: int | float,
    ) -> None:
        self.config = config or BrokerConfig(
            nodes=nodes,
            host=host,
            port=port,
            racks=tuple(racks),
            data_dir=None if data_dir is None else Path(data_dir),
            num_partitions=num_partitions,
            auto_create_topics=auto_create_topics,
            allow_remote=allow_remote,
            **settings,  # type: ignore[arg-type]  # dataclass checks names, __post_init__ values
        )
        self.clock = clock
        self.rng = rng or random.Random()
        self.failure: BaseException | None = None
        self.disk = DiskQueue()
        self.catalog = TopicCatalog(self.config, self.disk, self.rng, self._partition_changed)
        self.nodes: Mapping[int, BrokerNode] = {
            address.id: BrokerNode(self, address) for address in _addresses(self.config)
        }
        self._leadership = Leadership(
            list(self.nodes), lambda node_id: self.nodes[node_id].is_up, self._leader_elected
        )
        self._is_running = False
        # Made by start(), which has a loop.
        self.loop: asyncio.AbstractEventLoop
        self.scope: TaskScope
        self.purgatory: Purgatory[Response]

    # Starting and stopping

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Load the data directory and listen; see the class for what it raises."""
        handlers.load()
        self.loop = loop = asyncio.get_running_loop()
        self.scope = TaskScope("broker", on_failure=functools.partial(self._bug, "a task died"))
        self.purgatory = Purgatory(loop)
        opened: list[BrokerNode] = []
        try:
            if self.config.data_dir is not None:
                await loop.run_in_executor(None, self.catalog.load)
                self._adopt_partitions()
            for node in self.nodes.values():
                node.open(self._bug)
                opened.append(node)
            self._elect_coordinators()
            for node in opened:
                await node.start()
        except BaseException:
            for node in opened:
                await node.kill()
                await node.groups.close()
            await self._release()
            raise
        self._is_running = True

    def _adopt_partitions(self) -> None:
        changed = [self._leadership.adopt(partition) for partition in self._partitions()]
        if any(changed):
            self.catalog.leaders_changed()

    async def stop(self) -> None:
        """Stop listening, end waiting requests, close connections, make data durable. Idempotent.

        Raises:
            KafkaStorageError: Some of the data could not be written.
        """
        if not self._is_running:
            return
        self._is_running = False
        for node in self.nodes.values():
            await node.stop_listening()
            await node.groups.close()
        self.purgatory.close()
        await asyncio.gather(*(node.close_connections() for node in self.nodes.values()))
        await self._release()

    async def _release(self) -> None:
        await self.scope.close()
        try:
            await self.disk.close()
        finally:
            if self.config.data_dir is None:
                self.catalog.close()
            else:
                await self.loop.run_in_executor(None, self.catalog.close)

    def _bug(self, what: str, error: BaseException) -> None:
        """Make an exception that nobody expected visible: it is a bug in this package."""
        self.failure = self.failure or error
        self.loop.call_exception_handler(
            {"message": f"embedded broker: {what}", "exception": error, "broker": self}
        )

    # Nodes

    @property
    def bootstrap_servers(self) -> str:
        """ "host:port" of every node for clients, with commas between."""
        return ",".join(node.bootstrap_servers for node in self.nodes.values())

    @property
    def node(self) -> BrokerNode:
        """The first node."""
        return next(iter(self.nodes.values()))

    @property
    def live_nodes(self) -> Sequence[BrokerNode]:
        """The nodes that are up, in the order of their ids."""
        return [node for node in self.nodes.values() if node.is_up]

    @property
    def controller_id(self) -> int:
        """The node that clients are told to be the controller, -1 when none is up."""
        return next((node.id for node in self.live_nodes), -1)

    @property
    def connection_count(self) -> int:
        """Connections that are open, of all nodes."""
        return sum(node.connection_count for node in self.nodes.values())

    async def stop_node(self, node_id: int, *, clean: bool = True) -> None:
        """Stop a node: its connections close, and others lead what it led, if they can.

        Args:
            node_id: Which one; stopping one that is down changes nothing.
            clean: Move the leaders first, as Kafka's controlled shutdown does, and let answers
                that are being written arrive. Otherwise connections break off, as when the
                process is killed.

        Raises:
            BrokerNotAvailableError: There is no such node.
        """
        node = self._node(node_id)
        if not node.is_up:
            return
        await node.stop_listening()
        if clean:
            self._node_down(node_id)
            await node.close_connections()
        else:
            await node.kill()
            self._node_down(node_id)

    async def start_node(self, node_id: int) -> None:
        """Start a node that was stopped, at its address; its replicas are in sync again.

        Raises:
            BrokerNotAvailableError: There is no such node.
            KafkaConnectionError: Another program listens at its address now.
        """
        node = self._node(node_id)
        if node.is_up:
            return
        await node.start()
        self._leadership.node_up(self._partitions(), node_id)
        self.catalog.leaders_changed()

    def _node(self, node_id: int) -> BrokerNode:
        node = self.nodes.get(node_id)
        if node is None:
            raise BrokerNotAvailableError(f"there is no node {node_id}: {list(self.nodes)} are")
        return node

    def _node_down(self, node_id: int) -> None:
        self._leadership.node_down(self._partitions(), node_id)
        self.catalog.leaders_changed()

    # Leaders and replicas

    def leader_of(self, tp: TopicPartition) -> int:
        """Return the id of a partition's leader, -1 when it has none.

        Raises:
            UnknownTopicOrPartitionError: There is no such partition.
        """
        return self.partition(*tp).leader_id

    def move_leader(self, tp: TopicPartition, node_id: int | None = None) -> int:
        """Have another node lead a partition, in a new leader epoch; return which.

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
        """Have another node coordinate a group, and all groups of its partition; return which.

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
        """Let a follower catch up that was held.

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
        end_offset = partition.truncate_to(offset)
        self._leadership.elect_again(partition)
        self.catalog.leaders_changed()
        return end_offset

    def _leader_elected(self, partition: Partition) -> None:
        if partition.topic == GROUP_METADATA_TOPIC:
            self._elect_coordinator(partition)

    def _elect_coordinators(self) -> None:
        """Let the leaders of the offsets topic's partitions coordinate the groups in them."""
        topic = self.topic(GROUP_METADATA_TOPIC)
        for partition in () if topic is None else topic.partitions:
            self._elect_coordinator(partition)

    def _elect_coordinator(self, partition: Partition) -> None:
        for node in self.nodes.values():
            if node.id != partition.leader_id:
                node.groups.resign(partition.index)
        leader = self.nodes.get(partition.leader_id)
        if leader is not None:
            leader.groups.elect(partition.index)

    # Topics

    @property
    def cluster_id(self) -> str:
        return self.catalog.cluster_id

    @property
    def topics(self) -> Mapping[str, Topic]:
        """Every topic by name, internal ones included; a live view."""
        return self.catalog.topics

    def topic(self, name: str) -> Topic | None:
        return self.catalog.by_name(name)

    def topic_by_id(self, topic_id: bytes) -> Topic | None:
        return self.catalog.by_id(topic_id)

    def has_topic(self, name: str) -> bool:
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
        topic = self._known(name)
        replication = len(topic.partitions[0].replicas)
        more = total - topic.partition_count
        self.catalog.add_partitions(topic, self.place_replicas(more, replication))

    async def open_offsets_topic(self) -> Topic:
        """Return the topic of committed offsets and groups; it is made when there is none yet.

        Raises:
            KafkaStorageError: The disk did not take it: then nothing is promised to any group.
        """
        topic = self.topic(GROUP_METADATA_TOPIC) or self.create_topic(
            GROUP_METADATA_TOPIC, self.config.offsets_topic_partitions, OFFSETS_TOPIC_CONFIG
        )
        await self.disk.settled()
        self._elect_coordinators()
        return topic

    def delete_topic(self, topic: Topic | str) -> None:
        """Delete a topic, its records and the offsets committed for it.

        Raises:
            UnknownTopicOrPartitionError: There is no topic of that name.
        """
        known = self._known(topic) if isinstance(topic, str) else topic
        self.catalog.delete(known)
        for node in self.nodes.values():
            node.groups.topic_deleted(known.name, known.topic_id)

    def recreate_topic(self, name: str, partitions: int | None = None) -> Topic:
        """Delete a topic and create it anew, empty and with another id; return the new one.

        Raises:
            UnknownTopicOrPartitionError: There is no topic of that name.
        """
        old = self._known(name)
        self.delete_topic(old)
        return self.create_topic(
            name,
            old.partition_count if partitions is None else partitions,
            old.config.overrides,
            replication_factor=len(old.partitions[0].replicas),
        )

    def _known(self, name: str) -> Topic:
        topic = self.topic(name)
        if topic is None:
            raise UnknownTopicOrPartitionError(f"there is no topic {name!r}")
        return topic

    def _partition_changed(self, key: object) -> None:
        self.purgatory.touch(key)

    # Groups (what the coordinator needs of its broker)

    @property
    def group_settings(self) -> GroupSettings:
        config = self.config
        return GroupSettings(
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            min_session_timeout_ms=config.group_min_session_timeout_ms,
            max_session_timeout_ms=config.group_max_session_timeout_ms,
            max_size=config.group_max_size,
            offset_metadata_max_bytes=config.offset_metadata_max_bytes,
        )

    @property
    def offsets_topic_partitions(self) -> int:
        """What there are: groups are assigned to partitions by it, so the stored number counts."""
        topic = self.topic(GROUP_METADATA_TOPIC)
        return self.config.offsets_topic_partitions if topic is None else topic.partition_count


def _addresses(config: BrokerConfig) -> Iterator[Node]:
    """Yield where each node listens."""
    for number in range(config.nodes):
        yield Node(
            id=config.node_id + number,
            host=config.host,
            port=config.port + number if config.port else 0,
            rack=config.racks[number] if config.racks else None,
        )
