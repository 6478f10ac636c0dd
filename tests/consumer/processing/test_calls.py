"""What handlers of `consumer.run` may do to their task and context, and what no other call sees."""

from __future__ import annotations

import asyncio
import builtins
from collections import Counter
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import pytest

from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.processing.calls import was_just_cancelled
from aiokafka_lite.consumer.processing.handling import DeadRecord, Handling
from aiokafka_lite.consumer.processing.run import Run
from aiokafka_lite.processing import Retry
from tests.consumer.processing.acking import Record
from tests.support.buffers import A, Buffers, batch, no_transactions
from tests.support.waiting import until

pytestmark = pytest.mark.virtual_time
GROUP: Any = getattr(builtins, "BaseExceptionGroup", None)  # from Python 3.11 on
TASK_GROUP: Any = getattr(asyncio, "TaskGroup", None)
SEEN: ContextVar[int] = ContextVar("seen", default=-1)
FROM_OUTSIDE: ContextVar[str] = ContextVar("from outside", default="nothing")
COUNT = 20


async def handle_all(
    handler: Callable[[Any], Awaitable[object]],
    *,
    batch_size: int | None = None,
    retry: Retry | None = None,
    bury: Callable[[DeadRecord], Awaitable[object]] | None = None,
) -> Counter[int]:
    """Handle records until all are done; return how often each was."""
    buffers = Buffers(A)
    buffers.put({A: batch(0, COUNT)})
    done: Counter[int] = Counter()

    async def handle(given: Any) -> None:
        await handler(given)
        done.update(record.offset for record in (given if batch_size else [given]))

    handling = Handling(
        concurrency=3,
        order=None,
        batch_size=batch_size,
        max_uncommitted=1000,
        retry=retry or Retry(attempts=3, first_delay_ms=1),
        dead_letter=bury,
        breaker=None,
    )
    run = Run(
        buffers.state.core(ConsumerConfig(rebalance_hold_ms=5_000), buffer=buffers.buffer),
        handle,
        handling,
        no_transactions,
    )
    with run.opened():
        task = asyncio.ensure_future(run.run())
        await until(lambda: task.done() or buffers.partition().processed == COUNT)
        await run.end(asyncio.get_running_loop().time())
        await task
    return done


EACH = Counter(range(COUNT))


# --- Context variables --------------------------------------------------------------------------
class NotComparable:
    def __eq__(self, other: object) -> bool:
        raise ValueError("ambiguous")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("batch_size", [None, 2])
@pytest.mark.parametrize("awaits", [0, 1, 3])
async def test_no_call_sees_context_variables_of_another(
    batch_size: int | None, awaits: int
) -> None:
    FROM_OUTSIDE.set("of run")
    found: list[tuple[int, str]] = []
    failed: set[int] = set()

    async def handle(given: Any) -> None:
        found.append((SEEN.get(), FROM_OUTSIDE.get()))
        record = given[0] if batch_size else given
        SEEN.set(record.offset)
        FROM_OUTSIDE.set("of a handler")
        for _ in range(awaits):
            await asyncio.sleep(0)
            assert SEEN.get() == record.offset
        if record.offset % 5 == 0 and record.offset not in failed:
            failed.add(record.offset)
            raise ConnectionError

    assert await handle_all(handle, batch_size=batch_size) == EACH
    assert set(found) == {(-1, "of run")}
    assert FROM_OUTSIDE.get() == "of run"


@pytest.mark.parametrize("batch_size", [None, 2])
async def test_variables_that_cannot_be_compared_stay_with_their_call_too(
    batch_size: int | None,
) -> None:
    variable: ContextVar[object] = ContextVar("odd")
    variable.set(NotComparable())
    given = variable.get()

    async def handle(_: object) -> None:
        assert variable.get() is given
        variable.set(NotComparable())

    assert await handle_all(handle, batch_size=batch_size) == EACH


