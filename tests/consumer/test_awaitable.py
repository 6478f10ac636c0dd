"""What `async for` asks for with each record: an awaitable that does all that a coroutine can."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import FrameType
from typing import Any, cast

import pytest

from aiokafka_lite.consumer.buffer.chunk import Record
from tests.support.buffers import A, Buffers, batch
from tests.support.iterations import (
    Iteration,
    PlainReader,
    Reader,
    Step,
    is_in_get,
    iterate_over,
    read_until_stop,
    rounds,
    stand_still,
    step_of,
    stop,
)

pytestmark = pytest.mark.every_loop


async def _in_thread(step: Step) -> Record:
    future = asyncio.run_coroutine_threadsafe(step, asyncio.get_running_loop())
    return await asyncio.wrap_future(future)


async def _gathered(step: Step) -> Record:
    (record,) = await asyncio.gather(step)
    return record


async def _in_generator(step: Step) -> Record:
    class Wrapper:
        def __await__(self) -> Generator[Any, Any, Record]:
            return (yield from step.__await__())

    return await Wrapper()


async def _by_hand(step: Step) -> Record:
    """Be the trampoline that drives it."""

    class Driver:
        def __await__(self) -> Generator[Any, Any, Record]:
            driven = step.__await__()
            sent = None
            while True:
                try:
                    awaited = driven.send(sent)
                except StopIteration as done:
                    return cast(Record, done.value)
                try:
                    sent = yield awaited
                except asyncio.CancelledError as error:
                    driven.throw(error)
                    raise AssertionError("it goes on in spite of that") from error

    return await Driver()


WAYS: dict[str, Callable[[Step], Awaitable[Record]]] = {
    "await": lambda step: step,
    "task": asyncio.ensure_future,
    "create_task": lambda step: asyncio.get_running_loop().create_task(step),
    "python's task": lambda step: asyncio.tasks._PyTask(step),  # type: ignore[attr-defined]
    "wait_for": lambda step: asyncio.wait_for(step, 30),
    "shield": asyncio.shield,
    "gather": _gathered,
    "thread": _in_thread,
    "generator": _in_generator,
    "by hand": _by_hand,
}


@pytest.mark.parametrize("way", WAYS)
async def test_the_record_comes_whether_it_is_ready_or_not(iteration: Iteration, way: str) -> None:
    buffers = Buffers()
    reader = iteration.read(buffers)
    for offset in range(0, 6, 2):
        waiting = asyncio.ensure_future(_wait(WAYS[way], reader))
        await rounds(3)
        assert not waiting.done()
        buffers.put({A: batch(offset, 2)})
        assert (await waiting).offset == offset
        assert (await _wait(WAYS[way], reader)).offset == offset + 1
    assert buffers.state.finished.handed_out_offsets()[A].offset == 6


async def _wait(way: Callable[[Step], Awaitable[Record]], reader: Reader | PlainReader) -> Record:
    return await way(step_of(reader))


@pytest.mark.parametrize("way", WAYS)
async def test_cancelled_while_it_waits_it_takes_nothing(iteration: Iteration, way: str) -> None:
    buffers = Buffers()
    reader = iteration.read(buffers)
    for turns in range(4):
        waiting = asyncio.ensure_future(_wait(WAYS[way], reader))
        await rounds(turns)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await rounds(3)  # what was shielded from the cancellation still waits
    if way in ("shield", "thread"):
        stop(buffers)
        await rounds(3)
        return
    buffers.put({A: batch(0, 1)})
    assert (await anext(reader)).offset == 0


async def test_it_passes_for_a_coroutine(iteration: Iteration) -> None:
    reader = iteration.read(Buffers())
    step = step_of(reader)
    assert asyncio.iscoroutine(step)
    assert isinstance(step, Coroutine)
    assert getattr(step, "__name__", None) == "__anext__"
    task = asyncio.ensure_future(step)
    await rounds(2)
    assert "__anext__" in repr(task)
    # A get that waits by itself has no frame; the coroutine that awaits it has.
    names = [frame.f_code.co_name for frame in task.get_stack()]
    assert names in (["__anext__"], ["_next_record"], [])
    assert step.cr_await is not None  # type: ignore[attr-defined]
    assert not step.cr_running  # type: ignore[attr-defined]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert step.cr_await is None  # type: ignore[attr-defined]


async def test_anext_with_a_default_waits_and_ends(iteration: Iteration) -> None:
    buffers = Buffers()
    reader = iteration.read(buffers)
    buffers.put({A: batch(0, 1)})
    first = await anext(reader, None)
    assert first is not None
    assert first.offset == 0

    async def after() -> Record | None:
        return await anext(reader, None)

    waiting = asyncio.ensure_future(after())
    await rounds(3)
    buffers.put({A: batch(1, 1)})
    second = await waiting
    assert second is not None
    assert second.offset == 1
    waiting = asyncio.ensure_future(after())
    await rounds(3)
    stop(buffers)
    assert await waiting is None


async def test_a_step_made_while_a_record_was_ready_waits_when_none_is(
    iteration: Iteration,
) -> None:
    buffers = Buffers()
    reader = iteration.read(buffers)
    buffers.put({A: batch(0, 2)})
    await anext(reader)
    steps = [step_of(reader), step_of(reader)]
    assert (await steps[0]).offset == 1
    waiting = asyncio.ensure_future(steps[1])
    await rounds(3)
    assert not waiting.done()
    buffers.put({A: batch(2, 1)})
    assert (await waiting).offset == 2


async def test_a_step_made_while_none_was_ready_takes_what_came(iteration: Iteration) -> None:
    buffers = Buffers()
    reader = iteration.read(buffers)
    step = step_of(reader)
    buffers.put({A: batch(0, 2)})
    assert (await anext(reader)).offset == 0
    assert (await step).offset == 1


async def test_a_step_that_is_never_awaited_takes_no_record(iteration: Iteration) -> None:
    buffers = Buffers()
    reader = iteration.read(buffers)
    buffers.put({A: batch(0, 3)})
    for offset in range(3):
        unused = step_of(reader)
        unused.close()
        if iteration.is_compiled:
            anext(reader)  # type: ignore[unused-coroutine]  # without a warning
        assert (await anext(reader)).offset == offset


async def test_a_step_gives_one_record(iteration: Iteration) -> None:
    buffers = Buffers()
    reader = iteration.read(buffers)
    buffers.put({A: batch(0, 3)})
    ready = step_of(reader)
    assert (await ready).offset == 0
    task_step = step_of(reader)
    assert (await asyncio.ensure_future(task_step)).offset == 1
    closed = step_of(reader)
    closed.close()
    for step in (ready, task_step, closed):
        with pytest.raises(RuntimeError, match="cannot reuse already awaited"):
            await step
        with pytest.raises(RuntimeError, match="cannot reuse already awaited"):
            step.throw(ValueError())
        step.close()
    assert (await anext(reader)).offset == 2


async def test_sending_and_throwing_is_as_with_a_coroutine(
    iteration: Iteration, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_still(monkeypatch)
    buffers = Buffers()
    reader = iteration.read(buffers)
    buffers.put({A: batch(0, 2)})
    step = step_of(reader)
    with pytest.raises(TypeError, match="can't send non-None value to a just-started coroutine"):
        step.send(1)
    with pytest.raises(StopIteration) as done:
        step.send(None)
    assert done.value.value.offset == 0
    for error in (KeyError("here"), KeyError):
        step = step_of(reader)
        with pytest.raises(KeyError):
            step.throw(error)
        with pytest.raises(RuntimeError):
            await step
    assert (await anext(reader)).offset == 1
    step = step_of(reader)
    assert asyncio.isfuture(step.send(None))
    assert is_in_get(buffers)
    with pytest.raises(KeyError, match="here"):
        step.throw(KeyError("here"))
    assert not is_in_get(buffers)
    step = step_of(reader)
    step.send(None)
    step.close()
    assert not is_in_get(buffers)


async def test_a_step_that_is_dropped_while_it_waits_ends_its_get(iteration: Iteration) -> None:
    buffers = Buffers()
    reader = iteration.read(buffers)
    step = step_of(reader)
    step.send(None)
    assert is_in_get(buffers)
    del step
    assert not is_in_get(buffers)


async def test_a_step_cannot_be_entered_while_it_runs(iteration: Iteration) -> None:
    buffers = Buffers()

    class Entering(iteration.reader):  # type: ignore[name-defined,misc]
        async def _next_record(self) -> Record:
            for enter in (lambda: step.send(None), lambda: step.throw(KeyError()), step.close):
                with pytest.raises(ValueError, match="already executing"):
                    enter()
            assert step.cr_running
            return await buffers.gets.one(())

    reader = Entering()
    iterate_over(reader, buffers)
    buffers.put({A: batch(0, 1)})
    step = anext(reader)
    assert (await step).offset == 0


async def test_next_on_a_step_stops_with_its_record(
    iteration: Iteration, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_still(monkeypatch)
    buffers = Buffers()
    reader = iteration.read(buffers)
    buffers.put({A: batch(0, 4)})
    await anext(reader)
    stops = []
    for _ in range(3):
        with pytest.raises(StopIteration) as done:
            next(step_of(reader).__await__())
        stops.append(done.value)
    assert [each.value.offset for each in stops] == [1, 2, 3]


# --- Instrumentation, subclasses, debuggers -----------------------------------------------


async def test_a_subclass_may_override_anext(iteration: Iteration) -> None:
    class Counting(iteration.reader):  # type: ignore[name-defined,misc]
        count = 0

        async def __anext__(self) -> Record:
            record = await super().__anext__()
            self.count += 1
            return cast(Record, record)

    buffers = Buffers()
    reader = Counting()
    reader.buffers = buffers
    iterate_over(reader, buffers)
    buffers.put({A: batch(0, 5)})
    async for record in reader:
        if record.offset == 4:
            break
    assert reader.count == 5


@pytest.mark.parametrize("on", ["its class", "a base"])
async def test_anext_may_be_wrapped_and_unwrapped(iteration: Iteration, on: str) -> None:
    class Derived(iteration.reader):  # type: ignore[name-defined,misc]
        pass

    buffers = Buffers()
    reader = Derived()
    reader.buffers = buffers
    iterate_over(reader, buffers)
    buffers.put({A: batch(0, 6)})
    wrapped: Any = Derived if on == "its class" else iteration.reader
    original = wrapped.__anext__
    traced: list[int] = []

    async def trace(self: Any) -> Record:
        record = await original(self)
        traced.append(record.offset)
        return cast(Record, record)

    found = []
    try:
        async for record in reader:
            found.append(record.offset)
            if record.offset == 1:
                wrapped.__anext__ = trace
            elif record.offset == 3:
                wrapped.__anext__ = original
            elif record.offset == 5:
                break
    finally:
        del wrapped.__anext__
    assert (found, traced) == ([0, 1, 2, 3, 4, 5], [2, 3])
    buffers.put({A: batch(6, 1)})
    assert (await anext(reader)).offset == 6
    assert traced == [2, 3]


@pytest.mark.parametrize("tool", ["settrace", "setprofile"])
async def test_a_debugger_changes_nothing(iteration: Iteration, tool: str) -> None:
    buffers = Buffers()
    reader = iteration.read(buffers)
    buffers.put({A: batch(0, 3)})
    reading = asyncio.ensure_future(read_until_stop(reader))
    events = 0

    def watch(frame: FrameType, event: str, argument: object) -> object:
        nonlocal events
        events += 1
        return watch

    previous = sys.gettrace() if tool == "settrace" else sys.getprofile()
    install: Callable[[Any], None] = getattr(sys, tool)
    install(watch)
    try:
        await rounds(5)
        buffers.put({A: batch(3, 3)})
        await rounds(5)
        stop(buffers)
        found = await reading
    finally:
        install(previous)
    assert found == list(range(6))
    assert events


async def test_in_debug_mode_nothing_changes(iteration: Iteration) -> None:
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    buffers = Buffers()
    reader = iteration.read(buffers)
    reading = asyncio.ensure_future(read_until_stop(reader))
    await rounds(3)
    buffers.put({A: batch(0, 3)})
    await rounds(3)
    stop(buffers)
    assert await reading == [0, 1, 2]


@pytest.mark.skipif(not hasattr(asyncio, "eager_task_factory"), reason="from Python 3.12 on")
async def test_an_eager_task_takes_what_is_ready_at_once(iteration: Iteration) -> None:
    factory = asyncio.eager_task_factory  # type: ignore[attr-defined,unused-ignore]
    loop = asyncio.get_running_loop()
    buffers = Buffers()
    reader = iteration.read(buffers)
    buffers.put({A: batch(0, 2)})
    await anext(reader)
    task = factory(loop, step_of(reader))
    assert task.done()
    assert task.result().offset == 1
    task = factory(loop, step_of(reader))
    assert not task.done()
    buffers.put({A: batch(2, 1)})
    assert (await task).offset == 2
