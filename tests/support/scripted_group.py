"""A broker that says what the test tells it to say.

It is one node that coordinates one group with this one member, and answers every request well
unless an answer was scripted for it. What it was asked is on record.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

from aiokafka_lite._compat import Self, timeout
from aiokafka_lite.broker.node import close_server
from aiokafka_lite.errors import (
    BrokerResponseError,
    MemberIdRequired,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol import framing, registry
from aiokafka_lite.protocol.messages.group_members import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
    TopicPartitions,
)
from aiokafka_lite.protocol.messages.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from aiokafka_lite.protocol.messages.metadata import (
    Coordinator as FoundCoordinator,
)
from aiokafka_lite.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponseTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
    PartitionErrorCode,
)
from aiokafka_lite.protocol.schema import ZERO_UUID, Message, Response
from tests.support.frames import request_in

R = TypeVar("R", bound=Message)

NODE_ID = 7
PATIENCE_S = 20.0

Answer = Response | Callable[[Message], "Response | Awaitable[Response | None] | None"] | None


class Held:
    """A request that takes its time: it is answered as usual once it is released."""

    def __init__(self, usual: Callable[[Message], Response]) -> None:
        self._usual = usual
        self._came = asyncio.Event()
        self._may_go = asyncio.Event()

    async def __call__(self, request: Message) -> Response:
        self._came.set()
        await self._may_go.wait()
        return self._usual(request)

    async def came(self) -> None:
        """Wait until there is such a request."""
        async with timeout(PATIENCE_S):
            await self._came.wait()

    def release(self) -> None:
        """Have it answered."""
        self._may_go.set()


class ScriptedBroker:
    """Answers by script; a scripted None closes the connection without an answer."""

    def __init__(self, topics: dict[str, int]) -> None:
        self.topics = dict(topics)
        self.topic_ids = {name: bytes([n]) * 16 for n, name in enumerate(topics, 1)}
        self.topic_errors: dict[str, int] = {}
        self.requests: list[tuple[Message, int]] = []
        self.offsets: dict[tuple[str, int], tuple[int, str]] = {}
        self.generation = 0
        self.member_id = "scripted-1"
        # What the leader gives to itself comes back: {topic: partitions}.
        self.assignment = b""
        # What a member of KIP-848 is led to, by topic id, and in which epoch; see `give`.
        self.target: dict[bytes, list[int]] = {}
        self.epoch = 1
        self._is_target_told = False
        self.max_versions: dict[type[Message], int] = {}
        self._script: dict[type[Message], deque[Answer]] = defaultdict(deque)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def port(self) -> int:
        assert self._server is not None
        return cast(int, self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening and cut all connections; idempotent."""
        server, self._server = self._server, None
        if server is not None:
            await close_server(server)
        for writer in tuple(self._connections):
            writer.transport.abort()
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # --- Script and record ----------------------------------------------------------------
    def script(self, request: type[Message], *answers: Answer) -> None:
        """Give these answers, in order, to the next requests of a kind."""
        self._script[request].extend(answers)

    def forget_script(self) -> None:
        """Answer as usual from now on."""
        self._script.clear()

    def drop_script(self, request: type[Message]) -> None:
        """Answer requests of a kind well from now on."""
        self._script[request].clear()

    def hold(self, request: type[Message]) -> Held:
        """Have the next request of a kind wait, and those behind it on its connection."""
        held = Held(self.usual)
        self.script(request, held)
        return held

    def give(self, target: dict[bytes, list[int]]) -> None:
        """Lead the member of KIP-848 to another assignment, in the next epoch."""
        self.target, self._is_target_told = target, False
        self.epoch += 1

    def asked(self, request: type[R]) -> list[R]:
        """Return the requests of a kind that came so far."""
        return [seen for seen, _ in self.requests if isinstance(seen, request)]

    def versions(self, request: type[Message]) -> list[int]:
        """Return in which versions the requests of a kind came."""
        return [version for seen, version in self.requests if isinstance(seen, request)]

    # --- Serving --------------------------------------------------------------------------
    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._connections.add(writer)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                frame = memoryview(await reader.readexactly(size))
                answer = await self._answer(frame)
                if answer is None:
                    break
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the other side, or the test, is done
        finally:
            self._connections.discard(writer)
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, frame: memoryview) -> bytes | None:
        head = framing.decode_request(frame)
        request = request_in(head)
        self.requests.append((request, head.version))
        scripted = self._script[type(request)]
        response: Response | None
        if scripted:
            answer = scripted.popleft()
            result = answer(request) if callable(answer) else answer
            response = await result if isinstance(result, Awaitable) else result
        else:
            response = self.usual(request)
        if response is None:
            return None
        return framing.encode_response(response, head.version, head.correlation_id)

    def usual(self, request: Message) -> Response:
        """Answer as a coordinator does whose only member is this one."""
        method = getattr(self, f"on_{type(request).__name__}")
        return cast(Response, method(request))

    def on_ApiVersionsRequest(self, _: ApiVersionsRequest) -> ApiVersionsResponse:
        return ApiVersionsResponse(
            api_keys=[
                ApiVersion(
                    api_key=key,
                    min_version=kind.min_version,
                    max_version=min(kind.max_version, self.max_versions.get(kind, 99)),
                )
                for key, kind in registry.REQUESTS.items()
            ]
        )

    def on_MetadataRequest(self, request: MetadataRequest) -> MetadataResponse:
        wanted = list(self.topics)
        if request.topics is not None:
            wanted = [topic.name or "" for topic in request.topics]
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=NODE_ID, host="127.0.0.1", port=self.port)],
            cluster_id="scripted",
            controller_id=NODE_ID,
            topics=[
                MetadataResponseTopic(
                    error_code=self._topic_error(name),
                    name=name,
                    topic_id=self.topic_ids.get(name, ZERO_UUID),
                    partitions=[
                        MetadataResponsePartition(
                            partition_index=number,
                            leader_id=NODE_ID,
                            leader_epoch=0,
                            replica_nodes=[NODE_ID],
                            isr_nodes=[NODE_ID],
                        )
                        for number in range(self.topics.get(name, 0))
                    ],
                )
                for name in wanted
            ],
        )

    def _topic_error(self, name: str) -> int:
        known = 0 if name in self.topics else UnknownTopicOrPartitionError.errno
        return self.topic_errors.get(name, known)

    def on_FindCoordinatorRequest(self, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        return FindCoordinatorResponse(
            coordinators=[
                FoundCoordinator(key=key, node_id=NODE_ID, host="127.0.0.1", port=self.port)
                for key in request.coordinator_keys
            ]
        )

    def on_JoinGroupRequest(self, request: JoinGroupRequest) -> JoinGroupResponse:
        if not request.member_id and request.group_instance_id is None:
            return JoinGroupResponse(
                error_code=MemberIdRequired.errno, member_id=self.member_id, protocol_name=""
            )
        self.generation += 1
        member_id = request.member_id or self.member_id
        protocol = request.protocols[0]
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_type="consumer",
            protocol_name=protocol.name,
            leader=member_id,
            member_id=member_id,
            members=[JoinGroupResponseMember(member_id=member_id, metadata=protocol.metadata)],
        )

    def on_SyncGroupRequest(self, request: SyncGroupRequest) -> SyncGroupResponse:
        for share in request.assignments:
            self.assignment = share.assignment
        return SyncGroupResponse(
            protocol_type="consumer",
            protocol_name=request.protocol_name,
            assignment=self.assignment,
        )

    def on_HeartbeatRequest(self, _: HeartbeatRequest) -> HeartbeatResponse:
        return HeartbeatResponse()

    def on_ConsumerGroupHeartbeatRequest(
        self, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse:
        if request.member_epoch < 0:
            return ConsumerGroupHeartbeatResponse(
                member_id=request.member_id, member_epoch=request.member_epoch
            )
        tells = request.topic_partitions is not None or not self._is_target_told
        self._is_target_told = True
        return self.epoch_answer(request, self.target if tells else None)

    def epoch_answer(
        self,
        request: Message,
        target: dict[bytes, list[int]] | None = None,
        *,
        epoch: int | None = None,
        interval_ms: int = 5000,
    ) -> ConsumerGroupHeartbeatResponse:
        """Answer a heartbeat of KIP-848 with an epoch and an assignment; None: as before."""
        assert isinstance(request, ConsumerGroupHeartbeatRequest)
        topics = None if target is None else target.items()
        return ConsumerGroupHeartbeatResponse(
            member_id=request.member_id,
            member_epoch=self.epoch if epoch is None else epoch,
            heartbeat_interval_ms=interval_ms,
            assignment=None
            if topics is None
            else Assignment(
                topic_partitions=[TopicPartitions(topic_id=i, partitions=n) for i, n in topics]
            ),
        )

    def on_LeaveGroupRequest(self, request: LeaveGroupRequest) -> LeaveGroupResponse:
        return LeaveGroupResponse(
            members=[MemberResponse(member_id=member.member_id) for member in request.members]
        )

    def on_OffsetCommitRequest(self, request: OffsetCommitRequest) -> OffsetCommitResponse:
        for topic in request.topics:
            for entry in topic.partitions:
                key = (self.name_of(topic.name, topic.topic_id), entry.partition_index)
                self.offsets[key] = (entry.committed_offset, entry.committed_metadata or "")
        return commit_answer(request)

    def on_OffsetFetchRequest(self, request: OffsetFetchRequest) -> OffsetFetchResponse:
        return OffsetFetchResponse(
            groups=[
                OffsetFetchResponseGroup(
                    group_id=group.group_id,
                    topics=[
                        OffsetFetchResponseTopics(
                            name=topic.name,
                            topic_id=topic.topic_id,
                            partitions=[
                                self._fetched(self.name_of(topic.name, topic.topic_id), number)
                                for number in topic.partition_indexes
                            ],
                        )
                        for topic in group.topics or ()
                    ],
                )
                for group in request.groups
            ]
        )

    def _fetched(self, topic: str, number: int) -> OffsetFetchResponsePartitions:
        offset, metadata = self.offsets.get((topic, number), (-1, ""))
        return OffsetFetchResponsePartitions(
            partition_index=number, committed_offset=offset, metadata=metadata
        )

    def name_of(self, name: str, topic_id: bytes) -> str:
        """The topic that a request names, or gives the id of."""
        names = {known: topic for topic, known in self.topic_ids.items()}
        return name or names[topic_id]


def commit_answer(request: OffsetCommitRequest, error_code: int = 0) -> OffsetCommitResponse:
    """Answer every partition of a commit alike."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    PartitionErrorCode(partition_index=entry.partition_index, error_code=error_code)
                    for entry in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def refused_commit(kind: type[BrokerResponseError]) -> Callable[[Message], OffsetCommitResponse]:
    """Refuse a commit as a whole."""

    def answer(request: Message) -> OffsetCommitResponse:
        assert isinstance(request, OffsetCommitRequest)
        return commit_answer(request, kind.errno)

    return answer
