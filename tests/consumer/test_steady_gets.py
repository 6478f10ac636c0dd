"""Gets of one record that wait without a coroutine: they may be treated as any other."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import inspect
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from aiokafka_lite._transaction import LATEST
from aiokafka_lite.consumer.gate import Hold
from aiokafka_lite.errors import ConsumerStoppedError
from aiokafka_lite.structs import TopicPartition
from tests.support import crafted
from tests.support.iterations import ITERATIONS
from tests.support.scripted_sources import answer
from tests.support.small_answers import Reading

pytestmark = [
    pytest.mark.asyncio(loop_scope="function"),
    pytest.mark.virtual_time,
    pytest.mark.skipif("compiled" not in ITERATIONS, reason="the extensions are not built"),
]


@pytest_asyncio.fixture(loop_scope="function")
async def reading(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Reading]:
    """A consumer with an open session, of which nobody reads yet."""
    made = Reading(monkeypatch, is_compiled=True)
    made.assign(0, 1, 2, 3)
    await made.answer()
    yield made
    await made.close()


def receive(reading: Reading, offset: int, number: int = 0) -> None:
    """Let one record come in as it does, from a callback of the loop's."""
    frame = reading.frame(answer(number, crafted.batch(1, base_offset=offset)))
    assert frame is not None
    asyncio.get_running_loop().call_soon(reading.receive, frame)


def next_of(reading: Reading) -> Any:
    return anext(reading.reader)


async def test_a_get_waits_without_a_coroutine_and_is_seen_to_wait(reading: Reading) -> None:
    step = next_of(reading)
    task = asyncio.ensure_future(step)
    await reading.settle()
    assert reading.waits_without_coroutine
    assert step.cr_suspended
    assert not step.cr_running
    assert step.cr_await is not None
    assert "Waiter" in repr(task)
    assert reading.state.reads.is_in_get
    receive(reading, 0)
    assert (await task).offset == 0
    assert not reading.state.reads.is_in_get


async def test_records_that_a_get_finishes_in_a_transaction_are_known_to_be_of_it(
    reading: Reading,
) -> None:
    transaction: Any = SimpleNamespace(is_over=False)
    LATEST.set(transaction)
    receive(reading, 0)
    assert (await next_of(reading)).offset == 0
    cursor = reading.state.partition(TopicPartition("t", 0))
    assert not cursor.has_processed_in(transaction)
    task = asyncio.ensure_future(next_of(reading))
    await reading.settle()
    assert reading.waits_without_coroutine
    assert cursor.has_processed_in(transaction)
    receive(reading, 1)
    assert (await task).offset == 1


async def test_a_cancelled_get_loses_nothing(reading: Reading) -> None:
    for _ in range(3):
        task = asyncio.ensure_future(next_of(reading))
        await reading.settle()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert reading.buffer.waiting_count == 0
        assert not reading.state.reads.is_in_get
    receive(reading, 0)
    assert (await next_of(reading)).offset == 0


async def test_a_cancelled_get_says_what_it_was_cancelled_with(reading: Reading) -> None:
    for message in ((), ("why",)):
        task = asyncio.ensure_future(next_of(reading))
        await reading.settle()
        assert reading.waits_without_coroutine
        task.cancel(*message)
        with pytest.raises(asyncio.CancelledError) as raised:
            await task
        assert raised.value.args == message


async def test_a_get_that_is_cancelled_as_its_record_comes_leaves_it_to_the_next(
    reading: Reading,
) -> None:
    task = asyncio.ensure_future(next_of(reading))
    await reading.settle()
    # A task is running, so the record only schedules the one that waits; that is cancelled.
    frame = reading.frame(answer(0, crafted.batch(1)))
    assert frame is not None
    reading.receive(frame)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await next_of(reading)).offset == 0