async def test_variables_last_for_the_whole_call_and_can_be_reset() -> None:
    async def handle(record: Record) -> None:
        token = SEEN.set(record.offset)
        await asyncio.gather(*(asyncio.create_task(asyncio.sleep(0)) for _ in range(2)))
        assert await asyncio.create_task(inner()) == record.offset
        SEEN.reset(token)
        assert SEEN.get() == -1
        SEEN.set(1)  # from now on each call is in a context of its own

    async def inner() -> int:
        return SEEN.get()

    assert await handle_all(handle) == EACH


async def test_errors_and_results_pass_through_a_context_of_its_own() -> None:
    caught: list[str] = []

    async def handle(record: Record) -> None:
        SEEN.set(record.offset)
        failing = asyncio.get_running_loop().create_future()
        failing.set_exception(ValueError(str(record.offset)))
        try:
            await failing
        except ValueError as error:
            caught.append(str(error))
        async with asyncio.Lock():
            assert await asyncio.sleep(0, "result") == "result"

    assert await handle_all(handle) == EACH
    assert sorted(caught, key=int) == [str(n) for n in range(COUNT)]


async def test_dead_letters_see_the_context_of_run() -> None:
    found: list[int] = []

    async def handle(record: Record) -> None:
        SEEN.set(record.offset)
        if record.offset % 2:
            raise ValueError

    async def bury(dead: DeadRecord) -> None:
        found.append(SEEN.get())
        SEEN.set(100)

    await handle_all(handle, retry=Retry(dead=ValueError), bury=bury)
    assert found == [-1] * (COUNT // 2)


# --- Handlers that cancel their task -------------------------------------------------------------
@pytest.mark.parametrize("batch_size", [None, 2])
@pytest.mark.parametrize("sets_variables", [False, True])
@pytest.mark.parametrize("awaits", [False, True])
async def test_a_handler_that_cancels_its_own_task_fails_and_run_goes_on(
    awaits: bool, sets_variables: bool, batch_size: int | None
) -> None:
    tries: Counter[int] = Counter()

    async def handle(given: Any) -> None:
        assert not getattr(asyncio.current_task(), "cancelling", int)()  # of an earlier call
        for record in given if batch_size else [given]:
            tries[record.offset] += 1
            if sets_variables:
                SEEN.set(record.offset)
            if record.offset % 4 == 0 and tries[record.offset] < 3:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                if awaits:
                    await asyncio.sleep(1)

    done = await handle_all(handle, batch_size=batch_size)
    assert set(done) == set(range(COUNT))
    assert all(tries[offset] >= 3 for offset in range(0, COUNT, 4))
    if not batch_size:
        assert all(tries[offset] == 1 for offset in range(COUNT) if offset % 4)


async def test_a_handler_that_swallows_its_own_cancellation_has_succeeded() -> None:
    tries: Counter[int] = Counter()

    async def handle(record: Record) -> None:
        tries[record.offset] += 1
        task = asyncio.current_task()
        assert task is not None
        assert not getattr(task, "cancelling", int)()  # of an earlier call
        task.cancel()
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            pass

    assert await handle_all(handle) == EACH
    assert tries == EACH


async def test_a_handler_that_cancels_itself_each_time_does_not_look_like_a_cancelled_run() -> None:
    async def handle(record: Record) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)

    with pytest.raises(RuntimeError, match="the handler raised CancelledError, but run") as raised:
        await handle_all(handle)
    assert isinstance(raised.value.__cause__, asyncio.CancelledError)


async def test_handlers_and_run_that_are_cancelled_together_have_not_failed() -> None:
    calls: Counter[int] = Counter()
    failed: list[DeadRecord] = []

    async def handle(record: Record) -> None:
        calls[record.offset] += 1
        await asyncio.sleep(100)

    async def bury(dead: DeadRecord) -> None:
        failed.append(dead)

    task = asyncio.ensure_future(handle_all(handle, bury=bury, retry=Retry(attempts=1)))
    await asyncio.sleep(1)
    tasks = asyncio.all_tasks() - {asyncio.current_task(), task}
    for each in sorted(tasks, key=lambda each: "handler" not in each.get_name()):
        each.cancel()  # as the end of `asyncio.run` does; handlers hear of it first
    await asyncio.wait([*tasks, task], timeout=10)
    assert not failed
    assert calls == {0: 1, 1: 1, 2: 1}


