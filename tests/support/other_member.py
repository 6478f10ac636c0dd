"""Another member of a group, played by hand: the leader, whose steps the test decides.

Each call blocks the thread, and with it the event loop: so whatever it does is done while the
consumer that is tested sees and says nothing, as one whose handler blocks the loop. The broker has
to run elsewhere: a real Kafka, or a BrokerThread.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeVar

from aiokafka_lite._compat import Self, timeout
from aiokafka_lite.errors import (
    BrokerResponseError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    MemberIdRequired,
    NotCoordinatorError,
    RebalanceInProgressError,
    for_code,
)
from aiokafka_lite.protocol import framing
from aiokafka_lite.protocol.codec import encode_versioned
from aiokafka_lite.protocol.messages.group_members import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from aiokafka_lite.protocol.messages.group_members import TopicPartition as WirePartition
from aiokafka_lite.protocol.messages.metadata import FindCoordinatorRequest
from aiokafka_lite.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from aiokafka_lite.protocol.schema import Request, Response
from aiokafka_lite.structs import TopicPartition
from tests.support.cluster import KafkaHandle

R = TypeVar("R", bound=Response)

PATIENCE_S = 20.0
# The last versions that name topics instead of giving ids.
BY_NAME = 9
NOT_READY: Final = (CoordinatorLoadInProgressError, NotCoordinatorError)


class Line:
    """One connection, over which one request is answered after the other."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), PATIENCE_S)
        self._correlation_id = 0

    def close(self) -> None:
        self._socket.close()

    @property
    def has_answer(self) -> bool:
        return bool(select.select([self._socket], [], [], 0)[0])

    def ask(self, request: Request[R], version: int | None = None) -> R:
        """Send a request and wait for its answer."""
        self.send(request, version)
        return self.receive(request, version)

    def send(self, request: Request[R], version: int | None = None) -> None:
        version = type(request).max_version if version is None else version
        self._correlation_id += 1
        frame = framing.encode_request(request, version, self._correlation_id, "other")
        self._socket.sendall(frame)

    def receive(self, request: Request[R], version: int | None = None) -> R:
        version = type(request).max_version if version is None else version
        frame = self._read(int.from_bytes(self._read(4), "big"))
        return framing.response_decoder(type(request), version)(memoryview(frame))

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            piece = self._socket.recv(size - len(found))
            assert piece, "the broker has closed the connection"
            found += piece
        return found


def patiently() -> Iterator[None]:
    """Go round until PATIENCE_S are over, with a moment between; the loop may be blocked."""
    ends_at = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends_at:
        yield
        time.sleep(0.02)
    raise AssertionError("the coordinator is not ready")


