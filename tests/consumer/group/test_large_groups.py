"""A leader of a large group: what takes long is done beside the event loop."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Mapping, Sequence
from typing import cast

import pytest

from aiokafka_lite import AIOKafkaConsumer, CooperativeStickyPartitionAssignor
from aiokafka_lite.client.view import ClusterView, PartitionView, TopicView
from aiokafka_lite.consumer.assignors import (
    Assignor,
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
    RangePartitionAssignor,
)
from aiokafka_lite.consumer.assignors.abstract import ClusterTopics
from aiokafka_lite.consumer.assignors.blobs import (
    decode_assignment,
    encode_subscription,
)
from aiokafka_lite.consumer.assignors.sticky import StickyPartitionAssignor
from aiokafka_lite.consumer.membership.classic.rebalance import (
    do_racks_count,
    read_members,
    share_out,
)
from aiokafka_lite.protocol.messages.group_members import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from aiokafka_lite.protocol.schema import Message
from aiokafka_lite.structs import TopicPartition
from benchmarks.slice_loop import SliceLoop
from tests.support.cpu import CpuTime
from tests.support.scripted_group import ScriptedBroker
from tests.support.waiting import until

MEMBERS = 100
PATIENCE_S = 20.0
ADDRESS = "127.0.0.1"


class Noting(RangePartitionAssignor):
    """Notes in which thread it assigns, and waits there until it may go on."""

    threads: list[threading.Thread]
    may_go_on: threading.Event

    @classmethod
    def assign(
        cls, cluster: ClusterTopics, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        cls.threads.append(threading.current_thread())
        assert cls.may_go_on.wait(PATIENCE_S), "the loop did nothing meanwhile"
        return super().assign(cluster, members)


def noting(*, may_assign_in_thread: bool = True, waits: bool = False) -> type[Noting]:
    """Make an assignor with notes of its own."""
    may_go_on = threading.Event()
    if not waits:
        may_go_on.set()
    body = {
        "threads": [],
        "may_go_on": may_go_on,
        "may_assign_in_thread": may_assign_in_thread,
    }
    return type("OwnNoting", (Noting,), body)


def leads_a_crowd(broker: ScriptedBroker) -> None:
    """Make the next member that joins the leader of a hundred, all alike."""

    def answer(request: Message) -> JoinGroupResponse:
        assert isinstance(request, JoinGroupRequest)
        response = broker.on_JoinGroupRequest(request)
        others = [
            JoinGroupResponseMember(
                member_id=f"other-{number}", metadata=request.protocols[0].metadata
            )
            for number in range(MEMBERS - 1)
        ]
        response.members = [*response.members, *others]
        return response

    # The first answer to a member without an id only names it.
    broker.script(JoinGroupRequest, broker.usual, answer)


def member_of(
    broker: ScriptedBroker, assignor: type[Noting], rack: str | None = None
) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        "t",
        bootstrap_servers=f"{ADDRESS}:{broker.port}",
        group_id="g",
        group_protocol="classic",
        partition_assignment_strategy=(assignor,),
        client_rack=rack,
        heartbeat_interval_ms=20,
        enable_auto_commit=False,
    )


async def test_a_leader_sends_heartbeats_while_it_shares_out() -> None:
    assignor = noting(waits=True)
    heard: list[Message] = []

    def beat(request: Message) -> HeartbeatResponse:
        heard.append(request)
        if len(heard) == 3:
            assignor.may_go_on.set()
        return HeartbeatResponse()

    async with ScriptedBroker({"t": 2_000}) as broker:
        leads_a_crowd(broker)
        broker.script(HeartbeatRequest, beat, beat, beat)
        async with member_of(broker, assignor) as consumer:
            await until(lambda: len(consumer.assignment()) == 2_000 // MEMBERS)
    assert len(heard) == 3


async def test_a_leader_may_stop_while_it_shares_out() -> None:
    assignor = noting(waits=True)
    async with ScriptedBroker({"t": 2_000}) as broker:
        leads_a_crowd(broker)
        consumer = member_of(broker, assignor)
        starting = asyncio.create_task(consumer.start())
        await until(lambda: bool(assignor.threads))
        await asyncio.wait_for(consumer.stop(), PATIENCE_S / 2)
        assert not assignor.may_go_on.is_set()
        assignor.may_go_on.set()
        await asyncio.wait({starting})
        starting.exception()  # whatever start() makes of it


@pytest.mark.parametrize(
    ("partitions", "rack", "may_assign_in_thread", "is_on_loop"),
    [
        pytest.param(2_000, None, True, False, id="a large group's in a thread"),
        pytest.param(2_000, None, False, True, id="an assignor that knows no threads on the loop"),
        pytest.param(300, None, True, True, id="a small group's on the loop"),
        pytest.param(300, "r", True, False, id="if members are in racks in a thread"),
    ],
)
async def test_where_a_leader_shares_out(
    partitions: int, rack: str | None, may_assign_in_thread: bool, is_on_loop: bool
) -> None:
    assignor = noting(may_assign_in_thread=may_assign_in_thread)
    async with ScriptedBroker({"t": partitions}) as broker:
        leads_a_crowd(broker)
        async with member_of(broker, assignor, rack) as consumer:
            await until(lambda: bool(consumer.assignment()))
    (thread,) = assignor.threads
    assert (thread is threading.current_thread()) is is_on_loop


class Looked:
    """A member's subscription of so many bytes; notes in which thread it is read last."""

    member_id = "m"
    group_instance_id = None

    def __init__(self, size: int) -> None:
        subscription = ConsumerProtocolMemberMetadata(0, ["t"], bytes(size))
        self._metadata = encode_subscription(subscription)
        self.thread: threading.Thread | None = None

    @property
    def metadata(self) -> bytes:
        self.thread = threading.current_thread()
        return self._metadata


