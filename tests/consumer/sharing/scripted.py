"""A cluster whose answers to share requests a test writes, in virtual time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, cast

from aiokafka_lite._chance import Chance
from aiokafka_lite._tasks import Event, TaskScope
from aiokafka_lite.client.lanes import Lane
from aiokafka_lite.client.view import ClusterView, Node
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.events import Events
from aiokafka_lite.consumer.membership.kip848.member import MemberState, PartitionId
from aiokafka_lite.consumer.membership.protocol import Identity
from aiokafka_lite.consumer.sharing.leases import LostLeases, RecordLease
from aiokafka_lite.consumer.sharing.sharing import Leasing
from aiokafka_lite.errors import KafkaConnectionError, KafkaError
from aiokafka_lite.protocol.messages import share, share_acknowledge
from aiokafka_lite.records import build_batch
from aiokafka_lite.structs import TopicPartition
from tests.support.scripted_sources import TOPIC_ID, view

Fetch, Fetched = share.ShareFetchRequest, share.ShareFetchResponse
Acknowledge, Acknowledged = (
    share_acknowledge.ShareAcknowledgeRequest,
    share_acknowledge.ShareAcknowledgeResponse,
)
LOCK_MS = 30_000


class Sent:
    """A request in flight. `done` is answered by the test."""

    def __init__(self, node_id: int, request: Any, timeout_s: float) -> None:
        self.node_id, self.request, self.timeout_s = node_id, request, timeout_s
        self.done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    @property
    def epoch(self) -> int:
        epoch: int = self.request.share_session_epoch
        return epoch

    @property
    def acknowledged(self) -> list[tuple[int, int, int]]:
        return [
            (batch.first_offset, batch.last_offset, batch.acknowledge_types[0])
            for topic in self.request.topics
            for partition in topic.partitions
            for batch in partition.acknowledgement_batches
        ]

    def answer(self, *partitions: Any, **fields: object) -> None:
        is_fetch = isinstance(self.request, Fetch)
        topic_class = (
            share.ShareFetchableTopicResponse
            if is_fetch
            else share_acknowledge.ShareAcknowledgeTopicResponse
        )
        topic = topic_class(topic_id=TOPIC_ID, partitions=list(partitions))
        response = (Fetched if is_fetch else Acknowledged)(
            **{  # type: ignore[arg-type]
                "acquisition_lock_timeout_ms": LOCK_MS,
                "responses": [topic] if partitions else [],
                **fields,
            }
        )
        self.done.set_result(response)


def acquired(
    *ranges: tuple[int, int], number: int = 0, offsets: Iterable[int] = (), **fields: object
) -> share.PartitionData:
    """Records that a fetch locked; by default all of these ranges are in the response."""
    wanted = sorted(offsets or (n for first, last in ranges for n in range(first, last + 1)))
    data = b"".join(build_batch([(0, None, b"x", ())], base_offset=offset) for offset in wanted)
    return share.PartitionData(
        partition_index=number,
        records=memoryview(data),
        acquired_records=[
            share.AcquiredRecords(first_offset=first, last_offset=last, delivery_count=1)
            for first, last in ranges
        ],
        **fields,  # type: ignore[arg-type]
    )


class ScriptedVersions:
    def __init__(self, version: int) -> None:
        self._version = version

    def choose(self, request_class: object) -> int:
        return self._version


class ScriptedConnection:
    def __init__(self, pool: ScriptedPool, node_id: int) -> None:
        self.error: KafkaError | None = None
        self.api_versions = ScriptedVersions(pool.version)
        self.closed: asyncio.Future[KafkaError] = asyncio.get_running_loop().create_future()
        self._pool, self._node_id = pool, node_id

    async def request(self, request: object, *, timeout_s: float) -> object:
        sent = Sent(self._node_id, request, timeout_s)
        self._pool.sent.append(sent)
        self._pool.arrived.pulse()
        return await sent.done

    def close(self) -> None:
        if self.error is None:
            self.cut()

    def cut(self) -> None:
        self.error = KafkaConnectionError("cut")
        self.closed.set_result(self.error)
        for sent in self._pool.sent:
            if not sent.done.done():
                sent.done.set_exception(self.error)


class ScriptedPool:
    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.arrived = Event()
        # To this node no connection is ever open.
        self.unreachable: int | None = None
        # Of the requests that the nodes offer.
        self.version = 2
        self.connections: dict[int, ScriptedConnection] = {}

    def ready_connection(self, node_id: int, lane: Lane) -> ScriptedConnection | None:
        connection = self.connections.get(node_id)
        return None if connection is None or connection.error is not None else connection

    async def connect(self, node_id: int, lane: Lane) -> ScriptedConnection:
        if node_id == self.unreachable:
            await asyncio.sleep(math.inf)
        connection = self.connections[node_id] = ScriptedConnection(self, node_id)
        return connection

    def describe(self, node_id: int) -> str:
        return f"node {node_id}"


class ScriptedCluster:
    def __init__(self, cluster_view: ClusterView) -> None:
        self.view = cluster_view
        self.pool = ScriptedPool()
        self.invalidations = 0
        self._listeners: list[Callable[[ClusterView], None]] = []

    def watch(self, owner: object, topics: Iterable[str]) -> None: ...

    def invalidate(self) -> None:
        self.invalidations += 1

    def add_listener(self, listener: Callable[[ClusterView], None]) -> None:
        self._listeners.append(listener)

    def remove_listener(self, listener: Callable[[ClusterView], None]) -> None:
        self._listeners.remove(listener)

    def change(self, cluster_view: ClusterView) -> None:
        self.view = cluster_view
        for listener in self._listeners:
            listener(cluster_view)

    async def find_coordinator(self, group_id: str) -> int:
        raise KafkaConnectionError("no coordinator")

    def apply_leader_hints(
        self, leaders: Mapping[TopicPartition, tuple[int, int]], endpoints: Iterable[Node] = ()
    ) -> Collection[TopicPartition]:
        self.change(self.view.with_leaders(leaders, endpoints))
        return frozenset(leaders)


class Scene:
    """A member of a group, assigned partitions of one topic, between scripted nodes."""

    def __init__(self, leaders: Mapping[int, int], *, free: int = 10) -> None:
        self.cluster = ScriptedCluster(view(dict(leaders)))
        self.free = free
        self.lost: list[LostLeases] = []
        self.errors: list[KafkaError] = []
        self.scope = TaskScope("share")
        config = ConsumerConfig("t", group_id="g", retry_backoff_ms=100)
        self.leasing = Leasing(
            cast("Any", config),
            cast("Any", self.cluster),
            self.scope,
            topics=["t"],
            want=lambda: self.free,
            on_ready=lambda: None,
            on_lost=self.lost.append,
            on_error=self.errors.append,
            events=Events(),
            rng=Chance("1"),
        )
        self.leasing.member.enter(MemberState.JOINING)
        self.cluster.add_listener(self.leasing.assigned)
        self.assign(leaders)

    def assign(self, numbers: Iterable[int], topic_id: bytes = TOPIC_ID) -> None:
        member = self.leasing.member
        identity = Identity(member.identity.member_id, member.identity.generation + 2)
        target = frozenset(PartitionId(topic_id, number) for number in numbers)
        assert member.take_answer(member.identity, identity, target)
        self.leasing.assigned()

    async def sent(self) -> Sent:
        """Return the next request, of which there is only one."""
        pool, loop = self.cluster.pool, asyncio.get_running_loop()
        until = loop.time() + 60
        while not (open_ones := [each for each in pool.sent if not each.done.done()]):
            self.scope.raise_if_failed()
            assert await pool.arrived.wait(until), "no request was sent"
        for node_id in {each.node_id for each in open_ones}:
            assert sum(each.node_id == node_id for each in open_ones) == 1
        return open_ones[0]

    async def none_sent(self, for_s: float) -> bool:
        await asyncio.sleep(for_s)
        return all(each.done.done() for each in self.cluster.pool.sent)

    async def settle_down(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    def take(self, most: int = 1_000) -> list[RecordLease]:
        return [
            self.leasing.lease(each.range, record)
            for each in self.leasing.take_nowait(most)
            for record in each.records
        ]

    async def acquire(self, *ranges: tuple[int, int]) -> list[RecordLease]:
        """Answer the next fetch, and take its records."""
        (await self.sent()).answer(acquired(*ranges))
        await self.settle_down()
        taken = self.take()
        self.free -= len(taken)
        return taken

    @property
    def lost_offsets(self) -> list[int]:
        return sorted(
            offset
            for lost in self.lost
            for first, last in lost.offsets
            for offset in range(first, last + 1)
        )