async def test_python_3_10_knows_that_a_task_was_cancelled_until_it_has_heard_of_it() -> None:
    seen: list[bool] = []

    async def look() -> None:
        task = asyncio.current_task()
        assert task is not None
        seen.append(was_just_cancelled(task))
        task.cancel()
        seen.append(was_just_cancelled(task))
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            seen.append(was_just_cancelled(task))
        await asyncio.sleep(100)

    task = asyncio.ensure_future(look())
    await asyncio.sleep(1)
    seen.append(was_just_cancelled(task))
    task.cancel()
    seen.append(was_just_cancelled(task))
    await asyncio.wait([task])
    assert seen == [False, True, False, False, True]


@pytest.mark.skipif(not hasattr(asyncio, "eager_task_factory"), reason="from Python 3.12 on")
@pytest.mark.parametrize("batch_size", [None, 4])
async def test_workers_that_start_eagerly_handle_each_record(batch_size: int | None) -> None:
    tries: Counter[int] = Counter()

    async def handle(given: Any) -> None:
        for record in given if batch_size else [given]:
            tries[record.offset] += 1
            if tries[record.offset] == 1 and record.offset % 5 == 0:
                raise ConnectionError

    factory = asyncio.eager_task_factory  # type: ignore[attr-defined,unused-ignore]
    asyncio.get_running_loop().set_task_factory(factory)
    assert set(await handle_all(handle, batch_size=batch_size)) == set(EACH)


# --- Groups of exceptions -----------------------------------------------------------------------
@pytest.mark.skipif(GROUP is None, reason="this Python has no groups of exceptions")
class TestGroups:
    """A handler that works with an asyncio.TaskGroup."""

    @pytest.mark.parametrize("batch_size", [None, 2])
    async def test_groups_of_what_is_tried_again_are_tried_again(
        self, batch_size: int | None
    ) -> None:
        tries: Counter[int] = Counter()

        async def handle(given: Any) -> None:
            for record in given if batch_size else [given]:
                tries[record.offset] += 1
                if record.offset % 5 == 0 and tries[record.offset] < 3:
                    inner: list[BaseException] = [ConnectionError(), asyncio.CancelledError()]
                    raise GROUP("of tasks", inner)

        retry = Retry(attempts=3, on=ConnectionError, first_delay_ms=1)
        assert set(await handle_all(handle, batch_size=batch_size, retry=retry)) == set(EACH)
        assert tries[5] == 3

    async def test_a_group_with_what_ends_the_process_ends_run_by_it(self) -> None:
        dead: list[DeadRecord] = []

        async def handle(record: Record) -> None:
            raise GROUP("of tasks", [ValueError(), GeneratorExit()])

        async def bury(record: DeadRecord) -> None:
            dead.append(record)

        with pytest.raises(GROUP):
            await handle_all(handle, bury=bury)
        assert not dead

    async def test_a_handler_that_is_cut_off_in_a_task_group_is_cancelled_and_no_failure(
        self,
    ) -> None:
        failed: list[DeadRecord] = []

        async def cleaning_up() -> None:
            try:
                await asyncio.sleep(100)
            finally:
                raise ConnectionError("on the way out")

        async def handle(record: Record) -> None:
            async with TASK_GROUP() as group:
                group.create_task(cleaning_up())

        async def bury(dead: DeadRecord) -> None:
            failed.append(dead)

        task = asyncio.ensure_future(handle_all(handle, bury=bury, retry=Retry(attempts=1)))
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait([task])
        assert not failed


async def test_a_dead_letter_whose_writer_cancels_its_task_is_written_again() -> None:
    tries: Counter[int] = Counter()

    async def handle(record: Record) -> None:
        if record.offset == 3:
            raise ValueError

    async def bury(dead: DeadRecord) -> None:
        tries[dead.record.offset] += 1
        if tries[dead.record.offset] < 3:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(1)

    done = await handle_all(handle, retry=Retry(dead=ValueError), bury=bury)
    assert done == EACH - Counter([3])
    assert tries == {3: 3}