@pytest.mark.parametrize("end", ["record", "cancellation"])
async def test_a_get_that_waits_minds_no_other_cursor_of_its_iterator(
    reading: Reading, end: str
) -> None:
    task = asyncio.ensure_future(next_of(reading))
    await reading.settle()
    reading.iterate_over_nothing()
    if end == "record":
        receive(reading, 0)
        assert (await task).offset == 0
    else:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert reading.buffer.waiting_count == 0


async def test_a_timeout_ends_a_get_and_the_next_one_goes_on(reading: Reading) -> None:
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(next_of(reading), 0.25)
    receive(reading, 0)
    assert (await asyncio.wait_for(next_of(reading), 0.25)).offset == 0


async def test_a_get_that_is_dropped_or_closed_waits_no_more(reading: Reading) -> None:
    step = next_of(reading)
    assert step.send(None) is not None
    step.close()
    assert reading.buffer.waiting_count == 0
    step = next_of(reading)
    step.send(None)
    del step
    gc.collect()
    assert reading.buffer.waiting_count == 0
    assert not reading.state.reads.is_in_get


@pytest.mark.filterwarnings("ignore:the .type, exc, tb. signature of throw")  # it has to work, too
async def test_what_is_thrown_into_a_get_comes_out_of_it(reading: Reading) -> None:
    for thrown in ((ValueError("x"),), (ValueError,), (ValueError, "x", None)):
        step = next_of(reading)
        step.send(None)
        with pytest.raises(ValueError):
            step.throw(*thrown)
        assert reading.buffer.waiting_count == 0
        with pytest.raises(RuntimeError, match="already awaited"):
            step.send(None)


async def test_the_task_goes_on_in_its_own_context(reading: Reading) -> None:
    variable = contextvars.ContextVar("variable", default="the loop's")
    seen: list[str] = []

    async def read() -> None:
        variable.set("the task's")
        await next_of(reading)
        seen.append(variable.get())
        assert asyncio.current_task() is task

    task = asyncio.ensure_future(read())
    await reading.settle()
    receive(reading, 0)
    await task
    assert seen == ["the task's"]
    assert variable.get() == "the loop's"


async def test_an_error_of_the_body_is_the_tasks_and_not_the_connections(reading: Reading) -> None:
    async def read() -> None:
        await next_of(reading)
        raise ValueError("the application's own")

    task = asyncio.ensure_future(read())
    await reading.settle()
    receive(reading, 0)
    with pytest.raises(ValueError, match="the application's own"):
        await task
    assert reading.pool.connection.error is None


async def test_the_body_may_close_the_connection_that_the_record_came_by(reading: Reading) -> None:
    async def read() -> None:
        await next_of(reading)
        reading.pool.connection.close()

    task = asyncio.ensure_future(read())
    await reading.settle()
    receive(reading, 0)
    await task
    assert reading.pool.connection.error is not None


async def test_of_two_that_wait_each_gets_a_record(reading: Reading) -> None:
    first, second = (asyncio.ensure_future(next_of(reading)) for _ in range(2))
    await reading.settle()
    receive(reading, 0)
    await reading.settle()
    receive(reading, 1)
    records = await asyncio.gather(first, second)
    assert sorted(record.offset for record in records) == [0, 1]


async def test_a_get_that_waits_raises_what_is_posted_meanwhile(reading: Reading) -> None:
    task = asyncio.ensure_future(next_of(reading))
    await reading.settle()
    reading.state.gate.die(ConsumerStoppedError("stopped"))
    with pytest.raises((ConsumerStoppedError, StopAsyncIteration, RuntimeError)):
        await task
    assert not reading.state.reads.is_in_get


async def test_nothing_is_handed_out_while_a_hold_lasts(reading: Reading) -> None:
    task = asyncio.ensure_future(next_of(reading))
    await reading.settle()
    reading.state.gate.hold(Hold.LISTENER)
    await reading.settle()
    receive(reading, 0)
    await reading.settle()
    assert not task.done()
    reading.state.gate.release(Hold.LISTENER)
    assert (await task).offset == 0


