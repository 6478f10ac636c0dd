"""TaskScope: nothing dies silently, nothing outlives its scope."""

from __future__ import annotations

import asyncio
import logging

import pytest

from aiokafka_lite._tasks import HEALTHY_AFTER_S, TaskScope
from aiokafka_lite.errors import (
    FencedInstanceIdError,
    IllegalStateError,
    KafkaConnectionError,
    KafkaProtocolError,
)

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
    scope.cancel(scope.spawn(forever(), name="long"))
    await settle()
    scope.raise_if_failed()
    assert scope.task_names == []
    await scope.close()


@pytest.mark.parametrize("has_begun", [False, True])
async def test_stop_waits_for_one_task_and_is_no_failure(has_begun: bool) -> None:
    scope = TaskScope("scope")
    task, other = scope.spawn(forever(), name="one"), scope.spawn(forever(), name="other")
    if has_begun:
        await settle()
    for _ in range(2):
        await scope.stop(task)
        assert task.cancelled()
    scope.raise_if_failed()
    assert not other.done()
    await scope.close()


async def test_stop_leaves_in_a_task_what_it_ended_with() -> None:
    scope = TaskScope("scope")
    task = scope.spawn(asyncio.sleep(0, "result"), name="short")
    await settle()
    await scope.stop(task)
    assert task.result() == "result"
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


