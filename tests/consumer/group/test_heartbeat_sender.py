"""When the heartbeat thread sends, and with which identity: without a thread."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

import pytest

from aiokafka_lite._tasks import Event, TaskScope
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.view import Node
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.membership.coordinator import Coordinator
from aiokafka_lite.consumer.membership.heartbeat import TURN_S, MemberHeartbeat
from aiokafka_lite.consumer.membership.heartbeat_thread import (
    END_S,
    IDLE_S,
    HeartbeatThread,
    LoopClosedError,
    Outcome,
    Send,
    SendHeartbeat,
    Snapshot,
)
from aiokafka_lite.consumer.membership.kip848.heartbeat import (
    Heartbeat,
    HeartbeatSchedule,
    send_brief,
)
from aiokafka_lite.consumer.membership.kip848.member import (
    ConsumerMember,
    MemberState,
    PartitionId,
)
from aiokafka_lite.consumer.membership.kip848.membership import ConsumerMembership
from aiokafka_lite.consumer.membership.protocol import Identity, Surroundings
from aiokafka_lite.consumer.parts import SharedTokens
from aiokafka_lite.errors import (
    FencedMemberEpochError,
    IllegalStateError,
    KafkaConnectionError,
    KafkaError,
    NotCoordinatorError,
    RebalanceInProgressError,
    RequestTimedOutError,
    UnknownMemberIdError,
)
from aiokafka_lite.protocol.messages.group_members import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    TopicPartitions,
)
from aiokafka_lite.protocol.schema import Request, Response
from tests.support.pulses import Topics
from tests.support.states import State
from tests.support.waiting import PATIENCE_S, until

ME = Identity("me", 5)
NODE = Node(1, "host", 9092)


class Clock:
    """Time that passes when somebody says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Cluster:
    """Connects to nodes, and finds coordinators."""

    def __init__(self) -> None:
        self.view = self
        self.nodes = {2: Node(2, "other", 9092)}
        self.connected = list[Node]()
        self.close_count = 0
        self.is_closed = threading.Event()

    def request(self, node: Node, request: object) -> HeartbeatResponse:
        self.connected.append(node)
        return HeartbeatResponse()

    def coordinator(self, group_id: str) -> int:
        return 2

    def close(self) -> None:
        self.close_count += 1
        self.is_closed.set()

    abort = hang_up = close


class Voice:
    """Is answered what the test says; otherwise the member stays who it is."""

    def __init__(self) -> None:
        self.sent_as = list[Identity]()
        self.answers = list[KafkaError | Identity]()
        self.is_heard = threading.Event()
        self.on_beat: Callable[[], object] | None = None

    def beat(self, send: Send, sent_as: Identity) -> tuple[Identity, Response]:
        send(HeartbeatRequest())
        self.sent_as.append(sent_as)
        self.is_heard.set()
        if self.on_beat is not None:
            self.on_beat()
        answer = self.answers.pop(0) if self.answers else sent_as
        if isinstance(answer, KafkaError):
            raise answer
        return answer, HeartbeatResponse()


class Posting(HeartbeatThread):
    """A thread that the test plays; its outcomes are those of the stage."""

    def __init__(self, stage: Stage, clock: Callable[[], float]) -> None:
        scope = cast("TaskScope", None)
        super().__init__("g", stage.open, stage.outcomes.append, scope=scope, clock=clock)
        self._stage = stage

    def post(self, call: Callable[[], None]) -> None:
        self._stage.post(call)

    def note_outcome(self, outcome: Outcome) -> None:
        self._stage.outcomes.append(outcome)

    def note_taken(self) -> None:
        """Have the loop take an outcome."""
        self._taken += 1


