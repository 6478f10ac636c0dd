"""The group task of a member of KIP-848, in virtual time, on a scripted coordinator."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable

import pytest

from aiokafka_lite import errors
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer.membership.kip848.member import MemberState
from aiokafka_lite.consumer.membership.kip848.membership import ConsumerMembership
from aiokafka_lite.consumer.membership.protocol import Surroundings
from aiokafka_lite.consumer.membership.recovery import Interruption
from aiokafka_lite.errors import KafkaError, MaxPollIntervalError
from aiokafka_lite.events import Lost
from aiokafka_lite.protocol.messages.group_members import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from aiokafka_lite.protocol.messages.metadata import MetadataRequest
from aiokafka_lite.protocol.schema import Message, Response
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition
from tests.support.epoch_groups import consumer_of
from tests.support.events import events_so_far
from tests.support.listeners import Losing
from tests.support.rows import tps
from tests.support.scripted_group import ScriptedBroker
from tests.support.waiting import until
from tests.support.worker import EpochWorker

pytestmark = pytest.mark.virtual_time

Beat = ConsumerGroupHeartbeatRequest
T, U, NEW = (bytes([number]) * 16 for number in (1, 2, 9))


@pytest.fixture
async def coordinator() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker({"t": 4, "u": 2, "empty": 0}) as broker:
        broker.target = {T: [0, 1]}
        yield broker


class Noting(Losing):
    """Notes when it is called and in which state the member is, and may take a while."""

    def __init__(self, takes_s: float = 0.0) -> None:
        super().__init__()
        self.worker: EpochWorker | None = None
        self.seen = list[tuple[float, MemberState]]()
        self._takes_s = takes_s

    async def _note(self, tell: Awaitable[None]) -> None:
        assert self.worker is not None
        self.seen.append((asyncio.get_running_loop().time(), self.worker.member.state))
        await asyncio.sleep(self._takes_s)
        await tell

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        await self._note(super().on_partitions_revoked(revoked))

    async def on_partitions_lost(self, lost: set[TopicPartition]) -> None:
        await self._note(super().on_partitions_lost(lost))

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        await self._note(super().on_partitions_assigned(assigned))


def worker_of(
    coordinator: ScriptedBroker, *topics: str, listener: Noting | None = None, **settings: object
) -> EpochWorker:
    """A member that subscribes to topics, "t" if none is named."""
    address = f"127.0.0.1:{coordinator.port}"
    worker = EpochWorker(address, "g", topics or ["t"], settings, listener=listener)
    if listener is not None:
        listener.worker = worker
    return worker


def goodbyes(coordinator: ScriptedBroker) -> list[int]:
    """The epochs of the heartbeats by which the member has left."""
    return [beat.member_epoch for beat in coordinator.asked(Beat) if beat.member_epoch < 0]


# --- Assignments ------------------------------------------------------------------------------
async def test_a_member_is_not_stable_while_its_listener_is_told(
    coordinator: ScriptedBroker,
) -> None:
    listener = Noting()
    async with worker_of(coordinator, listener=listener) as worker:
        assert worker.member.state is MemberState.STABLE
        coordinator.give({T: [1, 2]})
        await until(lambda: worker.partitions == tps("t", 1, 2), worker)
        await until(lambda: worker.member.state is MemberState.STABLE, worker)
        coordinator.give({T: [1, 2, 3]})
        await until(lambda: len(listener.calls) == 4, worker)
    assert listener.calls == [
        ("assigned", tps("t", 0, 1)),
        ("revoked", tps("t", 0)),
        ("assigned", tps("t", 2)),
        ("assigned", tps("t", 3)),
    ]
    assert [state for _, state in listener.seen] == [MemberState.RECONCILING] * 4


@pytest.mark.parametrize(
    ("topic", "target", "takes_s"),
    [
        ("t", {T: [0]}, 0.3),
        ("t", {}, 2.3),  # there may be something soon
        ("empty", {}, 0.3),
    ],
)
async def test_a_start_ends_as_soon_as_the_listener_has_returned(
    coordinator: ScriptedBroker, topic: str, target: dict[bytes, list[int]], takes_s: float
) -> None:
    coordinator.target = target
    listener = Noting(0.3)
    # The start waits for no heartbeat.
    worker = worker_of(coordinator, topic, listener=listener, heartbeat_interval_ms=150)
    await worker.connect()
    began_at = asyncio.get_running_loop().time()
    await worker.membership.wait_assigned()
    assert asyncio.get_running_loop().time() - began_at == pytest.approx(takes_s, abs=0.04)
    assert listener.calls == [("assigned", tps("t", *target.get(T, ())))]
    await worker.close()


async def test_what_is_new_does_not_wait_for_the_answer_about_what_was_given_back(
    coordinator: ScriptedBroker,
) -> None:
    async def answer_late(request: Message) -> Response:
        await asyncio.sleep(1)
        return coordinator.usual(request)

    listener = Noting()
    async with worker_of(coordinator, listener=listener) as worker:
        coordinator.give({T: [1, 2]})
        coordinator.script(Beat, coordinator.usual, answer_late)
        await until(lambda: worker.partitions == tps("t", 1, 2), worker)
        (revoked_at, _), (assigned_at, _) = listener.seen[1:]
        assert assigned_at - revoked_at < 0.5


@pytest.mark.parametrize(
    ("target", "others"),
    [([1], {}), ([1, 2], {}), ([0, 1, 2], {}), ([1], {NEW: [0]})],
    ids=["less", "other", "more", "less, and what has no name yet"],
)
async def test_the_group_is_told_at_once_of_what_was_given_back_or_taken(
    coordinator: ScriptedBroker, target: list[int], others: dict[bytes, list[int]]
) -> None:
    def owned() -> list[int]:
        said = coordinator.asked(Beat)[-1].topic_partitions or ()
        return [number for topic in said for number in topic.partitions]

    loop = asyncio.get_running_loop()
    async with worker_of(coordinator, listener=Noting(0.3), heartbeat_interval_ms=5_000) as worker:
        coordinator.give({T: target, **others})
        await until(lambda: worker.partitions == tps("t", *target), worker)
        began_at = loop.time()
        await until(lambda: owned() == target, worker)
        assert loop.time() - began_at < 0.1


async def test_what_is_left_of_a_topic_without_a_name_is_confirmed_at_once(
    coordinator: ScriptedBroker,
) -> None:
    def owned() -> list[int] | None:
        said = coordinator.asked(Beat)[-1].topic_partitions
        return None if said is None else [len(topic.partitions) for topic in said]

    loop = asyncio.get_running_loop()
    async with worker_of(coordinator, heartbeat_interval_ms=5_000) as worker:
        coordinator.give({T: [0, 1], NEW: [0, 1]})
        await until(lambda: len(worker.member.target or ()) == 4, worker)
        await until(lambda: owned() is None, worker)
        coordinator.give({T: [0, 1], NEW: [1]})
        await until(lambda: len(worker.member.target or ()) == 3, worker)
        began_at = loop.time()
        await until(lambda: owned() == [2], worker)
        assert loop.time() - began_at < 0.1


async def test_a_new_subscription_has_some_time_to_get_its_first_partitions(
    coordinator: ScriptedBroker,
) -> None:
    coordinator.target = {}
    listener = Noting()
    async with worker_of(coordinator, "empty", listener=listener) as worker:
        await asyncio.sleep(3)
        worker.state.subscribe(["t"], listener)
        waiting = asyncio.create_task(worker.membership.wait_assigned())
        await asyncio.sleep(1)
        assert not waiting.done()
        coordinator.give({T: [0]})
        await waiting
        assert worker.partitions == tps("t", 0)
    assert listener.calls == [("assigned", set()), ("assigned", tps("t", 0))]


async def test_a_topic_that_was_unsubscribed_for_a_moment_is_read_on(
    coordinator: ScriptedBroker,
) -> None:
    coordinator.target = {T: [0], U: [0]}
    async with worker_of(coordinator, "t", "u") as worker:
        worker.state.subscribe(["t"])
        worker.state.subscribe(["t", "u"])
        assert worker.state.assignment[TopicPartition("u", 0)].is_withheld
        await worker.membership.wait_assigned()
        assert not any(cursor.is_withheld for cursor in worker.state.assignment.values())
        assert len(worker.partitions) == 2


async def test_a_topic_without_a_name_is_asked_for_twice_a_second_and_is_no_absence(
    coordinator: ScriptedBroker,
) -> None:
    coordinator.target = {NEW: [0]}
    worker = worker_of(coordinator, max_poll_interval_ms=500)
    await worker.connect()
    await until(lambda: worker.member.is_member, worker)
    before = len(coordinator.asked(MetadataRequest))
    await asyncio.sleep(3)
    assert 4 <= len(coordinator.asked(MetadataRequest)) - before <= 7
    assert worker.member.state is MemberState.RECONCILING
    assert worker.membership.status.trouble == ""
    await asyncio.sleep(3)
    assert "missing from the metadata for 6 s" in worker.membership.status.trouble
    assert goodbyes(coordinator) == []
    coordinator.give({T: [0]})
    await until(lambda: worker.membership.is_settled, worker)
    assert worker.membership.status.trouble == ""
    await worker.close()


async def test_member_that_joins_again_does_not_ask_for_names(
    coordinator: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of the next question is over: waiting for it would be a loop without a pause."""

    async def never(request: Message) -> Response:
        await asyncio.sleep(100)
        return coordinator.usual(request)

    coordinator.target = {NEW: [0]}
    worker = worker_of(coordinator, request_timeout_ms=200_000)
    await worker.connect()
    await until(lambda: worker.membership.status.trouble != "", worker)
    gone = ConsumerGroupHeartbeatResponse(error_code=errors.UnknownMemberIdError.errno)
    coordinator.script(Beat, gone, never)
    await until(lambda: worker.member.state is MemberState.JOINING, worker)
    waits, wait = 0, worker.member.wait_for_change

    async def counting(deadline: float | None = None) -> bool:
        nonlocal waits
        waits += 1
        assert waits < 100
        return await wait(deadline)

    monkeypatch.setattr(worker.member, "wait_for_change", counting)
    worker.member.notify()
    await asyncio.sleep(1)
    assert worker.member.state is MemberState.JOINING
    assert worker.membership.status.trouble == ""
    await worker.close()


