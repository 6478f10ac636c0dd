"""When a member of KIP-848 heartbeats, and what the answers make of it: without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aiokafka_lite import errors
from aiokafka_lite._compat import timeout
from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.client.view import Node
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.gate import Hold
from aiokafka_lite.consumer.membership.coordinator import Coordinator
from aiokafka_lite.consumer.membership.heartbeat import Lease
from aiokafka_lite.consumer.membership.heartbeat_thread import HeartbeatThread, Outcome
from aiokafka_lite.consumer.membership.kip848.heartbeat import (
    Heartbeat,
    HeartbeatSchedule,
    Subscription,
)
from aiokafka_lite.consumer.membership.kip848.member import (
    ConsumerMember,
    MemberState,
    PartitionId,
)
from aiokafka_lite.consumer.membership.protocol import Identity, Surroundings
from aiokafka_lite.consumer.membership.recovery import Interruption
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.protocol.messages.group_members import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from aiokafka_lite.structs import TopicPartition
from tests.support.pulses import Thread
from tests.support.states import State
from tests.support.virtual_time import VirtualTimeLoop

pytestmark = pytest.mark.virtual_time

SESSION_S = 10.0
Answer = ConsumerGroupHeartbeatResponse | KafkaError | Callable[[], Awaitable[None]]


class ScriptedCoordinator:
    """Answers what the test says, otherwise that all is well."""

    node = Node(1, "host", 9092)
    node_id = 1

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.script = list[Answer]()
        self.epoch = 1
        self.sent = list[ConsumerGroupHeartbeatRequest]()
        self.sent_at = list[float]()
        self.limits = list[tuple[float, float]]()
        self.is_asked = asyncio.Event()

    async def request(
        self,
        request: ConsumerGroupHeartbeatRequest,
        *,
        deadline: float,
        answer_s: float,
        **_: object,
    ) -> ConsumerGroupHeartbeatResponse:
        now = self._loop.time()
        self.sent.append(request)
        self.is_asked.set()
        self.sent_at.append(now)
        self.limits.append((deadline - now, answer_s))
        answer = self.script.pop(0) if self.script else None
        if callable(answer):
            await answer()
            answer = None
        if isinstance(answer, KafkaError):
            raise answer
        return answer or ConsumerGroupHeartbeatResponse(member_epoch=self.epoch)

    def is_full(self, number: int) -> bool:
        return self.sent[number].topic_partitions is not None


class Beating:
    """A member's heartbeats, and what they tell the membership."""

    def __init__(
        self,
        *script: Answer,
        can_fall_back: bool = False,
        thread: object = None,
        **settings: int,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.config = ConsumerConfig(group_id="g", session_timeout_ms=10_000, **settings)  # type: ignore[arg-type]
        self.coordinator = ScriptedCoordinator(self.loop)
        self.cluster = SimpleNamespace(has_topic_ids=True)
        self.coordinator.script += script
        self.state = State()
        self.state.subscribe(["t"])
        self.gate = self.state.gate
        self.member = ConsumerMember("g", "one")
        self.member.enter(MemberState.JOINING)
        self.subscribed, self.partition_count = Subscription(frozenset({"t"})), 0
        self.was_settled, self.poll_left_s = True, self.config.max_poll_interval_s - 3.0
        self.held = dict[PartitionId, TopicPartition]()
        self.errors = list[KafkaError]()
        self.fell_back = list[KafkaError]()
        self.fall_back = self.fell_back.append if can_fall_back else None
        self.refused_regex_count = 0
        self.scope = TaskScope("g")
        self.beats = HeartbeatSchedule(self.config, self.member, self)
        around = Surroundings(
            self.state.core(self.config),
            cast("Cluster", self.cluster),
            cast("Coordinator", self.coordinator),
            cast("Any", None),
            self.scope,
            replace=lambda _: None,
        )
        self.heartbeat = Heartbeat(around, self.member, self.beats, cast("Any", self))
        self.heartbeat.lease = Lease(
            SESSION_S, self.gate, self.state, self.member, self.heartbeat.thread
        )
        if thread is not None:
            self.heartbeat.thread = cast("HeartbeatThread", thread)
        self.scope.spawn(self.heartbeat.run(), name="heartbeat")

    def surface(self, error: KafkaError) -> None:
        self.errors.append(error)

    def match_here(self) -> None:
        self.refused_regex_count += 1
        self.subscribed = Subscription(frozenset({"t"}))

    async def join(self) -> Identity:
        """Be let in, and hold what was assigned."""
        await asyncio.sleep(0.01)
        self.member.reconciled(is_done=True)
        return self.member.identity

    async def sent(self, count: int) -> list[float]:
        """Return when the next heartbeats are sent, once they are."""
        first = len(self.coordinator.sent)
        async with timeout(1_000):
            while len(self.coordinator.sent) < first + count:
                self.coordinator.is_asked.clear()
                await self.coordinator.is_asked.wait()
        return self.coordinator.sent_at[first : first + count]


# --- The pace ---------------------------------------------------------------------------------
async def test_it_beats_quickly_for_a_while_after_the_epoch_has_changed() -> None:
    it = Beating()
    await it.join()
    times = await it.sent(25)
    assert times[:19] == pytest.approx([0.25 * n for n in range(1, 20)])
    assert times[19:] == pytest.approx([times[18] + n for n in range(1, 7)])
    it.coordinator.epoch += 1
    first, second, third = await it.sent(3)
    assert (second - first, third - second) == pytest.approx((0.25, 0.25))
    assert it.heartbeat.beat_count == len(it.coordinator.sent) == 29
    assert it.heartbeat.failure_count == 0


async def test_it_beats_quickly_as_long_as_the_assignment_is_not_taken() -> None:
    it = Beating()
    await it.join()
    await asyncio.sleep(20)
    it.member.reconciled(is_done=False)
    times = await it.sent(3)
    assert times[2] - times[1] == pytest.approx(0.25)


async def test_news_and_a_stale_epoch_are_told_at_once() -> None:
    it = Beating()
    await it.join()
    await asyncio.sleep(20.5)
    it.subscribed = Subscription(frozenset({"u"}))
    it.member.notify()
    await asyncio.sleep(0)
    assert it.coordinator.sent[-1].subscribed_topic_names == ["u"]
    await asyncio.sleep(0.1)
    count = len(it.coordinator.sent)
    it.member.note_refusal(it.member.identity, errors.StaleMemberEpochError("no"))
    await asyncio.sleep(0.01)
    assert len(it.coordinator.sent) == count + 1


async def test_a_coordinator_has_half_a_session_for_its_answer() -> None:
    it = Beating()
    await it.join()
    assert it.coordinator.limits == [pytest.approx((5.0, 5.0))]
    it = Beating(request_timeout_ms=2_000)
    await it.join()
    assert it.coordinator.limits == [pytest.approx((2.0, 2.0))]


async def test_after_failures_it_waits_longer_each_time_until_it_is_answered() -> None:
    failures = [errors.CoordinatorLoadInProgressError("soon")] * 6
    it = Beating(*failures, retry_backoff_ms=100)
    pauses = [after - before for before, after in pairwise(await it.sent(7))]
    for pause, expected in zip(pauses, [0.1, 0.2, 0.4, 0.8, 1.0, 1.0], strict=True):
        assert pause == pytest.approx(expected, rel=0.21)
    assert it.heartbeat.failure_count == 6
    await it.join()
    await asyncio.sleep(20)
    it.coordinator.script += failures[:2]
    first, second = await it.sent(2)
    assert second - first == pytest.approx(0.1, rel=0.21)
    assert it.errors == []
    assert it.member.is_member
    assert it.coordinator.is_full(-1)  # what became of the one before is not known


# --- What holds records -----------------------------------------------------------------------
async def test_each_answer_renews_the_lease_from_when_it_was_asked_for() -> None:
    it = Beating()
    await it.join()
    await asyncio.sleep(20)
    it.coordinator.script += [lambda: asyncio.sleep(4), lambda: asyncio.sleep(1_000)]
    before = it.heartbeat.last_contact_at
    (asked_at,) = await it.sent(1)
    await asyncio.sleep(3.9)
    assert before is not None
    assert before <= (it.heartbeat.last_contact_at or 0) < asked_at
    await asyncio.sleep(0.2)
    assert it.heartbeat.last_contact_at == asked_at
    await asyncio.sleep(asked_at + 0.98 * SESSION_S - it.loop.time())
    assert not it.gate.holds
    await asyncio.sleep(0.02 * SESSION_S)
    assert it.gate.holds == {Hold.CUT_OFF}


@pytest.mark.parametrize(
    ("error", "loss"),
    [
        (errors.FencedMemberEpochError("no"), Interruption.LOST_GENERATION),
        (errors.UnknownMemberIdError("no"), Interruption.LOST_MEMBERSHIP),
        (errors.GroupIdNotFound("no"), Interruption.LOST_MEMBERSHIP),
        (errors.FencedInstanceIdError("no"), Interruption.FENCED),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, KafkaError) else None,
)
async def test_a_member_that_is_dropped_hands_out_nothing_and_is_silent(
    error: KafkaError, loss: Interruption
) -> None:
    it = Beating(ConsumerGroupHeartbeatResponse(member_epoch=1), error)
    await it.join()
    await asyncio.sleep(20)
    assert (it.member.state, it.member.lost_by) == (MemberState.DROPPED, loss)
    assert "no" in str(it.member.why_lost()) or loss is Interruption.FENCED
    assert Hold.LOST in it.gate.holds
    assert len(it.coordinator.sent) == 2
    assert it.errors == []


# --- A member that joins ----------------------------------------------------------------------
@pytest.mark.parametrize(
    ("error", "is_dropped", "is_raised", "is_refused"),
    [
        (errors.UnknownMemberIdError("no"), True, False, False),
        (errors.FencedInstanceIdError("no"), True, False, False),
        (errors.FencedMemberEpochError("no"), False, False, False),
        (errors.GroupIdNotFound("no"), False, True, True),
        (errors.UnsupportedVersionError("no"), False, True, True),
        (errors.GroupAuthorizationFailedError("no"), False, True, True),
        (errors.UnknownError("no"), False, True, False),
        (errors.IncompatibleBrokerVersion("no"), False, True, True),
        (errors.AuthenticationFailedError("no"), False, True, False),
        (errors.CoordinatorNotAvailableError("no"), False, False, False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, KafkaError) else "",
)
async def test_a_join_that_fails(
    error: KafkaError, is_dropped: bool, is_raised: bool, is_refused: bool
) -> None:
    answered = asyncio.Event()

    async def hang() -> None:
        await answered.wait()

    it = Beating(error, hang)
    assert not it.heartbeat.is_refused
    await asyncio.sleep(0.01)
    assert (it.member.state is MemberState.DROPPED) is is_dropped
    assert [type(each) for each in it.errors] == ([type(error)] if is_raised else [])
    assert it.heartbeat.is_refused is is_refused
    assert bool(it.heartbeat.trouble) is is_raised
    assert it.heartbeat.failure_count == 1
    if is_dropped:
        return
    (again_at,) = await it.sent(1)
    assert again_at == pytest.approx(1.0 if is_raised else 0.1, rel=0.21)
    assert not it.heartbeat.is_refused  # that is not known of the one on its way
    answered.set()
    await it.join()
    assert it.member.is_member
    assert it.heartbeat.trouble == ""


@pytest.mark.parametrize("is_member", [False, True])
async def test_a_broker_without_the_protocol_refuses_only_who_joins(is_member: bool) -> None:
    error = errors.UnsupportedVersionError("not here")
    script: list[Answer] = [ConsumerGroupHeartbeatResponse(member_epoch=1)] if is_member else []
    it = Beating(*script, error, can_fall_back=True)
    await it.join()
    await asyncio.sleep(20)
    assert it.fell_back == ([] if is_member else [error])
    assert len(it.errors) == is_member
    assert (len(it.coordinator.sent) > 2) is is_member  # another protocol takes over
    assert it.heartbeat.is_refused is False


async def test_a_refusal_says_which_protocol_helps(caplog: pytest.LogCaptureFixture) -> None:
    it = Beating(errors.UnsupportedVersionError("not here"))
    await asyncio.sleep(0.01)
    (error,) = it.errors
    assert "does not offer this protocol: not here. Use group_protocol" in str(error)
    assert str(error) in caplog.text
    assert it.heartbeat.trouble == str(error)


async def test_a_cluster_without_topic_ids_cannot_be_joined() -> None:
    it = Beating()
    it.cluster.has_topic_ids = False
    await asyncio.sleep(0.5)
    assert [type(error) for error in it.errors] == [errors.IncompatibleBrokerVersion]
    assert it.coordinator.sent == []
    it.cluster.has_topic_ids = True
    await asyncio.sleep(1)
    await it.join()
    it.cluster.has_topic_ids = False  # as far as is known while brokers are replaced
    await asyncio.sleep(5)
    assert it.member.is_member
    assert len(it.errors) == 1


@pytest.mark.parametrize(
    ("wish", "is_matched_here"),
    [(Subscription(regex="t"), True), (Subscription(frozenset({"t"})), False)],
)
@pytest.mark.parametrize(
    "error", [errors.InvalidRegularExpressionError, errors.UnsupportedVersionError]
)
async def test_an_expression_that_is_refused_is_matched_here(
    error: type[KafkaError], wish: Subscription, is_matched_here: bool
) -> None:
    it = Beating(error("no"))
    it.subscribed = wish
    await asyncio.sleep(0.01)
    assert it.refused_regex_count == is_matched_here
    assert len(it.errors) == (not is_matched_here)
    assert it.member.is_member is is_matched_here
    assert it.heartbeat.failure_count == 1


async def test_an_instance_id_that_is_not_released_is_raised_when_its_session_must_be_over() -> (
    None
):
    await asyncio.sleep(1_000)
    script = [errors.UnreleasedInstanceIdError("no")] * 20
    it = Beating(errors.CoordinatorLoadInProgressError("soon"), *script, retry_backoff_ms=100)
    times = await it.sent(21)
    since = times[1]
    assert times[2] - since == pytest.approx(0.1, rel=0.21)
    assert times[-1] - times[-2] == pytest.approx(5.0, rel=0.21)
    raised = sum(each - since > 45.0 for each in times)
    assert 0 < raised < 19
    assert [type(error) for error in it.errors] == [errors.UnreleasedInstanceIdError] * raised
    assert it.heartbeat.trouble_since == since
    assert "still belongs to a member" in it.heartbeat.trouble
    await asyncio.sleep(7)
    assert it.member.is_member
    assert it.heartbeat.trouble == ""
    it.coordinator.script += script[:2]
    assert it.member.drop(it.member.identity, Interruption.LOST_GENERATION)
    it.member.enter(MemberState.UNJOINED)
    it.member.enter(MemberState.JOINING)
    first, second = await it.sent(2)
    assert second - first == pytest.approx(0.1, rel=0.21)  # all begins anew


# --- A loop that was blocked ------------------------------------------------------------------
@pytest.mark.parametrize("has_thread", [False, True])
async def test_a_heartbeat_that_is_late_by_half_a_session_tells_of_a_blocked_loop(
    has_thread: bool,
) -> None:
    it = Beating(thread=Thread() if has_thread else None)
    half_s = it.config.group_session_s / 2
    for late_s, is_long in ((half_s - 1, False), (half_s + 1, True)):
        await it.join()
        await asyncio.sleep(20.5)  # it is settled
        it.coordinator.script.append(errors.UnknownMemberIdError("no"))
        cast("VirtualTimeLoop", it.loop).pass_time(late_s)
        await asyncio.sleep(0.5)
        text = str(it.member.why_lost())
        assert ("the event loop was blocked for 23" in text) is is_long
        assert ("from the heartbeat thread either" in text) is (is_long and has_thread)
        assert ("could not send heartbeats" in text) is (is_long and not has_thread)
        it.member.enter(MemberState.UNJOINED)
        it.member.enter(MemberState.JOINING)
    await it.join()
    await asyncio.sleep(20.5)
    it.coordinator.script.append(errors.UnknownMemberIdError("no"))
    await asyncio.sleep(2)
    assert "blocked" not in str(it.member.why_lost())  # that is long ago


# --- The thread that stands in ----------------------------------------------------------------
async def test_an_outcome_of_the_thread_counts_as_a_heartbeat() -> None:
    it = Beating()
    identity = await it.join()
    await asyncio.sleep(20.5)
    count, contact = it.heartbeat.beat_count, it.heartbeat.last_contact_at
    assert contact is not None
    newer = identity._replace(generation=2)
    answer = ConsumerGroupHeartbeatResponse(member_epoch=2)
    waiting = asyncio.create_task(it.member.wait_for_change())
    await asyncio.sleep(0)
    it.heartbeat.take_outcome(Outcome(identity, newer, answer, None, 20.4))
    assert it.member.identity == newer
    assert it.heartbeat.last_contact_at == 20.4
    it.heartbeat.take_outcome(Outcome(newer, newer, answer, None, 7.0))
    assert it.heartbeat.last_contact_at == 20.4  # news that comes late
    assert (it.heartbeat.beat_count, it.heartbeat.failure_count) == (count + 2, 0)
    await asyncio.sleep(0.01)
    assert waiting.done()
    assert it.coordinator.is_full(-1)


async def test_an_answer_to_the_thread_renews_the_lease_and_an_older_one_takes_nothing_back() -> (
    None
):
    it = Beating()
    identity = await it.join()
    await asyncio.sleep(20.5)
    it.coordinator.script += [lambda: asyncio.sleep(5), lambda: asyncio.sleep(1_000)]
    (asked_at,) = await it.sent(1)
    await asyncio.sleep(4)
    answer = ConsumerGroupHeartbeatResponse(member_epoch=1)
    heard_at = it.loop.time()
    it.heartbeat.take_outcome(Outcome(identity, identity, answer, None, heard_at))
    await asyncio.sleep(2)
    assert it.heartbeat.last_contact_at == heard_at
    await asyncio.sleep(asked_at + SESSION_S - it.loop.time())
    assert not it.gate.holds
    await asyncio.sleep(heard_at - asked_at)
    assert it.gate.holds == {Hold.CUT_OFF}


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [(errors.FencedMemberEpochError("no"), True), (errors.NotCoordinatorError("no"), False)],
)
async def test_a_failure_of_the_thread_is_a_loss_only_if_the_group_says_so(
    error: KafkaError, is_lost: bool
) -> None:
    it = Beating()
    identity = await it.join()
    await asyncio.sleep(0.01)
    it.heartbeat.take_outcome(Outcome(identity, identity, None, error, 0.0))
    assert it.heartbeat.failure_count == 1
    assert (it.member.state is MemberState.DROPPED) is is_lost
    assert it.gate.holds == ({Hold.LOST} if is_lost else frozenset())
    await asyncio.sleep(0.01)
    assert [it.coordinator.is_full(n) for n in range(len(it.coordinator.sent))] == (
        [True] if is_lost else [True, True]  # it says all at once
    )


async def test_an_outcome_of_a_former_membership_changes_nothing() -> None:
    it = Beating()
    await it.join()
    error = errors.UnknownMemberIdError("no")
    other = Identity("other", 1)
    it.heartbeat.take_outcome(Outcome(other, other, None, error, 0.0))
    assert it.member.is_member
    assert not it.gate.holds


async def test_the_thread_is_told_when_the_loop_is_heard_next_and_how_long_it_may_stand_in() -> (
    None
):
    thread = Thread()
    it = Beating(max_poll_interval_ms=60_000, thread=thread)
    identity = await it.join()
    assert thread.pulses[0] is None  # it joins
    await asyncio.sleep(20.5)
    pulse = thread.pulses[-1]
    assert pulse is not None
    assert pulse.sent_as == identity
    assert pulse.node == it.coordinator.node
    assert pulse.due_at == pytest.approx(1.0)
    assert (pulse.interval_s, pulse.over_at) == (1.0, 57.0)
    thread.may_speak.clear()
    await asyncio.sleep(1)
    count = len(it.coordinator.sent)
    it.member.drop(identity, Interruption.LOST_GENERATION)
    thread.may_speak.set()
    await asyncio.sleep(1)
    assert len(it.coordinator.sent) == count
    assert thread.pulses[-1] is None  # nobody is to speak for it
