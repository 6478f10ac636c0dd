"""The broker: it accepts connections and owns everything that answers them.

    acceptor ─ Processor per connection ─ RequestChannel ─ Dispatcher ─ handlers/<api>.py
                                                                ├─ TopicCatalog ─ logs
                                                                ├─ Purgatory (long polls)
                                                                └─ GroupCoordinator

Everything runs on one event loop and is written from it only; disk work that may take long is
done by the one thread of `DiskQueue`.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final

from aiokafka_lite import _compat
from aiokafka_lite._compat import Self
from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.broker import handlers
from aiokafka_lite.broker.catalog import TopicCatalog
from aiokafka_lite.broker.channel import RequestChannel
from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.disk import DiskQueue
from aiokafka_lite.broker.dispatcher import Dispatcher
from aiokafka_lite.broker.fetch_session import FetchSessionCache
from aiokafka_lite.broker.group import GroupCoordinator
from aiokafka_lite.broker.group_values import GroupSettings
from aiokafka_lite.broker.processor import Processor, Work
from aiokafka_lite.broker.purgatory import Purgatory
from aiokafka_lite.broker.topics import (
    GROUP_METADATA_TOPIC,
    NewTopic,
    Node,
    Partition,
    Topic,
)
from aiokafka_lite.errors import (
    KafkaConnectionError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.schema import Response

log = logging.getLogger(__name__)

IDLE_CHECKS_PER_TIMEOUT: Final = 4
LISTEN_BACKLOG: Final = 1_024
# Turns of the loop from a socket's being accepted to its `connection_made`.
TURNS_TO_ARRIVE: Final = 3

# What Kafka gives the topic of the group coordinator.
OFFSETS_TOPIC_CONFIG: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    "compression.type": "producer",
    "segment.bytes": "104857600",
}


def wall_clock_ms() -> int:
    """Return the time that records are stamped with, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class Broker:
    """An embedded Kafka broker: a one-node cluster in this process, for tests and laptops.

    ::

        async with Broker() as broker:
            consumer = AIOKafkaConsumer("topic", bootstrap_servers=broker.bootstrap_servers)

    It listens on 127.0.0.1 and asks nobody for a password: it is not for production. Entering
    loads the data directory, if there is one, and listens; leaving ends waiting requests, closes
    the connections within `stop_timeout_s` and makes the data durable.

    Args:
        host: The address to listen on.
        port: 0 takes a free one.
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
        host: str = "127.0.0.1",
        port: int = 0,
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
            host=host,
            port=port,
            data_dir=None if data_dir is None else Path(data_dir),
            num_partitions=num_partitions,
            auto_create_topics=auto_create_topics,
            allow_remote=allow_remote,
            **settings,  # type: ignore[arg-type]  # dataclass checks names, __post_init__ values
        )
        self.clock = clock
        self.rng = rng or random.Random()
        self.node = Node(self.config.node_id, self.config.host, self.config.port)
        self.nodes = {self.node.id: self.node}
        self.controller_id = self.node.id
        self.failure: BaseException | None = None
        self.disk = DiskQueue()
        self.catalog = TopicCatalog(self.config, self.disk, self.rng, self._partition_changed)
        self.fetch_sessions = FetchSessionCache(
            self.config.max_fetch_sessions, self.config.fetch_session_eviction_s, self.rng
        )
        self._processors: dict[Processor, None] = {}
        self._server: asyncio.Server | None = None
        self._is_stopping = False
        self._idle_timer: asyncio.TimerHandle | None = None
        self._all_gone: asyncio.Future[None] | None = None
        # Made by start(), which has a loop.
        self.scope: TaskScope
        self.purgatory: Purgatory[Response]
        self.channel: RequestChannel[Work]
        self.groups: GroupCoordinator

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
        self.channel = RequestChannel(self.config.queued_max_requests, loop)
        self.groups = GroupCoordinator(self)
        try:
            if self.config.data_dir is not None:
                await loop.run_in_executor(None, self.catalog.load)
            self.groups.start()
            dispatcher = Dispatcher(self.channel, self.purgatory, self.scope, self._bug)
            self.scope.spawn(dispatcher.run(), name="dispatcher")
            await self._listen()
        except BaseException:
            await self.groups.close()
            await self._release()
            raise
        self._schedule_idle_check()

    async def _listen(self) -> None:
        host, port = self.config.host, self.config.port
        try:
            self._server = await self.loop.create_server(
                lambda: Processor(self, self.loop), host, port, backlog=LISTEN_BACKLOG
            )
        except OSError as error:
            reason = (
                "another program listens there: stop it, or choose another port"
                if error.errno == errno.EADDRINUSE
                else error.strerror or str(error)
            )
            raise KafkaConnectionError(f"cannot listen on {host}:{port}: {reason}") from error
        bound_port = self._server.sockets[0].getsockname()[1]
        self.node = Node(self.node.id, host, bound_port)
        self.nodes = {self.node.id: self.node}

    async def stop(self) -> None:
        """Stop listening, end waiting requests, close connections, make data durable. Idempotent.

        Raises:
            KafkaStorageError: Some of the data could not be written.
        """
        if self._server is None:
            return
        server, self._server = self._server, None
        self._is_stopping = True
        await self._stop_accepting(server)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        await self.groups.close()
        self.purgatory.close()
        await self._close_connections()
        await server.wait_closed()
        await self._release()

    async def _stop_accepting(self, server: asyncio.Server) -> None:
        """Close the listening sockets, and let those connections arrive that were accepted.

        asyncio loses a connection that it has accepted but whose transport it makes only after
        Server.close(): nobody ever closes that socket. So it is kept from accepting first.
        """
        for listening in server.sockets:
            try:
                self.loop.remove_reader(listening.fileno())
            except NotImplementedError:
                pass  # a proactor's loop accepts in another way
        for _ in range(TURNS_TO_ARRIVE):
            await asyncio.sleep(0)
        server.close()
        await asyncio.sleep(0)

    async def _close_connections(self) -> None:
        self._all_gone = self.loop.create_future()
        for processor in tuple(self._processors):
            processor.close()
        if self._processors:
            try:
                async with _compat.timeout(self.config.stop_timeout_s):
                    await asyncio.shield(self._all_gone)
            except asyncio.TimeoutError:
                for processor in tuple(self._processors):
                    processor.abort()
                await self._all_gone

    async def _release(self) -> None:
        await self.scope.close()
        try:
            await self.disk.close()
        finally:
            if self.config.data_dir is None:
                self.catalog.close()
            else:
                await self.loop.run_in_executor(None, self.catalog.close)

    # Connections (what a Processor needs of its server)

    @property
    def max_frame_bytes(self) -> int:
        return self.config.max_frame_bytes

    def admit(self, processor: Processor) -> bool:
        self._processors[processor] = None
        return not self._is_stopping and len(self._processors) <= self.config.max_connections

    def dismiss(self, processor: Processor) -> None:
        self._processors.pop(processor, None)
        if self._all_gone is not None and not self._processors and not self._all_gone.done():
            self._all_gone.set_result(None)

    def context(self, processor: Processor, version: int, client_id: str | None) -> RequestContext:
        return RequestContext(
            broker=self,
            api_version=version,
            client_id=client_id,
            client_host=processor.peer_host,
        )

    @property
    def connection_count(self) -> int:
        """Connections that are open."""
        return len(self._processors)

    def _schedule_idle_check(self) -> None:
        interval_s = self.config.connections_max_idle_s / IDLE_CHECKS_PER_TIMEOUT
        self._idle_timer = self.loop.call_later(interval_s, self._close_idle)

    def _close_idle(self) -> None:
        idle_since = self.loop.time() - self.config.connections_max_idle_s
        for processor in tuple(self._processors):
            if processor.is_idle and processor.last_active_at <= idle_since:
                processor.close()
        self._schedule_idle_check()

    def _bug(self, what: str, error: BaseException) -> None:
        """Make an exception that nobody expected visible: it is a bug in this package."""
        self.failure = self.failure or error
        self.loop.call_exception_handler(
            {"message": f"embedded broker: {what}", "exception": error, "broker": self}
        )

    # Topics

    @property
    def bootstrap_servers(self) -> str:
        """ "host:port" for clients."""
        host = f"[{self.node.host}]" if ":" in self.node.host else self.node.host
        return f"{host}:{self.node.port}"

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
        """Return a partition; that of committed offsets is created when it is not there yet.

        Raises:
            UnknownTopicOrPartitionError: There is none.
        """
        known = self.topic(topic)
        if known is None and topic == GROUP_METADATA_TOPIC:
            known = self.create_offsets_topic()
        partition = None if known is None else known.partition(index)
        if partition is None:
            raise UnknownTopicOrPartitionError(f"there is no partition {topic}-{index}")
        return partition

    def create_topic(
        self, name: str, partitions: int | None = None, configs: Mapping[str, str] | None = None
    ) -> Topic:
        """Create a topic at once, led by this node. Must be called in the broker's event loop.

        Raises:
            InvalidTopicError: The name is not allowed.
            TopicAlreadyExistsError: There is one of that name.
            InvalidPartitionsError: The number of partitions is not positive, or too large.
            InvalidConfigurationError: A configuration is unknown or has a wrong value.
        """
        count = self.config.num_partitions if partitions is None else partitions
        return self.catalog.create(self.new_topic(name, count, configs or {}))

    def new_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> NewTopic:
        """Validate a topic to be created on this node; raises what `create_topic` does."""
        self.catalog.check_name(name)
        if self.has_topic(name):
            raise TopicAlreadyExistsError(f"topic {name!r} exists")
        self.catalog.check_growth(partitions)
        return NewTopic(name, [[self.node.id]] * partitions, self.catalog.parse_config(configs))

    def create_offsets_topic(self) -> Topic:
        """Create the topic of committed offsets and groups."""
        return self.create_topic(
            GROUP_METADATA_TOPIC, self.config.offsets_topic_partitions, OFFSETS_TOPIC_CONFIG
        )

    def delete_topic(self, topic: Topic) -> None:
        """Delete a topic, its records and the offsets committed for it."""
        self.catalog.delete(topic)
        self.groups.topic_deleted(topic.name, topic.topic_id)

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