async def test_a_topic_that_is_not_in_the_metadata_yet_is_subscribed_to() -> None:
    async with Broker() as broker:
        for topic in ("t", "new"):
            broker.create_topic(topic)
        async with consumer_of(broker) as consumer:
            consumer.subscribe(["t", "new"])
            await until(lambda: len(consumer.assignment()) == 2)


async def test_who_joins_again_says_again_at_once_what_it_owns(coordinator: ScriptedBroker) -> None:
    def full_count() -> int:
        return sum(beat.topic_partitions is not None for beat in coordinator.asked(Beat))

    coordinator.target = {NEW: [0]}
    worker = worker_of(coordinator)
    await worker.connect()
    for count in (2, 4):  # the join, and then that it owns nothing yet
        await until(lambda: worker.member.is_member, worker)
        await asyncio.sleep(0.1)
        assert full_count() == count
        await asyncio.sleep(2)
        assert full_count() == count
        gone = errors.UnknownMemberIdError.errno
        coordinator.script(Beat, ConsumerGroupHeartbeatResponse(error_code=gone))
        await until(lambda: not worker.member.is_member, worker)
    await worker.die()


@pytest.mark.parametrize(
    ("topics", "target", "interval_s"),
    [(["t"], {T: [0, 1]}, 0.25), (["t"], {T: [0]}, 0.4), (["t", "unknown"], {T: [0]}, 0.4)],
)
async def test_a_settled_member_heartbeats_by_its_share_of_the_partitions_that_are_known(
    coordinator: ScriptedBroker,
    topics: list[str],
    target: dict[bytes, list[int]],
    interval_s: float,
) -> None:
    coordinator.target = target
    async with worker_of(coordinator, *topics, heartbeat_interval_ms=3_000) as worker:
        await asyncio.sleep(8)
        count = len(coordinator.asked(Beat))
        await asyncio.sleep(10)
        assert len(coordinator.asked(Beat)) - count == pytest.approx(10 / interval_s, abs=1)
        assert worker.member.is_member


