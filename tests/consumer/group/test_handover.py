"""Partitions are revoked, lost and assigned, and the listener is told: without a group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Set
from typing import Any, cast

import pytest

from aiokafka_lite._tasks import Event, TaskScope
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.consumer.assignment.cursor import Range
from aiokafka_lite.consumer.assignment.observers import Departure
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.membership.coordinator import Coordinator
from aiokafka_lite.consumer.membership.handover import Handover
from aiokafka_lite.consumer.membership.protocol import Identity, Offsets, Surroundings
from aiokafka_lite.consumer.membership.stateful import GroupMember
from aiokafka_lite.errors import KafkaTimeoutError
from aiokafka_lite.events import Assigned, ListenerFailed, Lost
from aiokafka_lite.structs import TopicPartition
from tests.support.events import events_so_far
from tests.support.listeners import Losing
from tests.support.states import NotedGate, State

pytestmark = pytest.mark.virtual_time

A, B, C = (TopicPartition("t", number) for number in range(3))
TIMEOUT_S, POLL_S = 10.0, 60.0
Callback = Callable[[set[TopicPartition]], Awaitable[object]]


class Acting(Losing):
    """Does something before it writes down what it is told."""

    act: Callback | None = None

    async def _acted(self, partitions: set[TopicPartition]) -> None:
        if self.act is not None:
            await self.act(partitions)

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        await self._acted(revoked)
        await super().on_partitions_revoked(revoked)

    async def on_partitions_lost(self, lost: set[TopicPartition]) -> None:
        await self._acted(lost)
        await super().on_partitions_lost(lost)

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        await self._acted(assigned)
        await super().on_partitions_assigned(assigned)


class Work:
    """Something that an application does with records, and ends as soon as it is given up."""

    hold_s: float | None = None
    is_open = True

    def __init__(self) -> None:
        self.given_up = list[Collection[TopicPartition]]()

    def partitions(self) -> Set[TopicPartition]:
        return {A, B, C}

    def undone(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Range]:
        return {}

    def is_wanted_by(self, until: float) -> None: ...

    def give_up(self, partitions: Collection[TopicPartition], now: float) -> None:
        self.given_up.append(partitions)

    def is_of(self, task: object) -> bool:
        return False

    def is_ending(self, partitions: Collection[TopicPartition]) -> bool:
        return False


class Changing:
    """A handover with its member and commits; partitions of a subscription are assigned."""

    group_id = "g"
    identity = Identity("m", 3)

    def __init__(self, *assigned: TopicPartition) -> None:
        self.loop = asyncio.get_running_loop()
        self.listener = Acting()
        self.state = State()
        self.state.subscribe(["t"], self.listener)
        self.state.change((), assigned)
        self.state.gate = gate = NotedGate()
        self.listener_errors = gate.posted_to_poll
        self.why_lost: str | None = None
        self.has_departed = False
        self.settled_by = list[float]()
        self._changed = Event()
        config = ConsumerConfig(
            group_id="g",
            rebalance_timeout_ms=int(TIMEOUT_S * 1000),
            max_poll_interval_ms=int(POLL_S * 1000),
            enable_auto_commit=False,
        )
        around = Surroundings(
            self.state.core(config),
            cast("Cluster", None),
            cast("Coordinator", None),
            cast("Any", self),
            TaskScope("g"),
            replace=lambda _: None,
        )
        member = cast("GroupMember", self)
        self.handover = Handover(around, member, why_lost=lambda: self.why_lost)

    @property
    def calls(self) -> list[tuple[str, set[TopicPartition]]]:
        return self.listener.calls

    # --- The member -----------------------------------------------------------------------
    def notify(self) -> None:
        self._changed.set()
        self._changed.clear()

    async def wait_for_change(self, until: float | None = None) -> bool:
        return await self._changed.wait(until)

    # --- Its commits ----------------------------------------------------------------------
    def next_number(self) -> int:
        return 0

    def is_committing(self, partitions: Collection[TopicPartition], before: int) -> bool:
        return False

    async def settle_departed(self, deadline: float) -> None:
        self.settled_by.append(deadline)
        self.has_departed = False

    async def commit_last(self, offsets: Offsets, *, deadline: float) -> Offsets:
        raise AssertionError("nothing is committed by itself")


# --- What goes --------------------------------------------------------------------------------
async def test_partitions_are_revoked_and_the_others_are_read_on() -> None:
    it = Changing(A, B)
    await it.handover.revoke({A, C}, "a test")
    assert it.calls == [("revoked", {A})]
    assert it.state.assignment.keys() == {B}
    assert not it.state.assignment[B].is_withheld
    assert it.settled_by == [TIMEOUT_S / 2]
    await it.handover.revoke({B}, "a test", deadline=4, stays_readable=True)
    assert it.settled_by[1:] == [2]
    assert it.state.assignment[B].is_withheld


async def test_the_listener_is_told_of_no_partition_only_when_that_is_asked_for() -> None:
    it = Changing(A)
    await it.handover.revoke({C}, "a test")
    assert it.calls == []
    await it.handover.revoke({C}, "a test", tells_of_none=True)
    assert it.calls == [("revoked", set())]


async def test_partitions_that_the_application_gives_up_meanwhile_are_revoked_once() -> None:
    it = Changing(A, B)

    async def give_up(_: object) -> None:
        it.handover.note_departure(Departure(frozenset({A, B}), it.listener))

    it.listener.act = give_up
    await it.handover.revoke({A}, "a test")
    it.listener.act = None
    assert it.handover.has_departed
    await it.handover.settle_departed("unsubscribed")
    assert it.calls == [("revoked", {A}), ("revoked", {B})]
    it.handover.note_departure(Departure(frozenset({A}), it.listener))
    await it.handover.settle_departed("unsubscribed")
    assert it.calls[2:] == [("revoked", {A})]  # the revocation of it is over


async def test_a_get_proves_that_the_application_has_finished() -> None:
    it = Changing(A)
    it.state.observers.acted.add(it.notify)
    cursor = it.state.partition(A)
    it.state.seek(cursor, 0)
    it.state.reads.begin_get()
    it.state.reads.hand_out(cursor, 0, 3, ())
    revoking = asyncio.create_task(it.handover.revoke({A}, "a test"))
    await asyncio.sleep(1)
    awaited = it.handover.awaited_work
    assert awaited is not None
    assert awaited.offsets == {A: (0, 3)}
    assert not revoking.done()
    it.state.reads.enter_get()
    await revoking
    assert it.loop.time() == 1
    assert it.handover.awaited_work is None


async def test_what_unsubscribe_gives_up_is_settled_with_the_listener_of_then() -> None:
    it = Changing(A, B)
    former = Losing()
    assert not it.handover.has_departed
    it.has_departed = True
    assert it.handover.has_departed
    it.handover.note_departure(Departure(frozenset({A}), former))
    await it.handover.settle_departed("unsubscribed", 8)
    assert (former.calls, it.calls) == ([("revoked", {A})], [])
    assert it.settled_by == [4]
    assert not it.handover.has_departed
    await it.handover.settle_departed("unsubscribed")
    assert len(former.calls) == 1
    # The listener knows that something goes: an empty revocation is no news.
    for times_told in (0, 1):
        await it.handover.revoke(set(), "a test", tells_of_none=True)
        assert len(it.calls) == times_told


@pytest.mark.parametrize("departed", [set(), {A}])
async def test_a_departure_of_which_no_listener_is_told_hides_no_revocation(
    departed: set[TopicPartition],
) -> None:
    it = Changing(A)
    listener = None if departed else it.listener
    it.handover.note_departure(Departure(frozenset(departed), listener))
    assert it.handover.has_departed is bool(departed)
    await it.handover.settle_departed("unsubscribed")
    await it.handover.revoke(set(), "a test", tells_of_none=True)
    assert it.calls == [("revoked", set())]


async def test_partitions_that_are_lost_are_told_so_and_are_assigned_until_then() -> None:
    it = Changing(A, B)

    async def look(_: object) -> None:
        assert all(cursor.is_withheld for cursor in it.state.assignment.values())
        assert it.state.assignment.keys() == {A, B}

    it.listener.act = look
    work = Work()
    it.state.works.begun.append(work)
    it.why_lost = "the group has forgotten the member"
    it.handover.note_departure(Departure(frozenset({C}), it.listener))
    with it.state.events.subscribe() as events:
        await it.handover.lose()
        told = [event for event in events_so_far(events) if isinstance(event, Lost)]
    assert it.calls == [("lost", {C}), ("lost", {A, B})]
    assert [event.reason for event in told] == [it.why_lost] * 2
    assert work.given_up == [{C}, {A, B}]
    assert not it.state.assignment
    assert it.settled_by == []
    assert it.listener_errors == []


async def test_partitions_that_the_application_assigned_itself_are_not_lost() -> None:
    it = Changing()
    it.state.unsubscribe()
    it.state.assign_from_user([A])
    it.handover.note_departure(Departure(frozenset({B}), it.listener))
    it.why_lost = "the group has forgotten the member"
    await it.handover.lose()
    assert it.state.assignment.keys() == {A}
    assert not it.state.assignment[A].is_withheld
    assert it.calls == []


# --- What comes -------------------------------------------------------------------------------
async def test_new_partitions_are_withheld_while_the_listener_is_told_of_them() -> None:
    it = Changing(A)
    seen = list[object]()

    async def look(_: object) -> None:
        seen.append((it.handover.withheld, it.state.assignment[B].is_withheld))

    it.listener.act = look
    with it.state.events.subscribe() as events:
        await it.handover.assign({B}, topic_ids={B: b"u" * 16}, then=lambda: seen.append("then"))
        (told,) = events_so_far(events)
    assert told == Assigned(frozenset({A, B}), 3)
    assert seen == ["then", ({B}, True)]
    assert it.calls == [("assigned", {B})]
    assert it.handover.withheld == frozenset()
    assert it.state.assignment[B].is_withheld  # until the caller says so
    assert not it.state.assignment[A].is_withheld
    assert it.state.assignment[B].topic_id == b"u" * 16
    it.state.listener = None
    await it.handover.assign({C})
    assert not it.state.assignment[C].is_withheld


async def test_the_first_partitions_begin_the_time_in_which_the_application_asks_for_records() -> (
    None
):
    it = Changing()
    await asyncio.sleep(5)
    await it.handover.assign({A})
    assert it.state.reads.idle_s(it.loop.time()) == 0
    await asyncio.sleep(5)
    await it.handover.assign({B})
    assert it.state.reads.idle_s(it.loop.time()) == 5


@pytest.mark.parametrize("takes_s", [TIMEOUT_S - 1, TIMEOUT_S + 1])
async def test_a_listener_that_holds_records_back_for_long_is_logged_while_it_does(
    takes_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    it = Changing()
    it.listener.act = lambda _: asyncio.sleep(takes_s)
    await it.handover.assign({A})
    await asyncio.sleep(2 * TIMEOUT_S)
    assert ("has not returned from" in caplog.text) is (takes_s > TIMEOUT_S)
    assert not it.state.gate.is_troubled


async def test_gets_raise_until_the_listener_has_taken_the_partitions_or_they_are_gone() -> None:
    it = Changing()

    def is_raised() -> bool:
        return isinstance(it.state.gate.posted_error, KafkaTimeoutError)

    it.listener.act = lambda _: asyncio.sleep(POLL_S + 0.5)
    await it.handover.assign({A, B})
    assert it.loop.time() == POLL_S
    assert is_raised()
    assert it.handover.withheld == frozenset()
    it.state.change({A}, ())
    assert is_raised()
    it.listener.act = None
    await it.handover.tell_of_new(it.listener, {B})
    assert not is_raised()
    it.listener.act = lambda _: asyncio.sleep(POLL_S + 0.5)
    await it.handover.tell_of_new(it.listener, {B, C})
    assert is_raised()
    it.state.change({B}, ())
    assert not is_raised()


async def test_what_a_listener_raises_is_an_event_and_is_posted() -> None:
    it = Changing(A)
    error = LookupError("from the listener")

    async def refuse(_: object) -> None:
        raise error

    it.listener.act = refuse
    with it.state.events.subscribe() as events:
        await it.handover.revoke({A}, "a test")
        told = [event for event in events_so_far(events) if isinstance(event, ListenerFailed)]
    assert [(event.callback, event.error) for event in told] == [("on_partitions_revoked", error)]
    assert it.listener_errors == [error]
    it.listener.act = lambda _: asyncio.sleep(POLL_S + 0.5)
    await it.handover.assign({B})
    assert it.listener_errors == [error]
