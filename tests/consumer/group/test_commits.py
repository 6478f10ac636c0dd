"""Commits: what they accept, what makes them wait, fail and end, and reading offsets back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from aiokafka_lite import CooperativeStickyPartitionAssignor, errors
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.assignors import ConsumerProtocolMemberAssignment
from aiokafka_lite.consumer.assignors.blobs import encode_assignments
from aiokafka_lite.consumer.membership.classic.member import MemberState
from aiokafka_lite.consumer.membership.coordinator import Coordinator
from aiokafka_lite.errors import (
    BrokerResponseError,
    CommitFailedError,
    IllegalOperation,
    IllegalStateError,
    KafkaTimeoutError,
)
from aiokafka_lite.protocol.messages.group_members import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from aiokafka_lite.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from aiokafka_lite.protocol.schema import Message, Request, Response
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition
from tests.support.listeners import Calls
from tests.support.rows import tps
from tests.support.scripted_group import Held, ScriptedBroker, commit_answer, refused_commit
from tests.support.waiting import until
from tests.support.worker import Worker

TP = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker({"t": 2}) as broker:
        yield broker


def worker_of(broker: ScriptedBroker, **settings: object) -> Worker:
    return Worker(f"127.0.0.1:{broker.port}", "g", ["t"], settings)


def committed_by(broker: ScriptedBroker) -> list[int]:
    """Offsets of TP in the commits that came, in their order."""
    return [
        entry.committed_offset
        for request in broker.asked(OffsetCommitRequest)
        for topic in request.topics
        for entry in topic.partitions
        if entry.partition_index == TP.partition
    ]


# --- What is accepted --------------------------------------------------------------------------
@pytest.mark.parametrize(
    "value", [5, (5, ""), OffsetAndMetadata(5, "")], ids=["int", "tuple", "OffsetAndMetadata"]
)
async def test_an_offset_may_be_given_in_three_ways(broker: ScriptedBroker, value: object) -> None:
    async with worker_of(broker) as worker:
        await worker.commits.commit({TP: value})

    assert broker.offsets == {("t", 0): (5, "")}


async def test_without_argument_the_positions_are_committed(broker: ScriptedBroker) -> None:
    async with worker_of(broker) as worker:
        worker.work(TP, 4)
        worker.work(TP, 2)
        await worker.commits.commit()

    assert broker.offsets == {("t", 0): (6, "")}


async def test_nothing_is_sent_when_there_is_nothing_to_commit(broker: ScriptedBroker) -> None:
    async with worker_of(broker) as worker:
        await worker.commits.commit()

    assert broker.asked(OffsetCommitRequest) == []


@pytest.mark.parametrize(
    ("offsets", "error"),
    [
        ({}, ValueError),
        ([TP], ValueError),
        ("t", ValueError),
        ({TP: "5"}, ValueError),
        ({TP: -1}, ValueError),
        ({TP: True}, ValueError),
        ({TP: 1.5}, ValueError),
        ({TP: (1, "a", "b")}, ValueError),
        ({TP: None}, ValueError),
        ({("t", 0): 5}, TypeError),
        ({"t": 5}, TypeError),
        ({TP: (5, None)}, TypeError),
        ({TP: (5, b"bytes")}, TypeError),
    ],
)
async def test_other_shapes_are_refused(
    broker: ScriptedBroker, offsets: object, error: type[Exception]
) -> None:
    async with worker_of(broker) as worker:
        with pytest.raises(error):
            await worker.commits.commit(offsets)


async def test_a_partition_of_somebody_else_is_refused(broker: ScriptedBroker) -> None:
    async with worker_of(broker) as worker:
        with pytest.raises(IllegalStateError, match="not assigned"):
            await worker.commits.commit({TopicPartition("t", 9): 5})


async def test_without_a_group_there_are_no_commits() -> None:
    consumer = AIOKafkaConsumer()
    with pytest.raises(IllegalOperation):
        await consumer.commit({TP: 1})
    with pytest.raises(IllegalOperation):
        await consumer.committed(TP)
    await consumer.stop()


async def test_a_commit_carries_the_leader_epoch_of_the_last_record_before_it(
    broker: ScriptedBroker,
) -> None:
    async with worker_of(broker) as worker:
        worker.work(TP, 5, leader_epoch=1)
        worker.work(TP, 5, leader_epoch=3)
        await worker.commits.commit()
        for offset in (2, 5, 6):
            await worker.commits.commit({TP: offset})
        worker.state.seek(worker.state.partition(TP), 4)
        await worker.commits.commit()
        worker.state.seek(worker.state.partition(TP), 100)  # the record at 99 was not returned
        await worker.commits.commit()

    epochs = [
        request.topics[0].partitions[0].committed_leader_epoch
        for request in broker.asked(OffsetCommitRequest)
    ]
    assert epochs == [3, 1, 1, 3, 1, -1]


async def test_auto_commit_carries_the_leader_epoch_though_more_is_returned(
    broker: ScriptedBroker,
) -> None:
    async with worker_of(broker) as worker:
        worker.work(TP, 5, leader_epoch=1)
        worker.work(TP, 5, leader_epoch=3)  # which says that the first five are processed
        await worker.commits.commit_by_itself(worker.state.finished.processed_offsets())

    (request,) = broker.asked(OffsetCommitRequest)
    entry = request.topics[0].partitions[0]
    assert (entry.committed_offset, entry.committed_leader_epoch) == (5, 1)


async def test_ids_replace_names_where_all_are_known(broker: ScriptedBroker) -> None:
    async with worker_of(broker) as worker:
        await worker.commits.commit({TP: 5})
        await worker.commits.committed([TP])
        await worker.commits.committed([TP, TopicPartition("unknown", 0)])

    assert broker.versions(OffsetCommitRequest) == [10]
    assert broker.versions(OffsetFetchRequest) == [10, 9]


@pytest.mark.parametrize("version", range(2, 11))
async def test_every_version_of_a_commit_says_the_same(
    broker: ScriptedBroker, version: int
) -> None:
    broker.max_versions[OffsetCommitRequest] = version
    async with worker_of(broker) as worker:
        await worker.commits.commit({TP: (5, "five")})

    assert broker.offsets == {("t", 0): (5, "five")}


# --- Errors --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "kind",
    [
        errors.CoordinatorNotAvailableError,
        errors.CoordinatorLoadInProgressError,
        errors.NotCoordinatorError,
        errors.UnknownTopicOrPartitionError,
        errors.RequestTimedOutError,
        None,
    ],
    ids=lambda kind: "disconnect" if kind is None else kind.__name__,
)
async def test_an_error_that_passes_is_tried_again(
    broker: ScriptedBroker, kind: type[BrokerResponseError] | None
) -> None:
    broker.script(OffsetCommitRequest, None if kind is None else refused_commit(kind))

    async with worker_of(broker) as worker:
        await worker.commits.commit({TP: 5, OTHER: 6})

        assert worker.membership.generation == 1
    assert broker.offsets == {("t", 0): (5, ""), ("t", 1): (6, "")}


@pytest.mark.parametrize(
    "kind",
    [
        errors.OffsetMetadataTooLargeError,
        errors.InvalidCommitOffsetSizeError,
        errors.GroupAuthorizationFailedError,
        errors.TopicAuthorizationFailedError,
        errors.UnknownError,
    ],
    ids=lambda kind: kind.__name__,
)
async def test_an_error_that_stays_is_raised(
    broker: ScriptedBroker, kind: type[BrokerResponseError]
) -> None:
    broker.script(OffsetCommitRequest, refused_commit(kind))

    async with worker_of(broker) as worker:
        with pytest.raises(kind):
            await worker.commits.commit({TP: 5})


async def test_an_error_of_access_names_all_its_topics() -> None:
    broker = ScriptedBroker({"t": 2, "u": 1})
    broker.script(OffsetCommitRequest, refused_commit(errors.TopicAuthorizationFailedError))

    async with broker, Worker(f"127.0.0.1:{broker.port}", "g", ["t", "u"], {}) as worker:
        with pytest.raises(errors.TopicAuthorizationFailedError) as raised:
            await worker.commits.commit({TP: 5, TopicPartition("u", 0): 6})

    assert raised.value.args == ({"t", "u"},)


@pytest.mark.parametrize(
    ("kind", "member_id"),
    [
        (errors.IllegalGenerationError, "scripted-1"),
        (errors.UnknownMemberIdError, ""),
        (errors.GroupIdNotFound, ""),
    ],
)
async def test_a_commit_of_a_lost_generation_fails_and_has_the_member_rejoin(
    broker: ScriptedBroker, kind: type[BrokerResponseError], member_id: str
) -> None:
    async with worker_of(broker) as worker:
        broker.script(OffsetCommitRequest, refused_commit(kind))
        joins = len(broker.asked(JoinGroupRequest))
        join = broker.hold(JoinGroupRequest)

        with pytest.raises(CommitFailedError):
            await asyncio.wait_for(worker.commits.commit({TP: 5}), 5)  # and waits for no join

        await join.came()
        join.release()
        await until(lambda: worker.membership.generation == 2, worker)
        assert broker.asked(JoinGroupRequest)[joins].member_id == member_id
    assert broker.offsets == {}


async def test_a_late_answer_about_an_older_generation_leaves_the_new_one_alone(
    broker: ScriptedBroker,
) -> None:
    held: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
    broker.script(OffsetCommitRequest, lambda _: held)

    async with worker_of(broker, rebalance_hold_ms=0) as worker:
        commit = asyncio.create_task(worker.commits.commit({TP: 5}))
        await until(lambda: broker.asked(OffsetCommitRequest), worker)
        worker.state.subscribe(["t"])
        await worker.membership.wait_assigned()
        (request,) = broker.asked(OffsetCommitRequest)
        held.set_result(commit_answer(request, errors.UnknownMemberIdError.errno))

        with pytest.raises(CommitFailedError):
            await commit
        assert worker.member.interruption is None
        assert worker.membership.generation == 2


async def test_a_commit_that_meets_a_rebalance_is_made_in_the_next_generation(
    broker: ScriptedBroker,
) -> None:
    broker.script(OffsetCommitRequest, refused_commit(errors.RebalanceInProgressError))

    async with worker_of(broker) as worker:
        await worker.commits.commit({TP: 5})

    refused, made = broker.asked(OffsetCommitRequest)
    assert refused.generation_id_or_member_epoch == 1
    assert made.generation_id_or_member_epoch == 2
    assert broker.offsets == {("t", 0): (5, "")}


async def test_positions_of_the_next_generation_wait_for_a_commit_that_met_a_rebalance(
    broker: ScriptedBroker,
) -> None:
    held: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def slowly(request: Message) -> Response:
        await held
        assert isinstance(request, SyncGroupRequest)
        return broker.on_SyncGroupRequest(request)

    async with worker_of(broker) as worker:
        broker.script(OffsetCommitRequest, refused_commit(errors.RebalanceInProgressError))
        broker.script(SyncGroupRequest, slowly)
        commit = asyncio.create_task(worker.commits.commit({TP: 5}))
        await until(lambda: worker.member.state is MemberState.SYNCING, worker)
        committed = asyncio.create_task(worker.commits.committed([TP]))
        held.set_result(None)

        assert await committed == {TP: OffsetAndMetadata(5, "")}
        await commit


# --- Over several rebalances -----------------------------------------------------------------
async def test_a_commit_whose_answer_was_lost_is_not_tried_again_in_the_next_generation(
    broker: ScriptedBroker,
) -> None:
    """Another member may have had the partition, if only for a moment."""
    broker.script(OffsetCommitRequest, None)

    async with worker_of(broker, retry_backoff_ms=200, rebalance_hold_ms=0) as worker:
        commit = asyncio.create_task(worker.commits.commit({TP: 5}))
        await until(lambda: broker.asked(OffsetCommitRequest), worker)
        worker.state.subscribe(["t"])
        await worker.membership.wait_assigned()

        with pytest.raises(CommitFailedError):
            await commit
        assert worker.membership.generation == 2
    assert len(broker.asked(OffsetCommitRequest)) == 1


async def test_a_commit_that_meets_a_rebalance_is_not_made_two_generations_later(
    broker: ScriptedBroker,
) -> None:
    """Of the generation between nobody here knows who had the partition."""
    in_progress = errors.RebalanceInProgressError.errno
    broker.script(OffsetCommitRequest, refused_commit(errors.RebalanceInProgressError))

    async with worker_of(broker) as worker:
        broker.script(SyncGroupRequest, SyncGroupResponse(error_code=in_progress))

        with pytest.raises(CommitFailedError):
            await worker.commits.commit({TP: 5})
        await worker.membership.wait_assigned()
        assert worker.membership.generation == 3
    assert broker.offsets == {}


async def test_a_commit_follows_its_partition_through_rebalances_in_each_of_which_it_comes_back(
    broker: ScriptedBroker,
) -> None:
    broker.script(OffsetCommitRequest, *[refused_commit(errors.RebalanceInProgressError)] * 3)

    async with worker_of(broker) as worker:
        await worker.commits.commit({TP: 5})

    generations = [
        request.generation_id_or_member_epoch for request in broker.asked(OffsetCommitRequest)
    ]
    assert generations == [1, 2, 3, 4]
    assert broker.offsets == {("t", 0): (5, "")}


@pytest.mark.virtual_time
async def test_nothing_is_committed_in_a_generation_whose_assignment_is_on_its_way(
    broker: ScriptedBroker,
) -> None:
    worker = await worker_of(broker, enable_auto_commit=True).start()
    worker.work(TP, 5)
    sync = broker.hold(SyncGroupRequest)
    worker.state.subscribe(["t"])
    await sync.came()
    worker.state.reads.begin_get()

    assert await worker.leave(commit=True) == {TP: OffsetAndMetadata(5, "")}
    await worker.die()

    assert {r.generation_id_or_member_epoch for r in broker.asked(OffsetCommitRequest)} == {1}
    assert broker.offsets == {("t", 0): (0, "")}  # as the rebalance began


def cooperative_worker(broker: ScriptedBroker, *, is_auto: bool = False) -> Worker:
    """A member that gives back only what goes to others."""
    return worker_of(
        broker,
        enable_auto_commit=is_auto,
        partition_assignment_strategy=[CooperativeStickyPartitionAssignor],
    )


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("outcome", "is_committed"),
    [
        (None, True),
        (errors.RebalanceInProgressError, True),  # one follows the other
        (errors.UnknownMemberIdError, False),
        (errors.IllegalGenerationError, False),
        (errors.NotCoordinatorError, True),  # the next one has the group's state
    ],
)
async def test_a_cooperative_member_that_stops_commits_as_its_rebalance_ends(
    broker: ScriptedBroker, outcome: type[errors.BrokerResponseError] | None, is_committed: bool
) -> None:
    worker = await cooperative_worker(broker, is_auto=True).start()
    if outcome is None:
        sync = broker.hold(SyncGroupRequest)
    else:
        code = outcome.errno
        sync = Held(lambda _: SyncGroupResponse(error_code=code))
        broker.script(SyncGroupRequest, sync)
    worker.state.subscribe(["t"])
    await sync.came()
    worker.work(TP, 5)
    worker.state.reads.begin_get()
    leave = asyncio.ensure_future(worker.leave(commit=True))
    await asyncio.sleep(0)
    assert not broker.asked(OffsetCommitRequest)
    sync.release()
    left = await asyncio.wait_for(leave, 5)
    await worker.die()
    assert left == ({} if is_committed else {TP: OffsetAndMetadata(5, "")})
    commits = broker.asked(OffsetCommitRequest)
    assert [r.generation_id_or_member_epoch for r in commits] == [2] * is_committed


async def overtake(worker: Worker, join: Held, commit: Held, *, is_over: bool) -> None:
    """Have a commit be refused while a join is under way, or once that is over."""
    if is_over:
        join.release()
        await until(lambda: worker.membership.status.state == "STABLE", worker)
        commit.release()
    else:
        commit.release()
        await until(lambda: worker.commits.is_settling, worker)  # it waits for the generation
        join.release()


@pytest.mark.parametrize("is_over", [False, True])
async def test_a_last_commit_that_the_next_generation_overtakes_is_made_as_of_that(
    broker: ScriptedBroker, is_over: bool, caplog: pytest.LogCaptureFixture
) -> None:
    worker = await cooperative_worker(broker, is_auto=True).start()
    join = broker.hold(JoinGroupRequest)
    worker.state.subscribe(["t"])
    await join.came()
    worker.work(TP, 5)
    worker.state.reads.begin_get()
    commit = Held(refused_commit(errors.IllegalGenerationError))
    broker.script(OffsetCommitRequest, commit)
    leave = asyncio.ensure_future(worker.leave(commit=True))
    await commit.came()
    await overtake(worker, join, commit, is_over=is_over)
    assert await asyncio.wait_for(leave, 5) == {}
    await worker.die()
    assert [r.generation_id_or_member_epoch for r in broker.asked(OffsetCommitRequest)] == [1, 2]
    assert "not committed" not in caplog.text


@pytest.mark.parametrize("is_over", [False, True])
async def test_a_commit_that_the_members_own_join_overtakes_is_made_in_the_next_generation(
    broker: ScriptedBroker, is_over: bool
) -> None:
    async with cooperative_worker(broker) as worker:
        commit = Held(refused_commit(errors.IllegalGenerationError))
        broker.script(OffsetCommitRequest, commit)
        join = broker.hold(JoinGroupRequest)
        worker.work(TP, 5)
        committing = asyncio.ensure_future(worker.commits.commit())
        await commit.came()
        worker.state.subscribe(["t"])
        await join.came()
        await overtake(worker, join, commit, is_over=is_over)
        await asyncio.wait_for(committing, 5)
    assert [r.generation_id_or_member_epoch for r in broker.asked(OffsetCommitRequest)] == [1, 2]
    assert broker.offsets == {("t", 0): (5, "")}


async def test_a_commit_behind_another_that_the_next_generation_overtakes_is_made_in_that(
    broker: ScriptedBroker,
) -> None:
    async with cooperative_worker(broker) as worker:
        first = broker.hold(OffsetCommitRequest)
        sync = broker.hold(SyncGroupRequest)
        tps = sorted(worker.state.assignment)
        commits = [asyncio.ensure_future(worker.commits.commit({tp: 0})) for tp in tps]
        await first.came()
        worker.state.subscribe(["t"])
        await sync.came()
        first.release()
        await commits[0]
        assert not commits[1].done()
        sync.release()
        await asyncio.wait_for(commits[1], 5)
    assert [r.generation_id_or_member_epoch for r in broker.asked(OffsetCommitRequest)] == [1, 2]


async def test_a_commit_that_a_join_overtakes_fails_where_a_generation_passed_without_the_member(
    broker: ScriptedBroker,
) -> None:
    def without_us(_: Message) -> Response:
        broker.generation += 1
        return JoinGroupResponse(error_code=errors.IllegalGenerationError.errno)

    async with cooperative_worker(broker) as worker:
        commit = Held(refused_commit(errors.IllegalGenerationError))
        broker.script(OffsetCommitRequest, commit)
        join = Held(without_us)
        broker.script(JoinGroupRequest, join)
        worker.work(TP, 5)
        committing = asyncio.ensure_future(worker.commits.commit())
        await commit.came()
        worker.state.subscribe(["t"])
        await join.came()
        commit.release()
        await until(lambda: worker.commits.is_settling, worker)
        join.release()
        with pytest.raises(CommitFailedError):
            await asyncio.wait_for(committing, 5)
        assert worker.membership.generation == 3
    assert len(broker.asked(OffsetCommitRequest)) == 1
    assert broker.offsets == {}


async def test_an_eager_member_commits_nothing_of_an_assignment_that_is_over(
    broker: ScriptedBroker,
) -> None:
    """The positions of the new one were read without it."""
    async with worker_of(broker, rebalance_hold_ms=0) as worker:
        commit = Held(refused_commit(errors.IllegalGenerationError))
        broker.script(OffsetCommitRequest, commit)
        committing = asyncio.ensure_future(worker.commits.commit({TP: 5}))
        await commit.came()
        worker.state.subscribe(["t"])
        await worker.membership.wait_assigned()
        assert worker.membership.generation == 2
        commit.release()
        with pytest.raises(CommitFailedError):
            await committing
    assert broker.offsets == {}


async def test_a_commit_of_a_partition_that_was_away_for_a_generation_fails(
    broker: ScriptedBroker,
) -> None:
    """It was called when it was ours, and could be made again now that it is."""
    broker.script(OffsetCommitRequest, None)
    topics = ["t"], ["u"], ["t"]
    broker.topics["u"] = 1
    broker.topic_ids["u"] = b"u" * 16

    async with worker_of(broker, retry_backoff_ms=300, rebalance_hold_ms=0) as worker:
        worker.cluster.watch(worker, ["t", "u"])
        await worker.cluster.refresh()
        commit = asyncio.create_task(worker.commits.commit({TP: 5}))
        await until(lambda: broker.asked(OffsetCommitRequest), worker)
        for subscribed in topics[1:]:
            worker.state.subscribe(subscribed)
            await worker.membership.wait_assigned()
        assert worker.membership.generation == 3

        with pytest.raises(CommitFailedError):
            await commit
    assert broker.offsets == {}


async def test_a_commit_during_a_rebalance_fails_when_the_partition_is_gone(
    broker: ScriptedBroker,
) -> None:
    broker.topics["u"] = 1
    async with worker_of(broker) as worker:

        def unsubscribe_t(request: Message) -> Response:
            worker.state.subscribe(["u"])
            return refused_commit(errors.RebalanceInProgressError)(request)

        broker.script(OffsetCommitRequest, unsubscribe_t)

        with pytest.raises(CommitFailedError, match="no longer assigned"):
            await worker.commits.commit({TP: 5})


class Rebalance:
    """A rebalance that waits for others, and takes TP away when it ends."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self._broker = broker
        self._joining = broker.hold(JoinGroupRequest)
        in_progress = HeartbeatResponse(error_code=errors.RebalanceInProgressError.errno)
        broker.script(HeartbeatRequest, in_progress)

    async def begun(self) -> None:
        await self._joining.came()

    def end(self) -> None:
        self._broker.script(SyncGroupRequest, self._take_away)
        self._joining.release()

    def _take_away(self, request: Message) -> Response:
        assert isinstance(request, SyncGroupRequest)
        self._broker.on_SyncGroupRequest(request)
        kept = {"m": ConsumerProtocolMemberAssignment(0, [("t", [OTHER.partition])])}
        self._broker.assignment = encode_assignments(kept)["m"]
        return SyncGroupResponse(
            protocol_type="consumer",
            protocol_name=request.protocol_name,
            assignment=self._broker.assignment,
        )


