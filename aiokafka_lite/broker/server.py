"""The broker: a cluster of one or several nodes, and the state that its nodes share.

    BrokerNode (node.py) per node ─ handlers/ ─┬─ TopicCatalog ─ logs
                                               ├─ Purgatory (long polls)
                                               ├─ GroupCoordinator
                                               └─ Leadership (cluster.py)

One event loop is the only writer of the state. `DiskQueue` has a thread for slow disk work.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import ssl
import threading
from asyncio import _get_running_loop
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar, cast

from aiokafka_lite._arguments import checks_arguments
from aiokafka_lite._chance import UNSEEDED
from aiokafka_lite._compat import Self, override
from aiokafka_lite._tasks import LoopEndedError, TaskScope
from aiokafka_lite._threads import aside
from aiokafka_lite._virtual import chance_for, wall_ms
from aiokafka_lite.broker.cluster import ClusterSecurity
from aiokafka_lite.broker.config import KINDS, BrokerConfig
from aiokafka_lite.broker.direct import DirectAccess
from aiokafka_lite.broker.faults import ConnectionRule, Faults, Rule
from aiokafka_lite.broker.faults.builder import FaultMethods, Leaders
from aiokafka_lite.broker.faults.rules import Action, ConnectionFault, ConnectionMatch, Match
from aiokafka_lite.broker.handlers.base import load_handlers
from aiokafka_lite.broker.maintenance import Chore, Maintenance, compact_all, delete_expired
from aiokafka_lite.broker.network.dispatcher import Purgatory
from aiokafka_lite.broker.network.request_log import RequestLog
from aiokafka_lite.broker.node import BrokerNode
from aiokafka_lite.broker.security.listener import (
    DEFAULT_MECHANISMS,
    Listener,
    SecurityProtocol,
)
from aiokafka_lite.broker.security.mechanisms import SaslMechanism
from aiokafka_lite.broker.slices import run_in_slices
from aiokafka_lite.broker.topics import Node
from aiokafka_lite.broker.transactions.coordinator import EXPIRY_CHECK_S, ClusterTransactions
from aiokafka_lite.errors import BrokerNotAvailableError
from aiokafka_lite.protocol.source import Steps
from aiokafka_lite.sasl import Secret

if TYPE_CHECKING:
    from aiokafka_lite.broker.security.certificates import Certificates

log = logging.getLogger(__name__)

RuleT = TypeVar("RuleT", Rule, ConnectionRule)


@checks_arguments(KINDS)
class Broker(DirectAccess, FaultMethods[Rule, ConnectionRule]):
    """An embedded Kafka broker: a cluster of one node or more, for tests and laptops.

    ::

        async with Broker() as broker:
            consumer = AIOKafkaConsumer("topic", bootstrap_servers=broker.bootstrap_servers)

    It is not for production. It listens on 127.0.0.1 without authentication and TLS, unless
    `security_protocol` and `users` add them. Leaving the `async with` ends the long polls, closes
    the connections within `stop_timeout_s` and makes the data durable.

    With several nodes, each listens on its own port and leads some of the partitions. The replicas
    of a partition are views of one log, so they are in sync unless a test holds one
    (`hold_replica`).

    Every method raises TypeError for an argument of another type than annotated, and
    UnknownTopicOrPartitionError for a topic or partition that does not exist.

    Args:
        config: All settings in one object, instead of the other arguments. `BrokerConfig` documents
            the settings.
        clock: Returns the wall-clock time in milliseconds.
        rng: The source of random numbers and ids, instead of `seed`.
        settings: Any other field of `BrokerConfig`.

    Raises:
        InsecureConfigError: Other machines could reach a listener that does not allow it.
        KafkaConfigurationError: A listener needs a package that is not installed.
        ValueError: The value of a setting is not allowed.
        TypeError: A setting has another type.
        KafkaConnectionError: On entering: the address cannot be listened on.
        KafkaStorageError: On entering: the data directory is in use or cannot be read.
    """

    nodes: Mapping[int, BrokerNode]

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
        seed: int | None = None,
        clock: Callable[[], int] = wall_ms,
        rng: random.Random | None = None,
        **settings: float | str,
    ) -> None:
        given = BrokerConfig(
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
            seed=seed,
            **settings,  # type: ignore[arg-type]  # dataclass checks names, __post_init__ values
        )
        if config is None:
            config = given
        elif given != BrokerConfig():
            raise TypeError(
                "config replaces all other settings of the broker, so they must be fields of the "
                "BrokerConfig: use dataclasses.replace(config, ...)"
            )
        chance = rng or chance_for(config.seed, "broker", _get_running_loop())
        is_seeded = chance is not UNSEEDED
        self.faults = Faults()
        self.requests = RequestLog(config.request_log_size)
        super().__init__(
            config,
            {
                config.node_id + number: BrokerNode(
                    self, _addresses(config, number), self.faults, self.requests
                )
                for number in range(config.nodes)
            },
            clock=clock,
            rng=chance,
            on_change=lambda key: self.purgatory.touch(key),
        )
        self.security = ClusterSecurity(
            config, self.disk, clock, chance if is_seeded else random.SystemRandom()
        )
        self.failure: BaseException | None = None
        self._is_running = False
        # Created by start(), which has a loop.
        self.purgatory: Purgatory
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
        """Load the data directory and listen. The class lists further errors.

        Raises:
            RuntimeError: The broker is running already.
        """
        if self._is_running:
            raise RuntimeError("the broker is running already")
        load_handlers()
        self.loop = loop = asyncio.get_running_loop()
        self.scope = TaskScope("broker", on_failure=functools.partial(self._bug, "a task died"))
        self.transactions = ClusterTransactions(
            self.config, self.nodes, self.catalog, self.disk, self.clock, self.scope
        )
        self.purgatory = Purgatory(loop)
        self._maintenance = Maintenance(self._jobs())
        opened: list[BrokerNode] = []
        try:
            if self.config.data_dir is not None:
                await aside(loop, functools.partial(self.catalog.load, self.config.data_dir))
                for partition in self._partitions():
                    self._leadership.adopt(partition)
                self.catalog.leaders_changed()
            await run_in_slices(self.share_partitions.load())
            await self.security.load(loop)
            for node in self.nodes.values():
                node.open(self.purgatory, self._bug)
                opened.append(node)
            self._elect_coordinators()
            for node in opened:
                await node.start()
            for node_id in self.nodes:  # a client of the first may have created topics
                self._leadership.node_up(self._partitions(), node_id)
            self.scope.spawn(self._maintenance.run(), name="maintenance")
        except BaseException:
            for node in opened:
                await node.kill()
                await node.groups.close()
                node.transactions.close()
            await self._release()
            raise
        self._is_running = True
        self._thread_id = threading.get_ident()

    async def stop(self) -> None:
        """Stop listening, end the long polls, close connections, make data durable. Idempotent.

        Raises:
            KafkaStorageError: Some of the data could not be written.
        """
        if not self._is_running:
            return
        self._is_running = False
        self._thread_id = None
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
        self.share_partitions.close()
        try:
            await self.disk.close()
        finally:
            if self.config.data_dir is None:
                self.catalog.close()
            else:
                await aside(self.loop, self.catalog.close)

    # Faults (see faults/builder.py for `on` and `on_connect`)

    def put_rule(self, match: Match, action: Action, times: int | None) -> Rule:
        """Add a rule after the existing ones."""
        return self._put(Rule(self.faults, match, action, times))

    def put_connection_rule(
        self, match: ConnectionMatch, fault: ConnectionFault, times: int | None
    ) -> ConnectionRule:
        """Add a rule for connections after the existing ones."""
        return self._put(ConnectionRule(self.faults, match, fault, times))

    def _put(self, rule: RuleT) -> RuleT:
        self._check_caller()
        node_id = rule.match.node
        if node_id is not None and node_id not in self.nodes:
            raise ValueError(
                f"there is no node {node_id}, so node= would never match: the nodes are "
                f"{list(self.nodes)}"
            )
        self.faults.put(rule)
        return rule

    def leaders_now(self) -> Leaders:
        """Return the leader ids and leader epochs by (topic, partition)."""
        return {
            (partition.topic, partition.index): (partition.leader_id, partition.leader_epoch)
            for partition in self._partitions()
        }

    def _bug(self, what: str, error: BaseException) -> None:
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
            yield from node.groups.expire_offsets(self.config.offsets_retention_minutes * 60_000)

    async def clean_logs(self) -> None:
        """Run retention, compaction and the expiry of offsets now, by the topics' configurations.

        The last segment of a log is not compacted. Returns when the result is on the disk. A
        cancelled call has done a part of the work.

        Raises:
            RuntimeError: The broker is not running.
            KafkaStorageError: A write to the disk failed.
        """
        self._check_running()
        await self._maintenance.run_once()
        await self.disk.drained()

    # Nodes

    @property
    @override
    def live_nodes(self) -> Sequence[BrokerNode]:
        """The running nodes, in the order of their ids."""
        return cast("Sequence[BrokerNode]", super().live_nodes)

    @property
    def bootstrap_servers(self) -> str:
        """ "host:port" of every node's first listener, separated by commas.

        Raises:
            RuntimeError: The broker was never started, so its free port is not chosen yet.
        """
        if any(endpoint.address.port == 0 for endpoint in self.node.endpoints.values()):
            self._check_running()
        return ",".join(node.bootstrap_servers for node in self.nodes.values())

    def bootstrap_servers_of(self, listener: str) -> str:
        """Return the `bootstrap_servers` of another listener.

        Raises:
            ValueError: No listener has that name.
        """
        names = list(self.node.endpoints)
        if listener not in names:
            raise ValueError(
                f"there is no listener {listener!r}: the listeners are {', '.join(names)}"
            )
        return ",".join(node.endpoints[listener].bootstrap_servers for node in self.nodes.values())

    @property
    def node(self) -> BrokerNode:
        """The first node."""
        return next(iter(self.nodes.values()))

    @property
    def connection_count(self) -> int:
        """The number of open connections of all nodes."""
        return sum(node.connection_count for node in self.nodes.values())

    async def stop_node(self, node_id: int, *, clean: bool = True) -> None:
        """Stop a node: its connections close, and other nodes lead its partitions. Idempotent.

        Args:
            node_id: The node.
            clean: Move the leaders first, as Kafka's controlled shutdown does, and send the
                responses that are being written. False closes the connections at once, as if the
                process was killed.

        Raises:
            BrokerNotAvailableError: The cluster has no such node.
        """
        self._check_caller()
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
        """Start a stopped node at its previous address. Its replicas are in sync again.

        Raises:
            BrokerNotAvailableError: The cluster has no such node.
            KafkaConnectionError: Another program listens at its address now.
            RuntimeError: The broker itself is not running.
        """
        self._check_caller()
        node = self._node(node_id)
        if node.is_up:
            return
        self._check_running()
        await node.start()
        self._leadership.node_up(self._partitions(), node_id)
        self.catalog.leaders_changed()

    def _node(self, node_id: int) -> BrokerNode:
        node = self.nodes.get(node_id)
        if node is None:
            raise BrokerNotAvailableError(
                f"there is no node {node_id}: the nodes are {list(self.nodes)}"
            )
        return node

    def _node_down(self, node_id: int) -> None:
        self._leadership.node_down(self._partitions(), node_id)
        self.catalog.leaders_changed()

    # Security

    @property
    def certificates(self) -> Certificates:
        """The temporary certificates of the TLS listeners without an ssl_context.

        Raises:
            KafkaConfigurationError: The broker has no such listener.
        """
        return self.security.certificates

    def oauth_token(self, principal: str, *, lifetime_s: float = 3_600, scope: str = "") -> str:
        """Return a token that the OAUTHBEARER listeners accept. A negative lifetime has expired.

        Raises:
            KafkaConfigurationError: No listener offers OAUTHBEARER.
        """
        return self.security.tokens.issue(principal, lifetime_s=lifetime_s, scope=scope)


def _addresses(config: BrokerConfig, number: int) -> dict[Listener, Node]:
    return {
        listener: Node(
            id=config.node_id + number,
            host=listener.host,
            port=listener.port + number if listener.port else 0,
            rack=config.racks[number] if config.racks else None,
        )
        for listener in config.all_listeners
    }
