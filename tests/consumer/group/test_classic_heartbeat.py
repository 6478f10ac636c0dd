"""When a classic member heartbeats, and what the answers make of it: without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from aiokafka_lite import errors
from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.client.view import Node
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.gate import Hold
from aiokafka_lite.consumer.membership.classic.heartbeat import Heartbeat
from aiokafka_lite.consumer.membership.classic.member import Member, MemberState
from aiokafka_lite.consumer.membership.coordinator import Coordinator
from aiokafka_lite.consumer.membership.heartbeat_thread import HeartbeatThread, Outcome
from aiokafka_lite.consumer.membership.protocol import Identity, Surroundings
from aiokafka_lite.consumer.membership.recovery import Interruption
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.protocol.messages.group_members import HeartbeatRequest, HeartbeatResponse
from tests.support.pulses import Thread
from tests.support.states import NotedGate, State
from tests.support.virtual_time import VirtualTimeLoop

pytestmark = pytest.mark.virtual_time

SESSION_S, INTERVAL_S, POLL_S = 10.0, 1.0, 60.5
ME = Identity("m", 3)
Answer = KafkaError | Callable[[], Awaitable[None]] | None


class ScriptedCoordinator:
    """Answers what the test says, otherwise that all is well."""

    node = Node(1, "host", 9092)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.script = list[Answer]()
        self.sent = list[HeartbeatRequest]()
        self.sent_at = list[float]()
        self.limits = list[tuple[float, float]]()

    async def request(
        self, request: HeartbeatRequest, *, deadline: float, answer_s: float, **_: object
    ) -> HeartbeatResponse:
        now = self._loop.time()
        self.sent.append(request)
        self.sent_at.append(now)
        self.limits.append((deadline - now, answer_s))
        answer = self.script.pop(0) if self.script else None
        if callable(answer):
            await answer()
        elif answer is not None:
            raise answer
        return HeartbeatResponse()


class Beating:
    """A stable member's heartbeats, and what they tell the membership."""

    def __init__(self, *script: Answer, is_cooperative: bool = False, **settings: int) -> None:
        self.loop = cast("VirtualTimeLoop", asyncio.get_running_loop())
        self.config = ConsumerConfig(
            group_id="g",
            session_timeout_ms=int(SESSION_S * 1000),
            heartbeat_interval_ms=int(INTERVAL_S * 1000),
            max_poll_interval_ms=int(POLL_S * 1000),
            **settings,  # type: ignore[arg-type]
        )
        self.coordinator = ScriptedCoordinator(self.loop)
        self.coordinator.script += script
        self.member = Member("g", "one", is_cooperative=is_cooperative)
        self.state = State()
        self.state.subscribe(["t"])
        self.state.reads.restart_idle(self.loop.time())
        self.state.gate = gate = NotedGate()
        self.errors = gate.posted
        self.is_settled = True
        self.scope = TaskScope("g")
        self.thread = Thread()
        around = Surroundings(
            self.state.core(self.config),
            cast("Cluster", None),
            cast("Coordinator", self.coordinator),
            cast("Any", None),
            self.scope,
            replace=lambda _: None,
        )
        self.heartbeat = Heartbeat(around, self.member, cast("Any", self))
        self.heartbeat.thread = cast("HeartbeatThread", self.thread)
        self.member.enter(MemberState.PREPARING)
        self.member.begin_rebalance()
        self.member.take_generation(ME, protocol_name="range", leader_id="m")
        self.member.take_assignment()
        self.heartbeat.note_contact(self.loop.time())

    @property
    def poll_left_s(self) -> float:
        return POLL_S - self.state.reads.idle_s(self.loop.time())

    @property
    def holds(self) -> frozenset[Hold]:
        return self.state.gate.holds

    def surface(self, error: KafkaError) -> None:
        self.state.gate.post(error)

    async def interrupted(self) -> tuple[Interruption, float]:
        """Start the heartbeats, and return what interrupts the member, and when."""
        self.heartbeat.start()
        while (interruption := self.member.interruption) is None:
            await self.member.wait_for_change()
        return interruption, self.loop.time()


