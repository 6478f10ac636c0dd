"""TaskScope: nothing dies silently, nothing outlives its scope."""

from __future__ import annotations

import asyncio
import logging

import pytest

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.errors import IllegalStateError, KafkaConnectionError

pytestmark = pytest.mark.every_loop


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_first_failure_is_kept_and_siblings_are_cancelled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[BaseException] = []
    scope = TaskScope("scope", on_failure=seen.append)
    sibling = scope.spawn(forever(), name="sibling")

    async def die() -> None:
        raise ValueError("first")

    with caplog.at_level(logging.CRITICAL):
        scope.spawn(die(), name="dying")
        await settle()
    assert sibling.cancelled()
    assert [str(error) for error in seen] == ["first"]
    for _ in range(2):  # every caller is told, not only the first
        with pytest.raises(ValueError, match="first"):
            scope.raise_if_failed()
    await scope.close()


async def test_scope_that_failed_starts_nothing_new(caplog: pytest.LogCaptureFixture) -> None:
    scope = TaskScope("scope")

    async def die() -> None:
        raise ValueError("gone")

    with caplog.at_level(logging.CRITICAL):
        scope.spawn(die(), name="dying")
        await settle()
    with pytest.raises(RuntimeError, match="closed"):
        scope.spawn(forever(), name="late")
    await scope.close()


async def test_cancelled_or_finished_task_is_no_failure() -> None:
    scope = TaskScope("scope")
    scope.spawn(asyncio.sleep(0), name="short")
    scope.spawn(forever(), name="long").cancel()
    await settle()
    scope.raise_if_failed()
    assert scope.task_names == []
    await scope.close()


async def test_close_waits_until_tasks_have_cleaned_up() -> None:
    scope = TaskScope("scope")
    cleaned = False

    async def slow_to_end() -> None:
        nonlocal cleaned
        try:
            await forever()
        finally:
            await asyncio.sleep(0)
            cleaned = True

    scope.spawn(slow_to_end(), name="slow")
    await settle()
    assert scope.task_names == ["scope:slow"]
    await scope.close()
    assert cleaned
    await scope.close()


async def test_task_may_close_its_own_scope() -> None:
    scope = TaskScope("scope")
    task = scope.spawn(scope.close(), name="closing")
    sibling = scope.spawn(forever(), name="sibling")
    await asyncio.wait([task, sibling])
    assert not task.cancelled()
    assert sibling.cancelled()


async def test_supervised_task_restarts_after_a_retriable_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scope = TaskScope("scope")
    attempts = 0

    async def flaky() -> None:
        nonlocal attempts
        attempts += 1
        if attempts < 4:
            raise KafkaConnectionError(f"attempt {attempts}")

    with caplog.at_level(logging.WARNING):
        task = scope.supervise(lambda: flaky(), name="flaky", first_delay_s=0.02)
        await settle()
        assert isinstance(scope.degraded["flaky"], KafkaConnectionError)
        await task
    assert attempts == 4
    assert not scope.degraded
    assert len(caplog.records) == 1  # one line per change of state, not one per attempt
    scope.raise_if_failed()
    await scope.close()


async def test_supervised_task_fails_on_any_other_error(caplog: pytest.LogCaptureFixture) -> None:
    scope = TaskScope("scope")

    async def broken() -> None:
        raise IllegalStateError("fatal")

    with caplog.at_level(logging.CRITICAL):
        scope.supervise(lambda: broken(), name="broken")
        await settle()
    with pytest.raises(IllegalStateError, match="fatal"):
        scope.raise_if_failed()
    await scope.close()
