"""The requests of one rebalance, and what is made of the answers: without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, cast

import pytest

from aiokafka_lite import errors
from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.client.lanes import Lane
from aiokafka_lite.client.view import ClusterView, PartitionView, TopicView
from aiokafka_lite.consumer.assignors import (
    ConsumerProtocolMemberAssignment,
    RangePartitionAssignor,
    RebalanceProtocol,
    RoundRobinPartitionAssignor,
)
from aiokafka_lite.consumer.assignors.blobs import (
    decode_subscriptions,
    encode_assignments,
    encode_subscription,
)
from aiokafka_lite.consumer.assignors.cooperative_sticky import CooperativeStickyPartitionAssignor
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.membership.classic.heartbeat import Heartbeat
from aiokafka_lite.consumer.membership.classic.member import Member, MemberState
from aiokafka_lite.consumer.membership.classic.rebalance import (
    LEADER,
    AssignedPartitions,
    Rebalance,
    common_protocol,
    own_assignors,
)
from aiokafka_lite.consumer.membership.coordinator import Coordinator
from aiokafka_lite.consumer.membership.protocol import Identity, Surroundings
from aiokafka_lite.errors import KafkaError, for_code
from aiokafka_lite.protocol.messages.group_members import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    SyncGroupRequest,
    SyncGroupResponse,
)
from aiokafka_lite.protocol.schema import Request, Response
from aiokafka_lite.structs import TopicPartition
from tests.support.rows import tps
from tests.support.states import State

pytestmark = pytest.mark.virtual_time

Answer = Response | KafkaError
Learnt = list[object]


class Learning(RangePartitionAssignor):
    """Notes what it is told."""

    learnt: Learnt

    @classmethod
    def on_assignment(cls, assignment: ConsumerProtocolMemberAssignment) -> None:
        cls.learnt.append(assignment.partitions())

    @classmethod
    def on_generation_assignment(cls, generation: int) -> None:
        cls.learnt.append(generation)


def view_of(**counts: int) -> ClusterView:
    """Metadata of topics with so many partitions."""
    return ClusterView(
        topics={
            topic: TopicView(topic, partitions={n: PartitionView(1) for n in range(count)})
            for topic, count in counts.items()
        }
    )


class Taking:
    """A member that takes part in rebalances; plays the coordinator, the cluster, the heartbeat."""

    def __init__(self, *, is_cooperative: bool = False, **settings: object) -> None:
        self.loop = asyncio.get_running_loop()
        make_config = cast("Callable[..., ConsumerConfig]", ConsumerConfig)
        self.config = make_config(
            **{
                "group_id": "g",
                "session_timeout_ms": 8_000,
                "rebalance_timeout_ms": 20_000,
                "request_timeout_ms": 1_000,
                "partition_assignment_strategy": (Learning,),
                **settings,
            }
        )
        Learning.learnt = []
        self.member = Member("g", is_cooperative=is_cooperative, member_id="me")
        self.member.enter(MemberState.PREPARING)
        self.answers = list[Answer]()
        self.sent = list[tuple[Request[Response], float, float | None, Lane]]()
        self.sent_nowait = list[Request[Response]]()
        self.beats = list[object]()
        self.watched = list[set[str]]()
        self.view = view_of(t=3)
        self.refreshing: Callable[[], Awaitable[ClusterView]] | None = None
        around = Surroundings(
            State().core(self.config),
            cast("Cluster", self),
            cast("Coordinator", self),
            cast("Any", None),
            cast("TaskScope", None),
            replace=lambda _: None,
        )
        self.rebalance = Rebalance(around, self.member, cast("Heartbeat", self))

    # --- The coordinator ------------------------------------------------------------------
    async def request(
        self,
        request: Request[Response],
        *,
        error_code: Callable[[Response], int],
        deadline: float,
        answer_s: float | None = None,
        lane: Lane = Lane.GENERAL,
    ) -> Response:
        self.sent.append((request, deadline - self.loop.time(), answer_s, lane))
        await asyncio.sleep(1)
        answer = self.answers.pop(0)
        if isinstance(answer, KafkaError):
            raise answer
        if code := error_code(answer):
            raise for_code(code)("no")
        return answer

    def send_nowait(self, request: Request[Response]) -> None:
        self.sent_nowait.append(request)

    def joined(self, *, leader: str = "me", generation: int = 5, **more: object) -> Answer:
        """Let the member in; it is alone if it leads."""
        response = JoinGroupResponse(
            generation_id=generation, protocol_name="range", leader=leader, member_id="me"
        )
        for name, value in more.items():
            setattr(response, name, value)
        if leader == "me":
            said = Learning.metadata(["t"]).encode()
            response.members = [JoinGroupResponseMember(member_id="me", metadata=said)]
        return response

    def synced(self, *numbers: int) -> Answer:
        """Assign partitions of the topic."""
        share = ConsumerProtocolMemberAssignment(0, [("t", numbers)])
        return SyncGroupResponse(assignment=encode_assignments({"me": share})["me"])

    def requests(self, kind: type[Request[Response]]) -> list[Request[Response]]:
        return [request for request, *_ in self.sent if isinstance(request, kind)]

    # --- The cluster ----------------------------------------------------------------------
    def watch(self, owner: object, topics: Iterable[str]) -> None:
        assert owner == LEADER
        self.watched.append(set(topics))

    async def refresh(self) -> ClusterView:
        assert self.refreshing is not None
        return await self.refreshing()

    # --- The heartbeat --------------------------------------------------------------------
    @property
    def thread(self) -> Taking:
        return self

    def rest(self) -> None:
        self.beats.append("rest")

    def note_counted_in(self) -> None:
        self.beats.append("counted in")

    def note_contact(self, asked_at: float) -> None:
        self.beats.append(asked_at)

    # --- Taking part ----------------------------------------------------------------------
    async def take_part(self, *answers: Answer, owned: Iterable[int] = ()) -> AssignedPartitions:
        self.answers += answers
        return await self.rebalance.join_and_sync(
            frozenset({"t"}), tps("t", *owned), reason="a test"
        )

    def hold(self, *, generation: int = 4) -> None:
        """Hold an assignment of a generation before."""
        self.member.begin_rebalance()
        self.member.take_generation(
            Identity("me", generation), protocol_name="range", leader_id="other"
        )
        self.member.take_assignment()
        self.member.enter(MemberState.PREPARING)


async def test_a_leader_joins_shares_out_and_learns_its_own_share() -> None:
    it = Taking()
    assigned = await it.take_part(it.joined(), it.synced(0, 2))
    assert assigned.partitions == tps("t", 0, 2)
    assert assigned.shared_out.counts == {"t": 3}
    assert Learning.learnt == [[("t", 0), ("t", 2)], 5]
    (join,) = it.requests(JoinGroupRequest)
    assert isinstance(join, JoinGroupRequest)
    assert (join.group_id, join.member_id, join.reason) == ("g", "me", "a test")
    (sync,) = it.requests(SyncGroupRequest)
    assert isinstance(sync, SyncGroupRequest)
    assert (sync.group_id, sync.member_id, sync.generation_id) == ("g", "me", 5)
    assert (sync.protocol_type, sync.protocol_name) == ("consumer", "range")
    assert [each.member_id for each in sync.assignments] == ["me"]
    assert it.watched == [{"t"}]
    assert it.beats == ["rest", 0.0, "counted in"]
    assert (it.member.state, it.member.identity) == (MemberState.SYNCING, Identity("me", 5))
    assert it.member.has_kept(TopicPartition("t", 2), Identity("me", 4))


async def test_a_follower_shares_nothing_out_and_watches_no_topics_of_others() -> None:
    it = Taking()
    assigned = await it.take_part(it.joined(leader="other"), it.synced(1))
    assert assigned.partitions == tps("t", 1)
    assert not assigned.shared_out.counts
    (sync,) = it.requests(SyncGroupRequest)
    assert isinstance(sync, SyncGroupRequest)
    assert sync.assignments == []
    assert it.watched == [set()]


@pytest.mark.parametrize(
    ("settings", "held_s"),
    [({}, 25.0), ({"session_timeout_ms": 30_000}, 35.0), ({"rebalance_timeout_ms": None}, 305.0)],
)
async def test_the_coordinator_may_take_as_long_as_members_may_be_waited_for(
    settings: dict[str, object], held_s: float
) -> None:
    it = Taking(is_cooperative=False, **settings)
    joining = asyncio.create_task(it.take_part(it.joined(), it.synced()))
    await asyncio.sleep(0.5)
    assert it.rebalance.joining_since == 0
    await joining
    assert it.rebalance.joining_since is None
    assert [each[1:] for each in it.sent] == [(held_s + 1.0, held_s, Lane.GROUP)] * 2


async def test_a_member_without_an_id_joins_again_with_the_one_that_it_is_given() -> None:
    it = Taking()
    it.member.lose_membership()
    named = JoinGroupResponse(error_code=errors.MemberIdRequired.errno, member_id="me")
    joining = asyncio.create_task(it.take_part(named, it.joined(), it.synced()))
    await asyncio.sleep(1.5)
    assert it.rebalance.joining_since == 1
    await joining
    joins = it.requests(JoinGroupRequest)
    assert [each.member_id for each in joins if isinstance(each, JoinGroupRequest)] == ["", "me"]
    assert it.beats == ["rest", 1.0, "counted in"]


async def test_an_answer_that_asks_for_an_id_and_gives_none_is_an_error() -> None:
    it = Taking()
    with pytest.raises(errors.MemberIdRequired):
        await it.take_part(JoinGroupResponse(error_code=errors.MemberIdRequired.errno))
    assert it.rebalance.joining_since is None
    it = Taking()
    with pytest.raises(errors.UnknownMemberIdError):
        await it.take_part(
            JoinGroupResponse(error_code=errors.UnknownMemberIdError.errno, member_id="me")
        )


async def test_a_member_that_hands_out_beats_while_it_joins_and_nothing_new_begins_no_session() -> (
    None
):
    it = Taking(
        is_cooperative=True, partition_assignment_strategy=(CooperativeStickyPartitionAssignor,)
    )
    it.hold()
    same = it.joined(leader="other", generation=4, protocol_name="cooperative-sticky")
    await it.take_part(same, it.synced(1), owned=[1])
    assert it.beats == ["rest", "counted in"]
    (join,) = it.requests(JoinGroupRequest)
    assert isinstance(join, JoinGroupRequest)
    (member,) = decode_subscriptions(
        [JoinGroupResponseMember(member_id="me", metadata=join.protocols[0].metadata)]
    ).values()
    assert (member.owned_partitions, member.generation) == ((("t", 1),), 4)


async def test_an_eager_member_names_no_generation_that_it_had() -> None:
    it = Taking()
    it.hold()
    await it.take_part(it.joined(), it.synced())
    (join,) = it.requests(JoinGroupRequest)
    assert isinstance(join, JoinGroupRequest)
    (member,) = decode_subscriptions(
        [JoinGroupResponseMember(member_id="me", metadata=join.protocols[0].metadata)]
    ).values()
    assert (member.owned_partitions, member.generation, member.rack_id) == ((), -1, None)
    assert it.beats[:2] == ["rest", 0.0]


@pytest.mark.parametrize(
    ("error", "is_kept"),
    [
        (errors.CoordinatorLoadInProgressError("no"), True),
        (errors.RebalanceInProgressError("no"), True),
        (errors.UnknownMemberIdError("no"), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, KafkaError) else "",
)
async def test_what_is_owned_is_kept_through_a_join_that_fails_unless_the_member_is_lost(
    error: KafkaError, is_kept: bool
) -> None:
    it = Taking()
    it.hold()
    with pytest.raises(type(error)):
        await it.take_part(error, owned=[0, 1])
    former = Identity("me", 3)
    assert [it.member.has_kept(tp, former) for tp in sorted(tps("t", 0, 2))] == [is_kept, False]


async def test_an_assignor_that_the_member_does_not_have_is_refused() -> None:
    it = Taking()
    with pytest.raises(errors.InconsistentGroupProtocolError, match="the assignor 'sticky'"):
        await it.take_part(it.joined(protocol_name="sticky"))


async def test_a_leader_that_came_back_leaves_everything_as_it_is() -> None:
    for is_cooperative in (False, True):
        it = Taking(is_cooperative=is_cooperative)
        assigned = await it.take_part(it.joined(skip_assignment=True), it.synced(0))
        (sync,) = it.requests(SyncGroupRequest)
        assert isinstance(sync, SyncGroupRequest)
        assert sync.assignments == []
        assert assigned.shared_out.counts == {"t": 3}
        # Some partitions may have no owner, which only a cooperative group can notice cheaply.
        assert assigned.next_within_s == (20 if is_cooperative else None)


async def test_only_what_a_static_member_has_to_revoke_needs_a_rebalance_by_a_time() -> None:
    found = {}
    for instance_id, topic in (("one", "t"), (None, "t"), ("one", "deleted")):
        it = Taking(
            is_cooperative=True,
            partition_assignment_strategy=(CooperativeStickyPartitionAssignor,),
            rebalance_timeout_ms=None,
            max_poll_interval_ms=300_000,
        )
        own = CooperativeStickyPartitionAssignor()
        said = {
            "me": encode_subscription(own.metadata(["t"]), (), 4),
            "other": encode_subscription(own.metadata(["t"]), tps(topic, 0, 1, 2), 4),
        }
        members = [
            JoinGroupResponseMember(
                member_id=name,
                group_instance_id=instance_id if name == "other" else None,
                metadata=metadata,
            )
            for name, metadata in said.items()
        ]
        joined = it.joined(protocol_name="cooperative-sticky", members=members)
        cast("JoinGroupResponse", joined).members = members
        assigned = await it.take_part(joined, it.synced(0))
        found[instance_id, topic] = assigned.next_within_s
    # Members may take max_poll_interval_ms to revoke, and others are not to wait for them.
    assert found == {("one", "t"): 300, (None, "t"): None, ("one", "deleted"): None}


@pytest.mark.parametrize("error", [None, errors.KafkaConnectionError("no")])
async def test_a_leader_asks_for_topics_that_it_does_not_know(error: KafkaError | None) -> None:
    it = Taking()
    it.view = view_of()

    async def refresh() -> ClusterView:
        if error is not None:
            raise error
        return view_of(t=2)

    it.refreshing = refresh
    assigned = await it.take_part(it.joined(), it.synced())
    assert assigned.shared_out.counts == {"t": 0 if error else 2}


async def test_a_leader_waits_for_metadata_for_half_of_the_rebalance() -> None:
    it = Taking()
    it.view = view_of()
    it.refreshing = lambda: asyncio.sleep(100, it.view)
    await it.take_part(it.joined(), it.synced())
    assert it.loop.time() == 1 + 10 + 1


async def test_a_member_leaves_by_its_ids_with_the_reason() -> None:
    request = Taking().rebalance.leave_request("a test")
    (leaver,) = request.members
    assert (request.group_id, leaver.member_id, leaver.reason) == ("g", "me", "a test")


def test_each_consumer_has_assignors_of_its_own() -> None:
    instance = RoundRobinPartitionAssignor()
    classes = (RangePartitionAssignor, CooperativeStickyPartitionAssignor)
    by_range, sticky, given = own_assignors((*classes, instance))  # type: ignore[arg-type]
    assert isinstance(by_range, RangePartitionAssignor)
    assert isinstance(sticky, CooperativeStickyPartitionAssignor)
    assert given is instance
    assert common_protocol(classes) is RebalanceProtocol.EAGER
    assert common_protocol(classes[1:]) is RebalanceProtocol.COOPERATIVE
