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
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from aiokafka_lite._compat import Self
from aiokafka_lite._tasks import LoopEndedError, TaskScope
from aiokafka_lite.broker import handlers
from aiokafka_lite.broker.catalog_topics import CatalogTopics
from aiokafka_lite.broker.cluster import EmbeddedCluster
from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.faults import ConnectionRule, Faults, Rule
from aiokafka_lite.broker.faults.builder import Leaders
from aiokafka_lite.broker.faults.connections import ConnectionFault, ConnectionMatch
from aiokafka_lite.broker.faults.methods import FaultMethods
from aiokafka_lite.broker.faults.rules import Action, Match
from aiokafka_lite.broker.groups.kip848.values import ConsumerGroupSettings
from aiokafka_lite.broker.groups.values import GroupSettings
from aiokafka_lite.broker.log.compaction import compact_all
from aiokafka_lite.broker.log.maintenance import Chore, Maintenance
from aiokafka_lite.broker.log.retention import delete_expired
from aiokafka_lite.broker.network.purgatory import Purgatory
from aiokafka_lite.broker.network.request_log import RequestLog
from aiokafka_lite.broker.node import BrokerNode
from aiokafka_lite.broker.security.cluster_security import ClusterSecurity
from aiokafka_lite.broker.security.listener import (
    DEFAULT_MECHANISMS,
    Listener,
    SecurityProtocol,
)
from aiokafka_lite.broker.security.mechanism import SaslMechanism
from aiokafka_lite.broker.topics import (
    Node,
)
from aiokafka_lite.broker.transactions.services import EXPIRY_CHECK_S, ClusterTransactions
from aiokafka_lite.errors import (
    BrokerNotAvailableError,
)
from aiokafka_lite.protocol.schema import Response
from aiokafka_lite.protocol.source import Steps
from aiokafka_lite.sasl import Secret

if TYPE_CHECKING:
    from aiokafka_lite.broker.security.certificates import Certificates

log = logging.getLogger(__name__)


