"""Holds, each released by its own reason only, and what the next get raises."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from aiokafka_lite.consumer.gate import Gate, Hold
from aiokafka_lite.errors import (
    ConsumerStoppedError,
    KafkaConnectionError,
    KafkaStorageError,
    KafkaTimeoutError,
)
from tests.support.buffers import Buffers, batch
from tests.support.states import State


def stopped() -> ConsumerStoppedError:
    return ConsumerStoppedError("stopped")


@pytest.fixture
def state() -> State:
    return State()


@pytest.fixture
def gate(state: State) -> Gate:
    return state.gate


def test_a_turn_is_told_once(gate: Gate) -> None:
    told: list[bool] = []

    def tell() -> None:
        told.append(bool(gate.holds))

    gate.on_change(tell)
    gate.hold(Hold.LISTENER)
    gate.hold(Hold.LISTENER)
    gate.release(Hold.LISTENER)
    gate.release(Hold.LISTENER)
    assert told == [True, False]
    gate.forget(tell)
    gate.hold(Hold.LISTENER)
    assert told == [True, False]


@pytest.mark.parametrize(("one", "other"), [*itertools.permutations(Hold, 2)])
def test_releasing_one_reason_leaves_the_others(gate: Gate, one: Hold, other: Hold) -> None:
    told: list[bool] = []
    gate.on_change(lambda: told.append(bool(gate.holds)))
    gate.hold(one)
    gate.hold(other)
    gate.release(one)
    assert gate.holds == {other}
    assert told == [True]
    gate.release(other)
    assert not gate.holds
    assert told == [True, False]


async def test_a_get_waits_for_the_last_of_two_reasons() -> None:
    buffers = Buffers()
    gate = buffers.state.gate
    buffers.put({buffers.partition().tp: batch(0, 1)})
    gate.hold(Hold.LOST)
    gate.hold(Hold.CUT_OFF)
    get = asyncio.ensure_future(buffers.gets.one(()))
    await asyncio.sleep(0.01)
    gate.release(Hold.CUT_OFF)  # as a heartbeat's success does
    await asyncio.sleep(0.01)
    assert not get.done()
    gate.release(Hold.LOST)
    assert (await get).offset == 0


def test_what_is_posted_is_raised_once_and_the_same_of_two_only_once(
    state: State, gate: Gate
) -> None:
    assert not gate.is_troubled
    gate.check()
    gate.post(KafkaConnectionError("first"))
    assert gate.is_troubled
    gate.post(KafkaConnectionError("again"))
    gate.post(KafkaStorageError("other"))
    assert str(gate.posted_error) == str(KafkaConnectionError("first"))
    with pytest.raises(KafkaConnectionError, match="first"):
        gate.check()
    assert "first" in state.reads.latest_raised
    with pytest.raises(KafkaStorageError):
        gate.check()
    gate.check()
    assert gate.posted_error is None
    assert not gate.is_troubled


def test_the_gravest_is_raised_first_and_the_others_stay(gate: Gate) -> None:
    gate.post(KafkaConnectionError("posted"))
    gate.die(ZeroDivisionError("died"))
    gate.refuse(stopped)
    with pytest.raises(ConsumerStoppedError, match="stopped"):
        gate.check()
    gate.admit()
    with pytest.raises(KafkaConnectionError):  # what tasks died of before a start is over
        gate.check()
    gate.die(ZeroDivisionError("died"))
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="died"):
            gate.check()


def test_a_listener_that_was_not_told_is_an_error_until_it_is(gate: Gate) -> None:
    untold = [KafkaTimeoutError("slow")] * 3
    gate.leave_untold(lambda: untold.pop() if untold else None)
    assert gate.posted_error is not None
    gate.post(KafkaStorageError("posted"))
    for _ in range(2):
        with pytest.raises(KafkaTimeoutError, match="slow"):
            gate.check()
    untold.clear()
    with pytest.raises(KafkaStorageError):
        gate.check()
    untold.append(KafkaTimeoutError("of another assignment"))
    gate.check()
    assert gate.posted_error is None


def test_a_listeners_error_is_for_one_poll(gate: Gate) -> None:
    gate.post_to_poll(ValueError("first"))
    gate.post_to_poll(ValueError("second"))
    gate.check()
    with pytest.raises(ValueError, match="first"):
        gate.check_poll()
    gate.check_poll()


def test_every_error_makes_waiting_gets_look_again(gate: Gate) -> None:
    told: list[None] = []
    gate.on_change(lambda: told.append(None))
    gate.post(KafkaConnectionError("posted"))
    gate.post_to_poll(ValueError("raised"))
    gate.die(ZeroDivisionError("died"))
    gate.refuse(stopped)
    gate.leave_untold(lambda: None)
    assert len(told) == 5
