"""How long a listener's callback may take, and who may wait for it: without a group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.consumer.membership.handover import GRACE_S, ListenerCalls
from aiokafka_lite.structs import TopicPartition

pytestmark = pytest.mark.virtual_time

TPS = {TopicPartition("t", 0)}


class Group:
    """Calls callbacks as a membership does, and keeps what it is told of them."""

    def __init__(self) -> None:
        self.scope = TaskScope("g")
        self.failed = list[tuple[str, str | None]]()
        self.calls = ListenerCalls(self.scope, cast("Any", self))
        self.loop = asyncio.get_running_loop()

    def listener_failed(self, callback: str, error: Exception | None) -> None:
        self.failed.append((callback, None if error is None else str(error)))

    async def call(
        self, method: Callable[[set[TopicPartition]], Awaitable[None] | None], *, within_s: float
    ) -> tuple[bool, float]:
        """Return whether the callback ended by itself, and when the caller went on."""
        deadline = self.loop.time() + within_s
        has_ended = await self.calls.call("callback", method, set(TPS), deadline=deadline)
        return has_ended, self.loop.time()


async def test_a_callback_is_cancelled_at_the_deadline() -> None:
    group, ended_at = Group(), list[float]()

    async def hang(_: set[TopicPartition]) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(GRACE_S / 2)
            ended_at.append(group.loop.time())

    assert await group.call(hang, within_s=3) == (False, 3 + GRACE_S / 2)
    assert ended_at == [3 + GRACE_S / 2]
    assert group.failed == [("callback", None)]
    assert group.scope.failure is None


async def test_a_callback_that_ignores_its_cancellation_is_left_to_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    group, may_end = Group(), asyncio.Event()

    async def ignore(_: set[TopicPartition]) -> None:
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue
        raise LookupError

    assert await group.call(ignore, within_s=3) == (False, 3 + GRACE_S)
    assert "although it was cancelled" in caplog.text
    assert await group.calls.finish(deadline=100)  # it is not waited for again
    may_end.set()
    await asyncio.sleep(1)
    assert group.failed == [("callback", None)]  # what it raises after that is logged only
    assert group.scope.failure is None


async def test_a_callback_that_the_application_cancels_has_failed_and_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    group = Group()

    async def cancel(_: set[TopicPartition]) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)

    assert await group.call(cancel, within_s=3) == (True, 0)
    assert group.failed == [("callback", None)]
    assert "although it was cancelled" not in caplog.text
    assert group.scope.failure is None


async def test_only_the_callback_and_its_tasks_are_inside_and_they_do_not_wait_for_it() -> None:
    group, seen = Group(), list[tuple[bool, bool, float]]()

    async def look(_: set[TopicPartition]) -> None:
        is_calling = group.calls.is_calling()
        has_ended = await group.calls.finish(deadline=2)
        seen.append((is_calling, has_ended, group.loop.time()))

    async def look_twice(tps: set[TopicPartition]) -> None:
        await look(tps)
        await asyncio.create_task(look(tps))

    assert await group.calls.finish(deadline=2)
    calling = asyncio.create_task(group.call(look_twice, within_s=3))
    await asyncio.sleep(0)
    assert not group.calls.is_calling()
    assert await calling == (True, 0)
    assert seen == [(True, True, 0)] * 2
    await look(set())
    assert seen[2:] == [(False, True, 0)]


async def test_what_a_callback_raises_is_told_once() -> None:
    group = Group()

    def refuse(tps: set[TopicPartition]) -> None:
        raise LookupError(len(tps))

    assert await group.call(refuse, within_s=3) == (True, 0)
    assert group.failed == [("callback", "1")]