# --- Losses -----------------------------------------------------------------------------------
async def test_a_loss_is_told_with_the_reason_and_the_member_joins_again(
    coordinator: ScriptedBroker,
) -> None:
    listener = Noting()
    async with worker_of(coordinator, listener=listener) as worker:
        gone = errors.UnknownMemberIdError.errno
        refusal = ConsumerGroupHeartbeatResponse(error_code=gone, error_message="who?")
        with worker.state.events.subscribe() as events:
            coordinator.script(Beat, refusal)
            await until(lambda: len(listener.calls) == 3, worker)
            (lost,) = [event for event in events_so_far(events) if isinstance(event, Lost)]
        assert lost.reason.startswith(f"{Interruption.LOST_MEMBERSHIP.text} (")
        assert "who?" in lost.reason
        await worker.membership.wait_assigned()
    both = tps("t", 0, 1)
    assert listener.calls == [("assigned", both), ("lost", both), ("assigned", both)]


async def test_an_error_that_has_passed_is_not_raised_by_the_next_subscription(
    coordinator: ScriptedBroker,
) -> None:
    async with worker_of(coordinator) as worker:
        refusal = errors.GroupAuthorizationFailedError.errno
        coordinator.script(Beat, ConsumerGroupHeartbeatResponse(error_code=refusal))
        await until(lambda: worker.errors, worker)
        await until(lambda: not worker.membership.status.trouble, worker)
        worker.state.subscribe(["t", "u"])
        await worker.membership.wait_assigned()


