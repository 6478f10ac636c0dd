"""The request channel and the purgatory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from aiokafka_lite.broker.handlers.registry import Delayed
from aiokafka_lite.broker.network.purgatory import Purgatory
from aiokafka_lite.broker.network.work import RequestChannel
from tests.broker.wire import eventually


async def test_requests_are_taken_in_order() -> None:
    channel = RequestChannel[int](10, asyncio.get_running_loop())
    taker = asyncio.ensure_future(channel.take())
    await asyncio.sleep(0)
    for number in range(3):
        channel.put(number)
    assert [await taker, await channel.take(), await channel.take()] == [0, 1, 2]


async def test_full_channel_says_so_and_calls_back_in_turn() -> None:
    channel = RequestChannel[int](2, asyncio.get_running_loop())
    channel.put(1)
    channel.put(2)
    assert not channel.has_room
    with pytest.raises(RuntimeError, match="full"):
        channel.put(3)
    called: list[str] = []
    for name in ("first", "second"):
        channel.call_when_room(lambda name=name: called.append(name))  # type: ignore[misc]
    assert (await channel.take(), called) == (1, [])
    await asyncio.sleep(0)
    assert called == ["first"]
    assert await channel.take() == 2
    await asyncio.sleep(0)
    assert called == ["first", "second"]


async def test_cancelled_take_takes_nothing() -> None:
    channel = RequestChannel[int](2, asyncio.get_running_loop())
    taker = asyncio.ensure_future(channel.take())
    await asyncio.sleep(0)
    channel.put(1)
    taker.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taker
    assert await channel.take() == 1


class Operation:
    """An answer that is ready when told, and counts how often it was tried."""

    def __init__(self, loop: asyncio.AbstractEventLoop, keys: list[str], seconds: float) -> None:
        self.is_ready = False
        self.tries = 0
        self.answers: list[str] = []
        self.delayed = Delayed[str](keys, loop.time() + seconds, self.attempt, lambda: "expired")

    def attempt(self) -> str | None:
        self.tries += 1
        return "ready" if self.is_ready else None

    def on_answer(self, answer: Callable[[], str]) -> None:
        self.answers.append(answer())


async def test_touching_a_key_tries_who_waits_for_it() -> None:
    loop = asyncio.get_running_loop()
    purgatory = Purgatory[str](loop)
    one, other = Operation(loop, ["a", "b"], 60), Operation(loop, ["c"], 60)
    for operation in (one, other):
        purgatory.watch(operation.delayed, operation.on_answer)
    purgatory.touch("b")
    assert (one.tries, other.tries, one.answers) == (1, 0, [])
    one.is_ready = True
    purgatory.touch("a")
    purgatory.touch("a")
    purgatory.touch("b")
    assert (one.tries, one.answers, len(purgatory)) == (2, ["ready"], 1)
    purgatory.close()
    assert len(purgatory) == 0


async def test_deadline_answers_with_what_there_is() -> None:
    loop = asyncio.get_running_loop()
    purgatory = Purgatory[str](loop)
    operation = Operation(loop, ["a"], 0)
    purgatory.watch(operation.delayed, operation.on_answer)
    await eventually(lambda: bool(operation.answers))
    assert operation.answers == ["expired"]
    assert len(purgatory) == 0


async def test_cancelled_watch_is_never_answered() -> None:
    loop = asyncio.get_running_loop()
    purgatory = Purgatory[str](loop)
    operation = Operation(loop, ["a"], 0)
    operation.is_ready = True
    watch = purgatory.watch(operation.delayed, operation.on_answer)
    watch.cancel()
    watch.cancel()
    purgatory.touch("a")
    for _ in range(5):
        await asyncio.sleep(0)
    assert (operation.answers, operation.tries) == ([], 0)


async def test_exception_of_an_operation_is_its_answer() -> None:
    loop = asyncio.get_running_loop()
    purgatory = Purgatory[str](loop)

    def fail() -> str:
        raise ValueError("broken")

    caught: list[str] = []

    def on_answer(answer: Callable[[], str]) -> None:
        with pytest.raises(ValueError, match="broken"):
            answer()
        caught.append("caught")

    delayed = Delayed[str](["a"], loop.time() + 60, fail, lambda: "expired")
    purgatory.watch(delayed, on_answer)
    purgatory.touch("a")
    assert (caught, len(purgatory)) == (["caught"], 0)


async def test_answer_that_cancels_another_is_safe() -> None:
    loop = asyncio.get_running_loop()
    purgatory = Purgatory[str](loop)
    first, second = Operation(loop, ["a"], 60), Operation(loop, ["a"], 60)
    first.is_ready = second.is_ready = True

    def on_answer(answer: Callable[[], str]) -> None:
        first.on_answer(answer)
        watch.cancel()

    purgatory.watch(first.delayed, on_answer)
    watch = purgatory.watch(second.delayed, second.on_answer)
    purgatory.touch("a")
    assert (first.answers, second.answers) == (["ready"], [])