@pytest.mark.parametrize("is_automatic", [False, True], ids=["by hand", "auto-commit"])
async def test_positions_of_a_partition_that_a_rebalance_took_away_are_committed_or_an_error(
    broker: ScriptedBroker, is_automatic: bool
) -> None:
    """A commit by the rebalance itself is enough: only auto-commit makes one."""
    async with worker_of(broker, enable_auto_commit=is_automatic) as worker:
        worker.work(TP, 4)
        worker.work(OTHER, 3)
        worker.state.reads.begin_get()
        rebalance = Rebalance(broker)
        await rebalance.begun()
        committing = asyncio.ensure_future(worker.commits.commit())
        await asyncio.sleep(0)
        rebalance.end()
        if is_automatic:
            await committing
        else:
            with pytest.raises(CommitFailedError, match="no longer assigned"):
                await committing
        assert worker.partitions == {OTHER}
    taken = {("t", 0): (4, "")} if is_automatic else {}
    assert broker.offsets == {**taken, ("t", 1): (3, "")}


async def test_a_partition_without_returned_records_may_go_during_a_commit(
    broker: ScriptedBroker,
) -> None:
    async with worker_of(broker) as worker:
        worker.state.seek(worker.state.partition(TP), 0)
        worker.work(OTHER, 3)
        rebalance = Rebalance(broker)
        await rebalance.begun()
        committing = asyncio.ensure_future(worker.commits.commit())
        await asyncio.sleep(0)
        rebalance.end()
        await committing
    assert broker.offsets == {("t", 1): (3, "")}


