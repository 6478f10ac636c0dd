"""The cluster: its topics, the leaders of their partitions, and their changes in tests.

This part of `Broker` neither listens nor runs tasks. The handlers of all nodes use it.

`Leadership` elects leaders like Kafka's controller, without its log. The leader is a running
replica in sync, or else an eligible one (KIP-966). Without any, the partition has no leader until
one returns. Every election starts a new leader epoch. Kafka:
org.apache.kafka.controller.PartitionChangeBuilder.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from aiokafka_lite._arguments import checks_arguments
from aiokafka_lite._tasks import TaskScope
from aiokafka_lite._threads import aside
from aiokafka_lite.broker.catalog import TopicCatalog
from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.configs import ConfigValue, ShareGroupSettings, config_texts
from aiokafka_lite.broker.fetch_sessions import FetchSessionCache
from aiokafka_lite.broker.groups.coordinator import GroupCoordinator
from aiokafka_lite.broker.groups.kip848.machine import ConsumerGroupSettings
from aiokafka_lite.broker.log.disk import DiskQueue
from aiokafka_lite.broker.security.listener import ClientAuth, Listener
from aiokafka_lite.broker.security.mechanisms import (
    CredentialStore,
    PlainServer,
    SaslMechanism,
    SaslServer,
    ScramServer,
)
from aiokafka_lite.broker.security.session import SaslSession
from aiokafka_lite.broker.share.partitions import SharePartitions
from aiokafka_lite.broker.share.sessions import ShareSessionCache
from aiokafka_lite.broker.topics import (
    COORDINATOR_TOPICS,
    GROUP_METADATA_TOPIC,
    INTERNAL_TOPICS,
    NO_LEADER,
    SHARE_STATE_TOPIC,
    NewTopic,
    Node,
    Partition,
    PartitionKey,
    Topic,
    partition_for,
)
from aiokafka_lite.broker.transactions.coordinator import (
    ClusterTransactions,
    CoordinatingNode,
    TransactionCoordinator,
)
from aiokafka_lite.errors import (
    BrokerNotAvailableError,
    CoordinatorNotAvailableError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    KafkaConfigurationError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    WrongLoopError,
)
from aiokafka_lite.sasl import Secret, scram
from aiokafka_lite.structs import TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.broker.security.certificates import Certificates
    from aiokafka_lite.broker.security.oauth import TokenAuthority


class ClusterSecurity:
    """Creates the SASL sessions and TLS contexts of a cluster's listeners."""

    def __init__(
        self,
        config: BrokerConfig,
        disk: DiskQueue,
        clock: Callable[[], int],
        rng: random.Random,
    ) -> None:
        self._config = config
        self._clock = clock
        self._rng = rng
        self.credentials = CredentialStore(config.data_dir, disk.submit, self._rng)
        self._tokens: TokenAuthority | None = None
        self._certificates: Certificates | None = None
        listeners = config.all_listeners
        if any(SaslMechanism.OAUTHBEARER in listener.mechanisms for listener in listeners):
            from aiokafka_lite.broker.security.oauth import TokenAuthority

            self._tokens = TokenAuthority(
                clock, allow_unsecured=config.oauth_allow_unsecured_tokens, rng=self._rng
            )
        own = [item for item in listeners if item.protocol.has_tls and item.ssl_context is None]
        if own:
            from aiokafka_lite.broker.security.certificates import Certificates

            self._certificates = Certificates(item.host for item in own)

    async def load(self, loop: asyncio.AbstractEventLoop) -> None:
        users = {name: Secret.of(password) for name, password in self._config.users.items()}
        if self._config.data_dir is not None:
            await aside(loop, self.credentials.load)
        if users:
            await aside(loop, partial(self.credentials.add_users, users))

    # For tests

    @property
    def tokens(self) -> TokenAuthority:
        """The tokens of OAUTHBEARER. Raises KafkaConfigurationError if no listener offers it."""
        if self._tokens is None:
            raise KafkaConfigurationError(
                "the broker issues no tokens because no listener offers OAUTHBEARER: "
                "add OAUTHBEARER to the sasl_mechanisms of a listener"
            )
        return self._tokens

    @property
    def certificates(self) -> Certificates:
        """The temporary certificates. Raises KafkaConfigurationError if no listener has one."""
        if self._certificates is None:
            raise KafkaConfigurationError(
                "this broker created no certificates: it creates them only for TLS listeners "
                "without an ssl_context"
            )
        return self._certificates

    # For endpoints

    def ssl_context(self, listener: Listener) -> ssl.SSLContext | None:
        if not listener.protocol.has_tls:
            return None
        if listener.ssl_context is not None:
            return listener.ssl_context
        return self.certificates.server_context(ClientAuth(self._config.ssl_client_auth))

    def new_session(self, listener: Listener) -> SaslSession | None:
        if not listener.protocol.has_sasl:
            return None
        return SaslSession(
            listener.mechanisms,
            self._new_server,
            self._config.connections_max_reauth_ms,
            self._config.sasl_authentication_timeout_s,
            asyncio.get_running_loop(),
            self._clock,
        )

    def _new_server(self, mechanism: SaslMechanism) -> SaslServer:
        if mechanism is SaslMechanism.PLAIN:
            return PlainServer(self.credentials)
        if mechanism is SaslMechanism.OAUTHBEARER:
            from aiokafka_lite.broker.security.oauth import OAuthBearerServer

            return OAuthBearerServer(self.tokens)
        return ScramServer(scram.BY_NAME[mechanism], self.credentials, self._rng)


