"""A cluster whose answers a test writes, for the sources without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client.cluster import Cluster, MovesListener
from aiokafka_lite.client.lanes import Lane
from aiokafka_lite.client.view import ClusterView, Node, PartitionView, TopicView
from aiokafka_lite.consumer.buffer.budget import ByteBudget
from aiokafka_lite.consumer.buffer.buffer import Buffer
from aiokafka_lite.consumer.buffer.decode import make_delivery
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.delivery.gets import Gets
from aiokafka_lite.consumer.delivery.ready import ReadyRecords
from aiokafka_lite.consumer.fetching.sources import Sources
from aiokafka_lite.errors import KafkaConnectionError, KafkaError
from aiokafka_lite.protocol.fetch_template import PreparedFetch
from aiokafka_lite.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
)
from aiokafka_lite.protocol.schema import Request, Response
from aiokafka_lite.structs import TopicPartition
from tests.support.states import State

TOPIC_ID = bytes(range(16))


def view(
    leaders: dict[int, int],
    *,
    nodes: Iterable[int] = (1, 2),
    epoch: int = 0,
    topic_id: bytes = TOPIC_ID,
) -> ClusterView:
    """A cluster with the topic "t" whose partitions have these leaders, and replicas anywhere."""
    nodes = tuple(nodes)
    topic = TopicView(
        "t",
        topic_id=topic_id,
        partitions={
            number: PartitionView(leader, epoch, replicas=nodes)
            for number, leader in leaders.items()
        },
    )
    return ClusterView(
        nodes={node: Node(node, "h", 1) for node in nodes},
        topics={"t": topic},
        topic_names={topic_id: "t"},
    )


def answer(
    number: int,
    records: bytes = b"",
    *,
    error_code: int = 0,
    high_watermark: int = 100,
    last_stable_offset: int = -1,
    leader_hint: tuple[int, int] | None = None,
    preferred: int = -1,
) -> PartitionData:
    leader, epoch = leader_hint or (-1, -1)
    return PartitionData(
        partition_index=number,
        error_code=error_code,
        high_watermark=high_watermark,
        last_stable_offset=last_stable_offset,
        records=memoryview(records),
        current_leader=LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch),
        preferred_read_replica=preferred,
    )


class Sent:
    """A fetch request on its way, to be answered by the test."""

    def __init__(
        self,
        node_id: int,
        lane: object,
        request: PreparedFetch,
        max_version: int | None,
        timeout_s: float,
    ) -> None:
        self.node_id = node_id
        self.lane = lane
        self.request = request
        self.max_version = max_version
        self.timeout_s = timeout_s
        # Whether the answer has begun to come.
        self.is_arriving = False
        self.response: asyncio.Future[FetchResponse] = asyncio.get_running_loop().create_future()

    @property
    def offsets(self) -> dict[int, int]:
        """The fetch offset asked for, by partition."""
        return {
            index: offset
            for _, _, partitions in self.request.topics
            for index, _, offset, _ in partitions
        }

    @property
    def leader_epochs(self) -> dict[int, int]:
        """The leader epoch that is known, by partition."""
        return {
            index: leader_epoch
            for _, _, partitions in self.request.topics
            for index, leader_epoch, _, _ in partitions
        }

    @property
    def forgotten(self) -> list[int]:
        """The partitions to be dropped from the session."""
        return [number for _, _, partitions in self.request.forgotten for number in partitions]

    @property
    def session(self) -> tuple[int, int]:
        """The session id and its epoch."""
        return self.request.session_id, self.request.session_epoch

    def answer(
        self,
        *answers: PartitionData,
        error_code: int = 0,
        session_id: int = 0,
        throttle_ms: int = 0,
    ) -> None:
        self.response.set_result(
            FetchResponse(
                error_code=error_code,
                session_id=session_id,
                throttle_time_ms=throttle_ms,
                responses=[FetchableTopicResponse(topic_id=TOPIC_ID, partitions=list(answers))],
            )
        )


class ScriptedExchange:
    """Stands in for Exchange: tells what the test has answered."""

    def __init__(self, sent: Sent, on_done: Callable[[ScriptedExchange], None]) -> None:
        self._sent = sent
        self._response = sent.response
        self._on_done = on_done
        self.silent_since = asyncio.get_running_loop().time()
        sent.response.add_done_callback(self._tell)

    @property
    def is_arriving(self) -> bool:
        return self._sent.is_arriving

    def _tell(self, response: asyncio.Future[FetchResponse]) -> None:
        if not response.cancelled():
            self._on_done(self)

    def result(self) -> FetchResponse:
        return self._response.result()

    def result_in_pieces(self, element: object) -> tuple[FetchResponse, None]:
        return self.result(), None

    def abandon(self) -> None:
        self._response.cancel()


class ScriptedConnection:
    """Stands in for Connection: what it sends is the pool's to keep."""

    def __init__(self, pool: ScriptedPool, node_id: int, lane: object, sent: list[Sent]) -> None:
        self._pool = pool
        self._node_id = node_id
        self._lane = lane
        self._sent = sent

    def send(
        self,
        request: PreparedFetch,
        *,
        timeout_s: float,
        max_version: int | None,
        on_done: Callable[[ScriptedExchange], None],
    ) -> ScriptedExchange:
        if self._pool.refusals:
            raise self._pool.refusals.pop()
        sent = Sent(self._node_id, self._lane, request, max_version, timeout_s)
        self._sent.append(sent)
        self._pool.sent_event.set()
        return ScriptedExchange(sent, on_done)