class OtherMember:
    """A member of `group_id` that subscribes to `topic`; use it in a `with`.

    It never heartbeats by itself: its session is long. It asks for the assignor "roundrobin".
    """

    def __init__(self, bootstrap_servers: str, group_id: str, topic: str) -> None:
        self.group_id = group_id
        self.topic = topic
        self.member_id = ""
        self.generation = -1
        # Of the generation joined last, with its own.
        self.member_ids: list[str] = []
        # Changes with each join, which has to begin a rebalance, whoever leads.
        self._wish = 0
        self._address = bootstrap_servers.split(",")[0]
        self._lines = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.closing(Line(self._address)) as bootstrap:
            for _ in patiently():
                answer = bootstrap.ask(FindCoordinatorRequest(coordinator_keys=[self.group_id]))
                (found,) = answer.coordinators
                if not found.error_code:
                    break
                assert for_code(found.error_code) is CoordinatorNotAvailableError
        address = f"{found.host}:{found.port}"
        # The coordinator holds JoinGroup, and answers nothing else on its connection meanwhile.
        self._joining = self._lines.enter_context(contextlib.closing(Line(address)))
        self._line = self._lines.enter_context(contextlib.closing(Line(address)))
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()

    # --- Rebalances -----------------------------------------------------------------------
    def begin_join(self) -> None:
        """Begin a rebalance: the coordinator answers when all members have joined."""
        self._wish += 1
        if not self.member_id:
            for _ in patiently():
                answer = self._joining.ask(self._join_request())
                if for_code(answer.error_code) is MemberIdRequired:
                    break
                # A fresh Kafka makes the log of commits, and reads it.
                assert for_code(answer.error_code) in NOT_READY
            self.member_id = answer.member_id
        self._joining.send(self._join_request())
        if self.generation >= 0:
            while not self._joining.has_answer and self._beat() is None:
                pass  # until the coordinator has it

    def end_join(self) -> JoinGroupResponse:
        """Wait for the end of what `begin_join` began."""
        answer = self._joining.receive(self._join_request())
        assert answer.error_code == 0, for_code(answer.error_code)
        self.generation = answer.generation_id
        self.member_ids = [member.member_id for member in answer.members]
        return answer

    async def joined(self) -> JoinGroupResponse:
        """Do the same while the event loop goes on."""
        await self.until(lambda: self._joining.has_answer)
        return self.end_join()

    async def until(self, condition: Callable[[], object]) -> None:
        """Let the event loop run until a condition holds."""
        async with timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110 -- what it waits for happens elsewhere
                await asyncio.sleep(0.005)

    def _join_request(self) -> JoinGroupRequest:
        subscription = ConsumerProtocolSubscription(
            topics=[self.topic], user_data=b"%d" % self._wish
        )
        return JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[
                JoinGroupRequestProtocol(
                    name="roundrobin", metadata=encode_versioned(subscription, 0)
                )
            ],
        )

    def share_out(self, mine: Iterable[int], theirs: Iterable[int]) -> None:
        """As the leader, give partitions to itself and to each other member."""
        own, other = list(mine), list(theirs)
        request = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            protocol_type="consumer",
            protocol_name="roundrobin",
            assignments=[
                SyncGroupRequestAssignment(
                    member_id=each,
                    assignment=self._share(own if each == self.member_id else other),
                )
                for each in self.member_ids
            ],
        )
        answer = self._line.ask(request)
        assert answer.error_code == 0, for_code(answer.error_code)

    def _share(self, numbers: list[int]) -> bytes:
        share = [WirePartition(topic=self.topic, partitions=numbers)] if numbers else []
        return encode_versioned(ConsumerProtocolAssignment(assigned_partitions=share), 0)

    async def lead(self) -> None:
        """Be the first member, hence the leader, with nothing yet."""
        self.begin_join()
        await self.joined()
        self.share_out([], [])

    async def rebalance(self, mine: Iterable[int], theirs: Iterable[int]) -> None:
        """Begin a rebalance, or take part in one, and share out."""
        self.begin_join()
        await self.joined()
        self.share_out(mine, theirs)

    def is_called_to_rejoin(self) -> bool:
        """Whether the group rebalances, as a heartbeat says."""
        return self._beat() is RebalanceInProgressError

    def _beat(self) -> type[BrokerResponseError] | None:
        request = HeartbeatRequest(
            group_id=self.group_id, generation_id=self.generation, member_id=self.member_id
        )
        code = self._line.ask(request).error_code
        return for_code(code) if code else None

    def leave(self) -> None:
        """Leave the group."""
        identity = MemberIdentity(member_id=self.member_id)
        self._line.ask(LeaveGroupRequest(group_id=self.group_id, members=[identity]))

    # --- Offsets --------------------------------------------------------------------------
    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets as a member of its generation."""
        request = OffsetCommitRequest(
            group_id=self.group_id,
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            topics=[
                OffsetCommitRequestTopic(
                    name=tp.topic,
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=tp.partition, committed_offset=offset
                        )
                    ],
                )
                for tp, offset in offsets.items()
            ],
        )
        answer = self._line.ask(request, BY_NAME)
        codes = {p.error_code for topic in answer.topics for p in topic.partitions}
        assert codes == {0}, codes

    def committed(self, tp: TopicPartition) -> int:
        """Return what the group has committed of a partition; -1 for nothing."""
        topic = OffsetFetchRequestTopics(name=tp.topic, partition_indexes=[tp.partition])
        group = OffsetFetchRequestGroup(group_id=self.group_id, topics=[topic])
        answer = self._line.ask(OffsetFetchRequest(groups=[group]), BY_NAME)
        (found,) = answer.groups[0].topics[0].partitions
        assert for_code(answer.groups[0].error_code) is not NotCoordinatorError
        return found.committed_offset


async def throw_out(kafka: KafkaHandle, group: str, member_id: str) -> None:
    """Make the group forget a member, which hears of it at its next heartbeat."""
    async with kafka.raw() as client:
        answer = await client.request(
            LeaveGroupRequest(group_id=group, members=[MemberIdentity(member_id=member_id)])
        )
    assert [member.error_code for member in answer.members] == [0]