@pytest.mark.parametrize(("size", "is_on_loop"), [(9_000, True), (11_000, False)])
async def test_a_leader_reads_long_subscriptions_in_a_thread(size: int, is_on_loop: bool) -> None:
    looked = Looked(size)
    members = await read_members(cast("list[JoinGroupResponseMember]", [looked]))
    assert len(members["m"].user_data) == size
    assert (looked.thread is threading.current_thread()) is is_on_loop


@pytest.mark.parametrize(("count", "is_on_loop"), [(700, True), (900, False)])
async def test_the_length_of_subscriptions_counts_where_partitions_are_assigned(
    count: int, is_on_loop: bool
) -> None:
    assignor = noting()
    said = cast("list[JoinGroupResponseMember]", [Looked(2_000)])
    members = {"m": ConsumerProtocolMemberMetadata(0, ["t"])}
    view = ClusterView(topics={"t": TopicView("t", partitions={0: PartitionView(1)})})
    await share_out(assignor(), view, members, said=said, counts={"t": count})
    (thread,) = assignor.threads
    assert (thread is threading.current_thread()) is is_on_loop


class Foreign:
    """An assignor that knows neither threads nor racks."""

    def __init__(self) -> None:
        self.threads = list[threading.Thread]()

    def assign(self, cluster: object, members: object) -> dict[str, object]:
        self.threads.append(threading.current_thread())
        return {}


async def test_an_assignor_that_does_not_know_threads_assigns_on_the_loop() -> None:
    foreign = Foreign()
    assignor = cast("Assignor", foreign)
    members = {"m": ConsumerProtocolMemberMetadata(0, ["t"], rack_id="r")}
    assert not do_racks_count(assignor, members)
    await share_out(assignor, ClusterView(), members, said=(), counts={"t": 100_000})
    assert foreign.threads == [threading.current_thread()]


# --- A hundred members with a thousand partitions each ----------------------------------------
TOPICS = [f"topic-{number:03d}" for number in range(100)]
PARTITIONS_A_TOPIC = 1_000
VIEW = ClusterView(
    topics={
        topic: TopicView(topic, partitions={n: PartitionView(1) for n in range(PARTITIONS_A_TOPIC)})
        for topic in TOPICS
    }
)


class Crowd:
    """A hundred members that subscribe to topics of their own choice; one gets what is left."""

    def __init__(
        self, assignor: type[StickyPartitionAssignor | CooperativeStickyPartitionAssignor]
    ):
        rng = random.Random(23)
        self.assignors = {f"member-{number:02d}": assignor() for number in range(MEMBERS)}
        self.topics = {
            member: sorted(rng.sample(TOPICS, rng.randint(1, len(TOPICS))))
            for member in self.assignors
        }
        self.topics["member-00"] = TOPICS
        self.owned: dict[str, Sequence[TopicPartition]] = {}

    @property
    def leaders(self) -> Assignor:
        return self.assignors["member-00"]

    def said(self) -> list[JoinGroupResponseMember]:
        """What they say when they join."""
        return [
            JoinGroupResponseMember(
                member_id=member,
                group_instance_id=member,
                metadata=encode_subscription(
                    assignor.metadata(self.topics[member]),
                    self.owned.get(member, ()),
                    1,
                ),
            )
            for member, assignor in self.assignors.items()
        ]

    def take(self, blobs: Mapping[str, bytes]) -> None:
        """Have each take its share; the last ten are replaced by others."""
        for number, (member, assignor) in enumerate(tuple(self.assignors.items())):
            share = decode_assignment(blobs[member], frozenset(TOPICS))
            if number < MEMBERS - 10:
                assignor.on_assignment(share)
                assignor.on_generation_assignment(1)
                self.owned[member] = share.partitions()
            else:
                new = type(assignor)()
                self.assignors.pop(member)
                self.assignors[f"new-{number}"] = new
                self.topics[f"new-{number}"] = self.topics.pop(member)


@pytest.mark.parametrize(
    "assignor",
    [
        pytest.param(StickyPartitionAssignor, marks=pytest.mark.slow),
        CooperativeStickyPartitionAssignor,
    ],
)
def test_a_hundred_thousand_partitions_are_shared_out_in_a_second_and_hold_no_loop(
    assignor: type[StickyPartitionAssignor | CooperativeStickyPartitionAssignor],
) -> None:
    crowd = Crowd(assignor)

    async def share(
        said: Sequence[JoinGroupResponseMember],
    ) -> tuple[Mapping[str, bytes], bool]:
        members = await read_members(said)
        counts = dict.fromkeys(TOPICS, PARTITIONS_A_TOPIC)
        return await share_out(crowd.leaders, VIEW, members, said=said, counts=counts)

    for has_shares in (False, True):
        said = crowd.said()
        loop = SliceLoop()
        try:
            with CpuTime() as took:
                blobs, must_revoke = loop.run_until_complete(share(said))
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            loop.close()
        shares = {
            member: decode_assignment(blob, frozenset(TOPICS)).partitions()
            for member, blob in blobs.items()
        }
        given = [tp for tps in shares.values() for tp in tps]
        # The members are static.
        assert must_revoke is (len(given) < len(TOPICS) * PARTITIONS_A_TOPIC)
        assert len(given) == len(set(given))
        if not has_shares:  # later some wait, cooperatively, until they were given back
            assert len(given) == len(TOPICS) * PARTITIONS_A_TOPIC
        assert loop.longest_slice_ns < 20e6
        assert took.s < 1
        crowd.take(blobs)