class ScriptedPool:
    """Stands in for Pool: knows which nodes are muted, keeps what was sent in passing."""

    def __init__(self) -> None:
        self.muted_until: dict[int, float] = {}
        self.sent: list[Sent] = []
        # By the quick lane, which there is only where a test wants it.
        self.has_quick_lane = False
        self.sent_quickly: list[Sent] = []
        self.connected: list[tuple[int, object]] = []
        # The nodes that no connection can be opened to.
        self.unreachable: set[int] = set()
        # The nodes that were to be connected to before anything is asked of them.
        self.readied: list[int] = []
        self.suspects: frozenset[int] = frozenset()
        # What the next requests fail with as they are written.
        self.refusals: list[KafkaError] = []
        self.sent_event = asyncio.Event()
        self.sent_in_passing: list[tuple[int, Request[Response]]] = []
        self.lanes_in_passing: list[object] = []
        self.question_count = 0

    def connection_delay(self, node_id: int, lane: object = None) -> float:
        self.question_count += 1
        now = asyncio.get_running_loop().time()
        if lane is Lane.QUICK and (node_id, lane) in self.connected and not self.has_quick_lane:
            return 0.1
        return max(0.0, self.muted_until.get(node_id, 0.0) - now)

    def last_error(self, node_id: int) -> KafkaError | None:
        return None

    def ready(self, node_id: int, lane: object = None) -> bool:
        self.readied.append(node_id)
        return True

    def suspect(self, owner: object, node_ids: frozenset[int]) -> None:
        self.suspects = node_ids

    def ready_connection(self, node_id: int, lane: object = None) -> ScriptedConnection | None:
        now = asyncio.get_running_loop().time()
        if self.muted_until.get(node_id, 0.0) > now or node_id in self.unreachable:
            return None
        if lane is Lane.QUICK and not (self.has_quick_lane and (node_id, lane) in self.connected):
            return None
        return ScriptedConnection(
            self, node_id, lane, self.sent_quickly if lane is Lane.QUICK else self.sent
        )

    async def connect(self, node_id: int, lane: object = None) -> None:
        self.connected.append((node_id, lane))
        if node_id in self.unreachable:
            raise KafkaConnectionError("nobody listens")
        if lane is Lane.QUICK and not self.has_quick_lane:
            raise KafkaConnectionError("there is one connection only")

    def send_nowait(self, node_id: int, request: Request[Response], lane: object = None) -> bool:
        self.sent_in_passing.append((node_id, request))
        self.lanes_in_passing.append(lane)
        return True