class Stage:
    """A thread, and a loop that is blocked until it is let go."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.voice = Voice()
        self.cluster = Cluster()
        self.posted = list[Callable[[], None]]()
        self.post_count = 0
        self.outcomes = list[Outcome]()
        self.is_blocked = True
        self.on_open: Callable[[], object] | None = None
        self.on_post: Callable[[], object] | None = None
        self.sender = Posting(self, self.clock)

    def open(self) -> BlockingCluster:
        if self.on_open is not None:
            self.on_open()
        return cast("BlockingCluster", self.cluster)

    def post(self, call: Callable[[], None]) -> None:
        self.post_count += 1
        if self.on_post is not None:
            self.on_post()
        if self.is_blocked:
            self.posted.append(call)
        else:
            call()

    def let_go(self) -> None:
        """Have the loop do what was posted."""
        self.is_blocked = False
        while self.posted:
            self.posted.pop(0)()

    def pulse(self, sent_as: Identity = ME, over_s: float = math.inf) -> Snapshot:
        """Who the member is; the loop is to be heard in a tenth of a second."""
        now = self.clock.now
        return Snapshot(self.voice.beat, sent_as, NODE, now + 0.1, 0.1, now + over_s)

    def turns(self, duration_s: float) -> None:
        """Let time pass, and the thread do what is due."""
        end = self.clock.now + duration_s
        while self.clock.now < end:
            self.clock.now += max(0.001, min(self.sender.turn(), end - self.clock.now))


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_it_is_silent_without_a_pulse_and_while_the_loop_runs(stage: Stage) -> None:
    stage.turns(5)
    stage.is_blocked = False
    assert stage.sender.claim(stage.pulse())
    stage.turns(5)
    assert stage.voice.sent_as == []
    assert stage.cluster.connected == []


def test_a_loop_that_runs_is_asked_once_each_half_interval(stage: Stage) -> None:
    stage.is_blocked = False
    stage.sender.claim(stage.pulse())
    stage.turns(5)
    assert 50 <= stage.post_count <= 100


def test_it_speaks_once_an_interval_while_the_loop_is_blocked(stage: Stage) -> None:
    stage.sender.claim(stage.pulse())
    stage.turns(0.14)
    assert stage.voice.sent_as == []
    stage.turns(2.0)
    assert 10 <= len(stage.voice.sent_as) <= 21
    assert set(stage.voice.sent_as) == {ME}
    assert set(stage.cluster.connected) == {NODE}
    assert stage.sender.latest.sent_at > stage.clock.now - 0.3
    stage.let_go()
    assert len(stage.outcomes) == len(stage.voice.sent_as)


def test_it_stops_when_the_application_has_been_away_for_too_long(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.sender.claim(stage.pulse(over_s=1.0))
    stage.turns(1.1)
    count = len(stage.voice.sent_as)
    assert count
    stage.turns(1)
    assert len(stage.voice.sent_as) == count
    assert caplog.text.count("heartbeats are no longer sent") == 1
    stage.let_go()
    stage.turns(1)
    stage.is_blocked = True
    stage.turns(1)
    assert caplog.text.count("heartbeats are no longer sent") == 2  # once each time


def test_it_speaks_and_stops_at_the_very_moment(stage: Stage) -> None:
    stage.sender.claim(stage.pulse()._replace(due_at=stage.clock.now, interval_s=1 / 32))
    stage.clock.now += 1 / 64
    stage.sender.turn()
    assert stage.voice.sent_as == [ME]
    stage = Stage()
    stage.sender.claim(stage.pulse(over_s=0.2))
    stage.clock.now += 0.2
    stage.sender.turn()
    assert stage.voice.sent_as == []


def test_it_is_silent_if_the_loop_has_spoken_while_it_was_asked(stage: Stage) -> None:
    stage.sender.claim(stage.pulse())
    stage.on_post = lambda: stage.sender.claim(stage.pulse())
    stage.turns(2)
    assert stage.voice.sent_as == []


def test_it_begins_nothing_if_it_is_to_end_while_the_loop_is_asked(stage: Stage) -> None:
    stage.sender.claim(stage.pulse()._replace(due_at=stage.clock.now, interval_s=1 / 32))
    stage.on_post = stage.sender.abandon
    stage.clock.now += 1
    stage.sender.turn()
    assert stage.cluster.connected == []


@pytest.mark.parametrize("error", [KafkaConnectionError("lost"), RequestTimedOutError("busy")])
def test_what_fails_is_tried_again_once_an_interval(stage: Stage, error: KafkaError) -> None:
    stage.voice.answers = [error] * 1000
    stage.sender.claim(stage.pulse())
    stage.turns(2)
    assert 20 <= len(stage.voice.sent_as) <= 42  # each time also to the coordinator found anew
    assert stage.sender.latest.sent_at == -math.inf


def test_the_loop_speaks_again_only_when_it_has_taken_what_the_thread_heard(stage: Stage) -> None:
    stage.sender.claim(stage.pulse())
    stage.turns(0.5)
    assert not stage.sender.claim(stage.pulse())
    stage.let_go()
    assert not stage.sender.claim(stage.pulse())
    for _ in stage.outcomes:
        stage.sender.note_taken()
    assert stage.sender.claim(stage.pulse())
    assert stage.sender.claim(None)


def test_it_goes_on_as_whom_the_coordinator_says(stage: Stage) -> None:
    newer, newest = ME._replace(generation=6), ME._replace(generation=7)
    stage.voice.answers = [ME, newer, newest]
    stage.sender.claim(stage.pulse())
    stage.turns(1.0)
    assert stage.voice.sent_as[:4] == [ME, ME, newer, newest]
    stage.let_go()
    assert [(o.sent_as, o.identity) for o in stage.outcomes[:3]] == [
        (ME, ME), (ME, newer), (newer, newest),
    ]  # fmt: skip
    for _ in stage.outcomes:
        stage.sender.note_taken()
    stage.is_blocked = True
    stage.sender.claim(stage.pulse(newest))
    stage.turns(0.5)
    assert stage.voice.sent_as[-1] == newest


@pytest.mark.parametrize("epochs", [[], [6]], ids=["epoch of the loop", "later epoch"])
def test_it_says_nothing_more_for_a_member_that_is_lost(stage: Stage, epochs: list[int]) -> None:
    later = [ME._replace(generation=epoch) for epoch in epochs]
    stage.voice.answers = [*later, UnknownMemberIdError("gone")]
    stage.sender.claim(stage.pulse())
    stage.turns(5)
    assert stage.voice.sent_as == [ME, *later]
    assert stage.sender.latest.lost_as == ME  # the loop knows no later epoch
    stage.let_go()
    for _ in stage.outcomes:
        stage.sender.note_taken()
    stage.is_blocked = True
    stage.sender.claim(stage.pulse(Identity("new", 8)))
    stage.turns(1)
    assert stage.voice.sent_as[-1] == Identity("new", 8)


def test_a_loss_is_over_once_the_loop_has_taken_it_even_under_the_same_identity(
    stage: Stage,
) -> None:
    stage.voice.answers = [UnknownMemberIdError("gone")]
    stage.sender.claim(stage.pulse())
    stage.turns(1)
    assert stage.sender.has_news
    stage.let_go()
    stage.sender.note_taken()
    assert not stage.sender.has_news
    stage.is_blocked = True
    # A static member may come back in the same epoch.
    stage.sender.claim(stage.pulse(ME))
    stage.turns(1)
    assert len(stage.voice.sent_as) > 2


def test_a_pulse_counts_also_while_the_loop_may_not_speak(stage: Stage) -> None:
    stage.sender.claim(stage.pulse())
    stage.turns(0.5)
    newer = ME._replace(generation=6)
    assert not stage.sender.claim(stage.pulse(newer))
    stage.turns(0.5)
    assert stage.voice.sent_as[-1] == newer


def test_a_rebalance_is_a_contact_and_it_goes_on(stage: Stage) -> None:
    stage.voice.answers = [RebalanceInProgressError("soon")] * 3
    stage.sender.claim(stage.pulse())
    stage.turns(1)
    assert len(stage.voice.sent_as) > 3
    stage.let_go()
    assert [type(outcome.error) for outcome in stage.outcomes[:3]] == [RebalanceInProgressError] * 3


@pytest.mark.parametrize("error", [NotCoordinatorError("moved"), KafkaConnectionError("lost")])
def test_it_looks_for_the_coordinator_at_once(stage: Stage, error: KafkaError) -> None:
    stage.voice.answers = [error]
    stage.sender.claim(stage.pulse())
    stage.turns(0.5)
    assert [node.id for node in stage.cluster.connected[:3]] == [1, 2, 2]
    stage.let_go()
    assert all(outcome.error is None for outcome in stage.outcomes)


def test_it_ends_with_a_loop_that_is_closed_or_when_it_is_told(stage: Stage) -> None:
    class Closed(Stage):
        def post(self, call: Callable[[], None]) -> None:
            raise LoopClosedError

    Closed().sender.run()
    stage.sender.abandon()
    stage.sender.run()
    assert stage.cluster.close_count == 0


def test_it_ends_with_a_loop_that_is_closed_also_when_the_member_is_lost(stage: Stage) -> None:
    stage.voice.answers = [UnknownMemberIdError("gone")]
    stage.sender.claim(stage.pulse())
    stage.turns(1)

    def refuse() -> None:
        raise LoopClosedError

    stage.on_post = refuse
    stage.sender.run()
    assert stage.cluster.close_count == 1


def test_an_end_cuts_off_what_is_on_its_way(stage: Stage) -> None:
    stage.sender.hang_up()
    stage.voice.answers = [KafkaConnectionError("closed")]
    stage.voice.on_beat = stage.sender.abandon
    stage.sender.claim(stage.pulse())
    stage.turns(0.152)
    assert stage.cluster.close_count == 1
    assert stage.voice.sent_as == [ME]  # and it is not tried again
    assert stage.cluster.connected == [NODE]


def test_nothing_is_sent_by_a_client_that_is_made_while_it_ends(stage: Stage) -> None:
    stage.on_open = stage.sender.abandon
    stage.sender.claim(stage.pulse())
    stage.turns(0.152)
    assert stage.voice.sent_as == []
    assert stage.cluster.connected == []


def test_the_thread_wakes_when_there_is_something_to_do() -> None:
    stage = Stage()
    sender = Posting(stage, time.monotonic)
    asked = threading.Event()
    stage.on_post = asked.set
    thread = threading.Thread(target=sender.run)
    thread.start()
    assert asked.wait(PATIENCE_S)
    began_at = time.monotonic()
    pulse = stage.pulse()._replace(due_at=began_at, over_at=math.inf, interval_s=0.02)
    assert sender.claim(pulse)
    assert stage.voice.is_heard.wait(PATIENCE_S)
    sender.claim(None)
    time.sleep(0.02)
    sender.abandon()
    thread.join(PATIENCE_S)
    assert 0.02 < time.monotonic() - began_at < IDLE_S
    assert stage.cluster.close_count == 2  # the connection, and all of them
    assert stage.post_count < 100  # it sleeps in between


# --- What a member of KIP-848 says by a thread ---------------------------------------------------
def brief(*answers: ConsumerGroupHeartbeatResponse) -> list[ConsumerGroupHeartbeatRequest]:
    """Send a brief heartbeat, answered so; return what was sent."""
    left, sent = list(answers), list[ConsumerGroupHeartbeatRequest]()

    def send(request: Request[Response]) -> Response:
        assert isinstance(request, ConsumerGroupHeartbeatRequest)
        sent.append(
            ConsumerGroupHeartbeatRequest(
                member_epoch=request.member_epoch, topic_partitions=request.topic_partitions
            )
        )
        return left.pop(0)

    owned = (PartitionId(b"t" * 16, 3),)
    identity, _ = send_brief("g", None, owned, cast("Send", send), ME)
    assert identity.generation >= ME.generation
    return sent


def test_a_heartbeat_of_the_thread_is_brief() -> None:
    (request,) = brief(ConsumerGroupHeartbeatResponse(member_epoch=5))
    assert request.topic_partitions is None
    assert request.subscribed_topic_names is None
    assert request.rebalance_timeout_ms == -1


def test_where_the_loop_has_left_a_new_epoch_unread_it_is_repeated_with_what_is_owned() -> None:
    fenced = ConsumerGroupHeartbeatResponse(error_code=FencedMemberEpochError.errno)
    _, second = brief(fenced, ConsumerGroupHeartbeatResponse(member_epoch=6))
    assert second.member_epoch == 5
    assert second.topic_partitions is not None
    assert [(each.topic_id, each.partitions) for each in second.topic_partitions] == [
        (b"t" * 16, [3])
    ]
    with pytest.raises(FencedMemberEpochError):
        brief(fenced, fenced)


class HeldAnswers:
    """A coordinator that answers the heartbeats of the loop when the test says so."""

    has_topic_ids = True
    node = NODE

    def __init__(self) -> None:
        self.sent = list[ConsumerGroupHeartbeatRequest]()
        self.answers = list[asyncio.Future[ConsumerGroupHeartbeatResponse]]()

    async def request(
        self, request: ConsumerGroupHeartbeatRequest, **_: object
    ) -> ConsumerGroupHeartbeatResponse:
        self.sent.append(request)
        self.answers.append(asyncio.get_running_loop().create_future())
        return await self.answers[-1]


def assigning(epoch: int, *numbers: int) -> ConsumerGroupHeartbeatResponse:
    topic = TopicPartitions(topic_id=b"t" * 16, partitions=list(numbers))
    return ConsumerGroupHeartbeatResponse(
        member_epoch=epoch, assignment=Assignment(topic_partitions=[topic])
    )


@pytest.mark.virtual_time
async def test_an_answer_that_waited_for_the_loop_does_not_undo_what_the_thread_was_assigned() -> (
    None
):
    def ignore(*_: object) -> None:
        """Nothing of this happens here."""

    coordinator, config = HeldAnswers(), ConsumerConfig(group_id="g")
    state = State()
    state.subscribe(["t"])
    member = ConsumerMember("g")
    member.enter(MemberState.JOINING)
    scope = TaskScope("g")
    around = Surroundings(
        state.core(config),
        cast("Any", coordinator),
        cast("Coordinator", coordinator),
        cast("Any", None),
        scope,
        replace=lambda _: None,
    )
    membership = ConsumerMembership(around, member)
    heartbeat = Heartbeat(around, member, HeartbeatSchedule(config, member, Topics()), membership)
    scope.spawn(heartbeat.run(), name="heartbeat")
    await until(lambda: coordinator.answers)
    coordinator.answers[0].set_result(assigning(5))
    await until(lambda: len(coordinator.answers) == 2)
    identity = member.identity
    heartbeat.take_outcome(Outcome(identity, identity, assigning(5, 3), None, 0.0))
    coordinator.answers[1].set_result(assigning(5, 8))
    await until(lambda: len(coordinator.answers) == 3)
    assert member.target == {PartitionId(b"t" * 16, 3)}
    assert coordinator.sent[2].topic_partitions == []  # all is said, and is answered with all
    await scope.close()


# --- Tokens ------------------------------------------------------------------------------------
async def test_the_thread_gives_the_token_that_the_loop_had_last() -> None:
    class Counting:
        count = 0

        async def token(self) -> str:
            self.count += 1
            return f"token {self.count}"

        def extensions(self) -> dict[str, str]:
            return {"n": str(self.count)}

    shared = SharedTokens(cast("Any", Counting()))

    async def in_thread() -> str:
        return await asyncio.to_thread(lambda: asyncio.run(shared.token()))

    with pytest.raises(IllegalStateError):
        await in_thread()
    for count in (1, 2):
        assert await shared.token() == f"token {count}"
        assert await in_thread() == f"token {count}"
        assert shared.extensions() == {"n": str(count)}


# --- The loop's side ---------------------------------------------------------------------------
def take_none(outcome: Outcome) -> None:
    """Have no use for outcomes."""
    raise AssertionError("there is no thread")


class Waiting(MemberHeartbeat[Any]):
    """Heartbeats that only wait for their turn."""

    def __init__(
        self,
        thread: HeartbeatThread,
        note_next: Callable[[], bool],
        wait_for_change: Callable[[float | None], Awaitable[object]],
    ) -> None:
        self.thread, self._member = thread, cast("Any", self)
        self._loop = asyncio.get_running_loop()
        self._ask: Callable[[], bool] = note_next
        self.wait_for_change = wait_for_change

    async def wait(self) -> None:
        await self._wait_for_turn(1.0)

    def _note_next(self, next_s: float) -> bool:
        return self._ask()

    def _of_thread(self) -> tuple[SendHeartbeat, float, float]:
        raise NotImplementedError

    def _due_at(self) -> float | None:
        raise NotImplementedError

    async def _beat(self) -> None:
        raise NotImplementedError

    def take_outcome(self, outcome: Outcome) -> None:
        raise NotImplementedError

    @property
    def _why_removed(self) -> str:
        return ""


@pytest.mark.virtual_time
async def test_the_loop_asks_again_whether_it_may_speak_when_something_changes_or_time_is_up() -> (
    None
):
    loop = asyncio.get_running_loop()
    asked_at = list[float]()
    changed = Event()

    def note_next() -> bool:
        asked_at.append(loop.time())
        changed.clear()
        return len(asked_at) == 5

    loop.call_later(0.2, changed.set)
    thread = HeartbeatThread("g", None, take_none, scope=TaskScope("g"))
    await Waiting(thread, note_next, changed.wait).wait()
    assert asked_at == pytest.approx([0, 0.2, TURN_S, 2 * TURN_S, 3 * TURN_S])


class Standing:
    """A thread that stands in for the loop of the test."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.scope = TaskScope("g")
        self.voice, self.cluster = Voice(), Cluster()
        self.heard = list[tuple[Outcome, float]]()
        self.thread = HeartbeatThread(
            "g",
            lambda: cast("BlockingCluster", self.cluster),
            self.take_outcome,
            scope=self.scope,
        )

    def take_outcome(self, outcome: Outcome) -> None:
        self.heard.append((outcome, outcome.sent_at))

    def note_next(self, next_s: float) -> bool:
        due_at = self.thread.clock() + next_s
        return self.thread.claim(Snapshot(self.voice.beat, ME, NODE, due_at, 0.02, math.inf))

    async def speak(self) -> float:
        """Start the thread, and block the loop until the thread speaks; return since when."""
        self.thread.start()
        await asyncio.sleep(0)
        began_at = self.loop.time()
        assert self.note_next(0)
        assert self.voice.is_heard.wait(PATIENCE_S)
        return began_at

    @property
    def threads(self) -> int:
        return sum(each.name == "heartbeats of g" for each in threading.enumerate())