# --- The pace ---------------------------------------------------------------------------------
async def test_it_beats_once_an_interval_after_the_last_contact() -> None:
    it = Beating()
    assert (it.heartbeat.beat_count, it.heartbeat.failure_count) == (0, 0)
    assert it.heartbeat.last_contact_at is None
    it.heartbeat.start()
    await asyncio.sleep(3.5)
    assert it.coordinator.sent_at == [1.0, 2.0, 3.0]
    assert it.coordinator.limits == [pytest.approx((5.0, 5.0))] * 3
    assert (it.heartbeat.beat_count, it.heartbeat.last_contact_at) == (3, 3.0)
    it.heartbeat.note_contact(3.4)  # of a commit, or a join
    it.heartbeat.note_contact(1.0)  # an answer that comes late
    await asyncio.sleep(1)
    assert it.coordinator.sent_at[3:] == [4.4]
    request = it.coordinator.sent[-1]
    assert (request.group_id, request.group_instance_id) == ("g", "one")
    assert (request.member_id, request.generation_id) == (ME.member_id, ME.generation)
    await it.heartbeat.end()
    await asyncio.sleep(3)
    assert len(it.coordinator.sent) == 4


async def test_a_coordinator_has_as_long_as_a_request_if_that_is_less_than_half_a_session() -> None:
    it = Beating(request_timeout_ms=2_000)
    it.heartbeat.start()
    await asyncio.sleep(1.5)
    assert it.coordinator.limits == [pytest.approx((2.0, 2.0))]


async def test_after_failures_it_waits_longer_each_time_until_it_is_answered() -> None:
    busy = errors.CoordinatorLoadInProgressError("soon")
    it = Beating(busy, busy, busy, None, busy, retry_backoff_ms=100)
    it.heartbeat.start()
    await asyncio.sleep(3)
    times = it.coordinator.sent_at
    assert times[1] - times[0] == pytest.approx(0.1, rel=0.21)
    assert times[2] - times[1] == pytest.approx(0.2, rel=0.21)
    assert times[3] - times[2] == pytest.approx(0.4, rel=0.21)
    assert times[4] - times[3] == pytest.approx(1.0)
    assert times[5] - times[4] == pytest.approx(0.1, rel=0.21)
    assert it.heartbeat.failure_count == 4
    assert it.errors == []


async def test_what_will_not_pass_by_itself_is_raised_and_tried_again() -> None:
    error = errors.GroupAuthorizationFailedError("no")
    it = Beating(error)
    it.heartbeat.start()
    await asyncio.sleep(3)
    assert it.errors == [error]
    assert it.heartbeat.beat_count > 0
    assert it.member.interruption is None