class ScriptedCluster:
    """Stands in for Cluster: keeps what was sent, knows what it is told."""

    def __init__(self, cluster_view: ClusterView) -> None:
        self.view = cluster_view
        self.pool = ScriptedPool()
        self.invalidations = 0
        self.search_count = 0
        self._listeners: list[Callable[[ClusterView], None]] = []
        self._moves_listeners: list[MovesListener] = []

    @property
    def sent(self) -> list[Sent]:
        """The requests that have not been looked at."""
        return self.pool.sent

    def add_listener(
        self, listener: Callable[[ClusterView], None], *, on_moves: MovesListener
    ) -> None:
        self._listeners.append(listener)
        self._moves_listeners.append(on_moves)

    def change(self, cluster_view: ClusterView) -> None:
        self.view = cluster_view
        for listener in self._listeners:
            listener(cluster_view)

    def apply_leader_hints(
        self, leaders: Mapping[TopicPartition, tuple[int, int]], endpoints: Iterable[Node] = ()
    ) -> Collection[TopicPartition]:
        before, self.view = self.view, self.view.with_leaders(leaders, endpoints)
        moved = {tp for tp in leaders if self.view.partition(tp) is not before.partition(tp)}
        for on_moves in self._moves_listeners if moved else ():
            on_moves(self.view, moved)
        return moved

    def invalidate(self) -> None:
        self.invalidations += 1

    def look_for_leader(self) -> None:
        self.search_count += 1

    async def next_sent(self, timeout_s: float = 5.0) -> Sent:
        """The next request, waiting for it."""
        return await self._next_of(self.sent, timeout_s)

    async def next_sent_quickly(self, timeout_s: float = 5.0) -> Sent:
        """The next request of the quick lane, waiting for it."""
        return await self._next_of(self.pool.sent_quickly, timeout_s)

    async def _next_of(self, sent: list[Sent], timeout_s: float) -> Sent:
        while not sent:
            self.pool.sent_event.clear()
            await asyncio.wait_for(self.pool.sent_event.wait(), timeout_s)
        return sent.pop(0)

    async def settle(self) -> None:
        """Let everybody run for a while of the loop's turns."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def sends_nothing(self) -> bool:
        """Whether no request is sent in a while of the loop's turns; to be asserted."""
        await self.settle()
        return not self.sent


class Fetching:
    """A sources between a scripted cluster and real gets."""

    def __init__(
        self, cluster: ScriptedCluster, assigned: Collection[int] = (), /, **settings: object
    ) -> None:
        arguments: dict[str, object] = {"retry_backoff_ms": 10, **settings}
        self.config = ConsumerConfig(**arguments)  # type: ignore[arg-type]
        self.cluster = cluster
        self.state = State()
        self.scope = TaskScope("fetch", on_failure=self.state.gate.die)
        self.budget = ByteBudget(self.config.max_buffered_bytes, self._released)
        self.buffer = Buffer(
            self.state,
            self.state.reads,
            self.state.gate,
            self.state.observers,
            on_error=lambda: None,
            on_blocked=self._released,
            on_sought=lambda: self.sources.choose_anew(),
            budget=self.budget,
            delivery=make_delivery(self.config, self.state.events),
        )
        self.ready = ReadyRecords(self.state.core(buffer=self.buffer))
        self.gets = Gets(self.state.core(buffer=self.buffer), self.ready)
        stand_in: Cluster = cluster  # type: ignore[assignment]
        self.sources = Sources(
            self.state.core(self.config, buffer=self.buffer),
            stand_in,
            self.scope,
        )
        if assigned:
            self.assign(*assigned)
        self.sources.start()

    def _released(self) -> None:
        self.sources.budget_released()

    def assign(self, *numbers: int, offset: int = 0) -> None:
        """Assign partitions of "t" and start them at an offset."""
        self.state.assign_from_user([TopicPartition("t", number) for number in numbers])
        for number in numbers:
            self.seek(number, offset)

    def seek(self, number: int, offset: int) -> None:
        self.state.seek(self.state.partition(TopicPartition("t", number)), offset)

    async def poll(self, timeout_s: float | None = 1.0) -> dict[int, list[int]]:
        """The offsets that a poll hands out, by partition."""
        found = await self.gets.many((), timeout_s, None)
        return {tp.partition: [record.offset for record in batch] for tp, batch in found.items()}

    async def close(self) -> None:
        self.sources.close()
        await self.scope.close()
