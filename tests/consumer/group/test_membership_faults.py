"""Membership when the coordinator misbehaves, moves, or is gone."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Mapping
from typing import cast

import pytest

from aiokafka_lite import errors
from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.consumer.assignors import (
    ClusterTopics,
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
    RangePartitionAssignor,
    RoundRobinPartitionAssignor,
)
from aiokafka_lite.consumer.assignors.blobs import encode_assignments
from aiokafka_lite.consumer.assignors.cooperative_sticky import CooperativeStickyPartitionAssignor
from aiokafka_lite.consumer.gate import Hold
from aiokafka_lite.consumer.membership.classic.member import MemberState
from aiokafka_lite.consumer.membership.recovery import Interruption
from aiokafka_lite.errors import (
    BrokerResponseError,
    FencedInstanceIdError,
    GroupAuthorizationFailedError,
    MaxPollIntervalError,
)
from aiokafka_lite.events import Assigned
from aiokafka_lite.protocol.codec import decode_versioned
from aiokafka_lite.protocol.messages.group_members import (
    ConsumerProtocolSubscription,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from aiokafka_lite.protocol.messages.metadata import FindCoordinatorRequest, MetadataRequest
from aiokafka_lite.protocol.messages.offsets import OffsetCommitRequest
from aiokafka_lite.protocol.schema import Message, Response
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition
from tests.support.events import events_so_far
from tests.support.listeners import Calls, Losing
from tests.support.rows import tps
from tests.support.scripted_group import ScriptedBroker
from tests.support.virtual_time import VirtualTimeLoop
from tests.support.waiting import is_woken, until
from tests.support.worker import Worker

TP = TopicPartition("t", 0)
BOTH = tps("t", 0, 1)


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker({"t": 2}) as broker:
        yield broker


def worker_of(broker: ScriptedBroker, **settings: object) -> Worker:
    return Worker(f"127.0.0.1:{broker.port}", "g", ["t"], {"heartbeat_interval_ms": 20, **settings})


def refused(kind: type[BrokerResponseError]) -> dict[type[Message], Response]:
    code = kind.errno
    return {
        JoinGroupRequest: JoinGroupResponse(error_code=code, protocol_name=""),
        SyncGroupRequest: SyncGroupResponse(error_code=code),
        HeartbeatRequest: HeartbeatResponse(error_code=code),
    }


async def test_one_join_names_every_assignor(broker: ScriptedBroker) -> None:
    strategy = (RoundRobinPartitionAssignor, RangePartitionAssignor)
    settings = {"session_timeout_ms": 7_000, "rebalance_timeout_ms": 9_000, "client_rack": "r"}

    async with worker_of(broker, partition_assignment_strategy=strategy, **settings):
        named, joined = broker.asked(JoinGroupRequest)  # the first only got the member id

    assert [named.member_id, joined.member_id] == ["", "scripted-1"]
    assert [protocol.name for protocol in joined.protocols] == ["roundrobin", "range"]
    assert (joined.session_timeout_ms, joined.rebalance_timeout_ms) == (7_000, 9_000)
    for protocol in joined.protocols:
        said = decode_versioned(ConsumerProtocolSubscription, protocol.metadata)
        assert (said.topics, said.rack_id, said.generation_id) == (["t"], "r", -1)


async def test_a_leader_that_knows_the_topics_asks_for_no_metadata(broker: ScriptedBroker) -> None:
    async with worker_of(broker) as worker:
        count = len(broker.asked(MetadataRequest))
        worker.state.subscribe(["t"])
        await worker.membership.wait_assigned()
        assert worker.membership.generation == 2
        assert len(broker.asked(MetadataRequest)) == count
        assert worker.membership.status.is_eager


async def test_requests_carry_the_instance_id(broker: ScriptedBroker) -> None:
    async with worker_of(broker, group_instance_id="static") as worker:
        await worker.commits.commit({TP: 1})
        await until(lambda: broker.asked(HeartbeatRequest), worker)
        assert worker.membership.member_id

    assert worker.membership.member_id == ""
    assert {request.group_instance_id for request in broker.asked(JoinGroupRequest)} == {"static"}
    assert {request.group_instance_id for request in broker.asked(SyncGroupRequest)} == {"static"}
    assert {request.group_instance_id for request in broker.asked(HeartbeatRequest)} == {"static"}
    assert [request.group_instance_id for request in broker.asked(OffsetCommitRequest)] == [
        "static"
    ]
    assert broker.asked(LeaveGroupRequest) == []


async def test_a_dynamic_member_says_that_it_leaves_and_why(broker: ScriptedBroker) -> None:
    async with worker_of(broker):
        pass

    (leave,) = broker.asked(LeaveGroupRequest)
    assert [(m.member_id, m.reason) for m in leave.members] == [
        ("scripted-1", "the consumer stops")
    ]


@pytest.mark.parametrize(
    "kind",
    [
        errors.CoordinatorNotAvailableError,
        errors.CoordinatorLoadInProgressError,
        errors.NotCoordinatorError,
        errors.RebalanceInProgressError,
        errors.UnknownMemberIdError,
        errors.IllegalGenerationError,
    ],
    ids=lambda kind: kind.__name__,
)
@pytest.mark.parametrize("api", [JoinGroupRequest, SyncGroupRequest], ids=lambda api: api.__name__)
async def test_a_rebalance_that_fails_is_tried_again(
    broker: ScriptedBroker, api: type[Message], kind: type[BrokerResponseError]
) -> None:
    broker.script(api, refused(kind)[api])

    async with worker_of(broker) as worker:
        assert worker.partitions == tps("t", 0, 1)
        assert worker.errors == []


async def test_a_connection_lost_while_joining_keeps_the_member_id(broker: ScriptedBroker) -> None:
    broker.script(SyncGroupRequest, None)

    async with worker_of(broker):
        pass

    ids = [request.member_id for request in broker.asked(JoinGroupRequest)]
    assert ids == ["", "scripted-1", "scripted-1"]


@pytest.mark.parametrize(
    ("kind", "member_id"),
    [(errors.IllegalGenerationError, "scripted-1"), (errors.UnknownMemberIdError, "")],
)
async def test_a_lost_generation_keeps_the_id_and_a_lost_membership_drops_it(
    broker: ScriptedBroker, kind: type[BrokerResponseError], member_id: str
) -> None:
    calls = Calls()
    worker = worker_of(broker)
    worker.state.listener = calls
    async with worker:
        broker.script(HeartbeatRequest, HeartbeatResponse(error_code=kind.errno))
        rejoin = len(broker.asked(JoinGroupRequest))
        await until(lambda: worker.membership.generation == 2, worker)
        await worker.membership.wait_assigned()

    assert broker.asked(JoinGroupRequest)[rejoin].member_id == member_id
    both = tps("t", 0, 1)
    assert calls.calls == [
        ("revoked", set()),
        ("assigned", both),
        ("revoked", both),
        ("assigned", both),
    ]


async def test_nothing_is_committed_for_a_lost_generation(broker: ScriptedBroker) -> None:
    async with worker_of(broker, enable_auto_commit=True) as worker:
        worker.work(TP, 5)
        worker.state.reads.begin_get()
        error = HeartbeatResponse(error_code=errors.UnknownMemberIdError.errno)
        broker.script(HeartbeatRequest, error)
        await until(lambda: worker.membership.generation == 2, worker)

    assert broker.asked(OffsetCommitRequest) == []


@pytest.mark.parametrize(
    "kind",
    [errors.NotCoordinatorError, errors.CoordinatorNotAvailableError, None],
    ids=["NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "disconnect"],
)
async def test_a_heartbeat_finds_the_coordinator_anew_without_a_rebalance(
    broker: ScriptedBroker, kind: type[BrokerResponseError] | None
) -> None:
    async with worker_of(broker) as worker:
        lookups = len(broker.asked(FindCoordinatorRequest))
        broker.script(
            HeartbeatRequest, None if kind is None else HeartbeatResponse(error_code=kind.errno)
        )
        await until(lambda: len(broker.asked(FindCoordinatorRequest)) > lookups, worker)
        beats = len(broker.asked(HeartbeatRequest))
        await until(lambda: len(broker.asked(HeartbeatRequest)) > beats, worker)

        assert worker.membership.generation == 1
        assert worker.membership.is_settled


async def test_a_coordinator_that_hangs_is_looked_up_anew(broker: ScriptedBroker) -> None:
    def never(request: Message) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    # Nothing but heartbeats: whatever else goes unanswered would give it away.
    async with worker_of(broker, session_timeout_ms=1_000, enable_auto_commit=False) as worker:
        lookups = len(broker.asked(FindCoordinatorRequest))
        broker.script(HeartbeatRequest, never)
        await until(lambda: len(broker.asked(FindCoordinatorRequest)) > lookups, worker)
        beats = len(broker.asked(HeartbeatRequest))
        await until(lambda: len(broker.asked(HeartbeatRequest)) > beats, worker)
        assert worker.membership.generation == 1


@pytest.mark.virtual_time
async def test_a_commit_does_not_wait_for_a_coordinator_that_was_left(
    broker: ScriptedBroker,
) -> None:
    """Its answer would come from one that has long been replaced, and knows the member no more."""
    late = asyncio.get_running_loop().create_future()

    async with worker_of(broker, session_timeout_ms=1_000, enable_auto_commit=False) as worker:
        broker.script(OffsetCommitRequest, lambda request: late)
        broker.script(HeartbeatRequest, lambda request: late)
        worker.work(TP, 5)
        await asyncio.wait_for(worker.commits.commit({TP: 5}), 5)  # not a request's forty seconds
        assert broker.offsets["t", 0] == (5, "")
        assert worker.membership.generation == 1
        late.cancel()


async def test_heartbeats_go_on_while_the_listener_gives_partitions_back(
    broker: ScriptedBroker,
) -> None:
    may_return = asyncio.Event()

    class Slow(Calls):
        async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
            await super().on_partitions_revoked(revoked)
            if revoked:
                await may_return.wait()

    calls = Slow()
    worker = worker_of(broker)
    worker.state.listener = calls
    async with worker:
        in_progress = HeartbeatResponse(error_code=errors.RebalanceInProgressError.errno)
        broker.script(HeartbeatRequest, *[in_progress] * 1000)
        await until(lambda: len(calls.calls) == 3, worker)
        beats = len(broker.asked(HeartbeatRequest))
        await until(lambda: len(broker.asked(HeartbeatRequest)) >= beats + 3, worker)
        assert worker.member.state is MemberState.PREPARING

        broker.forget_script()
        may_return.set()
        await until(lambda: worker.membership.generation == 2, worker)


async def test_heartbeats_go_on_while_the_listener_takes_partitions(
    broker: ScriptedBroker,
) -> None:
    has_begun, may_return = asyncio.Event(), asyncio.Event()

    class Slow(Calls):
        async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
            has_begun.set()
            await may_return.wait()

    worker = worker_of(broker)
    worker.state.listener = Slow()
    await worker.connect()
    await asyncio.wait_for(has_begun.wait(), 5)
    await beats_go_on(broker, worker)
    assert not worker.membership.is_settled  # nor is the callback cut off
    may_return.set()
    await worker.membership.wait_assigned()
    await worker.close()


@pytest.mark.parametrize("is_first", [True, False], ids=["first join", "another"])
async def test_heartbeats_go_on_while_sync_group_is_out(
    broker: ScriptedBroker, is_first: bool
) -> None:
    worker = worker_of(broker)
    if is_first:
        sync = broker.hold(SyncGroupRequest)
        await worker.connect()
    else:
        await worker.start()
        sync = broker.hold(SyncGroupRequest)
        worker.state.subscribe(["t"])
    await sync.came()
    await beats_go_on(broker, worker)
    assert {beat.generation_id for beat in broker.asked(HeartbeatRequest)[-3:]} == {
        broker.generation
    }
    sync.release()
    await worker.membership.wait_assigned()
    await worker.close()


async def beats_go_on(broker: ScriptedBroker, worker: Worker) -> None:
    beats, joins = len(broker.asked(HeartbeatRequest)), len(broker.asked(JoinGroupRequest))
    await until(lambda: len(broker.asked(HeartbeatRequest)) >= beats + 3, worker)
    assert len(broker.asked(JoinGroupRequest)) == joins  # nothing was given up


async def test_a_loss_that_is_heard_of_while_sync_group_is_out_is_not_forgotten(
    broker: ScriptedBroker,
) -> None:
    """The assignment that comes then is of a generation that has ended."""
    worker = await worker_of(broker).start()
    sync = broker.hold(SyncGroupRequest)
    worker.state.subscribe(["t"])
    await sync.came()
    gone = HeartbeatResponse(error_code=errors.UnknownMemberIdError.errno)
    broker.script(HeartbeatRequest, gone)
    await until(lambda: worker.member.interruption is not None, worker)
    gate, seen = worker.state.gate, list[tuple[int, bool]]()
    gate.on_change(lambda: seen.append((worker.membership.generation, bool(gate.holds))))
    sync.release()
    await until(lambda: worker.membership.generation == 3, worker)
    assert (2, False) not in seen  # reads return no records of it
    await worker.membership.wait_assigned()
    await worker.close()


@pytest.mark.virtual_time
async def test_partitions_that_are_lost_while_the_application_finishes_are_told_as_lost(
    broker: ScriptedBroker,
) -> None:
    calls = Losing()
    worker = worker_of(broker)
    worker.state.listener = calls

    async def remove(request: Message) -> HeartbeatResponse:
        await until(lambda: worker.membership.status.awaited_work is not None, worker)
        return HeartbeatResponse(error_code=errors.UnknownMemberIdError.errno)

    async with worker:
        worker.work(TP, 5)
        broker.script(HeartbeatRequest, remove)
        worker.state.subscribe(["t"], calls)
        await until(lambda: worker.membership.generation == 2, worker)
        await worker.membership.wait_assigned()
    both = tps("t", 0, 1)
    given = ("assigned", both)
    assert [call for call in calls.calls if call[1]] == [given, ("lost", both), given]


@pytest.mark.virtual_time
async def test_a_member_that_is_never_answered_once_it_is_stable_is_cut_off(
    broker: ScriptedBroker,
) -> None:
    never = asyncio.get_running_loop().create_future()
    broker.script(HeartbeatRequest, *[lambda _: never] * 100)
    async with worker_of(broker, session_timeout_ms=1_000) as worker:
        await until(lambda: Hold.CUT_OFF in worker.state.gate.holds, worker)
        broker.forget_script()
        await until(lambda: not worker.state.gate.holds, worker)
    never.cancel()


async def test_a_listener_that_hangs_with_new_partitions_is_cut_off_after_max_poll_interval(
    broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    class Hanging(Calls):
        async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
            await asyncio.get_running_loop().create_future()

    worker = worker_of(broker, rebalance_timeout_ms=50, max_poll_interval_ms=100)
    worker.state.listener = Hanging()
    async with worker:
        assert worker.membership.is_settled
    assert "has not returned from on_partitions_assigned for 0.05 s" in caplog.text
    assert "did not return from on_partitions_assigned within" in caplog.text


async def test_a_listener_that_raises_is_logged_and_the_rebalance_goes_on(
    broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Calls):
        def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:  # type: ignore[override]
            raise ValueError("from a plain method")

        async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
            raise ValueError("from a coroutine")

    worker = worker_of(broker)
    worker.state.listener = Broken()
    async with worker:
        assert worker.partitions == tps("t", 0, 1)
        assert worker.scope.failure is None
    assert "from a plain method" in caplog.text
    assert "from a coroutine" in caplog.text


@pytest.mark.parametrize("by_a_task", [False, True])
async def test_stopping_inside_a_callback_does_not_deadlock(
    broker: ScriptedBroker, by_a_task: bool
) -> None:
    stopped = asyncio.Event()

    class Stopping(Calls):
        async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
            await (asyncio.create_task(worker.leave()) if by_a_task else worker.leave())
            stopped.set()

    worker = worker_of(broker)
    worker.state.listener = Stopping()
    await worker.connect()
    try:
        await asyncio.wait_for(stopped.wait(), 2)
        assert worker.member.state is MemberState.LEFT
    finally:
        await worker.die()


@pytest.mark.virtual_time
async def test_an_error_the_application_must_know_is_raised_from_the_start_and_reported(
    broker: ScriptedBroker,
) -> None:
    kind = GroupAuthorizationFailedError
    broker.script(JoinGroupRequest, refused(kind)[JoinGroupRequest])
    worker = worker_of(broker)
    await worker.connect()
    try:
        with pytest.raises(GroupAuthorizationFailedError):
            await worker.membership.wait_assigned()
        assert [type(error) for error in worker.errors] == [kind]

        await until(lambda: worker.membership.is_settled, worker)  # it was granted meanwhile
        worker.state.subscribe(["t"])
        await worker.membership.wait_assigned()  # and is no error any more
        broker.script(JoinGroupRequest, refused(kind)[JoinGroupRequest])
        worker.state.subscribe(["t"])
        with pytest.raises(GroupAuthorizationFailedError):
            await worker.membership.wait_assigned()
        worker.state.unsubscribe()
        await until(lambda: worker.member.state is MemberState.UNJOINED, worker)
        joining = broker.hold(JoinGroupRequest)
        worker.state.subscribe(["t"])
        await joining.came()
        joining.release()
        await worker.membership.wait_assigned()
    finally:
        await worker.close()


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("kind", "pause_s"),
    [(errors.CoordinatorLoadInProgressError, 0.02), (GroupAuthorizationFailedError, 1.0)],
)
async def test_a_join_that_failed_is_tried_again_after_a_pause(
    broker: ScriptedBroker, kind: type[BrokerResponseError], pause_s: float
) -> None:
    loop, times = asyncio.get_running_loop(), list[float]()

    def refuse(_: Message) -> Response:
        times.append(loop.time())
        return refused(kind)[JoinGroupRequest]

    def let_in(request: Message) -> Response:
        times.append(loop.time())
        return broker.usual(request)

    broker.script(JoinGroupRequest, refuse, let_in)
    worker = worker_of(broker)
    await worker.connect()
    await until(lambda: worker.membership.is_settled, worker)
    assert times[1] - times[0] == pytest.approx(pause_s, rel=0.25)
    await worker.close()


async def test_a_fenced_member_fails_for_good(broker: ScriptedBroker) -> None:
    worker = await worker_of(broker, group_instance_id="static").start()
    fenced = HeartbeatResponse(error_code=FencedInstanceIdError.errno)
    broker.script(HeartbeatRequest, fenced)
    await asyncio.wait_for(worker.failed.wait(), 5)

    with pytest.raises(FencedInstanceIdError):
        await worker.membership.wait_assigned()
    worker.state.change((), [TP])
    assert await worker.membership.leave(
        deadline=asyncio.get_running_loop().time() + 1, offsets={TP: OffsetAndMetadata(3, "")}
    ) == {TP: OffsetAndMetadata(3, "")}
    assert broker.asked(OffsetCommitRequest) == []
    await worker.die()


async def test_a_member_that_unsubscribes_while_it_hears_that_it_is_fenced_has_failed(
    broker: ScriptedBroker,
) -> None:
    class Unsubscribing(Losing):
        async def on_partitions_lost(self, lost: set[TopicPartition]) -> None:
            await super().on_partitions_lost(lost)
            worker.state.unsubscribe()

    calls = Unsubscribing()
    worker = worker_of(broker, group_instance_id="static")
    worker.state.listener = calls
    await worker.start()
    broker.script(HeartbeatRequest, refused(FencedInstanceIdError)[HeartbeatRequest])
    await asyncio.wait_for(worker.failed.wait(), 5)
    assert isinstance(worker.scope.failure, FencedInstanceIdError)
    assert calls.calls == [("revoked", set()), ("assigned", BOTH), ("lost", BOTH)]
    await worker.die()


async def test_an_assignor_that_raises_ends_the_wait_for_the_assignment(
    broker: ScriptedBroker,
) -> None:
    class Broken(RangePartitionAssignor):
        @classmethod
        def assign(
            cls, cluster: ClusterTopics, members: Mapping[str, ConsumerProtocolMemberMetadata]
        ) -> dict[str, ConsumerProtocolMemberAssignment]:
            raise LookupError("from the assignor")

    worker = worker_of(broker, partition_assignment_strategy=(Broken,))
    await worker.connect()
    with pytest.raises(LookupError, match="from the assignor"):
        await asyncio.wait_for(worker.membership.wait_assigned(), 5)

    assert await worker.leave() == {}
    await worker.die()


async def test_a_blocked_event_loop_is_why_the_coordinator_heard_nothing(
    broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"session_timeout_ms": 200, "heartbeat_interval_ms": 50}
    async with worker_of(broker, **settings) as worker:
        await asyncio.sleep(0.01)  # the heartbeat task sleeps now
        error = HeartbeatResponse(error_code=errors.UnknownMemberIdError.errno)
        broker.script(HeartbeatRequest, error)
        time.sleep(0.2)  # noqa: ASYNC251 -- blocking the loop is what is tested
        await until(lambda: ": the event loop was blocked for" in caplog.text, worker)


async def test_more_partitions_make_the_leader_share_out_anew(broker: ScriptedBroker) -> None:
    async with worker_of(broker, metadata_max_age_ms=50) as worker:
        broker.topics["t"] = 4

        await until(lambda: worker.partitions == tps("t", 0, 1, 2, 3), worker)


async def test_a_topic_without_leader_for_a_while_is_no_reason_to_rebalance(
    broker: ScriptedBroker,
) -> None:
    async with worker_of(broker, metadata_max_age_ms=50) as worker:
        broker.topics["t"] = 0
        broker.topic_errors["t"] = errors.LeaderNotAvailableError.errno
        await until(lambda: worker.cluster.view.topics["t"].error is not None, worker)
        beats = len(broker.asked(HeartbeatRequest))
        await until(lambda: len(broker.asked(HeartbeatRequest)) > beats + 2, worker)

        assert worker.membership.generation == 1


async def test_a_member_without_gets_leaves_and_comes_back_at_the_next_get(
    broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    class Slow(Losing):
        async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
            await asyncio.sleep(0.01)
            await super().on_partitions_revoked(revoked)

    calls = Slow()
    async with worker_of(broker, max_poll_interval_ms=100) as worker:
        worker.state.listener = calls
        leaving = broker.hold(LeaveGroupRequest)
        await leaving.came()
        assert calls.calls == [("revoked", BOTH)]
        (leave,) = broker.asked(LeaveGroupRequest)
        assert "max_poll_interval_ms" in (leave.members[0].reason or "")
        assert "leaving group g, because the application requested no records" in caplog.text
        with pytest.raises(MaxPollIntervalError):
            await worker.commits.commit({TP: 1})
        leaving.release()
        await until(lambda: worker.membership.status.sits_out, worker)
        with pytest.raises(MaxPollIntervalError):
            await worker.commits.commit({TP: 1})
        joins = len(broker.asked(JoinGroupRequest))
        joining = broker.hold(JoinGroupRequest)

        worker.state.reads.enter_get()

        await joining.came()
        with pytest.raises(MaxPollIntervalError, match="longer than max_poll_interval_ms=100"):
            await worker.commits.commit({TP: 1})
        joining.release()
        await until(lambda: worker.membership.generation == 2, worker)
        await worker.membership.wait_assigned()
        assert broker.asked(JoinGroupRequest)[joins].member_id == ""


async def test_a_member_inside_a_get_stays_however_long_it_waits(broker: ScriptedBroker) -> None:
    async with worker_of(broker, max_poll_interval_ms=50) as worker:
        worker.state.reads.enter_get()
        beats = len(broker.asked(HeartbeatRequest))
        await until(lambda: len(broker.asked(HeartbeatRequest)) >= beats + 8, worker)

        assert broker.asked(LeaveGroupRequest) == []


async def test_the_second_answer_counts_when_the_subscription_changes_while_joining(
    broker: ScriptedBroker,
) -> None:
    broker.topics["u"] = 1
    worker, calls = worker_of(broker), Calls()
    worker.state.listener = calls

    def change(request: Message) -> Response:
        worker.state.subscribe(["u"], calls)
        assert isinstance(request, SyncGroupRequest)
        return broker.on_SyncGroupRequest(request)

    broker.script(SyncGroupRequest, change)
    async with worker:
        assert worker.partitions == tps("u", 0)
        assert worker.membership.generation == 2
    assert calls.calls == [("revoked", set()), ("assigned", tps("u", 0))]


@pytest.mark.parametrize("instance_id", [None, "one"])
async def test_who_has_unsubscribed_asks_for_no_topics_and_keeps_only_a_static_id(
    broker: ScriptedBroker, instance_id: str | None
) -> None:
    calls = Losing()
    async with worker_of(broker, group_instance_id=instance_id) as worker:
        worker.state.listener = calls
        worker.state.unsubscribe()
        await until(lambda: worker.member.state is MemberState.UNJOINED, worker)
        assert calls.calls == [("revoked", BOTH)]
        assert worker.membership.member_id == ("" if instance_id is None else "scripted-1")
        assert worker.membership.generation == -1
        assert len(broker.asked(LeaveGroupRequest)) == (instance_id is None)
        await worker.cluster.refresh()
        assert broker.asked(MetadataRequest)[-1].topics == []


@pytest.mark.virtual_time
async def test_a_static_member_that_is_back_keeps_the_id_of_its_first_attempt_to_join(
    broker: ScriptedBroker,
) -> None:
    async with worker_of(broker, group_instance_id="one") as worker:
        worker.state.unsubscribe()
        await until(lambda: worker.member.state is MemberState.UNJOINED, worker)
        joins = len(broker.asked(JoinGroupRequest))
        kind = errors.RebalanceInProgressError
        broker.script(SyncGroupRequest, refused(kind)[SyncGroupRequest])
        worker.state.subscribe(["t"])
        await worker.membership.wait_assigned()
        again = [request.member_id for request in broker.asked(JoinGroupRequest)[joins:]]
        assert again == ["", "scripted-1"]


@pytest.mark.virtual_time
async def test_a_pattern_is_matched_before_the_join_with_new_metadata_if_need_be(
    broker: ScriptedBroker,
) -> None:
    broker.topics.clear()
    worker = Worker(f"127.0.0.1:{broker.port}", "g", (), {"metadata_max_age_ms": 60_000})
    worker.state.subscribe_pattern(re.compile("t"))
    async with worker:
        assert worker.partitions == set()
        broker.topics["t"] = 2
        worker.state.subscribe_pattern(re.compile("t.*"))
        await worker.membership.wait_assigned()
        assert worker.partitions == BOTH
        count = len(broker.asked(MetadataRequest))
        worker.state.subscribe_pattern(re.compile("t"))
        await worker.membership.wait_assigned()
        assert len(broker.asked(MetadataRequest)) == count


@pytest.mark.virtual_time
async def test_partitions_are_being_revoked_when_reads_go_on_after_a_loss(
    broker: ScriptedBroker,
) -> None:
    seen, holds = list[list[bool]](), list[frozenset[Hold]]()

    class Looking(Losing):
        async def on_partitions_lost(self, lost: set[TopicPartition]) -> None:
            holds.append(worker.state.gate.holds)

    async with worker_of(broker) as worker:
        gate, state = worker.state.gate, worker.state
        state.listener = Looking()

        def look() -> None:
            if not gate.holds:
                seen.append([cursor.is_withheld for cursor in state.assignment.values()])

        gate.on_change(look)
        gone = refused(errors.UnknownMemberIdError)[HeartbeatRequest]
        broker.script(HeartbeatRequest, gone)
        await until(lambda: holds, worker)
        assert seen[0] == [True, True]
        assert holds == [frozenset()]  # it may read what it assigns itself


@pytest.mark.virtual_time
async def test_an_eager_member_returns_no_records_until_its_listener_was_told(
    broker: ScriptedBroker,
) -> None:
    holds = list[frozenset[Hold]]()

    class Looking(Calls):
        async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
            holds.append(worker.state.gate.holds)

    worker, looking = worker_of(broker), Looking()
    worker.state.listener = looking
    async with worker:
        await asyncio.sleep(1)
        with worker.state.events.subscribe() as events:
            worker.state.subscribe(["t"], looking)
            await worker.membership.wait_assigned()
            told = [event for event in events_so_far(events) if isinstance(event, Assigned)]
        assert told == [Assigned(frozenset(BOTH), 2)]
        assert holds == [{Hold.LISTENER}] * 2
        assert worker.state.gate.holds == frozenset()
        assert worker.state.reads.idle_s(asyncio.get_running_loop().time()) < 0.5
        await asyncio.sleep(0)
        assert worker.scope.task_names.count("g:heartbeat") == 1


# --- A cooperative member ---------------------------------------------------------------------
def cooperative(
    broker: ScriptedBroker, listener: ConsumerRebalanceListener, **settings: object
) -> Worker:
    strategy = (CooperativeStickyPartitionAssignor,)
    worker = worker_of(broker, partition_assignment_strategy=strategy, **settings)
    worker.state.listener = listener
    return worker


async def test_a_cooperative_member_that_unsubscribes_while_it_syncs_leaves(
    broker: ScriptedBroker,
) -> None:
    calls = Losing()
    async with cooperative(broker, calls) as worker:
        sync = broker.hold(SyncGroupRequest)
        worker.state.subscribe(["t"], calls)
        await sync.came()
        worker.state.unsubscribe()
        sync.release()
        await until(lambda: worker.member.state is MemberState.UNJOINED, worker)
        assert len(broker.asked(LeaveGroupRequest)) == 1
    assert calls.calls == [("assigned", BOTH), ("revoked", BOTH)]


@pytest.mark.virtual_time
async def test_the_listener_is_told_of_what_it_unsubscribes_before_the_member_has_left(
    broker: ScriptedBroker,
) -> None:
    class Going(Losing):
        async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
            await super().on_partitions_revoked(revoked)
            worker.state.unsubscribe()

    broker.topics["u"] = 1
    calls, other = Going(), tps("u", 0)
    worker = cooperative(broker, calls)
    worker.state.subscribe(["t", "u"], calls)
    async with worker:
        worker.state.subscribe(["t"], calls)
        await until(lambda: worker.member.state is MemberState.UNJOINED, worker)
        assert calls.calls == [("assigned", BOTH | other), ("revoked", other), ("revoked", BOTH)]


@pytest.mark.virtual_time
async def test_an_eager_member_that_subscribes_again_revokes_each_partition_once(
    broker: ScriptedBroker,
) -> None:
    calls = Losing()
    worker = worker_of(broker)
    worker.state.listener = calls
    async with worker:
        calls.calls.clear()
        worker.state.unsubscribe()
        worker.state.subscribe(["t"], calls)
        await worker.membership.wait_assigned()
        assert calls.calls == [("revoked", BOTH), ("assigned", BOTH)]


async def test_the_listener_is_told_of_what_was_unsubscribed_before_the_next_attempt_to_join(
    broker: ScriptedBroker,
) -> None:
    first, second = Losing(), Losing()
    async with cooperative(broker, first) as worker:

        def renew(request: Message) -> Response:
            worker.state.unsubscribe()
            worker.state.subscribe(["t"], second)
            return refused(errors.CoordinatorLoadInProgressError)[JoinGroupRequest]

        broker.script(JoinGroupRequest, renew)
        worker.state.subscribe(["t"], first)
        await until(lambda: worker.membership.generation == 2, worker)
        await worker.membership.wait_assigned()
        assert first.calls == [("assigned", BOTH), ("revoked", BOTH)]
        assert second.calls == [("assigned", BOTH)]


@pytest.mark.parametrize("kind", [errors.IllegalGenerationError, errors.UnknownMemberIdError])
async def test_what_is_kept_is_lost_with_the_generation_if_sync_group_is_refused(
    broker: ScriptedBroker, kind: type[BrokerResponseError]
) -> None:
    calls = Losing()
    async with cooperative(broker, calls) as worker:
        broker.script(SyncGroupRequest, refused(kind)[SyncGroupRequest])
        worker.state.subscribe(["t"], calls)
        await until(lambda: worker.membership.generation == 3, worker)
        await worker.membership.wait_assigned()
    assert calls.calls == [("assigned", BOTH), ("lost", BOTH), ("assigned", BOTH)]


async def test_a_cooperative_member_that_gave_partitions_back_joins_again(
    broker: ScriptedBroker,
) -> None:
    calls = Losing()
    async with cooperative(broker, calls) as worker:
        share = ConsumerProtocolMemberAssignment(0, [("t", [0])])
        assignment = encode_assignments({"": share})[""]
        broker.script(SyncGroupRequest, SyncGroupResponse(assignment=assignment))
        worker.state.subscribe(["t"], calls)
        await until(lambda: worker.membership.generation == 3, worker)
        await worker.membership.wait_assigned()
        assert worker.partitions == BOTH
        assert not worker.membership.status.is_eager
    zero, one = tps("t", 0), tps("t", 1)
    assert calls.calls == [
        ("assigned", zero | one), ("revoked", one), ("assigned", set()), ("assigned", one),
    ]  # fmt: skip
    assert "partitions were revoked" in (broker.asked(JoinGroupRequest)[-1].reason or "")


async def test_what_was_unsubscribed_for_a_moment_is_read_on(broker: ScriptedBroker) -> None:
    calls = Losing()
    async with cooperative(broker, calls) as worker:
        worker.state.subscribe([], calls)
        worker.state.subscribe(["t"], calls)
        assert all(cursor.is_withheld for cursor in worker.state.assignment.values())
        await worker.membership.wait_assigned()
        assert not any(cursor.is_withheld for cursor in worker.state.assignment.values())
    assert calls.calls == [("assigned", BOTH), ("assigned", set())]


@pytest.mark.virtual_time
async def test_what_is_kept_through_two_rebalances_was_nobody_elses(broker: ScriptedBroker) -> None:
    calls = Losing()
    async with cooperative(broker, calls) as worker:
        before = worker.member.identity

        def subscribe_again(request: Message) -> Response:
            worker.state.subscribe(["t"], calls)
            return broker.usual(request)

        broker.script(SyncGroupRequest, subscribe_again)
        worker.state.subscribe(["t"], calls)
        await until(lambda: worker.membership.generation == 3, worker)
        await worker.membership.wait_assigned()
        member = worker.member
        sender = member.commits_as(before, has_waited=False, is_departed=False)
        assert sender == member.identity
        metadata = broker.asked(JoinGroupRequest)[-1].protocols[0].metadata
        assert decode_versioned(ConsumerProtocolSubscription, metadata).generation_id == 2


async def test_a_stop_that_follows_an_unsubscribe_at_once_tells_the_listener(
    broker: ScriptedBroker,
) -> None:
    calls = Losing()
    async with cooperative(broker, calls) as worker:
        worker.state.unsubscribe()
    assert calls.calls == [("assigned", BOTH), ("revoked", BOTH)]


async def test_a_member_that_has_left_hears_of_no_metadata(broker: ScriptedBroker) -> None:
    worker = await worker_of(broker).start()
    for is_member in (True, False):
        waiting = asyncio.create_task(worker.member.wait_for_change())
        await asyncio.sleep(0)
        broker.topics["t"] += 1
        await worker.cluster.refresh()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert waiting.done() is is_member
        waiting.cancel()
        if is_member:
            await worker.leave()
    await worker.die()


async def test_what_is_kept_is_lost_if_the_member_is_fenced_while_its_listener_is_told(
    broker: ScriptedBroker,
) -> None:
    class Fenced(Losing):
        async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
            await super().on_partitions_revoked(revoked)
            broker.script(HeartbeatRequest, refused(FencedInstanceIdError)[HeartbeatRequest])
            await until(lambda: worker.member.is_fenced)

    broker.topics["u"] = 1
    calls = Fenced()
    worker = cooperative(broker, calls, group_instance_id="one")
    worker.state.subscribe(["t", "u"], calls)
    await worker.start()
    worker.state.subscribe(["t"], calls)
    await asyncio.wait_for(worker.failed.wait(), 5)
    both, other = BOTH, tps("u", 0)
    assert calls.calls == [("assigned", both | other), ("revoked", other), ("lost", both)]
    assert worker.partitions == set()
    with pytest.raises(FencedInstanceIdError):
        await worker.commits.commit({TP: 1})
    assert broker.asked(OffsetCommitRequest) == []
    await worker.die()


@pytest.mark.virtual_time
async def test_what_is_kept_is_lost_before_the_join_if_the_member_is_removed_while_it_revokes(
    broker: ScriptedBroker,
) -> None:
    class Removed(Losing):
        async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
            await super().on_partitions_revoked(revoked)
            gone = refused(errors.UnknownMemberIdError)[HeartbeatRequest]
            broker.script(HeartbeatRequest, gone)
            await until(lambda: worker.member.interruption is not None)

    broker.topics["u"] = 1
    calls = Removed()
    worker = cooperative(broker, calls)
    worker.state.subscribe(["t", "u"], calls)
    async with worker:
        joins = len(broker.asked(JoinGroupRequest))
        worker.state.subscribe(["t"], calls)
        await until(lambda: worker.membership.generation == 2, worker)
        await worker.membership.wait_assigned()
        assert broker.asked(JoinGroupRequest)[joins].member_id == ""
    other = tps("u", 0)
    assert calls.calls == [
        ("assigned", BOTH | other), ("revoked", other), ("lost", BOTH), ("assigned", BOTH),
    ]  # fmt: skip


@pytest.mark.virtual_time
@pytest.mark.parametrize("is_removed", [True, False])
async def test_what_is_new_is_not_taken_if_the_member_goes_while_it_revokes(
    broker: ScriptedBroker, is_removed: bool
) -> None:
    """The group removes it, or its listener unsubscribes."""

    class Going(Losing):
        async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
            await super().on_partitions_revoked(revoked)
            worker.state.unsubscribe()

    async def remove(request: Message) -> HeartbeatResponse:
        await until(lambda: worker.membership.status.awaited_work is not None, worker)
        return HeartbeatResponse(error_code=errors.UnknownMemberIdError.errno)

    def give(*share: tuple[str, list[int]]) -> None:
        assignment = encode_assignments({"": ConsumerProtocolMemberAssignment(0, share)})[""]
        broker.script(SyncGroupRequest, SyncGroupResponse(assignment=assignment))

    broker.topics["u"] = 1
    calls = Going()
    worker = cooperative(broker, calls)
    worker.state.subscribe(["t", "u"], calls)
    give(("t", [0, 1]))
    async with worker:
        if is_removed:
            worker.work(TopicPartition("t", 1), 5)
            broker.script(HeartbeatRequest, remove)
        give(("t", [0]), ("u", [0]))
        worker.state.subscribe(["t", "u"], calls)
        await until(lambda: len(calls.calls) >= 3, worker)
        how = "lost" if is_removed else "revoked"
        assert calls.calls[:3] == [
            ("assigned", BOTH), (how, tps("t", 1)), (how, tps("t", 0)),
        ]  # fmt: skip
        if is_removed:
            await until(lambda: worker.membership.generation == 3, worker)
            reason = broker.asked(JoinGroupRequest)[-1].reason
            assert reason == Interruption.LOST_MEMBERSHIP.text


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("kind", "is_committed"),
    [(errors.RebalanceInProgressError, True), (errors.IllegalGenerationError, False)],
)
async def test_a_stop_commits_what_was_kept_unless_the_rebalance_says_that_it_is_lost(
    broker: ScriptedBroker, kind: type[BrokerResponseError], is_committed: bool
) -> None:
    syncing, may_answer = asyncio.Event(), asyncio.Event()

    async def refuse(_: Message) -> Response:
        syncing.set()
        await may_answer.wait()
        return refused(kind)[SyncGroupRequest]

    calls = Losing()
    worker = await cooperative(broker, calls).start()
    worker.work(TP, 5)
    broker.script(SyncGroupRequest, refuse)
    worker.state.subscribe(["t"], calls)
    await syncing.wait()
    leaving = asyncio.create_task(worker.leave(commit=True))
    await asyncio.sleep(0.1)
    assert not leaving.done()
    may_answer.set()
    left = {TP: OffsetAndMetadata(5, "")}
    assert await leaving == ({} if is_committed else left)
    assert broker.offsets == ({("t", 0): (5, "")} if is_committed else {})
    await worker.die()


@pytest.mark.virtual_time
async def test_a_get_ends_the_wait_for_the_application(broker: ScriptedBroker) -> None:
    loop = asyncio.get_running_loop()
    async with worker_of(broker) as worker:
        worker.work(TP, 5)
        worker.state.subscribe(["t"])
        await until(lambda: worker.membership.status.awaited_work is not None, worker)
        began_at = loop.time()
        worker.state.reads.enter_get()
        await worker.membership.wait_assigned()
        assert loop.time() - began_at < 0.5


async def test_an_unreadable_subscription_of_a_peer_does_not_stop_the_leader(
    broker: ScriptedBroker,
) -> None:
    def with_a_broken_peer(request: Message) -> Response:
        assert isinstance(request, JoinGroupRequest)
        answer = broker.on_JoinGroupRequest(request)
        peer = type(answer.members[0])(member_id="peer", metadata=b"\x00\x00\xff\xff")
        answer.members.append(peer)
        return answer

    broker.script(JoinGroupRequest, broker.usual, with_a_broken_peer)
    async with worker_of(broker) as worker:
        assert len(broker.asked(SyncGroupRequest)) == 1
        shares = {a.member_id for a in broker.asked(SyncGroupRequest)[0].assignments}
        assert shares == {"scripted-1", "peer"}
        assert worker.scope.failure is None


async def test_stop_is_bounded_and_says_what_was_not_committed_when_the_broker_is_gone(
    broker: ScriptedBroker,
) -> None:
    worker = await worker_of(broker).start()
    worker.work(TP, 5)
    await broker.stop()
    loop = asyncio.get_running_loop()
    began = loop.time()

    uncommitted = await worker.leave(0.5, commit=True)

    assert uncommitted == {TP: OffsetAndMetadata(5, "")}
    assert loop.time() - began < 1.0
    await worker.die()


async def test_stop_is_bounded_when_the_broker_does_not_answer(broker: ScriptedBroker) -> None:
    worker = await worker_of(broker).start()
    worker.work(TP, 5)
    forever: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
    for kind in (OffsetCommitRequest, LeaveGroupRequest, HeartbeatRequest):
        broker.script(kind, *[lambda _: forever] * 50)
    loop = asyncio.get_running_loop()
    began = loop.time()

    assert await worker.leave(0.4, commit=True) == {TP: OffsetAndMetadata(5, "")}

    assert loop.time() - began < 0.8
    await worker.die()


async def test_stopping_from_outside_lets_a_callback_finish(broker: ScriptedBroker) -> None:
    outcome: list[str] = []
    began, may_end = asyncio.Event(), asyncio.Event()

    class Slow(Calls):
        async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
            began.set()
            await may_end.wait()
            outcome.append("finished")

    worker = worker_of(broker)
    worker.state.listener = Slow()
    await worker.connect()
    await asyncio.wait_for(began.wait(), 5)
    leave = asyncio.create_task(worker.leave())
    await until(lambda: "g:group" not in worker.scope.task_names, worker)
    may_end.set()
    await leave
    await worker.die()

    assert outcome == ["finished"]


@pytest.mark.parametrize(
    "kind",
    [
        errors.NotCoordinatorError,
        errors.CoordinatorLoadInProgressError,
        errors.UnknownMemberIdError,
        errors.GroupAuthorizationFailedError,
    ],
    ids=lambda kind: kind.__name__,
)
async def test_leaving_ends_whatever_the_coordinator_says(
    broker: ScriptedBroker, kind: type[BrokerResponseError]
) -> None:
    worker = await worker_of(broker).start()
    broker.script(LeaveGroupRequest, LeaveGroupResponse(error_code=kind.errno))

    assert await worker.leave(0.5) == {}

    assert worker.member.state is MemberState.LEFT
    assert await worker.leave(0.5) == {}
    await worker.die()


@pytest.mark.every_loop
async def test_a_consumer_can_stop_at_any_moment_of_its_start(broker: ScriptedBroker) -> None:
    step, states = 0, set()
    while True:
        worker = worker_of(broker)
        await worker.connect()
        for _ in range(step):
            await asyncio.sleep(0)
        states.add(worker.member.state)
        is_stable = worker.membership.is_settled
        assert await worker.leave() == {}
        assert worker.member.state is MemberState.LEFT
        assert "g:heartbeat" not in worker.scope.task_names
        assert "g:group" not in worker.scope.task_names
        assert "g:rebalance" not in worker.scope.task_names
        await worker.die()
        assert worker.scope.failure is None
        if is_stable:
            break
        step += 1
    assert states >= {MemberState.UNJOINED, MemberState.JOINING, MemberState.SYNCING}
    left = [each.member_id for said in broker.asked(LeaveGroupRequest) for each in said.members]
    assert "" not in left


@pytest.mark.virtual_time
async def test_a_stop_that_finds_the_member_removed_commits_nothing_and_tells_nobody(
    broker: ScriptedBroker,
) -> None:
    worker = await worker_of(broker).start()
    worker.work(TP, 5)
    worker.member.interrupt(worker.member.identity, Interruption.LOST_MEMBERSHIP)
    assert await worker.leave(commit=True) == {TP: OffsetAndMetadata(5, "")}
    assert broker.asked(OffsetCommitRequest) == []
    assert broker.asked(LeaveGroupRequest) == []
    await worker.die()


@pytest.mark.virtual_time
@pytest.mark.parametrize(("instance_id", "count"), [(None, 1), ("one", 0)])
async def test_a_dynamic_member_that_nobody_holds_says_that_it_goes_without_waiting(
    broker: ScriptedBroker, instance_id: str | None, count: int
) -> None:
    worker = await worker_of(broker, group_instance_id=instance_id).start()
    assert await is_woken(worker.member, worker.membership.wake_waiters)
    await asyncio.sleep(0.05)
    worker.membership.leave_nowait("collected")
    await asyncio.sleep(0.05)
    leaves = broker.asked(LeaveGroupRequest)
    assert [leave.members[0].reason for leave in leaves] == ["collected"] * count
    await worker.leave()
    count = len(broker.asked(LeaveGroupRequest))
    worker.membership.leave_nowait("collected")  # it is none any more
    await asyncio.sleep(0.05)
    assert len(broker.asked(LeaveGroupRequest)) == count
    await worker.die()


@pytest.mark.virtual_time
async def test_nothing_is_committed_by_the_clock_while_a_member_says_that_it_leaves(
    broker: ScriptedBroker,
) -> None:
    settings = {"enable_auto_commit": True, "auto_commit_interval_ms": 200}
    worker = await worker_of(broker, **settings).start()
    worker.work(TP, 5)
    worker.state.reads.begin_get()
    leaving = broker.hold(LeaveGroupRequest)
    stopping = asyncio.create_task(worker.leave())
    await leaving.came()
    await asyncio.sleep(1)
    assert broker.asked(OffsetCommitRequest) == []
    leaving.release()
    await stopping
    await worker.die()


@pytest.mark.virtual_time
async def test_a_stop_gives_the_callback_that_runs_half_of_its_time(
    broker: ScriptedBroker,
) -> None:
    loop, began, ended_at = asyncio.get_running_loop(), asyncio.Event(), list[float]()

    class Hanging(Calls):
        async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
            began.set()
            try:
                await asyncio.sleep(100)
            finally:
                ended_at.append(loop.time())

    worker = worker_of(broker)
    worker.state.listener = Hanging()
    await worker.connect()
    await began.wait()
    await asyncio.sleep(10)
    stopped_at = loop.time()
    await worker.leave(4)
    assert ended_at == [pytest.approx(stopped_at + 2, abs=0.1)]
    await worker.die()


@pytest.mark.virtual_time
async def test_a_get_after_a_block_finds_at_once_that_the_session_is_over(
    broker: ScriptedBroker,
) -> None:
    async with worker_of(broker) as worker:
        cast("VirtualTimeLoop", asyncio.get_running_loop()).pass_time(20)
        worker.state.reads.enter_get()
        assert Hold.CUT_OFF in worker.state.gate.holds


async def test_stopping_while_the_join_is_held_leaves_the_group(broker: ScriptedBroker) -> None:
    forever: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
    broker.script(JoinGroupRequest, broker.usual, lambda _: forever)
    worker = worker_of(broker)
    await worker.connect()
    await until(lambda: len(broker.asked(JoinGroupRequest)) == 2, worker)

    await worker.leave()

    (leave,) = broker.asked(LeaveGroupRequest)
    assert leave.members[0].member_id == "scripted-1"
    await worker.die()