@dataclass(eq=False)
class Leadership:
    """The only writer of leaders and replicas in sync."""

    node_ids: Sequence[int]
    is_up: Callable[[int], bool]
    min_in_sync: Callable[[Partition], int]  # returns how many acks=all requires
    on_election: Callable[[Partition], None]  # called also if there is no leader

    # Placing replicas

    def place(self, count: int, replication: int, first: int) -> list[list[int]]:
        """Return the replicas of `count` partitions, from node `first` on, stopped nodes last."""
        nodes = self.node_ids
        if not 1 <= replication <= len(nodes):
            raise InvalidReplicationFactorError(
                f"Unable to replicate the partition {replication} time(s): The target replication "
                f"factor of {replication} cannot be reached because only {len(nodes)} broker(s) "
                f"are registered or some brokers have all their log directories cordoned."
            )
        up = [node for node in nodes if self.is_up(node)] or nodes
        others = [node for node in nodes if node not in up]
        return [
            [
                *[up[(first + each + n) % len(up)] for n in range(min(replication, len(up)))],
                *others[: max(0, replication - len(up))],
            ]
            for each in range(count)
        ]

    def in_sync(self, replicas: Sequence[int]) -> list[int]:
        """Return the replicas of a new partition that are in sync. Before the start, all are."""
        return [node for node in replicas if self.is_up(node)] or [*replicas]

    def adopt(self, partition: Partition) -> None:
        """Adjust a loaded partition to this cluster's nodes. All replicas are in sync."""
        known = [node for node in partition.replicas if node in self.node_ids]
        is_led = known == partition.replicas and partition.leader_id in known
        partition.replicas = known or [self.node_ids[0]]
        partition.isr = [*partition.replicas]
        if not is_led:
            partition.lead(partition.replicas[0])

    # Elections

    def move(self, partition: Partition, node_id: int | None) -> int:
        """Make a node the leader, and return the leader. See `Broker.move_leader`."""
        old = partition.leader_id
        if node_id is None:
            node_id = next((node for node in self._candidates(partition) if node != old), None)
            if node_id is None:
                raise BrokerNotAvailableError(
                    f"{partition.topic}-{partition.index} has no other replica that can become "
                    f"leader: replicas {partition.replicas}, in sync {partition.isr}"
                )
        if node_id not in self.node_ids or not self.is_up(node_id):
            raise BrokerNotAvailableError(
                f"node {node_id} cannot become leader: the node does not exist or is stopped"
            )
        if node_id == old:
            return node_id
        if node_id not in partition.replicas:
            position = partition.replicas.index(old) if old in partition.replicas else 0
            partition.replicas[position] = node_id
            partition.isr = [node for node in partition.isr if node != old]
        partition.held.pop(node_id, None)
        self._elect(partition, node_id)
        return node_id

    def node_down(self, partitions: Iterable[Partition], node_id: int) -> None:
        for partition in partitions:
            self._leave(partition, node_id)
            if partition.leader_id == node_id:
                self._elect(partition, next(iter(self._candidates(partition)), NO_LEADER))

    def node_up(self, partitions: Iterable[Partition], node_id: int) -> None:
        """Add the node's replicas to the ISR. It leads partitions that only it can lead."""
        for partition in partitions:
            if node_id not in partition.replicas or node_id in partition.held:
                continue
            if partition.leader_id == NO_LEADER:
                if node_id in self._candidates(partition):
                    self._elect(partition, node_id)
            elif node_id not in partition.isr:
                self._join(partition, node_id)

    def elect_again(self, partition: Partition) -> None:
        candidates = self._candidates(partition)
        others = [node for node in candidates if node != partition.leader_id]
        self._elect(partition, next(iter(others or candidates), NO_LEADER))

    def _candidates(self, partition: Partition) -> list[int]:
        up = [node for node in partition.replicas if self.is_up(node)]
        in_sync = [node for node in up if node in partition.isr]
        return in_sync or [node for node in up if node in partition.eligible]

    def _elect(self, partition: Partition, leader: int) -> None:
        partition.lead(leader)
        if leader != NO_LEADER and leader not in partition.isr:
            self._join(partition, leader)
        self.on_election(partition)

    def _leave(self, partition: Partition, node_id: int) -> None:
        if node_id in partition.isr:
            partition.isr = [node for node in partition.isr if node != node_id]
            if len(partition.isr) < self._needed(partition):
                partition.eligible.append(node_id)

    def _join(self, partition: Partition, node_id: int) -> None:
        partition.isr = [*partition.isr, node_id]
        is_enough = len(partition.isr) >= self._needed(partition)
        partition.eligible = (
            [] if is_enough else [node for node in partition.eligible if node != node_id]
        )

    def _needed(self, partition: Partition) -> int:
        return min(self.min_in_sync(partition), len(partition.replicas))

    # Lagging followers

    def hold(self, partition: Partition, node_id: int) -> None:
        """Remove a follower from the replicas in sync."""
        if node_id not in partition.replicas or node_id == partition.leader_id:
            raise BrokerNotAvailableError(
                f"node {node_id} is not a follower of {partition.topic}-{partition.index}: "
                f"it leads the partition, or has no replica of the partition"
            )
        partition.held[node_id] = partition.high_watermark
        self._leave(partition, node_id)

    def release(self, partition: Partition, node_id: int) -> None:
        if partition.held.pop(node_id, None) is not None and self.is_up(node_id):
            self._join(partition, node_id)


