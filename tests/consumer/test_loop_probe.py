"""The loop's lag, measured by its own clock, and what is named as the cause."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import time
from types import SimpleNamespace

import pytest

from aiokafka_lite._tasks import Event
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.gate import Hold
from aiokafka_lite.consumer.monitoring import loop_probe
from aiokafka_lite.consumer.monitoring.loop_probe import BLOCKED_S, INTERVAL_S, LoopProbe
from aiokafka_lite.events import ConsumerEvent, LoopBlocked
from tests.support.buffers import A, Buffers, batch
from tests.support.cluster import KafkaHandle
from tests.support.reading import reading
from tests.support.rows import rows
from tests.support.states import State
from tests.support.virtual_time import VirtualTimeLoop


def block(duration_s: float) -> None:
    """Have time pass as code does that holds the loop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.pass_time(duration_s)


def probe_of(
    state: State, *, has_deserializers: bool = False, session_timeout_s: float = 10.0
) -> LoopProbe:
    config = ConsumerConfig(session_timeout_ms=int(session_timeout_s * 1000))
    delivery = SimpleNamespace(has_deserializers=has_deserializers)
    return LoopProbe(state.core(config, buffer=SimpleNamespace(delivery=delivery)))


async def next_event(state: State) -> LoopBlocked:
    subscription = state.events.subscribe()
    event: ConsumerEvent = await asyncio.wait_for(subscription.__anext__(), 60)
    assert isinstance(event, LoopBlocked)
    return event


@pytest.mark.virtual_time
async def test_what_the_application_did_with_a_record_is_named() -> None:
    buffers = Buffers(A)
    buffers.put({A: batch(0, 5)})
    probe = probe_of(buffers.state)

    async def handle_records() -> None:
        while True:
            record = await buffers.gets.one(())
            await asyncio.sleep(1)
            if record.offset == 3:
                block(4.0)

    working = asyncio.create_task(handle_records(), name="worker")
    probe.start()
    event = await next_event(buffers.state)
    probe.stop()
    working.cancel()
    assert 4.0 - INTERVAL_S <= event.blocked_s <= 4.0
    assert probe.max_lag_s == event.blocked_s


@pytest.mark.virtual_time
async def test_the_latest_record_and_the_line_that_asks_for_more_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    buffers = Buffers(A)
    buffers.put({A: batch(0, 5)})
    probe = probe_of(buffers.state)

    async def handle_records() -> None:
        while True:
            record = await buffers.gets.one(())
            if record.offset == 4:
                block(4.0)

    probe.start()
    unrelated = Event()
    waiting = asyncio.create_task(unrelated.wait())  # a task of the package
    await asyncio.sleep(0)
    references = sys.getrefcount(unrelated)
    working = asyncio.create_task(handle_records(), name="worker")
    event = await next_event(buffers.state)
    probe.stop()
    working.cancel()
    assert sys.getrefcount(unrelated) == references  # a look at its locals would keep them
    waiting.cancel()
    assert re.fullmatch(
        r"the application, after it received records of t/0 up to offset 4 "
        r"\(task worker, .*test_loop_probe.py:\d+, handle_records\)",
        event.blocker,
    )
    (line,) = [r for r in caplog.records if "event loop was blocked" in r.getMessage()]
    assert line.levelno == logging.WARNING


@pytest.mark.virtual_time
async def test_a_block_of_half_a_session_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    probe = probe_of(State(), session_timeout_s=2.0)
    probe.start()
    for blocked_s in (0.9, 1.0 + INTERVAL_S):
        await asyncio.sleep(1)
        block(blocked_s)
    await asyncio.sleep(1)
    probe.stop()
    levels = [r.levelno for r in caplog.records if "event loop was blocked" in r.getMessage()]
    assert levels == [logging.INFO, logging.WARNING]


@pytest.mark.virtual_time
async def test_without_a_hand_out_the_application_is_not_blamed() -> None:
    buffers = Buffers(A)
    probe = probe_of(buffers.state)
    probe.start()
    asyncio.get_running_loop().call_later(1, block, 0.5)
    event = await next_event(buffers.state)
    assert event.blocker.startswith("other code in this process")
    asyncio.get_running_loop().call_later(1, block, 0.5)
    buffers.state.gate.hold(Hold.LISTENER)
    event = await next_event(buffers.state)
    assert event.blocker.startswith("the rebalance listener")
    probe.stop()