@pytest.mark.parametrize(
    ("instance_id", "kind", "said"),
    [
        (None, errors.FencedMemberEpochError, []),
        ("one", errors.FencedMemberEpochError, [-2]),
        ("one", errors.UnknownMemberIdError, []),
    ],
)
async def test_only_a_static_member_whose_epoch_is_over_releases_its_name(
    coordinator: ScriptedBroker,
    instance_id: str | None,
    kind: type[errors.BrokerResponseError],
    said: list[int],
) -> None:
    listener = Noting()
    async with worker_of(coordinator, listener=listener, group_instance_id=instance_id) as worker:
        coordinator.script(Beat, ConsumerGroupHeartbeatResponse(error_code=kind.errno))
        await until(lambda: len(listener.calls) == 3, worker)
        assert goodbyes(coordinator) == said


async def test_a_lease_ends_with_the_tasks_of_its_member(coordinator: ScriptedBroker) -> None:
    worker = await worker_of(coordinator).start()
    await worker.die()
    await asyncio.sleep(100)
    assert not worker.state.gate.holds


async def test_a_member_waits_to_be_let_in_since_it_has_subscribed(
    coordinator: ScriptedBroker,
) -> None:
    joining = coordinator.hold(Beat)
    await asyncio.sleep(5)
    worker = worker_of(coordinator)
    await worker.connect()
    await joining.came()
    since = worker.membership.status.joining_since
    await asyncio.sleep(1)
    assert since == worker.membership.status.joining_since == pytest.approx(5, abs=0.1)
    joining.release()
    await worker.membership.wait_assigned()
    assert worker.membership.status.joining_since is None
    assert not worker.membership.status.is_eager
    await worker.close()


