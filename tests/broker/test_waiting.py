"""The request channel and the purgatory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from aiokafka_lite.broker.network.dispatcher import Purgatory, RequestChannel, Watch
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

    def __init__(self, purgatory: Purgatory, keys: list[str], seconds: float) -> None:
        self.is_ready = False
        self.tries = 0
        self.answers: list[str] = []
        self.on_answer: Callable[[], None] = lambda: None
        deadline = asyncio.get_running_loop().time() + seconds
        self.watch: Watch = purgatory.watch(keys, deadline, self.attempt)

    def attempt(self, is_due: bool) -> None:
        self.tries += not is_due
        if is_due or self.is_ready:
            self.watch.cancel()
            self.answers.append("expired" if is_due else "ready")
            self.on_answer()


async def test_touching_a_key_tries_who_waits_for_it() -> None:
    purgatory = Purgatory(asyncio.get_running_loop())
    one, other = Operation(purgatory, ["a", "b"], 60), Operation(purgatory, ["c"], 60)
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
    purgatory = Purgatory(asyncio.get_running_loop())
    operation = Operation(purgatory, ["a"], 0)
    await eventually(lambda: bool(operation.answers))
    assert operation.answers == ["expired"]
    assert len(purgatory) == 0


async def test_cancelled_watch_is_never_answered() -> None:
    purgatory = Purgatory(asyncio.get_running_loop())
    operation = Operation(purgatory, ["a"], 0)
    operation.is_ready = True
    operation.watch.cancel()
    operation.watch.cancel()
    purgatory.touch("a")
    for _ in range(5):
        await asyncio.sleep(0)
    assert (operation.answers, operation.tries) == ([], 0)


async def test_answer_that_cancels_another_is_safe() -> None:
    purgatory = Purgatory(asyncio.get_running_loop())
    first, second = Operation(purgatory, ["a"], 60), Operation(purgatory, ["a"], 60)
    first.is_ready = second.is_ready = True
    first.on_answer = second.watch.cancel
    purgatory.touch("a")
    assert (first.answers, second.answers) == (["ready"], [])