# --- What ends it -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("error", "interruption", "is_held"),
    [
        (errors.RebalanceInProgressError("soon"), Interruption.GROUP_REBALANCES, False),
        (errors.IllegalGenerationError("no"), Interruption.LOST_GENERATION, True),
        (errors.UnknownMemberIdError("no"), Interruption.LOST_MEMBERSHIP, True),
        (errors.FencedInstanceIdError("no"), Interruption.FENCED, True),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, KafkaError) else "",
)
async def test_an_answer_interrupts_the_membership(
    error: KafkaError, interruption: Interruption, is_held: bool
) -> None:
    it = Beating(error)
    waiting = asyncio.ensure_future(it.member.wait_for_change())
    assert await it.interrupted() == (interruption, 1.0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert waiting.done()
    assert it.holds == ({Hold.LOST} if is_held else frozenset())
    assert it.heartbeat.failure_count == 1


async def test_a_loss_holds_nothing_of_a_consumer_that_has_unsubscribed() -> None:
    it = Beating(errors.UnknownMemberIdError("no"))
    it.state.unsubscribe()
    await it.interrupted()
    assert it.holds == frozenset()


async def test_an_application_that_stays_away_ends_it_to_the_moment() -> None:
    it = Beating()
    it.state.reads.restart_idle(0.0)
    assert await it.interrupted() == (Interruption.POLL_INTERVAL_EXCEEDED, POLL_S)
    assert it.coordinator.sent_at == [float(n) for n in range(1, 61)]


async def test_an_application_that_comes_back_in_time_does_not_end_it() -> None:
    it = Beating()
    it.state.reads.restart_idle(0.0)
    it.heartbeat.start()
    await asyncio.sleep(POLL_S - 0.5)
    it.state.reads.restart_idle(it.loop.time())
    await asyncio.sleep(POLL_S - 0.5)
    assert it.member.interruption is None


# --- While something else is done -------------------------------------------------------------
async def test_it_beats_meanwhile_and_a_rebalance_or_an_absence_is_no_news() -> None:
    it = Beating(*[errors.RebalanceInProgressError("soon")] * 70)
    it.state.reads.restart_idle(0.0)
    bugs = list[object]()
    it.loop.set_exception_handler(lambda _, context: bugs.append(context))
    it.member.enter(MemberState.PREPARING)
    it.is_settled = False
    it.heartbeat.start()
    await asyncio.sleep(POLL_S + 5)
    assert len(it.coordinator.sent) == 65
    assert it.heartbeat.last_contact_at == 65.0  # it is heard of
    assert it.member.interruption is None
    assert it.holds == frozenset()
    await it.heartbeat.end()
    await asyncio.sleep(5)
    assert len(it.coordinator.sent) == 65
    assert bugs == []


async def test_a_loss_meanwhile_is_posted() -> None:
    it = Beating(errors.UnknownMemberIdError("no"), is_cooperative=True)
    it.member.enter(MemberState.PREPARING)
    it.is_settled = False
    it.heartbeat.start()
    await asyncio.sleep(2)
    assert it.member.interruption is Interruption.LOST_MEMBERSHIP
    assert it.holds == {Hold.LOST}
    assert len(it.coordinator.sent) == 1
    it.heartbeat.note_counted_in()
    assert it.holds == frozenset()


@pytest.mark.parametrize("is_cooperative", [False, True])
async def test_an_eager_member_does_not_beat_while_it_joins(is_cooperative: bool) -> None:
    it = Beating(is_cooperative=is_cooperative)
    it.heartbeat.start()
    it.member.enter(MemberState.PREPARING)
    it.is_settled = False
    it.member.begin_rebalance()
    await asyncio.sleep(2.5)
    assert len(it.coordinator.sent) == (2 if is_cooperative else 0)
    assert (it.thread.pulses[-1] is None) is not is_cooperative


async def test_nobody_beats_for_a_member_that_is_none() -> None:
    it = Beating()
    it.member.lose_generation()
    it.heartbeat.start()
    await asyncio.sleep(3)
    assert it.coordinator.sent == []
    assert it.thread.pulses == [None]


# --- A loop that was blocked ------------------------------------------------------------------
async def test_a_heartbeat_that_is_late_by_half_a_session_tells_of_a_blocked_loop() -> None:
    it = Beating(None, errors.UnknownMemberIdError("no"))
    it.heartbeat.start()
    await asyncio.sleep(0.5)
    it.loop.pass_time(0.5 + 0.5 * SESSION_S)
    await asyncio.sleep(0.5)
    assert it.heartbeat.why_silent == ""
    it.loop.pass_time(0.5 + SESSION_S)
    await asyncio.sleep(0.5)
    assert it.member.interruption is Interruption.LOST_MEMBERSHIP
    assert "was blocked for 1" in it.heartbeat.why_silent
    assert "from the heartbeat thread either" in it.heartbeat.why_silent
    it.thread.is_there = False
    assert "could not send heartbeats" in it.heartbeat.why_silent
    it.heartbeat.note_contact(it.loop.time())
    assert it.heartbeat.why_silent == ""


@pytest.mark.parametrize(("late_s", "is_blocked"), [(0.5, False), (1.0, False), (2.0, True)])
async def test_an_answer_that_is_read_long_after_its_deadline_tells_of_a_blocked_loop(
    late_s: float, is_blocked: bool
) -> None:
    it = Beating()

    async def wait_beyond_the_deadline() -> None:
        it.loop.pass_time(SESSION_S / 2 + late_s)
        raise errors.UnknownMemberIdError("no")

    it.coordinator.script.append(wait_beyond_the_deadline)
    await it.interrupted()
    assert bool(it.heartbeat.why_silent) is is_blocked


async def test_what_a_blocked_loop_was_for_is_forgotten_once_a_session_has_begun_since() -> None:
    it = Beating(errors.NotCoordinatorError("no"))
    it.heartbeat.start()
    await asyncio.sleep(0.5)
    it.loop.pass_time(2 * SESSION_S)
    await asyncio.sleep(1 / 64)
    assert it.heartbeat.why_silent
    it.heartbeat.note_contact(it.loop.time() - SESSION_S)
    assert it.heartbeat.why_silent
    it.heartbeat.note_contact(it.loop.time() - SESSION_S / 2)
    assert it.heartbeat.why_silent == ""


# --- The thread that stands in ----------------------------------------------------------------
async def test_the_thread_is_told_when_the_loop_is_heard_next_and_how_long_it_may_stand_in() -> (
    None
):
    it = Beating()
    it.state.reads.restart_idle(0.0)
    it.heartbeat.start()
    await asyncio.sleep(2.5)
    due, sending = it.thread.pulses[-1], it.thread.pulses[-2]
    assert due is not None
    assert sending is not None
    assert (due.sent_as, due.node) == (ME, it.coordinator.node)
    assert (due.due_at, due.interval_s, due.over_at) == (1.0, 1.0, POLL_S - 2)
    assert sending[3:] == due[3:]
    it.heartbeat.thread.rest()
    it.member.enter(MemberState.PREPARING)
    it.is_settled = False
    it.member.notify()
    await asyncio.sleep(1)
    busy = it.thread.pulses[-1]
    assert busy is not None
    assert busy.over_at == POLL_S  # the application is not waited for


async def test_the_thread_does_not_speak_for_a_member_that_has_lost_its_generation() -> None:
    it = Beating()
    it.heartbeat.start()
    await asyncio.sleep(0.5)
    it.member.lose_generation()
    await asyncio.sleep(2)
    assert {pulse.sent_as for pulse in it.thread.pulses if pulse is not None} == {ME}


async def test_an_answer_to_the_thread_does_not_undo_a_rebalance() -> None:
    it = Beating()
    it.member.interrupt(ME, Interruption.GROUP_REBALANCES)
    it.heartbeat.take_outcome(Outcome(ME, ME, None, None, 1.0))
    assert it.member.interruption is Interruption.GROUP_REBALANCES


@pytest.mark.parametrize("is_stable", [False, True])
@pytest.mark.parametrize(
    ("error", "is_contact", "interruption"),
    [
        (None, True, None),
        (errors.NotCoordinatorError("no"), False, None),
        (errors.RebalanceInProgressError("soon"), True, Interruption.GROUP_REBALANCES),
        (errors.UnknownMemberIdError("no"), False, Interruption.LOST_MEMBERSHIP),
    ],
)
async def test_an_outcome_of_the_thread_counts_as_a_heartbeat(
    is_stable: bool, error: KafkaError | None, is_contact: bool, interruption: Interruption | None
) -> None:
    it = Beating(is_cooperative=True)
    await asyncio.sleep(2)
    if not is_stable:
        it.member.enter(MemberState.PREPARING)
    it.is_settled = False
    is_lost = interruption is Interruption.LOST_MEMBERSHIP
    hear = it.heartbeat.take_outcome
    former = ME._replace(generation=2)
    hear(Outcome(former, former, None, error, 1.0))
    assert it.member.interruption is None
    assert not it.holds
    assert it.thread.pulses == []
    hear(Outcome(ME, ME, None, error, 1.5))
    assert it.heartbeat.last_contact_at == (1.5 if is_contact else None)
    is_told = is_lost or is_stable
    assert it.member.interruption is (interruption if is_told else None)
    assert it.holds == ({Hold.LOST} if is_lost else frozenset())
    assert it.thread.pulses == ([None] if is_lost else [])
    counts = (it.heartbeat.beat_count, it.heartbeat.failure_count)
    assert counts == ((2, 0) if error is None else (0, 2))
