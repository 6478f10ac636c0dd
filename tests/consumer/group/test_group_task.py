"""The life of a group task, and those who wait for an assignment: without a group."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from aiokafka_lite._compat import Never
from aiokafka_lite._tasks import Event, TaskScope
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.consumer.assignment.observers import Departure
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.membership.coordinator import Coordinator
from aiokafka_lite.consumer.membership.grouped import LEAVE_MAX_S, GroupedMembership, ending
from aiokafka_lite.consumer.membership.protocol import Surroundings
from aiokafka_lite.consumer.membership.stateful import GroupMember
from aiokafka_lite.errors import (
    ConsumerStoppedError,
    GroupAuthorizationFailedError,
)
from aiokafka_lite.structs import TopicPartition
from tests.support.states import NotedGate, State
from tests.support.waiting import is_woken

pytestmark = pytest.mark.virtual_time

A = TopicPartition("t", 0)
POLL_S = 60.0


class Idle(GroupedMembership[GroupMember]):
    """A membership whose group task is that of the test."""

    def __init__(self, around: Surroundings, running: Running) -> None:
        super().__init__(around, cast("GroupMember", running))
        self._running = running

    @property
    def is_settled(self) -> bool:
        return self._running.is_settled

    async def _run(self) -> Never:
        await self._running.run()

    def _why_lost(self) -> None:
        return None

    def _note_departure(self, departure: Departure) -> None:
        raise AssertionError("nothing departs")


class Running:
    """A group task that has nothing to do, and takes a second to end."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.state = State()
        self.state.subscribe(["t"])
        self.state.reads.restart_idle(0.0)
        self.scope = TaskScope("g")
        self.state.gate = gate = NotedGate()
        self.errors = gate.posted
        self.is_settled = False
        self.ended_at = list[float]()
        self.fails_by: Exception | None = None
        self._changed = Event()
        config = ConsumerConfig(group_id="g", max_poll_interval_ms=int(POLL_S * 1000))
        around = Surroundings(
            self.state.core(config),
            cast("Cluster", None),
            cast("Coordinator", None),
            cast("Any", None),
            self.scope,
            replace=lambda _: None,
        )
        self.task = Idle(around, self)

    async def run(self) -> Never:
        try:
            while self.fails_by is None:
                await self.wait_for_change()
            raise self.fails_by
        finally:
            await asyncio.sleep(1)
            self.ended_at.append(self.loop.time())

    def notify(self) -> None:
        self._changed.set()
        self._changed.clear()

    async def wait_for_change(self) -> None:
        await self._changed.wait()


async def test_the_task_has_ended_when_its_end_was_waited_for() -> None:
    it = Running()
    await it.task.halted()  # there is none
    task = it.task.begin()
    await asyncio.sleep(5)
    it.task.halt()
    await asyncio.sleep(0.5)
    it.task.halt()  # which does not cut its end short
    assert not task.done()
    await it.task.halted()
    assert task.cancelled()
    assert it.ended_at == [6]
    await it.task.halted()
    assert it.scope.failure is None


async def test_who_waits_for_an_assignment_goes_on_when_the_subscription_has_one() -> None:
    it = Running()
    it.task.begin()
    waiting = asyncio.create_task(it.task.wait_assigned())
    it.notify()
    await asyncio.sleep(1)
    assert not waiting.done()
    it.is_settled = True
    it.notify()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert waiting.done()
    it.is_settled = False
    it.state.unsubscribe()
    await it.task.wait_assigned()  # there is nothing to wait for
    await it.task.halted()
    assert it.scope.task_names == []


async def test_who_waits_for_an_assignment_is_told_what_keeps_the_member_from_it() -> None:
    it = Running()
    it.task.begin()
    error = GroupAuthorizationFailedError("no")
    waiting = asyncio.create_task(it.task.wait_assigned())
    await asyncio.sleep(0)
    it.task.surface(error)
    with pytest.raises(GroupAuthorizationFailedError):
        await waiting
    assert it.errors == [error]
    with pytest.raises(GroupAuthorizationFailedError):
        await it.task.wait_assigned()
    it.task.forget_error()
    it.is_settled = True
    await it.task.wait_assigned()


