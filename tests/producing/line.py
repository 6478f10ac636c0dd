"""A sender and an accumulator, with a cluster that does as a test says; no network."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType, SimpleNamespace
from typing import NamedTuple, TypeVar, cast

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.client.view import ClusterView, Node, PartitionView, TopicView
from aiokafka_lite.errors import BrokerResponseError, KafkaConnectionError, KafkaError, NoError
from aiokafka_lite.producing.accumulator import Accumulator
from aiokafka_lite.producing.batch import ProducerBatch, ProducerIdAndEpoch
from aiokafka_lite.producing.config import ProducerConfig
from aiokafka_lite.producing.partition_queue import CurrentIdentity, PartitionQueue
from aiokafka_lite.producing.sender import BatchSender
from aiokafka_lite.protocol.framing import decode_request
from aiokafka_lite.protocol.messages.fetch import (
    LeaderIdAndEpoch,
)
from aiokafka_lite.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from aiokafka_lite.protocol.prepared import PreparedRequest
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.records import read_header
from aiokafka_lite.structs import RecordMetadata, TopicPartition
from tests.support.frames import request_in
from tests.support.waiting import until

ME = ProducerIdAndEpoch(1, 0)
BACKOFF_S = 0.1
L = TypeVar("L", bound="Line")


class Sent(NamedTuple):
    """A request: its node, partitions, first sequences and epochs, and who takes its response."""

    node_id: int
    version: int
    request: ProduceRequest
    on_done: Callable[[object], None]

    @property
    def partitions(self) -> list[int]:
        return [part.index for topic in self.request.topic_data for part in topic.partition_data]

    @property
    def sequences(self) -> list[tuple[int, int]]:
        """The epoch and first sequence of each batch."""
        found = []
        for topic in self.request.topic_data:
            for part in topic.partition_data:
                header = read_header(memoryview(part.records or b""), 0)
                assert header is not None
                found.append((header.producer_epoch, header.base_sequence))
        return found

    def respond(
        self,
        *errors: type[BrokerResponseError],
        offset: int = 0,
        leader: int = -1,
        named: Collection[int] = (),
    ) -> None:
        """Respond with an error for each partition, or with offsets."""
        answers = [
            PartitionProduceResponse(
                index=index,
                error_code=error.errno,
                base_offset=offset,
                current_leader=LeaderIdAndEpoch(leader_id=leader, leader_epoch=9),
                record_errors=[BatchIndexAndErrorMessage(batch_index=each) for each in named],
            )
            for index, error in zip(self.partitions, errors or (NoError,) * 9, strict=False)
        ]
        topic = TopicProduceResponse(name="t", partition_responses=answers)
        response = ProduceResponse(responses=[topic])
        self.on_done(SimpleNamespace(result=lambda: response))

    def fail(self, error: KafkaError) -> None:
        """Let the connection fail the request."""

        def result() -> None:
            raise error

        self.on_done(SimpleNamespace(result=result))


class Line:
    """A sender with its accumulator, and a cluster that does as a test says.

    Attributes:
        sent: The requests that have no response yet.
        connected: The nodes that have a connection.
        attempts: The nodes that were connected to, in order.
    """

    def __init__(self, partitions: int = 1, **settings: object) -> None:
        config: ProducerConfig = ProducerConfig(
            retry_backoff_ms=int(BACKOFF_S * 1_000),
            **settings,  # type: ignore[arg-type]
        )
        self.loop = asyncio.get_running_loop()
        self.pool = self
        self.sent: list[Sent] = []
        self.connected = {1, 2, 3}
        self.attempts: list[int] = []
        self.refusal: Exception | None = None
        self.searches = self.invalidations = self.used_up = 0
        self.failed: list[type[KafkaError]] = []
        self.admit: Callable[[PartitionQueue], bool] = lambda queue: True
        self.scope = TaskScope("sender")
        self.identity = CurrentIdentity(self._note_used_up)
        self.identity.renew(ME)
        self.sender = BatchSender(
            config,
            cast("Cluster", self),
            self.identity,
            self.scope,
            random.Random(1),
            admit=lambda queue: self.admit(queue),
            on_failed=self._note_failed,
        )
        self.accumulator = Accumulator(
            config,
            self.loop,
            random.Random(1),
            wake=self.sender.wake,
            give_up=self.sender.expired,
            why_unsent=self.sender.why_unsent,
            on_loss=lambda error: False,
        )
        self.sender.serve(self.accumulator)
        self.accumulator.add_topic("t")
        self.view = ClusterView()
        self.lead(dict.fromkeys(range(partitions), 1))

    def _note_used_up(self) -> None:
        self.used_up += 1

    def _note_failed(self, batch: ProducerBatch, error: KafkaError) -> KafkaError:
        self.failed.append(type(error))
        return error

    # --- The cluster -----------------------------------------------------------------------
    def lead(self, leaders: Mapping[int, int], topic_id: bytes = ZERO_UUID) -> None:
        """Take metadata with these leaders."""
        views = {number: PartitionView(leader, 0) for number, leader in leaders.items()}
        self.view = ClusterView(
            nodes=MappingProxyType({number: Node(number, "h", 1) for number in (0, 1, 2, 3)}),
            topics=MappingProxyType(
                {"t": TopicView("t", topic_id, partitions=MappingProxyType(views))}
            ),
        )
        self.accumulator.view_changed(self.view)
        self.sender.view_changed(self.view)

    def apply_leader_hints(
        self, leaders: Mapping[TopicPartition, tuple[int, int]], endpoints: Iterable[Node]
    ) -> Collection[TopicPartition]:
        known = self.view.topics["t"].partitions
        moved = {tp for tp, (leader, _) in leaders.items() if known[tp.partition].leader != leader}
        before = {number: each.leader for number, each in known.items()}
        self.lead(before | {tp.partition: leader for tp, (leader, _) in leaders.items()})
        return moved

    def look_for_leader(self) -> None:
        self.searches += 1

    def invalidate(self) -> None:
        self.invalidations += 1

    def ready_connection(self, node_id: int, lane: object) -> object:
        if node_id not in self.connected:
            return None

        def send(
            request: PreparedRequest[ProduceResponse],
            *,
            timeout_s: float,
            on_done: Callable[[object], None],
        ) -> None:
            if self.refusal is not None:
                raise self.refusal
            version = request.usable_max_version
            frame = decode_request(memoryview(request.encode(version, 1, None))[4:])
            content = cast("ProduceRequest", request_in(frame))
            self.sent.append(Sent(node_id, version, content, on_done))

        return SimpleNamespace(send=send)

    async def connect(self, node_id: int, lane: object = None) -> object:
        self.attempts.append(node_id)
        await asyncio.sleep(1)
        if node_id not in self.connected:
            raise KafkaConnectionError(f"no way to node {node_id}")
        return None

    def why_not_ready(self, node_id: int, lane: object) -> KafkaError:
        return KafkaConnectionError(f"waiting for node {node_id}")

    # --- The application -------------------------------------------------------------------
    async def send(
        self, *partitions: int, value: bytes = b"v"
    ) -> list[asyncio.Future[RecordMetadata]]:
        """Send a record to each of these partitions, and let the sender take them."""
        futures = [
            self.accumulator.append("t", None, value, partition, 0, ()) for partition in partitions
        ]
        await self.turn()
        return [future for future in futures if future is not None]

    async def turn(self) -> None:
        """Let what is due now happen."""
        for _ in range(3):
            await asyncio.sleep(0)

    async def next(self) -> Sent:
        """Return the oldest request without a response, once there is one."""
        await until(lambda: self.sent)
        return self.sent.pop(0)

    @property
    def queues(self) -> list[PartitionQueue]:
        return list(self.accumulator.queues())


@asynccontextmanager
async def line(partitions: int = 1, **settings: object) -> AsyncIterator[Line]:
    """Return a line."""
    async with ended(Line(partitions, **settings)) as line:
        yield line


@asynccontextmanager
async def ended(line: L) -> AsyncIterator[L]:
    """End a line's tasks after its use. No callback of the loop may have failed."""
    failed: list[object] = []

    def note(loop: object, context: Mapping[str, object]) -> None:
        if "future" not in context:  # whose exception was not retrieved
            failed.append(context)

    line.loop.set_exception_handler(note)
    yield line
    line.accumulator.fail_all(KafkaError("the end of the test"))
    for queue in line.queues:
        assert all(batch.is_expired for batch in (*queue.numbered, *queue.waiting))
    line.accumulator.close()
    await line.scope.close()
    line.scope.raise_if_failed()
    assert not failed


async def warmed(line: Line, *partitions: int) -> None:
    """Have a record of each partition acknowledged, so that more than one may be in flight."""
    await line.send(*partitions)
    (await line.next()).respond()
    await line.turn()