# --- The application is away ------------------------------------------------------------------
async def test_a_member_leaves_while_no_records_are_requested(
    coordinator: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    listener, loop = Noting(0.6), asyncio.get_running_loop()
    async with worker_of(coordinator, listener=listener, max_poll_interval_ms=1_000) as worker:
        began_at = loop.time()
        worker.work(TopicPartition("t", 0), 3)
        await until(lambda: worker.membership.status.sits_out, worker)
        # The listener's time at the start does not count, and the work is not waited for.
        assert loop.time() - began_at == pytest.approx(1.0 + 0.6, abs=0.1)
        assert worker.partitions == set()
        assert "leaving group g, because the application requested no records" in caplog.text
        assert listener.calls[-1] == ("revoked", tps("t", 0, 1))
        assert goodbyes(coordinator) == [-1]
        with pytest.raises(MaxPollIntervalError, match="longer than max_poll_interval_ms=1000"):
            await worker.commits.commit({TopicPartition("t", 0): 1})
        count = len(coordinator.asked(Beat))
        await asyncio.sleep(5)
        assert len(coordinator.asked(Beat)) == count
        worker.state.reads.enter_get()
        await worker.membership.wait_assigned()
        assert worker.partitions == tps("t", 0, 1)
        await asyncio.sleep(5)  # it waits inside a read
        assert not worker.membership.status.sits_out


async def test_a_member_leaves_at_the_moment_at_which_it_is_overdue(
    coordinator: ScriptedBroker,
) -> None:
    """And not with the next heartbeat."""
    loop = asyncio.get_running_loop()
    async with worker_of(
        coordinator, max_poll_interval_ms=7_500, heartbeat_interval_ms=5_000
    ) as worker:
        began_at = loop.time()
        await until(lambda: worker.membership.status.sits_out, worker)
        assert loop.time() - began_at == pytest.approx(7.5, abs=0.1)


async def test_a_member_that_is_removed_while_it_leaves_joins_again_at_once(
    coordinator: ScriptedBroker,
) -> None:
    listener = Noting(0.6)
    async with worker_of(coordinator, listener=listener, max_poll_interval_ms=1_000) as worker:
        await until(lambda: len(listener.seen) == 2, worker)
        gone = errors.UnknownMemberIdError.errno
        coordinator.script(Beat, ConsumerGroupHeartbeatResponse(error_code=gone))
        await until(lambda: len(listener.calls) == 3, worker)
        assert goodbyes(coordinator) == []
    both = tps("t", 0, 1)
    assert listener.calls[:3] == [("assigned", both), ("revoked", both), ("assigned", both)]


# --- Subscriptions ----------------------------------------------------------------------------
@pytest.mark.parametrize(("metadata_max_age_ms", "is_sent"), [(10_000, True), (9_999, False)])
async def test_a_pattern_is_matched_here_if_that_finds_new_topics_sooner(
    coordinator: ScriptedBroker, metadata_max_age_ms: int, is_sent: bool
) -> None:
    address = f"127.0.0.1:{coordinator.port}"
    worker = EpochWorker(address, "g", (), {"metadata_max_age_ms": metadata_max_age_ms})
    worker.state.subscribe_pattern(re.compile("t"))
    async with worker:
        said = coordinator.asked(Beat)[0]
        assert bool(said.subscribed_topic_regex) is is_sent
        assert said.subscribed_topic_names == ([] if is_sent else ["t"])
        assert worker.partitions == tps("t", 0, 1)


async def test_a_member_that_has_unsubscribed_waits_for_nothing(
    coordinator: ScriptedBroker,
) -> None:
    async with worker_of(coordinator, max_poll_interval_ms=500) as worker:
        worker.state.unsubscribe()
        await until(lambda: worker.member.state is MemberState.UNJOINED, worker)
        count = len(coordinator.asked(Beat))
        await asyncio.sleep(5)
        assert len(coordinator.asked(Beat)) == count
        assert not worker.membership.status.sits_out


# --- The end ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("instance_id", "leaves", "said", "said_before"),
    [
        (None, None, [-1], [-1]),
        (None, True, [-1], [-1]),
        (None, False, [], [-1]),
        ("one", None, [-2], [-2]),
        ("one", True, [-1], [-2, -1]),
        ("one", False, [-2], [-2]),
    ],
)
@pytest.mark.parametrize("has_unsubscribed", [False, True])
async def test_a_stop_says_what_becomes_of_the_place_and_ends_the_heartbeats(
    coordinator: ScriptedBroker,
    instance_id: str | None,
    leaves: bool | None,
    said: list[int],
    said_before: list[int],
    has_unsubscribed: bool,
) -> None:
    worker = await worker_of(coordinator, group_instance_id=instance_id).start()
    member_id = worker.membership.member_id
    if has_unsubscribed:
        worker.state.unsubscribe()
        await until(lambda: worker.member.state is MemberState.UNJOINED, worker)
        assert (worker.membership.member_id == member_id) is (instance_id is None)
        member_id = worker.membership.member_id
    assert await worker.leave(leaves=leaves) == {}
    assert goodbyes(coordinator) == (said_before if has_unsubscribed else said)
    assert worker.member.state is MemberState.LEFT
    assert (worker.membership.member_id, worker.membership.generation) == (member_id, -1)
    assert {"g:group", "g:heartbeat"}.isdisjoint(worker.scope.task_names)
    left = {TopicPartition("t", 0): OffsetAndMetadata(3, "")}
    assert await worker.membership.leave(deadline=1e9, offsets=left) == left
    await worker.die()


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_stop_while_the_member_asks_to_be_let_in_takes_that_back(
    coordinator: ScriptedBroker, is_known: bool
) -> None:
    if is_known:
        joining = coordinator.hold(Beat)
    else:
        refusal = errors.GroupAuthorizationFailedError.errno
        coordinator.script(Beat, ConsumerGroupHeartbeatResponse(error_code=refusal))
    worker = worker_of(coordinator)
    await worker.connect()
    if is_known:
        await joining.came()
        joining.release()
    else:
        await until(lambda: worker.errors, worker)
    await worker.leave()
    assert goodbyes(coordinator) == ([-1] if is_known else [])
    await worker.die()


