"""Groups are called when their deadlines have come."""

from __future__ import annotations

import asyncio
from typing import cast

from aiokafka_lite.broker.groups.coordinator import Group, GroupTimers
from tests.broker.groups.fakes import run_in_virtual_time


class Timed:
    """A group with one deadline."""

    group_id = "g"

    def __init__(self) -> None:
        self.deadline: float | None = None

    def next_deadline(self) -> float | None:
        return self.deadline


def test_group_is_called_at_its_deadline_wherever_that_has_moved() -> None:
    async def scenario() -> list[float]:
        group, calls = Timed(), list[float]()

        def expire(_: object, now: float) -> None:
            calls.append(now)
            group.deadline = None

        timers = GroupTimers(expire)

        async def after(*deadlines: float | None, armed_at_last: bool = True) -> None:
            begin = asyncio.get_running_loop().time()
            for number, deadline in enumerate(deadlines, 1):
                group.deadline = None if deadline is None else begin + deadline
                if armed_at_last or number < len(deadlines):
                    timers.arm(cast("Group", group))
            await asyncio.sleep(100)
            calls[:] = [now - begin if now >= begin else now for now in calls]

        await after(10, 5)  # earlier than it was armed for
        await after(10, 20)
        await after(10, 20, armed_at_last=False)  # as by a heartbeat
        await after(10, None)
        await after(10, 5, None)
        return calls

    assert run_in_virtual_time(scenario()) == [5, 20, 20]


def test_cancelled_group_is_not_called() -> None:
    async def scenario() -> list[float]:
        group, calls = Timed(), list[float]()
        timers = GroupTimers(lambda _, now: calls.append(now))
        for deadline in (10, 5, 20):
            group.deadline = deadline
            timers.arm(cast("Group", group))
        timers.cancel("g")
        await asyncio.sleep(100)
        return calls

    assert run_in_virtual_time(scenario()) == []