async def test_a_position_sought_back_of_a_revoked_partition_is_not_committed(
    broker: ScriptedBroker,
) -> None:
    async with worker_of(broker) as worker:
        worker.work(TP, 4)
        await worker.commits.commit()
        worker.state.seek(worker.state.partition(TP), 2)
        rebalance = Rebalance(broker)
        await rebalance.begun()
        committing = asyncio.ensure_future(worker.commits.commit())
        await asyncio.sleep(0)
        rebalance.end()
        with pytest.raises(CommitFailedError, match="no longer assigned"):
            await committing
    assert broker.offsets == {("t", 0): (4, "")}


@pytest.mark.parametrize("first", [4, 2], ids=["the same", "an earlier offset"])
async def test_a_commit_behind_another_one_of_a_revoked_partition_knows_what_that_committed(
    broker: ScriptedBroker, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, released = asyncio.Event(), asyncio.Event()
    request_now = Coordinator.request

    async def late(self: Coordinator, request: Request[Response], **how: Any) -> Response:
        response = await request_now(self, request, **how)
        if isinstance(request, OffsetCommitRequest):
            answered.set()
            await released.wait()
        return response

    monkeypatch.setattr(Coordinator, "request", late)
    async with worker_of(broker, rebalance_hold_ms=0) as worker:
        worker.work(TP, 4)
        before = asyncio.ensure_future(worker.commits.commit({TP: first}))
        await answered.wait()
        committing = asyncio.ensure_future(worker.commits.commit())
        rebalance = Rebalance(broker)
        await rebalance.begun()
        rebalance.end()
        await until(lambda: worker.partitions == {OTHER}, worker)
        released.set()
        await before
        if first == 4:
            await committing
        else:
            with pytest.raises(CommitFailedError, match="no longer assigned"):
                await committing
    assert broker.offsets == {("t", 0): (first, "")}


async def test_a_commit_inside_a_callback_does_not_wait_for_the_rebalance(
    broker: ScriptedBroker,
) -> None:
    outcome: list[BaseException] = []

    class Committing(Calls):
        async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
            if revoked:
                try:
                    await worker.commits.commit({TP: 5})
                except CommitFailedError as error:
                    outcome.append(error)

    worker = worker_of(broker)
    worker.state.listener = Committing()
    async with worker:
        broker.script(OffsetCommitRequest, refused_commit(errors.RebalanceInProgressError))
        worker.state.subscribe(["t"], worker.state.listener)
        await worker.membership.wait_assigned()

    assert [type(error) for error in outcome] == [CommitFailedError]


async def test_a_task_that_a_callback_started_may_wait_for_rebalances(
    broker: ScriptedBroker,
) -> None:
    started: list[asyncio.Task[None]] = []
    go = asyncio.Event()

    async def commit_later() -> None:
        await go.wait()
        await worker.commits.commit({TP: 5})

    class Starting(Calls):
        async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
            if not started:
                started.append(asyncio.create_task(commit_later()))

    worker = worker_of(broker)
    worker.state.listener = Starting()
    async with worker:
        broker.script(OffsetCommitRequest, refused_commit(errors.RebalanceInProgressError))
        go.set()
        await started[0]

    assert broker.offsets == {("t", 0): (5, "")}


async def test_a_callback_can_commit_and_read_what_is_committed(broker: ScriptedBroker) -> None:
    seen: list[object] = []

    class Committing(Calls):
        async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
            if revoked:
                await worker.commits.commit({TP: 5})

        async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
            seen.append(await worker.commits.committed([TP]))

    worker = worker_of(broker)
    worker.state.listener = Committing()
    async with worker:
        worker.state.subscribe(["t"], worker.state.listener)
        await worker.membership.wait_assigned()

    assert seen == [{TP: None}, {TP: OffsetAndMetadata(5, "")}]


async def test_a_commit_ends_in_time_when_nobody_answers(broker: ScriptedBroker) -> None:
    held: asyncio.Future[Response | None] = asyncio.get_running_loop().create_future()
    broker.script(OffsetCommitRequest, lambda _: held)

    async with worker_of(broker) as worker:
        worker.commits.request_timeout_s = 0.1
        with pytest.raises(KafkaTimeoutError):
            await worker.commits.commit({TP: 5})
        held.set_result(None)


@pytest.mark.virtual_time
@pytest.mark.parametrize("kind", [errors.UnknownTopicOrPartitionError, errors.UnknownTopicIdError])
async def test_a_commit_to_a_deleted_topic_ends_in_time_and_says_why(
    broker: ScriptedBroker, kind: type[BrokerResponseError]
) -> None:
    deleted = refused_commit(kind)
    broker.script(OffsetCommitRequest, *[deleted] * 100)

    async with worker_of(broker) as worker:
        worker.commits.request_timeout_s = 0.1
        with pytest.raises(KafkaTimeoutError) as caught:
            await worker.commits.commit({TP: 5})
    assert isinstance(caught.value.__cause__, errors.UnknownTopicOrPartitionError)
    assert caught.value.__cause__.tp == TP


async def test_only_what_was_refused_is_sent_again(broker: ScriptedBroker) -> None:
    def refuse_one(request: Message) -> Response:
        assert isinstance(request, OffsetCommitRequest)
        answer = commit_answer(request)
        answer.topics[0].partitions[1].error_code = errors.UnknownTopicOrPartitionError.errno
        return answer

    broker.script(OffsetCommitRequest, refuse_one)
    async with worker_of(broker) as worker:
        await worker.commits.commit({TP: 5, OTHER: 6})

    _, again = broker.asked(OffsetCommitRequest)
    assert [p.partition_index for p in again.topics[0].partitions] == [1]


async def test_overlapping_commits_arrive_in_the_order_of_the_calls(
    broker: ScriptedBroker,
) -> None:
    async with worker_of(broker) as worker:
        await asyncio.gather(*(worker.commits.commit({TP: offset}) for offset in range(1, 6)))

    assert committed_by(broker) == [1, 2, 3, 4, 5]


async def test_a_commit_tried_again_does_not_undo_a_later_one(broker: ScriptedBroker) -> None:
    broker.script(OffsetCommitRequest, refused_commit(errors.CoordinatorLoadInProgressError))

    async with worker_of(broker, retry_backoff_ms=100) as worker:
        first = asyncio.create_task(worker.commits.commit({TP: 10}))
        await until(lambda: broker.asked(OffsetCommitRequest), worker)
        await worker.commits.commit({TP: 20})
        await first

    assert committed_by(broker) == [10, 20]
    assert broker.offsets == {("t", 0): (20, "")}


async def test_a_cancelled_commit_does_not_block_the_next(broker: ScriptedBroker) -> None:
    held: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
    broker.script(OffsetCommitRequest, lambda _: held)

    async with worker_of(broker) as worker:
        commit = asyncio.create_task(worker.commits.commit({TP: 5}))
        await until(lambda: broker.asked(OffsetCommitRequest), worker)
        commit.cancel()
        with pytest.raises(asyncio.CancelledError):
            await commit
        held.set_result(commit_answer(broker.asked(OffsetCommitRequest)[0]))

        await worker.commits.commit({TP: 6})

    assert broker.offsets == {("t", 0): (6, "")}


async def cancelled_at(step: int, coro: Coroutine[None, None, object]) -> bool:
    """Cancel a coroutine after so many turns of the loop; whether it had not ended by then."""
    task = asyncio.ensure_future(coro)
    for _ in range(step):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    return task.cancelled()


@pytest.mark.every_loop
async def test_commits_and_reads_can_be_cancelled_anywhere(broker: ScriptedBroker) -> None:
    async with worker_of(broker) as worker:
        names = worker.scope.task_names
        for operation in (
            lambda: worker.commits.commit({TP: 5}),
            lambda: worker.commits.committed([TP]),
        ):
            step = 0
            while await cancelled_at(step, operation()):
                step += 1
                await worker.commits.commit({OTHER: step})
                assert await worker.commits.committed([OTHER]) == {
                    OTHER: OffsetAndMetadata(step, "")
                }
            assert step > 2
        assert worker.scope.task_names == names
        assert worker.membership.generation == 1


# --- Auto-commit ---------------------------------------------------------------------------------
async def test_auto_commit_sends_nothing_twice(broker: ScriptedBroker) -> None:
    settings = {"enable_auto_commit": True, "auto_commit_interval_ms": 10}
    async with worker_of(broker, heartbeat_interval_ms=10, **settings) as worker:
        worker.work(TP, 5)
        worker.state.reads.begin_get()
        await until(lambda: broker.offsets, worker)
        beats = len(broker.asked(HeartbeatRequest))
        await until(lambda: len(broker.asked(HeartbeatRequest)) > beats + 5, worker)

    assert committed_by(broker) == [5]


async def test_auto_commit_lets_a_later_commit_by_hand_stand(broker: ScriptedBroker) -> None:
    settings = {"enable_auto_commit": True, "auto_commit_interval_ms": 10}
    async with worker_of(broker, heartbeat_interval_ms=10, **settings) as worker:
        worker.work(TP, 5)
        worker.work(TP, 3)  # being worked on; all before 5 has been processed
        await worker.commits.commit()
        beats = len(broker.asked(HeartbeatRequest))
        await until(lambda: len(broker.asked(HeartbeatRequest)) > beats + 5, worker)

    assert committed_by(broker) == [8]


async def test_auto_commit_stays_at_what_a_cancelled_commit_may_have_committed(
    broker: ScriptedBroker,
) -> None:
    held: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
    broker.script(OffsetCommitRequest, lambda _: held)
    settings = {"enable_auto_commit": True, "auto_commit_interval_ms": 10}
    async with worker_of(broker, heartbeat_interval_ms=10, **settings) as worker:
        worker.work(TP, 5)
        worker.work(TP, 3)  # being worked on; all before 5 has been processed
        commit = asyncio.create_task(worker.commits.commit())
        await until(lambda: broker.asked(OffsetCommitRequest), worker)
        commit.cancel()
        await asyncio.wait({commit})
        held.set_result(commit_answer(broker.asked(OffsetCommitRequest)[0]))
        await until(lambda: len(broker.asked(OffsetCommitRequest)) > 1, worker)

    assert set(committed_by(broker)) == {8}


async def test_auto_commit_tried_again_does_not_undo_a_cancelled_commit(
    broker: ScriptedBroker,
) -> None:
    broker.script(OffsetCommitRequest, refused_commit(errors.CoordinatorLoadInProgressError))
    held: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
    broker.script(OffsetCommitRequest, lambda _: held)
    settings = {"enable_auto_commit": True, "auto_commit_interval_ms": 10}
    async with worker_of(broker, retry_backoff_ms=50, **settings) as worker:
        worker.work(TP, 5)
        worker.work(TP, 3)
        await until(lambda: broker.asked(OffsetCommitRequest), worker)
        commit = asyncio.create_task(worker.commits.commit())
        await until(lambda: len(broker.asked(OffsetCommitRequest)) > 1, worker)
        commit.cancel()
        await asyncio.wait({commit})
        held.set_result(commit_answer(broker.asked(OffsetCommitRequest)[1]))
        await until(lambda: len(broker.asked(OffsetCommitRequest)) > 2, worker)

    assert committed_by(broker)[:3] == [5, 8, 8]  # of which the first was refused


async def test_what_a_stop_could_not_commit_is_told_where_its_partition_came_back(
    broker: ScriptedBroker,
) -> None:
    """It starts anew there, behind what was to be committed; and that is no seek."""
    broker.script(OffsetCommitRequest, None)  # its answer is lost
    async with worker_of(broker, retry_backoff_ms=200, rebalance_hold_ms=0) as worker:
        offsets = {TP: OffsetAndMetadata(8, "")}
        deadline = asyncio.get_running_loop().time() + 20
        stopping = asyncio.create_task(worker.commits.commit_last(offsets, deadline=deadline))
        await until(lambda: broker.asked(OffsetCommitRequest), worker)
        worker.state.subscribe(["t"])
        await worker.membership.wait_assigned()
        worker.work(TP, 1)

        assert await stopping == offsets


async def test_auto_commit_that_overtakes_a_commit_keeps_its_metadata(
    broker: ScriptedBroker,
) -> None:
    broker.script(OffsetCommitRequest, refused_commit(errors.CoordinatorLoadInProgressError))
    settings = {"enable_auto_commit": True, "auto_commit_interval_ms": 10}
    async with worker_of(broker, retry_backoff_ms=100, **settings) as worker:
        worker.work(TP, 5)
        await worker.commits.commit({TP: OffsetAndMetadata(5, "mine")})

    assert committed_by(broker)[:2] == [5, 5]  # of which the first was refused
    assert broker.offsets == {("t", 0): (5, "mine")}


async def test_auto_commit_tried_again_leaves_out_what_a_seek_went_back_behind(
    broker: ScriptedBroker,
) -> None:
    broker.script(OffsetCommitRequest, refused_commit(errors.CoordinatorLoadInProgressError))
    settings = {"enable_auto_commit": True, "auto_commit_interval_ms": 10}
    async with worker_of(broker, retry_backoff_ms=50, **settings) as worker:
        worker.work(TP, 8)
        worker.state.reads.begin_get()
        await until(lambda: broker.asked(OffsetCommitRequest), worker)
        worker.state.seek(worker.state.assignment[TP], 2)
        await until(lambda: broker.offsets, worker)

    assert committed_by(broker) == [8, 2]  # of which the first was refused


async def test_auto_commit_follows_a_seek_backwards(broker: ScriptedBroker) -> None:
    settings = {"enable_auto_commit": True, "auto_commit_interval_ms": 10}
    async with worker_of(broker, **settings) as worker:
        worker.work(TP, 8)
        await worker.commits.commit()
        worker.state.seek(worker.state.assignment[TP], 2)

        await until(lambda: broker.offsets == {("t", 0): (2, "")}, worker)


async def test_nothing_is_committed_behind_the_last_commit(broker: ScriptedBroker) -> None:
    settings = {"enable_auto_commit": True, "auto_commit_interval_ms": 1}
    worker = await worker_of(broker, **settings).start()
    worker.work(TP, 5)
    worker.work(TP, 3)
    held: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def slowly(request: Message) -> Response:
        await held
        assert isinstance(request, LeaveGroupRequest)
        return broker.on_LeaveGroupRequest(request)

    broker.script(LeaveGroupRequest, slowly)
    leave = asyncio.create_task(worker.leave(commit=True))
    await until(lambda: broker.asked(LeaveGroupRequest), worker)
    assert "g:auto-commit" not in worker.scope.task_names
    held.set_result(None)
    assert await leave == {}
    await worker.die()

    assert committed_by(broker)[-1] == 8


async def test_auto_commit_goes_on_after_a_failure(
    broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.script(OffsetCommitRequest, refused_commit(errors.UnknownMemberIdError))
    settings = {"enable_auto_commit": True, "auto_commit_interval_ms": 10}
    async with worker_of(broker, **settings) as worker:
        worker.work(TP, 5)
        worker.state.reads.begin_get()
        await until(lambda: worker.membership.generation == 2, worker)
        await worker.membership.wait_assigned()
        worker.work(TP, 7)
        worker.state.reads.begin_get()
        await until(lambda: broker.offsets == {("t", 0): (7, "")}, worker)

    assert "auto-commit failed" in caplog.text


async def test_auto_commit_reports_what_the_application_must_know(broker: ScriptedBroker) -> None:
    broker.script(OffsetCommitRequest, refused_commit(errors.TopicAuthorizationFailedError))
    settings = {"enable_auto_commit": True, "auto_commit_interval_ms": 10}
    async with worker_of(broker, **settings) as worker:
        worker.work(TP, 5)
        worker.state.reads.begin_get()
        await until(lambda: worker.errors, worker)

    assert isinstance(worker.errors[0], errors.TopicAuthorizationFailedError)


# --- Reading -------------------------------------------------------------------------------------
def fetched(
    change: Callable[[OffsetFetchResponse], None], broker: ScriptedBroker
) -> Callable[[Message], Response]:
    def answer(request: Message) -> Response:
        assert isinstance(request, OffsetFetchRequest)
        response = broker.on_OffsetFetchRequest(request)
        change(response)
        return response

    return answer


async def test_many_partitions_take_one_round_trip(broker: ScriptedBroker) -> None:
    broker.offsets = {("t", 0): (0, "zero"), ("t", 1): (7, "")}
    async with worker_of(broker) as worker:
        found = await worker.commits.committed([TP, OTHER, TopicPartition("t", 5)])

    assert found == {
        TP: OffsetAndMetadata(0, "zero"),
        OTHER: OffsetAndMetadata(7, ""),
        TopicPartition("t", 5): None,
    }
    assert len(broker.asked(OffsetFetchRequest)) == 1


@pytest.mark.parametrize("version", range(1, 11))
async def test_every_version_of_the_answer_says_the_same(
    broker: ScriptedBroker, version: int
) -> None:
    broker.max_versions[OffsetFetchRequest] = version
    broker.offsets = {("t", 0): (7, "seven")}
    async with worker_of(broker) as worker:
        assert await worker.commits.committed([TP]) == {TP: OffsetAndMetadata(7, "seven")}


async def test_an_unstable_offset_is_waited_for(broker: ScriptedBroker) -> None:
    def unstable(response: OffsetFetchResponse) -> None:
        found = response.groups[0].topics[0].partitions[0]
        found.error_code = errors.UnstableOffsetCommitError.errno

    broker.offsets = {("t", 0): (7, "")}
    broker.script(OffsetFetchRequest, *[fetched(unstable, broker)] * 3)
    async with worker_of(broker) as worker:
        assert await worker.commits.committed([TP]) == {TP: OffsetAndMetadata(7, "")}

    assert len(broker.asked(OffsetFetchRequest)) == 4
    assert {request.require_stable for request in broker.asked(OffsetFetchRequest)} == {True}


async def test_a_partition_left_out_is_asked_for_again(broker: ScriptedBroker) -> None:
    def leave_out(response: OffsetFetchResponse) -> None:
        del response.groups[0].topics[0].partitions[0]

    broker.offsets = {("t", 0): (7, ""), ("t", 1): (8, "")}
    broker.script(OffsetFetchRequest, fetched(leave_out, broker))
    async with worker_of(broker) as worker:
        found = await worker.commits.committed([TP, OTHER])

    assert found == {TP: OffsetAndMetadata(7, ""), OTHER: OffsetAndMetadata(8, "")}
    _, again = broker.asked(OffsetFetchRequest)
    topics = again.groups[0].topics
    assert topics is not None
    assert topics[0].partition_indexes == [0]


@pytest.mark.parametrize(
    "kind",
    [errors.CoordinatorLoadInProgressError, errors.NotCoordinatorError],
    ids=lambda kind: kind.__name__,
)
async def test_reading_is_tried_again_while_the_coordinator_moves(
    broker: ScriptedBroker, kind: type[BrokerResponseError]
) -> None:
    def refuse(response: OffsetFetchResponse) -> None:
        response.groups[0].error_code = kind.errno

    broker.script(OffsetFetchRequest, fetched(refuse, broker), None)
    async with worker_of(broker) as worker:
        assert await worker.commits.committed([TP]) == {TP: None}


async def test_an_error_of_one_partition_is_raised_with_its_place(broker: ScriptedBroker) -> None:
    def refuse(response: OffsetFetchResponse) -> None:
        found = response.groups[0].topics[0].partitions[1]
        found.error_code = errors.UnknownError.errno

    broker.script(OffsetFetchRequest, fetched(refuse, broker))
    async with worker_of(broker) as worker:
        with pytest.raises(errors.UnknownError) as caught:
            await worker.commits.committed([TP, OTHER])
    assert caught.value.tp == OTHER


async def test_reading_ends_in_time(broker: ScriptedBroker) -> None:
    held: asyncio.Future[Response | None] = asyncio.get_running_loop().create_future()
    broker.script(OffsetFetchRequest, lambda _: held)
    async with worker_of(broker) as worker:
        worker.commits.request_timeout_s = 0.1
        with pytest.raises(KafkaTimeoutError):
            await worker.commits.committed([TP])
        held.set_result(None)


async def test_a_commit_made_while_joining_waits_for_the_new_generation(
    broker: ScriptedBroker,
) -> None:
    async with worker_of(broker) as worker:
        held: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def slowly(request: Message) -> Response:
            await held
            assert isinstance(request, JoinGroupRequest)
            return broker.on_JoinGroupRequest(request)

        broker.script(JoinGroupRequest, slowly)
        in_progress = HeartbeatResponse(error_code=errors.RebalanceInProgressError.errno)
        broker.script(HeartbeatRequest, in_progress)
        await until(lambda: worker.member.state is MemberState.JOINING, worker)
        assert worker.partitions == tps("t", 0, 1)
        commit = asyncio.create_task(worker.commits.commit({TP: 5}))
        await asyncio.sleep(0)
        assert broker.asked(OffsetCommitRequest) == []
        held.set_result(None)
        await commit

    (request,) = broker.asked(OffsetCommitRequest)
    assert request.generation_id_or_member_epoch == 2