async def test_who_waits_for_an_assignment_is_told_that_the_consumer_is_stopped() -> None:
    it = Running()
    with pytest.raises(ConsumerStoppedError):
        await it.task.wait_assigned()  # it has not begun
    it.task.begin()
    waiting = asyncio.create_task(it.task.wait_assigned())
    await asyncio.sleep(0)
    it.task.halt()
    with pytest.raises(ConsumerStoppedError):
        await waiting
    assert it.loop.time() == 1


async def test_who_waits_for_an_assignment_is_told_what_the_task_died_of() -> None:
    it = Running()
    it.task.begin()
    waiting = asyncio.create_task(it.task.wait_assigned())
    await asyncio.sleep(0)
    it.fails_by = LookupError("from the task")
    it.notify()
    with pytest.raises(LookupError, match="from the task"):
        await waiting
    it.is_settled = True
    with pytest.raises(LookupError, match="from the task"):
        await it.task.wait_assigned()


async def test_who_waits_for_an_assignment_is_told_what_another_task_died_of() -> None:
    it = Running()
    it.task.begin()
    waiting = asyncio.create_task(it.task.wait_assigned())
    await asyncio.sleep(0)
    it.scope.fail(LookupError("from another task"), name="another")
    with pytest.raises(LookupError, match="from another task"):
        await waiting


async def test_what_the_task_has_just_died_of_is_raised_before_its_scope_has_heard_of_it() -> None:
    it = Running()
    task = it.task.begin()
    it.fails_by = LookupError("from the task")
    await asyncio.sleep(0)
    await asyncio.sleep(1)
    assert task.done()
    assert it.scope.failure is None
    with pytest.raises(LookupError, match="from the task"):
        await it.task.wait_assigned()


async def test_a_member_sits_out_until_the_application_asks_for_records() -> None:
    it = Running()
    await asyncio.sleep(POLL_S - 0.5)
    assert it.task.poll_left_s > 0
    await asyncio.sleep(0.5)
    assert it.task.poll_left_s <= 0
    for come_back in (it.state.reads.enter_get, it.state.unsubscribe):
        assert not it.task.sits_out
        sitting = asyncio.create_task(it.task.sit_out())
        await asyncio.sleep(1)
        assert it.task.sits_out
        assert await is_woken(it, it.notify)  # which is not what it waits for
        await asyncio.sleep(1)
        assert not sitting.done()
        come_back()
        it.notify()
        await sitting
        if it.state.reads.is_in_get:
            it.state.reads.leave_get(-POLL_S)
    assert not it.task.sits_out


async def test_what_the_application_is_busy_with_is_named() -> None:
    it = Running()
    it.state.change((), [A])
    await asyncio.sleep(70)
    assert it.task.overdue_text() == (
        "the application requested no records for 70.0 s, longer than max_poll_interval_ms=60000"
    )
    cursor = it.state.partition(A)
    it.state.seek(cursor, 5)
    for first, end, named in ((5, 6, "t-0 offset 5"), (6, 8, "t-0 offset 6 to 7")):
        it.state.reads.begin_get()
        it.state.reads.hand_out(cursor, first, end, ())
        assert it.task.overdue_text().endswith(f"(returned last: {named})")


def test_a_member_that_leaves_keeps_a_part_of_its_time_for_saying_so() -> None:
    commit_by, leave_by = ending(100.0, 102.0)
    assert (commit_by, leave_by) == (pytest.approx(101.46), pytest.approx(101.96))
    commit_by, leave_by = ending(100.0, 200.0)
    assert (commit_by, leave_by) == (198.0 - LEAVE_MAX_S, 198.0)
    assert ending(100.0, 99.0) == (99.0, 99.0)