@pytest.mark.parametrize(
    ("error", "is_told"), [(ValueError("bug"), True), (KafkaConnectionError("closed"), False)]
)
async def test_bug_in_the_clean_up_of_a_cancelled_task_is_told(
    error: Exception, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        try:
            await forever()
        finally:
            raise error

    scope = TaskScope("scope")
    scope.spawn(run(), name="messy")
    await settle()
    with caplog.at_level(logging.ERROR):
        await scope.close()
        await settle()
    assert ("scope: task scope:messy failed" in caplog.messages) is is_told
    assert scope.failure is error


@pytest.mark.parametrize(
    ("error", "is_bug"),
    [
        (ValueError("bug"), True),
        (IllegalStateError("misuse"), True),
        (KafkaProtocolError("not Kafka"), True),
        (FencedInstanceIdError("taken over"), False),
        (KafkaConnectionError("lost"), False),
    ],
    ids=repr,
)
@pytest.mark.parametrize("is_callback", [False, True])
async def test_only_a_bug_is_told_with_its_traceback(
    error: Exception, is_bug: bool, is_callback: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        raise error

    scope = TaskScope("scope")
    with caplog.at_level(logging.ERROR):
        if is_callback:
            scope.fail(error, name="dying")
        else:
            scope.spawn(run(), name="dying")
        await settle()
    (record,) = caplog.records
    assert bool(record.exc_info) is is_bug
    what = "scope: dying failed" if is_callback else "scope: task scope:dying failed"
    assert record.getMessage() == (what if is_bug else f"{what}: {error}")
    await scope.close()


async def test_task_that_somebody_else_cancels_has_died(caplog: pytest.LogCaptureFixture) -> None:
    failures: list[BaseException] = []
    scope = TaskScope("scope", on_failure=failures.append)
    sibling = scope.spawn(forever(), name="sibling")
    with caplog.at_level(logging.CRITICAL):
        scope.spawn(forever(), name="victim").cancel()
        await settle()
    assert sibling.cancelled()
    assert [str(error) for error in failures] == [
        "task scope:victim was cancelled by code outside aiokafka_lite"
    ]
    await scope.close()


async def test_cancellation_that_leaks_out_of_what_is_awaited_is_a_death(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scope = TaskScope("scope")
    future = asyncio.get_running_loop().create_future()

    async def wait() -> None:
        await future

    with caplog.at_level(logging.CRITICAL):
        scope.spawn(wait(), name="waiting")
        await settle()
        future.cancel()
        await settle()
    with pytest.raises(RuntimeError, match="cancelled"):
        scope.raise_if_failed()
    await scope.close()


async def test_task_of_foreign_code_may_cancel_itself() -> None:
    scope = TaskScope("scope")
    scope.spawn(forever(), name="foreign", may_be_cancelled=True).cancel()
    await settle()
    scope.raise_if_failed()
    await scope.close()


async def test_callback_that_raises_is_a_failure_like_a_task_s(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scope = TaskScope("scope")
    sibling = scope.spawn(forever(), name="sibling")

    def fail() -> None:
        raise ValueError("a bug")

    with caplog.at_level(logging.CRITICAL):
        asyncio.get_running_loop().call_soon(scope.guard(fail, name="timer"), "an argument")
        await settle()
    assert sibling.cancelled()
    scope.fail(ValueError("later"), name="timer")
    with pytest.raises(ValueError, match="a bug"):
        scope.raise_if_failed()
    await scope.close()
    scope.fail(ValueError("after the end"), name="timer")


async def test_degradation_is_news_once_and_ends_with_the_recovery() -> None:
    scope = TaskScope("scope")
    assert scope.degrade("fetch", KafkaConnectionError("first"))
    assert not scope.degrade("fetch", KafkaConnectionError("again"))
    assert str(scope.degraded["fetch"]).endswith("again")
    scope.recovered("fetch")
    scope.recovered("fetch")
    assert not scope.degraded
    await scope.close()


async def test_restarted_task_that_is_cancelled_leaves_no_degradation() -> None:
    restarts: list[str] = []
    scope = TaskScope("scope", on_restart=lambda name, _: restarts.append(name))

    async def broken() -> None:
        raise KafkaConnectionError("down")

    scope.supervise(broken, name="broken")
    await settle()
    assert "broken" in scope.degraded
    assert restarts == ["broken"]
    await scope.close()
    assert not scope.degraded


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


@pytest.mark.virtual_time
async def test_restarts_are_quick_again_after_a_task_has_run_for_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = asyncio.get_running_loop()
    scope = TaskScope("scope")
    lives_s = iter((0.0, 0.0, 0.0, HEALTHY_AFTER_S - 1, HEALTHY_AFTER_S, 0.0, 3600.0))
    started_at: list[float] = []

    async def run() -> None:
        started_at.append(loop.time())
        await asyncio.sleep(next(lives_s))
        raise KafkaConnectionError("again")

    with caplog.at_level(logging.CRITICAL):
        scope.supervise(run, name="run", first_delay_s=1.0, last_delay_s=3.0)
        await asyncio.sleep(31.5)
    assert len(started_at) == 7
    pauses_s = [
        later - earlier - life_s
        for earlier, later, life_s in zip(
            started_at, started_at[1:], (0.0, 0.0, 0.0, 9.0, 10.0, 0.0), strict=False
        )
    ]
    assert pauses_s == pytest.approx([1.0, 2.0, 3.0, 3.0, 1.0, 2.0])
    # The last one runs on: it has recovered when it has run for as long.
    await asyncio.sleep(HEALTHY_AFTER_S - 1)
    assert "run" in scope.degraded
    await asyncio.sleep(1)
    assert "run" not in scope.degraded
    await scope.close()


async def test_closing_from_a_task_of_the_scope_waits_for_the_others() -> None:
    scope = TaskScope("scope")
    is_over = False

    async def slow_to_end() -> None:
        nonlocal is_over
        try:
            await forever()
        finally:
            await asyncio.sleep(0)
            is_over = True

    async def close() -> bool:
        await scope.close()
        return is_over

    scope.spawn(slow_to_end(), name="slow")
    await settle()
    assert await scope.spawn(close(), name="closing")


async def test_an_error_that_cannot_be_copied_is_raised_itself() -> None:
    class Odd(Exception):
        def __init__(self, one: int, other: int) -> None:
            super().__init__(one + other)

    scope = TaskScope("scope")
    odd = Odd(1, 2)
    scope.fail(odd, name="odd")
    with pytest.raises(Odd) as caught:
        scope.raise_if_failed()
    assert caught.value is odd
    await scope.close()


async def test_tasks_of_a_closed_loop_end_without_a_word() -> None:
    """As if the loop was closed: what a task does at its end, it does at once."""
    scope = TaskScope("scope")
    ended: list[str] = []

    async def run(name: str) -> None:
        try:
            await forever()
        finally:
            ended.append(name)
            asyncio.get_running_loop()  # there may be none

    tasks = [scope.spawn(run(name), name=name) for name in ("one", "other")]
    await settle()
    await asyncio.to_thread(scope.drop_all)
    assert sorted(ended) == ["one", "other"]
    assert scope.is_ending
    with pytest.raises(RuntimeError, match="closed"):
        scope.spawn(forever(), name="late")
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_tasks_of_the_parent_end_in_a_forked_child() -> None:
    scope = TaskScope("scope")
    task = scope.spawn(forever(), name="parents")
    scope.note_fork()
    await settle()
    assert task.cancelled()
    assert scope.failure is None
    with pytest.raises(RuntimeError, match="closed"):
        scope.spawn(forever(), name="late")
