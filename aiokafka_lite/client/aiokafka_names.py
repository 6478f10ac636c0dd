"""Attributes of aiokafka's client that existing programs use.

aiokafka's public methods are a contract (tests/test_contract.py), except those that only its own
client calls. These private names are in use:

======================================  ============================================================
attribute                               used by
======================================  ============================================================
``_bootstrap_servers``, ``_client_id``  OpenTelemetry's instrumentation
``_wait_on_metadata``                   the same, for the partition of a record
``ready(get_random_node())``            health checks: whether a broker is reachable
``send(node, MetadataRequest)``         ddtrace, for the id of the cluster
``cluster.controller``                  Elastic APM's instrumentation
======================================  ============================================================
"""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import Final, TypeVar, cast

from aiokafka_lite._virtual import chance_here
from aiokafka_lite.client.arguments import ClientArguments
from aiokafka_lite.client.cluster import Cluster, Listener
from aiokafka_lite.client.cluster_requests import metadata_request
from aiokafka_lite.client.config import parse_bootstrap_servers
from aiokafka_lite.client.view import ClusterView
from aiokafka_lite.errors import (
    ConsumerStoppedError,
    IllegalOperation,
    KafkaError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.messages.metadata import MetadataRequest
from aiokafka_lite.structs import BrokerMetadata, TopicPartition

log: Final = logging.getLogger(__name__)

# As in aiokafka, ConsumerStoppedError is not a KafkaError.
NOT_THERE: Final = (KafkaError, ConsumerStoppedError)


class ClientNames:
    """The attributes of one consumer's or producer's client. `running` raises one of NOT_THERE."""

    def __init__(
        self,
        running: Callable[[], Cluster],
        arguments: ClientArguments,
        until_known: Callable[[str], Awaitable[set[int]]] | None = None,
    ) -> None:
        self._running = running
        self._client_id = arguments.client_id
        self._bootstrap_servers: str | Sequence[str] = arguments.bootstrap_servers
        self._until_known = until_known
        self._topics: set[str] = set()
        self.cluster = ClusterNames(lambda: running().view, running)

    @property
    def hosts(self) -> list[tuple[str, int, int]]:
        addresses = parse_bootstrap_servers(self._bootstrap_servers)
        return [(each.host, each.port, int(socket.AF_UNSPEC)) for each in addresses]

    async def bootstrap(self) -> None:
        await self._running().refresh()

    async def close(self) -> None:
        """Has no effect: `stop` of the consumer or producer closes the connections."""

    def get_random_node(self) -> int | None:
        nodes = sorted(self._running().view.nodes)
        return chance_here("node").choice(nodes) if nodes else None

    async def ready(self, node_id: int | None, *, group: object = None) -> bool:
        """Return whether a broker responds in time. aiokafka's checks only for a connection."""
        if node_id is None:
            return False
        try:
            await self._running().request(node_id, MetadataRequest(topics=[]))
        except NOT_THERE:
            return False
        return True

    async def send(
        self, node_id: int | None, request: object, *, group: object = None
    ) -> SimpleNamespace:
        """Send aiokafka's MetadataRequest. The result has cluster id, controller and brokers."""
        name = type(request).__name__
        if not name.startswith("MetadataRequest"):
            raise IllegalOperation(
                f"aiokafka_lite cannot send aiokafka's {name}: only MetadataRequest is supported"
            )
        asked = metadata_request((), may_create=False)
        cluster = self._running()
        if node_id is None:
            answer = await cluster.request_any(asked)
        else:
            answer = await cluster.request(node_id, asked)
        return SimpleNamespace(
            cluster_id=answer.cluster_id,
            controller_id=answer.controller_id,
            brokers=[(each.node_id, each.host, each.port, each.rack) for each in answer.brokers],
        )

    async def force_metadata_update(self) -> bool:
        return await self._fetch(None)

    async def _fetch(self, topics: Collection[str] | None) -> bool:
        try:
            await self._running().refresh(topics)
        except NOT_THERE:
            return False
        return True

    def add_topic(self, topic: str) -> Awaitable[bool]:
        """Add a topic to the metadata. The awaitable returns whether fetching it succeeded."""
        return self.set_topics({*self._topics, topic})

    def set_topics(self, topics: Collection[str]) -> Awaitable[bool]:
        """Fetch metadata of these topics, too, even if the result is not awaited."""
        new = set(topics) - self._topics
        self._topics = set(topics)
        self._running().watch(self, self._topics)
        return Later(_true if topics and not new else partial(self._fetch, new or None))

    async def fetch_all_metadata(self) -> ClusterNames:
        answer = await self._running().request_any(metadata_request(None, may_create=False))
        view = ClusterView().updated(answer, 0.0)
        return ClusterNames(lambda: view, self._running)

    async def coordinator_lookup(self, coordinator_type: int, coordinator_key: str) -> int:
        """Return the id of the coordinator of a group (type 0) or a transactional id (type 1)."""
        return await self._running().find_coordinator(coordinator_key, key_type=coordinator_type)

    async def _wait_on_metadata(self, topic: str) -> set[int]:
        if self._until_known is not None:
            return await self._until_known(topic)
        cluster = self._running()
        with cluster.watching([topic]):
            if cluster.view.partitions_for_topic(topic) is None:
                await cluster.refresh([topic])
            partitions = cluster.view.partitions_for_topic(topic)
        if partitions is None:
            raise UnknownTopicOrPartitionError(
                f"the brokers' metadata has no partitions of topic {topic!r}: the topic does not "
                "exist, or was just created"
            )
        return partitions


async def _true() -> bool:
    return True


class Later(Awaitable[bool]):
    """Calls a coroutine function when it is awaited, and does not warn if it is not awaited."""

    def __init__(self, call: Callable[[], Coroutine[object, None, bool]]) -> None:
        self._call = call

    def __await__(self) -> Generator[object, None, bool]:
        return self._call().__await__()


class ClusterNames:
    need_all_topic_metadata = False

    def __init__(self, view: Callable[[], ClusterView], running: Callable[[], Cluster]) -> None:
        self._of = view
        self._running = running
        self._listeners: dict[Callable[[ClusterNames], object], Listener] = {}

    # --- Brokers -----------------------------------------------------------------------------
    def brokers(self) -> set[BrokerMetadata]:
        return {BrokerMetadata(*node) for node in self._of().nodes.values()}

    def broker_metadata(self, broker_id: int | str) -> BrokerMetadata | None:
        node = self._of().nodes.get(broker_id) if isinstance(broker_id, int) else None
        return None if node is None else BrokerMetadata(*node)

    @property
    def controller(self) -> BrokerMetadata | None:
        return self.broker_metadata(self._of().controller_id)

    @property
    def cluster_id(self) -> str | None:
        return self._of().cluster_id

    def is_bootstrap(self, node_id: int | str) -> bool:
        return isinstance(node_id, str) or node_id < 0

    # --- Topics ------------------------------------------------------------------------------
    def topics(self, exclude_internal_topics: bool = True) -> set[str]:
        return {
            name
            for name, topic in self._of().topics.items()
            if topic.partitions and not (exclude_internal_topics and topic.is_internal)
        }

    @property
    def internal_topics(self) -> set[str]:
        return {name for name, topic in self._of().topics.items() if topic.is_internal}

    @property
    def unauthorized_topics(self) -> set[str]:
        refused = TopicAuthorizationFailedError
        return {name for name, topic in self._of().topics.items() if topic.error is refused}

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return self._of().partitions_for_topic(topic)

    def available_partitions_for_topic(self, topic: str) -> set[int] | None:
        return self._of().available_partitions_for_topic(topic)

    def leader_for_partition(self, partition: TopicPartition) -> int | None:
        """Return the id of the partition's leader, -1 without one."""
        found = self._of().partition(TopicPartition(*partition))
        return None if found is None else found.leader

    def partitions_for_broker(self, broker_id: int | str) -> set[TopicPartition] | None:
        led = {
            TopicPartition(name, number)
            for name, topic in self._of().topics.items()
            for number, partition in topic.partitions.items()
            if partition.leader == broker_id
        }
        return led or None

    # --- Changes -----------------------------------------------------------------------------
    def request_update(self) -> Future[ClusterNames]:
        """Fetch metadata soon. The future's result is this object, after the update."""
        cluster, future = self._running(), Future[ClusterNames]()

        def note(_: ClusterView) -> None:
            cluster.remove_listener(note)
            future.set_result(self)

        cluster.add_listener(note)
        cluster.invalidate()
        return future

    def add_listener(self, listener: Callable[[ClusterNames], object]) -> None:
        def call(_: ClusterView) -> None:
            listener(self)

        self._running().add_listener(call)
        self._listeners[listener] = call

    def remove_listener(self, listener: Callable[[ClusterNames], object]) -> None:
        self._running().remove_listener(self._listeners.pop(listener))


# --- Wrappers -------------------------------------------------------------------------------
# Instrumentation that knows no other clients sets wrappers on methods of aiokafka's classes. They
# are put around the methods here, also around those that replace them, such as `poll`.
MethodT = TypeVar("MethodT", bound=Callable[..., object])


def wrap_as_aiokafkas(instance: object, ours: type, original: Mapping[str, object]) -> None:
    """Put the wrappers of aiokafka's class of that name around methods that are `original`."""
    theirs = class_of_aiokafka(ours.__name__, type(instance))
    if theirs is None:
        return
    for name, method in original.items():
        if vars(ours)[name] is method and name not in vars(instance):
            bound = getattr(instance, name)
            wrapped = wrapped_alike(bound, theirs, name)
            if wrapped is not bound:
                setattr(instance, name, wrapped)


def class_of_aiokafka(name: str, kind: type) -> type | None:
    theirs = getattr(sys.modules.get("aiokafka"), name, None)
    return theirs if isinstance(theirs, type) and theirs not in kind.__mro__ else None


def wrapped_alike(method: MethodT, kind: type, name: str) -> MethodT:
    """Put wrappers of wrapt on a class's method around a bound one, while they are there."""
    outermost = vars(kind).get(name)

    def is_still_there() -> bool:
        return vars(kind).get(name) is outermost

    layers = []
    layer: object = outermost
    while hasattr(layer, "__wrapped__"):
        wrapper = getattr(layer, "_self_wrapper", None)
        if wrapper is None:
            log.warning(
                "calls of %s() are not traced, because the tracing library's wrapper around "
                "%s.%s.%s cannot be applied to aiokafka_lite. Wrap aiokafka_lite.%s, or call "
                "aiokafka_lite.as_aiokafka.install() before the first import of aiokafka",
                name,
                kind.__module__,
                kind.__qualname__,
                name,
                kind.__name__,
            )
            return method
        layers.append((type(layer), wrapper))
        layer = layer.__wrapped__
    wrapped: object = method
    for make, wrapper in reversed(layers):
        wrapped = cast("Callable[..., object]", make)(wrapped, wrapper, is_still_there)
    return cast("MethodT", wrapped)