def block_until(condition: Callable[[], object]) -> None:
    """Block the loop until a thread has done something."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


async def test_a_thread_speaks_for_a_loop_that_is_blocked_and_the_loop_hears_of_it() -> None:
    it = Standing()
    assert it.thread.is_there
    began_at = await it.speak()
    assert it.threads == 1
    assert not it.note_next(10)
    assert all(each.daemon for each in threading.enumerate() if "heartbeats" in each.name)
    await until(lambda: it.heard)
    outcome, sent_at = it.heard[0]
    assert (outcome.sent_as, outcome.error) == (ME, None)
    assert it.thread.count == len(it.heard)
    assert began_at - 0.001 < sent_at < it.loop.time() + 0.001
    await it.thread.end()
    assert it.threads == 0
    assert it.scope.task_names == []


async def test_a_thread_is_silent_until_the_next_heartbeat_of_the_loop_is_due() -> None:
    it = Standing()
    it.thread.start()
    await asyncio.sleep(0)
    assert it.note_next(10)
    time.sleep(0.02)  # noqa: ASYNC251 -- the loop is blocked
    assert it.note_next(0.01)
    it.thread.rest()
    time.sleep(0.04)  # noqa: ASYNC251 -- the loop is blocked
    assert it.voice.sent_as == []
    await it.thread.end()


async def test_an_end_waits_for_a_thread_that_is_speaking() -> None:
    it = Standing()
    may_end, seen = threading.Event(), list[bool]()
    it.voice.on_beat = lambda: seen.append(may_end.wait(2))
    began_at = await it.speak()
    it.loop.call_later(0.01, may_end.set)  # the loop goes on meanwhile
    await it.thread.end()
    assert it.threads == 0
    assert seen == [True]
    assert it.loop.time() - began_at < END_S


async def test_a_thread_ends_with_the_tasks_of_its_consumer() -> None:
    it = Standing()
    it.thread.start()
    await asyncio.sleep(0)
    assert it.threads == 1
    await it.scope.close()
    assert it.threads == 0


async def test_a_thread_that_is_abandoned_ends_by_itself() -> None:
    it = Standing()
    it.thread.start()
    await asyncio.sleep(0)
    it.thread.abandon()
    await until(lambda: not it.threads)
    await until(lambda: not it.scope.task_names)
    assert it.scope.failure is None


async def test_an_error_of_the_thread_is_the_failure_of_the_consumer() -> None:
    it = Standing()

    def fail() -> None:
        raise LookupError("in the thread")

    it.voice.on_beat = fail
    await it.speak()
    await until(lambda: it.scope.failure)
    assert isinstance(it.scope.failure, LookupError)
    await until(lambda: not it.threads)


async def test_the_loop_can_ask_what_the_thread_has_heard() -> None:
    it = Standing()
    it.voice.answers = [ME, UnknownMemberIdError("gone")]
    mine = partial(it.thread.heard, ME)
    others = partial(it.thread.heard, Identity("other", 5))
    assert mine() == (-math.inf, False)
    began_at = await it.speak()
    block_until(lambda: mine()[1])
    assert began_at - 0.001 < mine()[0] < it.loop.time() + 0.001
    assert not others()[1]
    await until(lambda: len(it.heard) == 2)
    assert not mine()[1]  # the loop knows it now
    assert it.thread.count == 1
    await it.thread.end()


@pytest.mark.virtual_time
async def test_a_loop_that_waits_for_its_turn_cuts_off_a_thread_that_gets_no_answer() -> None:
    it = Standing()
    it.voice.on_beat = lambda: it.cluster.is_closed.wait(1)
    it.voice.answers = [KafkaConnectionError("closed"), KafkaConnectionError("closed")]
    await it.speak()
    await Waiting(it.thread, lambda: it.note_next(10), Event().wait).wait()
    assert it.cluster.is_closed.is_set()
    assert it.heard
    await it.thread.end()
    block_until(lambda: not it.threads)


async def test_without_a_thread_the_loop_speaks_whenever_it_wants() -> None:
    thread = HeartbeatThread("g", None, take_none, scope=TaskScope("g"))
    assert not thread.is_there
    assert thread.count == 0
    assert thread.heard(ME) == (-math.inf, False)
    assert thread.claim(Snapshot(Voice().beat, ME, NODE, 1, 1, 9))
    thread.rest()
    thread.start()
    thread.abandon()
    await thread.end()