async def test_each_get_is_told_of_as_it_begins(reading: Reading) -> None:
    begun: list[int] = []
    reading.state.observers.subscription_changed.add(lambda: begun.append(len(reading.got)))
    reading.state.observers.acted.add(lambda: begun.append(len(reading.got)))
    reading.read()
    await reading.settle()
    receive(reading, 0)
    await reading.settle()
    assert begun == [0, 1]


async def test_it_is_awaitable_and_no_coroutine_function_as_before(reading: Reading) -> None:
    step = next_of(reading)
    assert inspect.isawaitable(step)
    assert asyncio.iscoroutine(step)
    step.close()


# --- With deserialisers -------------------------------------------------------------------
@pytest_asyncio.fixture(loop_scope="function")
async def deserialising(
    monkeypatch: pytest.MonkeyPatch, deserialize: MockDeserialize
) -> AsyncIterator[Reading]:
    """The same with a deserialiser, and with reads that must not need the coroutine."""
    made = Reading(monkeypatch, is_compiled=True, value_deserializer=deserialize)
    made.assign(0, 1, 2, 3)
    await made.answer()
    yield made
    await made.close()


class MockDeserialize:
    """Does what a test sets."""

    def __init__(self) -> None:
        self.act: Callable[[], object] = lambda: None
        self.tasks: list[asyncio.Task[Any] | None] = []

    def __call__(self, value: bytes | None) -> str:
        self.tasks.append(asyncio.current_task())
        self.act()
        return repr(value)


@pytest.fixture
def deserialize() -> MockDeserialize:
    return MockDeserialize()


def coroutines_of(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that names each read which needs a coroutine from now on."""
    made: list[str] = []
    take = reading.buffer.take

    def noted(*arguments: Any) -> Any:
        made.append("take")
        return take(*arguments)

    monkeypatch.setattr(reading.buffer, "take", noted)
    return made


async def test_a_get_deserialises_in_its_task_without_a_coroutine(
    deserialising: Reading, deserialize: MockDeserialize, monkeypatch: pytest.MonkeyPatch
) -> None:
    coroutines = coroutines_of(deserialising, monkeypatch)
    for offset in range(3):
        task = asyncio.ensure_future(next_of(deserialising))
        await deserialising.settle()
        receive(deserialising, offset)
        record = await task
        assert isinstance(record.value, str)
        assert record.offset == offset
        assert deserialize.tasks == [task]
        deserialize.tasks.clear()
        assert not deserialising.state.reads.is_in_get
    assert not coroutines


async def test_a_deserialiser_that_moves_the_partition_leaves_the_get_to_the_coroutine(
    deserialising: Reading, deserialize: MockDeserialize, monkeypatch: pytest.MonkeyPatch
) -> None:
    coroutines = coroutines_of(deserialising, monkeypatch)
    state = deserialising.state
    cursor = state.partition(TopicPartition("t", 0))

    def seek() -> None:
        deserialize.act = lambda: None
        state.seek(cursor, 0)

    deserialize.act = seek
    task = asyncio.ensure_future(next_of(deserialising))
    await deserialising.settle()
    receive(deserialising, 0)
    await deserialising.settle()
    assert not task.done()
    assert coroutines == ["take"]
    assert state.reads.is_in_get
    await deserialising.answer()  # the request was sent before the seek
    receive(deserialising, 0)
    await deserialising.settle()
    assert task.done()
    assert task.result().offset == 0


async def test_a_get_ends_with_what_ends_the_process_in_a_deserialiser(
    deserialising: Reading, deserialize: MockDeserialize
) -> None:
    class Ended(BaseException):
        pass

    def end() -> None:
        deserialize.act = lambda: None
        raise Ended

    deserialize.act = end
    step = next_of(deserialising)
    waiter = step.send(None)
    frame = deserialising.frame(answer(0, crafted.batch(1)))
    assert frame is not None
    deserialising.receive(frame)
    assert waiter.done()
    with pytest.raises(Ended):
        step.send(None)
    assert not deserialising.state.reads.is_in_get
    assert (await next_of(deserialising)).offset == 0