NOT_RUNNING: Final = "the broker is not running: use `async with Broker() as broker:`"


class ClusterNode(CoordinatingNode, Protocol):
    """The methods of `BrokerNode` that the cluster and the handlers use."""

    fetch_sessions: FetchSessionCache
    share_sessions: ShareSessionCache

    def address_on(self, listener: str) -> Node: ...
    def coordinator(self, topic: str) -> GroupCoordinator | TransactionCoordinator: ...


# The unchecked methods are called for each topic of a request.
@checks_arguments(unchecked=("topic", "topic_by_id", "has_topic"))
class EmbeddedCluster:
    """The topics and leaders of a cluster, for use in the broker's event loop."""

    security: ClusterSecurity
    # Set by the start of the broker, which has a loop.
    loop: asyncio.AbstractEventLoop
    scope: TaskScope
    transactions: ClusterTransactions
    _thread_id: int | None = None  # of the event loop, while the broker is running

    def __init__(
        self,
        config: BrokerConfig,
        nodes: Mapping[int, ClusterNode],
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
        self._leadership = Leadership(
            list(nodes),
            is_up=lambda node_id: nodes[node_id].is_up,
            min_in_sync=self._min_in_sync,
            on_election=self._leader_elected,
        )
        self.catalog = TopicCatalog(config, self.disk, rng, on_change, self._leadership.in_sync)
        self.share_partitions = SharePartitions(
            self.catalog,
            self.share_group_settings,
            clock,
            partial(self._internal_topic, SHARE_STATE_TOPIC),
        )

    def _check_caller(self) -> None:
        """Raise WrongLoopError in other threads, which would corrupt the state."""
        if self._thread_id is not None and self._thread_id != threading.get_ident():
            raise WrongLoopError(
                "a Broker must be used in the thread of its event loop: from other threads, use "
                "a BrokerThread, or loop.call_soon_threadsafe"
            )

    def _check_running(self) -> None:
        if self._thread_id is None:
            raise RuntimeError(NOT_RUNNING)

    # Nodes

    @property
    def live_nodes(self) -> Sequence[ClusterNode]:
        """The running nodes, in the order of their ids."""
        return [node for node in self.nodes.values() if node.is_up]

    @property
    def controller_id(self) -> int:
        """The controller in metadata responses, -1 if no node is running."""
        return next((node.id for node in self.live_nodes), -1)

    # Leaders and replicas

    def leader_of(self, tp: TopicPartition) -> int:
        """Return the id of a partition's leader, -1 if it has no leader."""
        return self.partition(*tp).leader_id

    def move_leader(self, tp: TopicPartition, node_id: int | None = None) -> int:
        """Make another node the partition's leader, in a new leader epoch. Return its id.

        Args:
            tp: The partition.
            node_id: The new leader, by default the next replica in sync. A node without a replica
                takes over the old leader's replica.

        Raises:
            BrokerNotAvailableError: The node is stopped, or no other replica is in sync.
        """
        self._check_caller()
        leader = self._leadership.move(self.partition(*tp), node_id)
        self.catalog.leaders_changed()
        return leader

    def coordinator_of(self, group_id: str) -> int:
        """Return the id of a group's coordinator, -1 if the group has no coordinator."""
        return self.catalog.coordinator_of(GROUP_METADATA_TOPIC, group_id)

    def expire_session(self, group_id: str, member_id: str) -> None:
        """Expire a member's session now, as after its session timeout without heartbeats.

        As in Kafka, a classic member stays in the group while it waits for the response to a
        SyncGroup request, or to a JoinGroup request other than its first one.

        Raises:
            CoordinatorNotAvailableError: The group has no coordinator now.
            CoordinatorLoadInProgressError: The coordinator has not loaded the group yet.
            GroupIdNotFound: The group does not exist.
            UnknownMemberIdError: The group has no such member.
        """
        self._check_caller()
        node = self.nodes.get(self.coordinator_of(group_id))
        if node is None:
            raise CoordinatorNotAvailableError(
                f"group {group_id!r} has no coordinator: no running node leads the group's "
                f"partition of {GROUP_METADATA_TOPIC}"
            )
        node.groups.expire_session(group_id, member_id)

    def move_coordinator(self, group_id: str, node_id: int | None = None) -> int:
        """Move a group to another coordinator and return the node's id.

        All groups of the same partition of `__consumer_offsets` move. The new coordinator loads
        them from the log. Requests that wait at the old one get NOT_COORDINATOR. Raises also as
        `move_leader`.

        Raises:
            CoordinatorNotAvailableError: No client has requested a coordinator yet.
        """
        topic = self.topic(GROUP_METADATA_TOPIC)
        if topic is None:
            raise CoordinatorNotAvailableError(
                f"group {group_id!r} has no coordinator yet, because no client has requested one: "
                "start a member of the group first"
            )
        index = partition_for(group_id, topic.partition_count)
        return self.move_leader(TopicPartition(topic.name, index), node_id)

    def hold_replica(self, tp: TopicPartition, node_id: int) -> None:
        """Stop replicating to a follower: its log end stays, and it leaves the in-sync replicas.

        Raises:
            BrokerNotAvailableError: The node is not a follower of the partition.
        """
        self._check_caller()
        self._leadership.hold(self.partition(*tp), node_id)
        self.catalog.leaders_changed()

    def release_replica(self, tp: TopicPartition, node_id: int) -> None:
        """Let a follower that `hold_replica` stopped catch up."""
        self._check_caller()
        self._leadership.release(self.partition(*tp), node_id)
        self.catalog.leaders_changed()

    def _partitions(self) -> Iterator[Partition]:
        for topic in self.topics.values():
            yield from topic.partitions

    def truncate(self, tp: TopicPartition, offset: int) -> int:
        """Truncate a log, like a lagging replica's unclean election. Return its new end offset.

        The whole batch that holds `offset` is removed, too. The next replica in sync becomes the
        leader, or the same node if no other is in sync, in a new leader epoch (KIP-320).
        """
        self._check_caller()
        partition = self.partition(*tp)
        # Metadata change only with the new epoch, in which the old leader serves no more requests.
        end_offset = partition.log.truncate_to(offset)
        self._leadership.elect_again(partition)
        self.catalog.leaders_changed()
        return end_offset

    def _min_in_sync(self, partition: Partition) -> int:
        return self.known_topic(partition.topic).config.min_insync_replicas

    def _leader_elected(self, partition: Partition) -> None:
        if partition.topic in COORDINATOR_TOPICS:
            self._elect_coordinators_of(partition.topic, [partition])

    def _elect_coordinators(self) -> None:
        """Make the leaders of the coordinators' topics the coordinators of their partitions."""
        for name in COORDINATOR_TOPICS:
            topic = self.topic(name)
            if topic is not None:
                self._elect_coordinators_of(topic.name, topic.partitions)

    def _elect_coordinators_of(self, topic: str, partitions: Sequence[Partition]) -> None:
        leaders = {partition.index: partition.leader_id for partition in partitions}
        for node in self.nodes.values():
            coordinator = node.coordinator(topic)
            coordinator.resign(index for index, leader in leaders.items() if leader != node.id)
            coordinator.elect(index for index, leader in leaders.items() if leader == node.id)

    # Topics

    @property
    def cluster_id(self) -> str:
        """The cluster id, which a data directory keeps across restarts."""
        return self.catalog.cluster_id

    @property
    def topics(self) -> Mapping[str, Topic]:
        """A live view of all topics by name, internal ones included."""
        return self.catalog.topics

    def topic(self, name: str) -> Topic | None:
        """Return a topic, or None."""
        return self.catalog.by_name(name)

    def topic_by_id(self, topic_id: bytes) -> Topic | None:
        """Return a topic by the 16 bytes of its id (KIP-516), or None."""
        return self.catalog.by_id(topic_id)

    def has_topic(self, name: str) -> bool:
        """Return whether a topic exists."""
        return self.catalog.by_name(name) is not None

    def partition(self, topic: str, index: int) -> Partition:
        """Return a partition. Raises UnknownTopicOrPartitionError if it does not exist."""
        return self.catalog.partition(topic, index)

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        configs: Mapping[str, ConfigValue] | None = None,
        *,
        replication_factor: int | None = None,
    ) -> Topic:
        """Create a topic.

        Args:
            name: The topic's name.
            partitions: By default `num_partitions` of the broker.
            configs: Topic configurations such as "cleanup.policy". Numbers and flags are converted
                to text.
            replication_factor: By default `default_replication_factor` of the broker.

        Raises:
            InvalidTopicError: The name is not allowed.
            TopicAlreadyExistsError: The topic exists.
            InvalidPartitionsError: The number of partitions is not positive, or too large.
            InvalidReplicationFactorError: The cluster has fewer nodes.
            InvalidConfigurationError: A configuration is unknown, or its value is not allowed.
        """
        self._check_caller()
        count = self.config.num_partitions if partitions is None else partitions
        self.catalog.check_name(name)
        if self.has_topic(name):
            raise TopicAlreadyExistsError(f"topic {name!r} exists")
        replicas = self.place_replicas(count, replication_factor)
        return self.catalog.create(
            NewTopic(name, replicas, self.catalog.parse_config(config_texts(configs)))
        )

    def place_replicas(
        self, partitions: int, replication_factor: int | None = None
    ) -> Sequence[Sequence[int]]:
        """Return the replicas' node ids for each new partition, the leader first."""
        self.catalog.check_growth(partitions)
        replication = self.config.replication if replication_factor is None else replication_factor
        return self._leadership.place(partitions, replication, self.catalog.partition_count)

    def add_partitions(self, name: str, total: int) -> None:
        """Add partitions to a topic until it has `total`.

        Raises:
            InvalidPartitionsError: The topic has as many partitions already.
        """
        self._check_caller()
        topic = self.known_topic(name)
        replication = len(topic.partitions[0].replicas)
        more = total - topic.partition_count
        if more < 1:
            raise InvalidPartitionsError(
                f"topic {name!r} already has {topic.partition_count} partitions, so the number "
                f"cannot be set to {total}: partitions can only be added"
            )
        self.catalog.add_partitions(topic, self.place_replicas(more, replication))

    async def open_internal_topic(self, name: str) -> Topic:
        """Return the log of a kind of coordinators, created if it does not exist.

        Raises:
            KafkaStorageError: The topic could not be written to the disk, so no group can start.
        """
        topic = self._internal_topic(name)
        await self.disk.settled()
        if name in COORDINATOR_TOPICS:
            self._elect_coordinators_of(topic.name, topic.partitions)
        return topic

    def _internal_topic(self, name: str) -> Topic:
        return self.topic(name) or self.create_topic(
            name, self.catalog.coordinators(name), INTERNAL_TOPICS[name]
        )

    def delete_topic(self, topic: Topic | str) -> None:
        """Delete a topic, its records and the offsets committed for it.

        Deleting a topic of the coordinators deletes their state. The next request to a coordinator
        recreates the topic.
        """
        self._check_caller()
        known = topic if isinstance(topic, Topic) else self.known_topic(topic)
        if known.name in COORDINATOR_TOPICS:
            # This precedes the deletion, because the number of partitions maps groups to them.
            for node in self.nodes.values():
                node.coordinator(known.name).resign(range(known.partition_count))
        self.catalog.delete(known)
        for node in self.nodes.values():
            node.groups.topic_deleted(known.name, known.topic_id)
        self.share_partitions.forget(topic_id=known.topic_id)

    def recreate_topic(self, name: str, partitions: int | None = None) -> Topic:
        """Delete a topic and return a new one of this name, by default with as many partitions."""
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
            UnknownTopicOrPartitionError: The topic does not exist.
        """
        topic = self.topic(name)
        if topic is None:
            raise UnknownTopicOrPartitionError(f"there is no topic {name!r}")
        return topic

    # Groups (the cluster's settings for the coordinator)

    def consumer_group_settings(self, group_id: str) -> ConsumerGroupSettings:
        """Return the settings of a KIP-848 group. Each of its requests reads them a few times."""
        return self.catalog.settings.of_groups(group_id, self._consumer_group_settings)

    def _consumer_group_settings(self, group_id: str) -> ConsumerGroupSettings:
        config = self.config
        return ConsumerGroupSettings(
            max_size=config.group_consumer_max_size,
            can_upgrade=config.group_consumer_migration_policy in ("bidirectional", "upgrade"),
            can_downgrade=config.group_consumer_migration_policy in ("bidirectional", "downgrade"),
            classic_max_size=config.group_max_size,
            **self.catalog.settings.group_values(group_id, "consumer"),  # type: ignore[arg-type]
        )

    def share_group_settings(self, group_id: str) -> ShareGroupSettings:
        """Return the settings of a share group."""
        return self.catalog.settings.of_groups(group_id, self._share_group_settings)

    def _share_group_settings(self, group_id: str) -> ShareGroupSettings:
        values = self.catalog.settings.group_values
        return ShareGroupSettings(
            max_size=self.config.group_share_max_size,
            **values(group_id, "share"),  # type: ignore[arg-type]
            **values(group_id, "errors"),  # type: ignore[arg-type]
        )