def wall_clock_ms() -> int:
    """Return the time that records are stamped with, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class Broker(EmbeddedCluster, FaultMethods[Rule, ConnectionRule]):
    """An embedded Kafka broker: a cluster of one node or more, for tests and laptops.

    ::

        async with Broker() as broker:
            consumer = AIOKafkaConsumer("topic", bootstrap_servers=broker.bootstrap_servers)

    It listens on 127.0.0.1 and by default asks nobody for a password; with `security_protocol`
    and `users` it does, with TLS if that is asked for. It is not for production. Entering
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
        security_protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.
        ssl_context: The server's side of TLS (`server_ssl_context` makes one of files); None makes
            `certificates` that nobody else has.
        sasl_mechanisms: What clients may authenticate by: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 (by
            default these), OAUTHBEARER (with the tokens of `oauth_token`).
        users: Names with passwords.
        listeners: Instead of `host`, `port` and the above: several, each with its own of these.
        allow_remote: Accept a `host` that other machines can reach.
        config: All settings at once, instead of the ones above.
        clock: Returns the wall-clock time in milliseconds.
        rng: Where ids come from; seed it for the same ids each time.
        settings: Any other field of `BrokerConfig`.

    Raises:
        InsecureConfigError: Other machines could reach a listener that does not allow it.
        KafkaConfigurationError: A listener needs a package that is not installed.
        ValueError: A setting is impossible.
        KafkaConnectionError: On entering: it cannot listen there.
        KafkaStorageError: On entering: the data directory is in use, or cannot be read.
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
        security_protocol: SecurityProtocol | str = SecurityProtocol.PLAINTEXT,
        ssl_context: ssl.SSLContext | None = None,
        sasl_mechanisms: Sequence[SaslMechanism | str] = DEFAULT_MECHANISMS,
        users: Mapping[str, Secret | str] | None = None,
        listeners: Sequence[Listener] = (),
        allow_remote: bool = False,
        config: BrokerConfig | None = None,
        clock: Callable[[], int] = wall_clock_ms,
        rng: random.Random | None = None,
        **settings: float | str,
    ) -> None:
        config = config or BrokerConfig(
            nodes=nodes,
            host=host,
            port=port,
            racks=tuple(racks),
            data_dir=None if data_dir is None else Path(data_dir),
            num_partitions=num_partitions,
            auto_create_topics=auto_create_topics,
            security_protocol=security_protocol,
            ssl_context=ssl_context,
            sasl_mechanisms=sasl_mechanisms,
            users=users or {},
            listeners=listeners,
            allow_remote=allow_remote,
            **settings,  # type: ignore[arg-type]  # dataclass checks names, __post_init__ values
        )
        self.faults = Faults()
        self.requests = RequestLog(config.request_log_size)
        super().__init__(
            config,
            {
                config.node_id + number: BrokerNode(self, _addresses(config, number))
                for number in range(config.nodes)
            },
            clock=clock,
            rng=rng or random.Random(),
            on_change=self._partition_changed,
        )
        self.security = ClusterSecurity(config, self.disk, clock, rng)
        self.transactions = ClusterTransactions(self)
        self.failure: BaseException | None = None
        self.group_topics = CatalogTopics(self.catalog, self.nodes)
        self._is_running = False
        # Made by start(), which has a loop.
        self.loop: asyncio.AbstractEventLoop
        self.scope: TaskScope
        self.purgatory: Purgatory[Response | Steps[Response]]
        self._maintenance: Maintenance

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
        self._maintenance = Maintenance(self._jobs())
        opened: list[BrokerNode] = []
        try:
            if self.config.data_dir is not None:
                await loop.run_in_executor(None, self.catalog.load)
                self._adopt_partitions()
            await self.security.load(loop)
            for node in self.nodes.values():
                node.open(self._bug)
                opened.append(node)
            self._elect_coordinators()
            for node in opened:
                await node.start()
            self.scope.spawn(self._maintenance.run(), name="maintenance")
        except BaseException:
            for node in opened:
                await node.kill()
                await node.groups.close()
                node.transactions.close()
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
        self.faults.close()
        for node in self.nodes.values():
            await node.stop_listening()
            await node.groups.close()
            node.transactions.close()
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

    # Faults (see faults/methods.py for `on` and `on_connect`)

    def put_rule(self, match: Match, action: Action, times: int | None) -> Rule:
        """Make a rule, after those there are."""
        rule = Rule(self.faults, match, action, times)
        self.faults.put(rule)
        return rule

    def put_connection_rule(
        self, match: ConnectionMatch, fault: ConnectionFault, times: int | None, after_bytes: int
    ) -> ConnectionRule:
        """Make a rule for connections, after those there are."""
        rule = ConnectionRule(self.faults, match, fault, times, after_bytes)
        self.faults.put_for_connections(rule)
        return rule

    def leaders_now(self) -> Leaders:
        """Return who leads, and in which epoch, by (topic, partition)."""
        return {
            (partition.topic, partition.index): (partition.leader_id, partition.leader_epoch)
            for partition in self._partitions()
        }

    def _bug(self, what: str, error: BaseException) -> None:
        """Make an exception that nobody expected visible: it is a bug in this package."""
        if isinstance(error, LoopEndedError):
            return
        self.failure = self.failure or error
        self.loop.call_exception_handler(
            {"message": f"embedded broker: {what}", "exception": error, "broker": self}
        )

    # Maintenance

    def _jobs(self) -> Iterator[Chore]:
        yield Chore(
            self.config.log_retention_check_interval_ms / 1000,
            lambda: delete_expired(self.topics.values(), self.clock()),
        )
        yield Chore(
            self.config.log_cleaner_backoff_ms / 1000,
            lambda: compact_all(self.topics.values(), self.clock()),
        )
        yield Chore(self.config.offsets_retention_check_interval_ms / 1000, self._expire_offsets)
        yield Chore(EXPIRY_CHECK_S, self.transactions.expire_ids)

    def _expire_offsets(self) -> Steps[None]:
        for node in self.live_nodes:
            yield from node.groups.removal.expire(self.config.offsets_retention_minutes * 60_000)

    async def clean_logs(self) -> None:
        """Do now what is else done from time to time: delete, compact, let offsets lapse.

        All as the topics' configurations have it, so maybe nothing: retention.*, segment.*,
        cleanup.policy, min.cleanable.dirty.ratio, ... The last segment of a log is not compacted.
        Returns when it is done and on the disk. Cancelled, it has done some of it.

        Raises:
            KafkaStorageError: The disk failed.
        """
        await self._maintenance.run_once()
        await self.disk.drained()

    # Nodes

    @property
    def bootstrap_servers(self) -> str:
        """ "host:port" of every node for clients, with commas between; of the first listener."""
        return ",".join(node.bootstrap_servers for node in self.nodes.values())

    def bootstrap_servers_of(self, listener: str) -> str:
        """Return what `bootstrap_servers` is of another listener.

        Raises:
            ValueError: No listener has that name.
        """
        names = list(self.node.endpoints)
        if listener not in names:
            raise ValueError(f"no listener is named {listener!r}: there are {', '.join(names)}")
        return ",".join(node.endpoints[listener].bootstrap_servers for node in self.nodes.values())

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

    def _partition_changed(self, key: object) -> None:
        self.purgatory.touch(key)

    # Security

    @property
    def certificates(self) -> Certificates:
        """The throw-away certificates of listeners with TLS that were given no ssl_context.

        Raises:
            KafkaConfigurationError: There is no such listener.
        """
        return self.security.certificates

    def oauth_token(self, principal: str, *, lifetime_s: float = 3_600, scope: str = "") -> str:
        """Return a token that the broker's OAUTHBEARER listeners take.

        Args:
            principal: Whom it names.
            lifetime_s: How long it is good for; below zero, it has expired.
            scope: What it claims to be for; nobody asks.

        Raises:
            KafkaConfigurationError: No listener offers OAUTHBEARER.
        """
        return self.security.tokens.issue(principal, lifetime_s=lifetime_s, scope=scope)

    # Groups (what the coordinator needs of its cluster)

    @property
    def group_settings(self) -> GroupSettings:
        """What the coordinator of classic groups goes by."""
        config = self.config
        return GroupSettings(
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            min_session_timeout_ms=config.group_min_session_timeout_ms,
            max_session_timeout_ms=config.group_max_session_timeout_ms,
            max_size=config.group_max_size,
            offset_metadata_max_bytes=config.offset_metadata_max_bytes,
        )

    def consumer_group_settings(self, group_id: str) -> ConsumerGroupSettings:
        """Return what the coordinator goes by for a group of KIP-848."""
        config = self.config
        value_of = functools.partial(self.catalog.settings.group_value, group_id)
        return ConsumerGroupSettings(
            session_timeout_ms=value_of("consumer.session.timeout.ms"),
            heartbeat_interval_ms=value_of("consumer.heartbeat.interval.ms"),
            max_size=config.group_consumer_max_size,
            assignment_interval_ms=value_of("consumer.assignment.interval.ms"),
            can_upgrade=config.group_consumer_migration_policy in ("bidirectional", "upgrade"),
            can_downgrade=config.group_consumer_migration_policy in ("bidirectional", "downgrade"),
            classic_max_size=config.group_max_size,
        )


def _addresses(config: BrokerConfig, number: int) -> dict[Listener, Node]:
    """Return where a node listens."""
    return {
        listener: Node(
            id=config.node_id + number,
            host=listener.host,
            port=listener.port + number if listener.port else 0,
            rack=config.racks[number] if config.racks else None,
        )
        for listener in config.all_listeners
    }
