"""The traps of KIP-848 that other clients fell into, each by its number; on a scripted coordinator.

What is asked of a member here others found in production: the names after the numbers say what went
wrong there, turned round.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from aiokafka_lite import errors
from aiokafka_lite._compat import override, timeout
from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.broker import Broker
from aiokafka_lite.cli.groups import read_group
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.client.config import ClientConfig
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.assignors import RangePartitionAssignor
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.gate import Gate, Hold
from aiokafka_lite.consumer.membership.choice import member_of
from aiokafka_lite.consumer.membership.coordinator import Coordinator
from aiokafka_lite.consumer.membership.kip848.heartbeat import Heartbeat, HeartbeatSchedule
from aiokafka_lite.consumer.membership.kip848.member import (
    ConsumerMember,
    MemberState,
    PartitionId,
)
from aiokafka_lite.consumer.membership.kip848.membership import ConsumerMembership
from aiokafka_lite.consumer.membership.protocol import Surroundings
from aiokafka_lite.errors import (
    BrokerResponseError,
    CommitFailedError,
    GroupIdNotFound,
    KafkaError,
)
from aiokafka_lite.events import GroupProtocolChanged
from aiokafka_lite.protocol.messages.group_members import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    JoinGroupRequest,
    LeaveGroupRequest,
)
from aiokafka_lite.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from aiokafka_lite.protocol.schema import Message
from aiokafka_lite.structs import TopicPartition
from tests.support.epoch_groups import beats_of, consumer_of, requests_of
from tests.support.events import events_so_far
from tests.support.listeners import Losing
from tests.support.pulses import Topics
from tests.support.rows import tps
from tests.support.scripted_group import ScriptedBroker, refused_commit
from tests.support.states import State
from tests.support.waiting import until
from tests.support.worker import EpochWorker

Beat = ConsumerGroupHeartbeatRequest
T, U = bytes([1]) * 16, bytes([2]) * 16
NEW = bytes([9]) * 16
TP = TopicPartition("t", 0)


def refused_beat(kind: type[BrokerResponseError]) -> ConsumerGroupHeartbeatResponse:
    """Refuse a heartbeat."""
    return ConsumerGroupHeartbeatResponse(error_code=kind.errno, error_message="no")


@pytest.fixture
async def coordinator() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker({"t": 4, "u": 2}) as broker:
        broker.target = {T: [0, 1]}
        yield broker


@asynccontextmanager
async def member_on(
    coordinator: ScriptedBroker,
    listener: ConsumerRebalanceListener | None = None,
    **settings: object,
) -> AsyncIterator[EpochWorker]:
    """A member that has been given its first assignment."""
    worker = EpochWorker(f"127.0.0.1:{coordinator.port}", "g", ["t"], settings, listener=listener)
    async with worker:
        yield worker


def owned(beat: Beat) -> dict[bytes, list[int]] | None:
    """What a heartbeat says that the member owns; None: as before."""
    if beat.topic_partitions is None:
        return None
    return {topic.topic_id: topic.partitions for topic in beat.topic_partitions}


def beats_from(coordinator: ScriptedBroker, first: int) -> list[Beat]:
    return coordinator.asked(Beat)[first:]


class Slow(Losing):
    """Returns from one callback only when it is told to."""

    def __init__(self, callback: str) -> None:
        super().__init__()
        self._callback = callback
        self.is_called = asyncio.Event()
        self.may_return = asyncio.Event()

    async def _maybe_wait(self, callback: str, partitions: set[TopicPartition]) -> None:
        if callback == self._callback and partitions:
            self.is_called.set()
            await self.may_return.wait()

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        await self._maybe_wait("revoked", revoked)
        await super().on_partitions_revoked(revoked)

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        await self._maybe_wait("assigned", assigned)
        await super().on_partitions_assigned(assigned)


# --- 1 to 6: what heartbeats say, and when --------------------------------------------------
@pytest.mark.virtual_time
async def test_trap_01_after_a_lost_answer_the_next_heartbeat_says_all(
    coordinator: ScriptedBroker,
) -> None:
    coordinator.target = {}
    async with member_on(coordinator) as worker:

        def lose(request: Message) -> None:
            coordinator.give({T: [0]})
            assert isinstance(request, Beat)
            coordinator.on_ConsumerGroupHeartbeatRequest(request)

        coordinator.script(Beat, lose)  # which closes the connection
        await until(lambda: worker.partitions == {TP}, worker)
        said = [owned(beat) for beat in coordinator.asked(Beat)]
    # With nothing owned it is an empty list: null would be answered by "as before".
    assert {} in said[1:]


async def test_trap_02_full_and_brief_heartbeats_do_not_alternate(
    coordinator: ScriptedBroker,
) -> None:
    async with member_on(coordinator, heartbeat_interval_ms=10) as worker:
        await until(lambda: worker.membership.status.heartbeat_count >= 4, worker)
        before = len(coordinator.asked(Beat))
        coordinator.script(Beat, refused_beat(errors.CoordinatorLoadInProgressError))
        await until(lambda: len(coordinator.asked(Beat)) >= before + 12, worker)
        after = beats_from(coordinator, before + 1)
    full = [beat for beat in after if owned(beat) is not None]
    assert len(full) == 1
    assert owned(full[0]) == {T: [0, 1]}
    assert all(beat.subscribed_topic_names is None for beat in after if beat not in full)


async def test_trap_03_an_empty_assignment_takes_everything(coordinator: ScriptedBroker) -> None:
    calls = Losing()
    async with member_on(coordinator, calls) as worker:
        coordinator.give({})
        await until(lambda: not worker.partitions, worker)
        before = len(coordinator.asked(Beat))
        await until(lambda: len(coordinator.asked(Beat)) > before, worker)
        assert {} in [owned(beat) for beat in coordinator.asked(Beat)[1:]]
    assert calls.calls == [("assigned", tps("t", 0, 1)), ("revoked", tps("t", 0, 1))]


async def test_trap_04_what_is_taken_while_something_is_being_given_is_not_missed(
    coordinator: ScriptedBroker,
) -> None:
    calls = Slow("assigned")
    calls.may_return.set()
    async with member_on(coordinator, calls) as worker:
        await until(lambda: worker.member.state is MemberState.STABLE, worker)
        calls.is_called.clear()
        calls.may_return.clear()
        coordinator.give({T: [0, 1, 2]})
        await calls.is_called.wait()
        assert worker.member.state is MemberState.RECONCILING
        coordinator.give({T: [0, 3]})
        before = len(coordinator.asked(Beat))
        await until(lambda: len(coordinator.asked(Beat)) > before + 2, worker)
        calls.may_return.set()
        await until(lambda: worker.partitions == tps("t", 0, 3), worker)
        await until(lambda: {T: [0, 3]} in map(owned, coordinator.asked(Beat)), worker)
    assert calls.calls == [
        ("assigned", tps("t", 0, 1)),
        ("assigned", tps("t", 2)),
        ("revoked", tps("t", 1, 2)),
        ("assigned", tps("t", 3)),
    ]


async def test_trap_05_what_is_being_given_back_is_owned_until_that_is_done(
    coordinator: ScriptedBroker,
) -> None:
    calls = Slow("revoked")
    async with member_on(coordinator, calls) as worker:
        await until(lambda: worker.member.state is MemberState.STABLE, worker)
        coordinator.give({T: [0]})
        await calls.is_called.wait()
        assert worker.member.state is MemberState.RECONCILING
        before = len(coordinator.asked(Beat))
        await until(lambda: len(coordinator.asked(Beat)) > before + 1, worker)
        coordinator.script(Beat, None)  # the connection breaks, so the next one says all
        await until(lambda: len(coordinator.asked(Beat)) > before + 4, worker)
        during = [owned(beat) for beat in beats_from(coordinator, before)]
        calls.may_return.set()
        await until(lambda: {T: [0]} in map(owned, coordinator.asked(Beat)), worker)
    assert all(said in (None, {T: [0, 1]}) for said in during)
    assert {T: [0, 1]} in during


async def test_trap_06_the_group_hears_at_once_what_was_given_back_and_taken(
    coordinator: ScriptedBroker,
) -> None:
    loop = asyncio.get_running_loop()
    calls = Slow("revoked")
    async with member_on(coordinator, calls, heartbeat_interval_ms=60_000) as worker:
        await until(lambda: {T: [0, 1]} in map(owned, coordinator.asked(Beat)), worker)
        coordinator.give({T: [1, 2]})
        await calls.is_called.wait()  # with the next of the quick heartbeats of who has just joined
        began = loop.time()
        calls.may_return.set()
        await until(lambda: {T: [1, 2]} in map(owned, coordinator.asked(Beat)), worker)
        assert loop.time() - began < 0.15  # the next heartbeat by itself comes after 0.25


# --- 7 to 9: who it is, and what topics are called ------------------------------------------
async def test_trap_07_an_epoch_error_keeps_the_member_id(coordinator: ScriptedBroker) -> None:
    calls = Losing()
    async with member_on(coordinator, calls) as worker:
        member_id = worker.membership.member_id
        coordinator.script(Beat, refused_beat(errors.FencedMemberEpochError))
        await until(lambda: len(calls.calls) == 3, worker)
        assert worker.membership.member_id == member_id
        coordinator.script(Beat, refused_beat(errors.UnknownMemberIdError))
        await until(lambda: len(calls.calls) == 5, worker)
        assert worker.membership.member_id != member_id
    joins = [beat for beat in coordinator.asked(Beat) if beat.member_epoch == 0]
    assert [join.member_id == member_id for join in joins] == [True, True, False]
    given = ("assigned", tps("t", 0, 1))
    lost = ("lost", tps("t", 0, 1))
    assert calls.calls == [given, lost, given, lost, given]


async def test_trap_08_who_joins_again_owns_nothing(coordinator: ScriptedBroker) -> None:
    async with member_on(coordinator) as worker:
        coordinator.target = {T: [0], NEW: [0]}  # also what it has no name for
        coordinator.script(Beat, refused_beat(errors.FencedMemberEpochError))
        await until(lambda: worker.partitions == {TP}, worker)
    joins = [beat for beat in coordinator.asked(Beat) if beat.member_epoch == 0]
    assert len(joins) == 2
    for join in joins:
        assert join.topic_partitions == []
        assert join.subscribed_topic_names == ["t"]
        assert join.rebalance_timeout_ms > 0


async def test_trap_09_a_topic_that_metadata_do_not_know_yet_is_taken_when_they_do(
    coordinator: ScriptedBroker,
) -> None:
    async with member_on(coordinator) as worker:
        coordinator.give({T: [0, 1], NEW: [0]})
        before = len(coordinator.asked(Beat))
        await until(lambda: len(coordinator.asked(Beat)) > before + 3, worker)
        assert worker.member.state is MemberState.RECONCILING
        # It is not said to be owned: what was said is not sent again.
        assert all(NEW not in (owned(beat) or {}) for beat in coordinator.asked(Beat))
        coordinator.topics["new"] = 1
        coordinator.topic_ids["new"] = NEW
        worker.state.subscribe(["t", "new"])
        await until(lambda: TopicPartition("new", 0) in worker.partitions, worker)
        await until(lambda: NEW in (owned(coordinator.asked(Beat)[-1]) or {}), worker)
        await until(lambda: worker.member.state is MemberState.STABLE, worker)


@pytest.mark.virtual_time
async def test_trap_09_metadata_are_asked_for_until_they_know_the_topic_of_an_expression(
    coordinator: ScriptedBroker,
) -> None:
    worker = EpochWorker(f"127.0.0.1:{coordinator.port}", "g", (), {})
    worker.state.subscribe_pattern(re.compile("t|new"))
    async with worker:
        coordinator.give({T: [0, 1], NEW: [0]})
        await until(
            lambda: (
                worker.member.target == {PartitionId(T, 0), PartitionId(T, 1), PartitionId(NEW, 0)}
            ),
            worker,
        )
        await asyncio.sleep(5)  # brokers hear of a topic at different times
        coordinator.topics["new"] = 1
        coordinator.topic_ids["new"] = NEW
        async with timeout(3):
            await until(lambda: TopicPartition("new", 0) in worker.partitions, worker)


async def test_trap_09_an_assignment_that_is_withdrawn_before_metadata_know_its_topic_is_confirmed(
    coordinator: ScriptedBroker,
) -> None:
    async with member_on(coordinator) as worker:
        coordinator.give({T: [0, 1], NEW: [0]})
        before = len(coordinator.asked(Beat))
        await until(lambda: len(coordinator.asked(Beat)) > before + 3, worker)
        before = len(coordinator.asked(Beat))
        coordinator.give({T: [0, 1]})
        await until(lambda: any(map(owned, beats_from(coordinator, before))), worker)
        # Once, and no more.
        before = len(coordinator.asked(Beat))
        await until(lambda: len(coordinator.asked(Beat)) > before + 3, worker)
        assert sum(bool(owned(beat)) for beat in beats_from(coordinator, before - 1)) <= 1
        assert worker.member.state is MemberState.STABLE


async def test_trap_09_what_is_left_of_it_is_confirmed_though_metadata_do_not_know_that_either(
    coordinator: ScriptedBroker,
) -> None:
    # The coordinator withdraws the rest when the member has said what it owns: topics that were
    # deleted before the member could take them get no name any more.
    async with member_on(coordinator) as worker:
        coordinator.give({T: [0, 1], NEW: [0, 1]})
        before = len(coordinator.asked(Beat))
        await until(lambda: len(coordinator.asked(Beat)) > before + 3, worker)
        before = len(coordinator.asked(Beat))
        coordinator.give({T: [0, 1], NEW: [1]})
        await until(lambda: any(map(owned, beats_from(coordinator, before))), worker)
        # Once, and no more.
        before = len(coordinator.asked(Beat))
        await until(lambda: len(coordinator.asked(Beat)) > before + 3, worker)
        assert sum(bool(owned(beat)) for beat in beats_from(coordinator, before - 1)) <= 1
        assert worker.member.state is MemberState.RECONCILING


# --- 10 to 14: offsets, and silence ----------------------------------------------------------
def stale_read(request: Message) -> OffsetFetchResponse:
    code = errors.StaleMemberEpochError.errno
    return OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id="g", error_code=code)])


async def test_trap_10_a_stale_epoch_is_not_nothing_committed() -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        for number in range(9):
            broker.produce("t", b"%d" % number)
        async with AIOKafkaConsumer(
            bootstrap_servers=broker.bootstrap_servers, group_id="g", enable_auto_commit=False
        ) as other:
            other.assign([TP])
            await other.commit({TP: 4})
        broker.on("OffsetFetch").answer(lambda _, request: stale_read(request), times=3)
        async with consumer_of(broker) as consumer:  # which would begin at the end
            assert (await asyncio.wait_for(consumer.getone(), 10)).offset == 4
            assert consumer.metrics()["offset_resets_total"] == 0


async def test_trap_11_a_stale_epoch_is_committed_under_the_next_and_never_surfaces(
    coordinator: ScriptedBroker,
) -> None:
    async with member_on(coordinator, heartbeat_interval_ms=60_000) as worker:
        await until(lambda: worker.member.state is MemberState.STABLE, worker)
        coordinator.epoch = 7  # for other members' sake: this one keeps what it has
        coordinator.script(OffsetCommitRequest, *[refused_commit(errors.StaleMemberEpochError)] * 2)
        await worker.commits.commit({TP: 3})
        assert coordinator.offsets == {("t", 0): (3, "")}
        epochs = [r.generation_id_or_member_epoch for r in coordinator.asked(OffsetCommitRequest)]
        assert epochs[-1] == 7
        # What has gone since is another member's, and that is what is said.
        # A heartbeat of before may be on its way: its answer does not know of that.
        coordinator.give({T: [1]})
        coordinator.script(OffsetCommitRequest, *[refused_commit(errors.StaleMemberEpochError)] * 2)
        left_to_commit = worker.commits.commit({TP: 5})
        with pytest.raises(CommitFailedError, match="no longer assigned"):
            await asyncio.gather(left_to_commit)
    assert worker.errors == []


async def test_trap_11_a_commit_does_not_outlive_a_time_in_which_another_had_the_partition(
    coordinator: ScriptedBroker,
) -> None:
    async with member_on(coordinator) as worker:
        held = coordinator.hold(OffsetCommitRequest)
        committing = asyncio.ensure_future(worker.commits.commit({TP: 3}))
        await held.came()
        # While that is on its way the partition goes, and comes back.
        worker.state.change([TP], ())
        worker.state.change((), [TP])
        coordinator.script(OffsetCommitRequest, refused_commit(errors.StaleMemberEpochError))
        other = asyncio.ensure_future(worker.commits.commit({TopicPartition("t", 1): 1}))
        held.release()
        await asyncio.gather(committing, other)
        late = asyncio.ensure_future(worker.commits.commit({TP: 4}))
        coordinator.script(OffsetCommitRequest, refused_commit(errors.StaleMemberEpochError))
        await until(lambda: len(coordinator.asked(OffsetCommitRequest)) >= 4, worker)
        worker.state.change([TP], ())
        worker.state.change((), [TP])
        with pytest.raises(CommitFailedError, match="no longer assigned"):
            await late


async def test_trap_12_a_read_of_offsets_that_fails_is_tried_again_and_no_more() -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        broker.produce("t", b"x")
        broker.on("OffsetFetch").fail(errors.CoordinatorLoadInProgressError, times=2)
        broker.on("OffsetFetch").disconnect(times=1)
        async with consumer_of(broker, auto_offset_reset="earliest") as consumer:
            assert (await asyncio.wait_for(consumer.getone(), 10)).offset == 0
            assert consumer.metrics()["heartbeat_failures_total"] == 0
            assert consumer.assignment() == {TP}


@pytest.mark.virtual_time
async def test_trap_13_a_group_that_is_not_found_is_joined_again_or_said(
    coordinator: ScriptedBroker,
) -> None:
    calls = Losing()
    async with member_on(coordinator, calls) as worker:
        coordinator.script(Beat, refused_beat(GroupIdNotFound))
        await until(lambda: len(calls.calls) == 3, worker)
        assert worker.errors == []
        # But whoever may not even join has to know.
        coordinator.script(Beat, *[refused_beat(GroupIdNotFound)] * 3)
        await until(lambda: worker.errors, worker)
        assert isinstance(worker.errors[0], GroupIdNotFound)
        assert "GroupIdNotFound" in worker.membership.status.trouble
        await until(lambda: len(calls.calls) == 5, worker)
        assert worker.membership.status.trouble == ""


@pytest.mark.virtual_time
async def test_trap_14_a_reconciliation_that_hangs_says_for_what(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Broker() as broker:
        broker.create_topic("t", 2)
        calls = Slow("revoked")
        async with consumer_of(broker, listener=calls, rebalance_timeout_ms=60_000) as first:
            second = consumer_of(broker)
            async with second:
                await calls.is_called.wait()
                (going,) = [
                    tp for tp in first.assignment() if "is being revoked" in first.explain(tp)
                ]
                (kept,) = first.assignment() - {going}
                broker.produce("t", b"x", partition=kept.partition)
                record = await asyncio.wait_for(first.getone(), 10)
                assert record.partition == kept.partition
                health = first.health()
                assert health.verdict == "degraded"
                assert any("RECONCILING" in reason for reason in health.reasons)
                calls.may_return.set()
                await until(lambda: second.assignment() == {going})
                await until(lambda: first.health().is_ok)


# --- 15 to 17: coordinators ------------------------------------------------------------------
async def test_trap_15_a_member_leaves_a_coordinator_that_has_moved(
    coordinator: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async with member_on(coordinator) as worker:
        coordinator.script(Beat, *[refused_beat(errors.NotCoordinatorError)] * 2)
        await worker.leave()
    leaves = [beat for beat in coordinator.asked(Beat) if beat.member_epoch == -1]
    assert leaves
    assert worker.member.state is MemberState.LEFT
    assert not [r for r in caplog.records if "did not confirm" in r.getMessage()]


async def test_trap_15_a_member_that_is_unknown_when_it_leaves_has_left(
    coordinator: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async with member_on(coordinator, heartbeat_interval_ms=60_000) as worker:
        await until(lambda: worker.member.state is MemberState.STABLE, worker)
        await until(lambda: {T: [0, 1]} in map(owned, coordinator.asked(Beat)), worker)
        # The answer to the first is lost.
        coordinator.script(Beat, None, refused_beat(errors.UnknownMemberIdError))
        await worker.leave()
    assert [beat.member_epoch for beat in coordinator.asked(Beat)][-2:] == [-1, -1]
    assert not [r for r in caplog.records if "did not confirm" in r.getMessage()]


@pytest.mark.virtual_time
async def test_trap_16_a_coordinator_that_is_gone_is_no_silence(
    coordinator: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async with member_on(coordinator, session_timeout_ms=500, retry_backoff_ms=5) as worker:
        broken = [refused_beat(errors.CoordinatorNotAvailableError)] * 60
        coordinator.script(Beat, *broken)
        await until(lambda: worker.membership.status.heartbeat_failure_count >= 5, worker)
        await until(lambda: Hold.CUT_OFF in worker.state.gate.holds, worker)
        assert [r for r in caplog.records if "heartbeat failed" in r.getMessage()]
        coordinator.drop_script(Beat)
        await until(lambda: not worker.state.gate.holds, worker)


@pytest.mark.parametrize("epoch", [-1, 0, -2, 1])
async def test_trap_17_an_epoch_that_makes_no_sense_is_not_believed(
    coordinator: ScriptedBroker, epoch: int
) -> None:
    coordinator.epoch = 5
    async with member_on(coordinator) as worker:
        await until(lambda: {T: [0, 1]} in map(owned, coordinator.asked(Beat)), worker)
        coordinator.script(Beat, lambda request: coordinator.epoch_answer(request, {}, epoch=epoch))
        failed = worker.membership.status.heartbeat_failure_count
        await until(lambda: worker.membership.status.heartbeat_failure_count > failed, worker)
        beats = worker.membership.status.heartbeat_count
        await until(lambda: worker.membership.status.heartbeat_count > beats + 1, worker)
        assert worker.membership.generation == 5
        assert worker.partitions == tps("t", 0, 1)
        assert {beat.member_epoch for beat in coordinator.asked(Beat)} == {0, 5}


async def test_trap_17_an_interval_of_nothing_is_no_hot_loop(coordinator: ScriptedBroker) -> None:
    async with member_on(coordinator):
        hurried = [
            lambda request: coordinator.epoch_answer(request, interval_ms=0),
            lambda request: coordinator.epoch_answer(request, interval_ms=-5),
        ] * 100
        coordinator.script(Beat, *hurried)
        before = len(coordinator.asked(Beat))
        await asyncio.sleep(0.5)
        assert len(coordinator.asked(Beat)) - before <= 6  # one in 0.1 s


async def test_trap_17_a_partition_that_is_named_twice_is_one(coordinator: ScriptedBroker) -> None:
    calls = Losing()
    async with member_on(coordinator, calls) as worker:
        worker.work(TP, 3)
        coordinator.give({T: [0, 0, 1, 1, 2]})
        await until(lambda: worker.partitions == tps("t", 0, 1, 2), worker)
        assert worker.state.partition(TP).position == 3
    assert calls.calls == [("assigned", tps("t", 0, 1)), ("assigned", tps("t", 2))]


# --- 18 to 20: commits, static members, sessions ---------------------------------------------
def going_back(consumer: AIOKafkaConsumer) -> list[TopicPartition]:
    """The partitions that are being given back."""
    return [tp for tp in consumer.assignment() if "is being revoked" in consumer.explain(tp)]


async def test_trap_18_what_goes_is_marked_before_its_last_commit() -> None:
    async with Broker() as broker:
        broker.create_topic("t", 2)
        for partition in (0, 1):
            for number in range(20):
                broker.produce("t", b"%d" % number, partition=partition)
        async with consumer_of(broker, auto_offset_reset="earliest") as first:
            found = dict[TopicPartition, object]()
            while len(found) < 2:
                found.update(await first.getmany(timeout_ms=100, max_records=4))
            await first.getmany(timeout_ms=1, max_records=1)
            with broker.on("OffsetCommit").hold() as held:
                second = consumer_of(broker, auto_offset_reset="earliest")
                starting = asyncio.ensure_future(second.start())
                await until(
                    lambda: any("being revoked" in first.explain(tp) for tp in first.assignment())
                )
                (going,) = [tp for tp in first.assignment() if "being revoked" in first.explain(tp)]
                position = await first.position(going)
                read = await first.getmany(timeout_ms=200)
                assert going not in read
                assert await first.position(going) == position
                assert going in first.assignment()
                held.release()
            await starting
            await until(lambda: second.assignment() == {going})
            record = await asyncio.wait_for(second.getone(), 10)
            assert record.offset <= position
            await second.stop()


async def test_trap_19_an_instance_id_that_is_not_released_is_waited_for_and_said() -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        first = consumer_of(broker, group_instance_id="one")
        await first.start()
        second = consumer_of(broker, group_instance_id="one")
        starting = asyncio.ensure_future(second.start())
        await until(lambda: any("'one' still belongs" in r for r in second.health().reasons))
        assert not starting.done()
        await first.stop()  # which says that it will be back: its place is kept for it
        await asyncio.wait_for(starting, 10)
        assert second.assignment() == {TP}
        await second.stop()
        leaves = [beat for beat in beats_of(broker) if beat.member_epoch < 0]
        assert [beat.member_epoch for beat in leaves] == [-2, -2]


class Refusing:
    """A cluster whose coordinator refuses every heartbeat."""

    has_topic_ids = True

    def __init__(self, error: type[errors.BrokerResponseError]) -> None:
        self._error = error
        self.asked_at: list[float] = []

    async def find_coordinator(self, group_id: str) -> int:
        return 1

    async def request(self, *_: object, **__: object) -> ConsumerGroupHeartbeatResponse:
        self.asked_at.append(asyncio.get_running_loop().time())
        return refused_beat(self._error)


def joining_heartbeat(
    cluster: Refusing,
    on_error: Callable[[KafkaError], None],
    fall_back: Callable[[KafkaError], None] | None = None,
) -> Heartbeat:
    """The heartbeats of a static member that wants to be let in."""

    class Telling(Gate):
        @override
        def post(self, error: KafkaError) -> None:
            on_error(error)

    state = State()
    state.gate = Telling(lambda _: None)
    config = ConsumerConfig(group_id="g", group_instance_id="one", session_timeout_ms=6000)
    member = ConsumerMember("g", "one")
    member.enter(MemberState.JOINING)
    around = Surroundings(
        state.core(config, rng=random.Random(0)),
        cast("Cluster", cluster),
        Coordinator(cast("Cluster", cluster), "g", state.events),
        cast("Any", None),
        TaskScope("test"),
        replace=lambda _: None,
    )
    membership = ConsumerMembership(around, member, fall_back=fall_back)
    return Heartbeat(around, member, HeartbeatSchedule(config, member, Topics()), membership)


@pytest.mark.virtual_time
async def test_trap_19_an_instance_id_that_is_not_released_in_a_session_is_an_error() -> None:
    loop, cluster = asyncio.get_running_loop(), Refusing(errors.UnreleasedInstanceIdError)
    met: list[tuple[float, KafkaError]] = []
    heartbeat = joining_heartbeat(cluster, lambda error: met.append((loop.time(), error)))
    task = asyncio.ensure_future(heartbeat.run())
    await asyncio.sleep(120)
    task.cancel()
    first_at, error = met[0]
    # The session of one that died may be the broker's 45 s, whatever is set here.
    assert 45 < first_at < 51
    assert isinstance(error, errors.UnreleasedInstanceIdError)
    assert "'one' still belongs" in str(error)
    # It goes on asking, at a pace that does no harm.
    pauses = [after - before for before, after in itertools.pairwise(cluster.asked_at)]
    assert pauses[0] < 0.2
    assert 4 < pauses[-1] <= max(pauses) <= 6
    assert len(pauses) < 60


@pytest.mark.virtual_time
async def test_who_goes_over_to_the_classic_protocol_sends_no_heartbeat_more() -> None:
    cluster, told = Refusing(errors.UnsupportedVersionError), list[KafkaError]()
    # To go over may take longer than the pause before the next one: it imports modules.
    heartbeat = joining_heartbeat(cluster, told.append, fall_back=told.append)
    task = asyncio.ensure_future(heartbeat.run())
    await asyncio.sleep(120)
    task.cancel()
    assert [type(error) for error in told] == [errors.UnsupportedVersionError]
    assert len(cluster.asked_at) == 1


async def test_trap_19_a_static_member_whose_epoch_is_over_releases_its_own_name(
    coordinator: ScriptedBroker,
) -> None:
    calls = Losing()
    async with member_on(coordinator, calls, group_instance_id="one") as worker:
        coordinator.script(Beat, refused_beat(errors.FencedMemberEpochError))
        await until(lambda: len(calls.calls) == 3, worker)
    epochs = [beat.member_epoch for beat in coordinator.asked(Beat)]
    assert -2 in epochs[: epochs.index(0, 1)]


async def test_trap_19_who_finds_another_under_its_name_ends(coordinator: ScriptedBroker) -> None:
    worker = EpochWorker(f"127.0.0.1:{coordinator.port}", "g", ["t"], {"group_instance_id": "one"})
    await worker.start()
    coordinator.script(Beat, refused_beat(errors.FencedInstanceIdError))
    await asyncio.wait_for(worker.failed.wait(), 10)
    assert isinstance(worker.scope.failure, errors.FencedInstanceIdError)
    assert not worker.partitions
    await worker.die()


@pytest.mark.virtual_time
async def test_trap_20_who_is_cut_off_hands_out_nothing_after_a_session() -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        consumer = consumer_of(
            broker,
            auto_offset_reset="earliest",
            session_timeout_ms=600,
            heartbeat_interval_ms=50,
        )
        async with consumer:
            broker.produce("t", b"0")
            assert (await asyncio.wait_for(consumer.getone(), 10)).offset == 0
            with broker.on("ConsumerGroupHeartbeat").silence(times=None):
                await until(lambda: "no heartbeat was answered within" in consumer.explain(TP))
                broker.produce("t", b"1")
                assert await consumer.getmany(timeout_ms=200) == {}
            assert (await asyncio.wait_for(consumer.getone(), 10)).offset == 1


# --- 21 to 23: beside the classic protocol ---------------------------------------------------
def warned(caplog: pytest.LogCaptureFixture, **settings: object) -> str:
    """What is said of settings when a group is joined."""
    caplog.clear()
    config = ConsumerConfig(group_id="g", **settings)  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING):
        member_of(config, "g")
    return " ".join(record.getMessage() for record in caplog.records)


def test_trap_21_settings_of_the_broker_are_taken_and_said_where_they_differ(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert warned(caplog, group_protocol="auto") == ""
    assert warned(caplog, group_protocol="auto", session_timeout_ms=10_000) == ""
    assert warned(caplog, group_protocol="auto", session_timeout_ms=45_000) == ""  # the broker's
    assert warned(caplog, group_protocol="classic", session_timeout_ms=6000) == ""
    assert "session_timeout_ms" in warned(caplog, group_protocol="auto", session_timeout_ms=6000)
    assert "partition_assignment_strategy" in warned(
        caplog,
        group_protocol="consumer",
        partition_assignment_strategy=(RangePartitionAssignor,),
    )


def test_trap_21_assignors_of_its_own_mean_the_classic_protocol() -> None:
    config = ConsumerConfig(
        group_protocol="auto", partition_assignment_strategy=(RangePartitionAssignor,)
    )
    assert config.joins_as == "classic"
    assert ConsumerConfig(group_protocol="auto").joins_as == "auto"


@pytest.mark.parametrize("kind", [errors.UnsupportedVersionError, GroupIdNotFound])
async def test_trap_22_who_falls_back_joins_under_an_id_of_the_coordinators(
    kind: type[BrokerResponseError],
) -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        broker.produce("t", b"x")
        broker.on("ConsumerGroupHeartbeat").fail(kind, times=None)
        consumer = consumer_of(broker, group_protocol="auto", auto_offset_reset="earliest")
        events = consumer.events()
        async with consumer:
            assert (await asyncio.wait_for(consumer.getone(), 10)).offset == 0
            await consumer.commit()
            (told,) = [e for e in events_so_far(events) if isinstance(e, GroupProtocolChanged)]
            assert told.protocol == "classic"
        first, *_ = requests_of(broker, JoinGroupRequest)
        assert first.member_id == ""
        (leave,) = requests_of(broker, LeaveGroupRequest)
        assert leave.members[0].member_id not in {beat.member_id for beat in beats_of(broker)}
        assert not [beat for beat in beats_of(broker) if beat.member_epoch < 0]
        assert broker.committed("g") == {TP: 1}


async def test_trap_23_our_tools_do_not_take_such_a_group_for_dead() -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        async with consumer_of(broker) as consumer:

            def ask() -> tuple[str, int]:
                config = ClientConfig(bootstrap_servers=broker.bootstrap_servers)
                with contextlib.closing(BlockingCluster(config)) as cluster:
                    found, _ = read_group(cluster, "g")
                return found.state, len(found.members)

            assert consumer.assignment() == {TP}
            assert await asyncio.to_thread(ask) == ("Stable", 1)