@pytest.mark.virtual_time
async def test_deserialisers_are_named_where_there_are_any() -> None:
    buffers = Buffers(A)
    buffers.put({A: batch(0, 2)})
    probe = probe_of(buffers.state, has_deserializers=True)
    probe.start()
    await buffers.gets.one(())
    block(1.0)
    event = await next_event(buffers.state)
    probe.stop()
    assert event.blocker == (
        "the application or its deserialisers, after it received records of t/0 up to offset 0"
    )


@pytest.mark.virtual_time
async def test_no_tasks_are_named_of_very_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_probe, "MAX_TASKS", 1)
    buffers = Buffers(A)
    buffers.put({A: batch(0, 1)})
    probe = probe_of(buffers.state)
    probe.start()

    async def handle_records() -> None:
        while True:
            await buffers.gets.one(())
            block(1.0)

    working = asyncio.create_task(handle_records(), name="worker")
    assert (await next_event(buffers.state)).blocker.endswith("up to offset 0")
    working.cancel()
    probe.stop()


@pytest.mark.virtual_time
async def test_the_lag_is_that_of_the_timer_that_is_late_by_now() -> None:
    now = asyncio.get_running_loop().time
    probe = probe_of(State())
    probe.start()
    assert probe.lag_now_s(now()) == 0.0
    block(INTERVAL_S + 0.5)
    assert probe.lag_now_s(now()) == pytest.approx(0.5)
    await asyncio.sleep(0.01)
    assert probe.lag_now_s(now()) == probe.lag_s == pytest.approx(0.5)
    block(2.0)
    probe.stop()
    assert probe.lag_now_s(now()) == probe.lag_s


@pytest.mark.virtual_time
async def test_short_turns_are_no_news() -> None:
    state = State()
    events = state.events.subscribe()
    probe = probe_of(state)
    probe.start()
    loop = asyncio.get_running_loop()
    for turn in range(50):
        loop.call_later(turn * INTERVAL_S * 1.3, block, BLOCKED_S * 0.9)
    await asyncio.sleep(20)
    assert state.events.counts == {}
    assert 0 < probe.max_lag_s <= BLOCKED_S
    assert probe.blocked_lately_s(loop.time()) == 0.0
    loop.call_later(1, block, BLOCKED_S + INTERVAL_S + 0.01)
    assert isinstance(await events.__anext__(), LoopBlocked)
    assert probe.blocked_lately_s(loop.time()) > BLOCKED_S
    await asyncio.sleep(60)
    assert probe.blocked_lately_s(loop.time()) == 0.0
    probe.stop()


@pytest.mark.virtual_time
async def test_probes_of_one_loop_share_a_timer_and_measure_each_for_itself() -> None:
    loop = asyncio.get_running_loop()
    state = State()
    probes = [probe_of(state) for _ in range(10)]
    probes[0].start()
    loop.call_later(INTERVAL_S / 2, block, 1.0)
    await asyncio.sleep(2)
    for probe in probes[1:]:
        probe.start()
    loop.call_later(INTERVAL_S / 2, block, 0.5)
    timers = [timer for timer in loop._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
    assert len(timers) == 2  # the probes', and the one just set
    probes[5].stop()
    await asyncio.sleep(1)
    assert 1.0 - INTERVAL_S < probes[0].max_lag_s <= 1.0
    seen = [probe.max_lag_s for probe in probes[1:] if probe is not probes[5]]
    assert all(0.5 - INTERVAL_S - 1e-6 < lag_s <= 0.5 for lag_s in seen)
    assert probes[5].max_lag_s == 0.0
    for probe in probes:
        probe.stop()


@pytest.mark.virtual_time
async def test_a_probe_that_is_stopped_leaves_no_timer() -> None:
    probe = probe_of(State())
    probe.start()
    probe.stop()
    probe.stop()
    with pytest.raises(RuntimeError, match="nothing is going to happen"):
        asyncio.get_running_loop()._run_once()  # type: ignore[attr-defined]


@pytest.mark.real_if_long
async def test_a_slow_handler_of_async_for_is_named(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 3))
    async with reading(kafka, topic) as consumer:
        events = consumer.events()

        async def handle_slowly() -> None:
            async for record in consumer:
                if record.offset == 2:
                    time.sleep(BLOCKED_S + INTERVAL_S + 0.05)  # noqa: ASYNC251 -- what is tested

        working = asyncio.create_task(handle_slowly(), name="worker")
        named = ""
        async for event in events:
            if isinstance(event, LoopBlocked) and topic in event.blocker:
                named = event.blocker
                break
        working.cancel()
        assert f"records of {topic}/0 up to offset 2 (task worker, " in named
        assert "handle_slowly)" in named