@pytest.mark.parametrize(
    ("kind", "least", "most"),
    [
        (errors.CoordinatorLoadInProgressError, 2, 4),
        (errors.GroupAuthorizationFailedError, 1, 1),
    ],
)
async def test_a_goodbye_is_repeated_after_pauses_as_long_as_there_is_time(
    coordinator: ScriptedBroker, kind: type[errors.BrokerResponseError], least: int, most: int
) -> None:
    def refuse(request: Message) -> Response:
        assert isinstance(request, Beat)
        if request.member_epoch >= 0:
            return coordinator.usual(request)
        return ConsumerGroupHeartbeatResponse(error_code=kind.errno)

    loop = asyncio.get_running_loop()
    worker = await worker_of(coordinator, retry_backoff_ms=400).start()
    coordinator.script(Beat, *[refuse] * 50)
    began_at = loop.time()
    assert await worker.leave(2.0) == {}
    assert least <= len(goodbyes(coordinator)) <= most
    assert loop.time() - began_at < 2.0
    await worker.die()


async def test_a_member_that_nobody_holds_says_that_it_goes_without_waiting(
    coordinator: ScriptedBroker,
) -> None:
    worker = await worker_of(coordinator).start()
    await asyncio.sleep(0.05)
    worker.membership.leave_nowait("collected")
    await until(lambda: goodbyes(coordinator) == [-1], worker)
    await worker.leave()
    count = len(coordinator.asked(Beat))
    worker.membership.leave_nowait("collected")
    await asyncio.sleep(1)
    assert len(coordinator.asked(Beat)) == count
    await worker.die()


class Falling(EpochWorker):
    """A member that another takes over from if its protocol is not offered."""

    def _make_membership(self, around: Surroundings) -> ConsumerMembership:
        self.refusals = list[KafkaError]()
        return ConsumerMembership(around, self.member, fall_back=self.refusals.append)


async def test_a_member_whose_protocol_is_not_offered_ends_its_tasks(
    coordinator: ScriptedBroker,
) -> None:
    unsupported = errors.UnsupportedVersionError.errno
    coordinator.script(Beat, ConsumerGroupHeartbeatResponse(error_code=unsupported))
    worker = Falling(f"127.0.0.1:{coordinator.port}", "g", ["t"])
    await worker.connect()
    await until(lambda: worker.refusals, worker)
    worker.membership.stop_trying()
    await asyncio.sleep(0.1)
    assert {"g:group", "g:heartbeat"}.isdisjoint(worker.scope.task_names)
    waiting = asyncio.create_task(worker.member.wait_for_change())
    await asyncio.sleep(0)
    coordinator.topics["t"] += 1
    await worker.cluster.refresh()
    await asyncio.sleep(0.1)
    assert not waiting.done()
    waiting.cancel()
    assert len(coordinator.asked(Beat)) == 1
    await worker.die()
