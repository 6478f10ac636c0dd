"""How many callbacks the loop runs for a record of `run`, while there is time for few in a turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from itertools import pairwise
from typing import Any

import pytest

from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.gate import Hold
from aiokafka_lite.consumer.processing.handling import Handling
from aiokafka_lite.consumer.processing.run import SLICE_S, Run
from aiokafka_lite.processing import Retry
from tests.consumer.processing.acking import Record
from tests.consumer.processing.shaping import Shaped
from tests.support.buffers import A, Buffers, batch, no_transactions
from tests.support.virtual_time import VirtualTimeLoop
from tests.support.waiting import until

HANDLERS = 200


class CountingLoop(VirtualTimeLoop):
    """Counts what is to be run soon: each step of a task is one."""

    count = 0

    def call_soon(  # type: ignore[override]  # a TypeVarTuple is of Python 3.11
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        self.count += 1
        return super().call_soon(callback, *args, context=context)


def run_of(
    buffers: Buffers, handle: Callable[[Any], Awaitable[None]], batch_size: int | None
) -> Run:
    """A run with many handlers, for records in any order."""
    handling = Handling(
        concurrency=HANDLERS,
        order=None,
        batch_size=batch_size,
        max_uncommitted=10_000,
        retry=Retry(),
        dead_letter=None,
        breaker=None,
    )
    return Run(
        buffers.state.core(ConsumerConfig(rebalance_hold_ms=5_000), buffer=buffers.buffer),
        handle,
        handling,
        no_transactions,
    )


def callbacks_a_record(records: int, turn_s: float, batch_size: int | None) -> tuple[float, float]:
    """Run handlers that take so long before they let others run.

    Returns:
        How many callbacks there were for a record, and the longest turn of the loop in seconds.
    """
    loop = CountingLoop()
    turns_at: list[float] = []

    async def handle_all() -> None:
        done = asyncio.Event()
        handled = 0

        async def handle(given: Record | list[Record]) -> None:
            nonlocal handled
            loop.pass_time(turn_s)
            await asyncio.sleep(0)
            handled += 1
            if handled == records:
                done.set()

        async def note_turns() -> None:
            while not done.is_set():
                turns_at.append(loop.time())
                await asyncio.sleep(0)

        buffers = Buffers(A)
        buffers.put({A: batch(0, records)})
        run = run_of(buffers, handle, batch_size)
        with run.opened():
            task = asyncio.ensure_future(run.run())
            await asyncio.gather(done.wait(), note_turns())
            await run.end(loop.time())
            await asyncio.wait([task])

    try:
        loop.run_until_complete(handle_all())
    finally:
        loop.close()
    longest_s = max(after - before for before, after in pairwise(turns_at))
    return (loop.count - len(turns_at)) / records, longest_s


@pytest.mark.parametrize("batch_size", [None, 1])
def test_workers_without_time_in_a_turn_cost_no_callbacks_in_each(batch_size: int | None) -> None:
    count, longest_s = callbacks_a_record(300, 1.5 * SLICE_S, batch_size)
    assert count < 60
    assert longest_s < 3.1 * SLICE_S


@pytest.mark.parametrize("batch_size", [None, 1])
def test_workers_without_time_in_a_turn_begin_in_later_ones(batch_size: int | None) -> None:
    loop = CountingLoop()
    begun = 0

    async def handle(given: Record | list[Record]) -> None:
        nonlocal begun
        begun += 1
        loop.pass_time(1.5 * SLICE_S)
        await asyncio.sleep(100)

    async def begin_all() -> None:
        buffers = Buffers(A)
        buffers.put({A: batch(0, 50)})
        run = run_of(buffers, handle, batch_size)
        with run.opened():
            task = asyncio.ensure_future(run.run())
            await asyncio.sleep(10)
            assert begun == 50
            await run.end(loop.time())
            await asyncio.wait([task])

    try:
        loop.run_until_complete(begin_all())
    finally:
        loop.close()


@pytest.mark.parametrize("batch_size", [None, 1])
def test_workers_find_records_in_each_turn_and_none_waits(batch_size: int | None) -> None:
    count, longest_s = callbacks_a_record(2000, 0.5 * SLICE_S / HANDLERS, batch_size)
    assert count < 1.6  # one of them is the handler's own
    assert longest_s < SLICE_S


@pytest.mark.parametrize("batch_size", [None, 1])
def test_workers_are_at_rest_while_records_are_withheld(batch_size: int | None) -> None:
    loop = CountingLoop()

    async def callbacks_while_withheld() -> int:
        buffers = Buffers(A)
        buffers.put({A: batch(0, 1_000)})
        gate, handled = buffers.state.gate, 0

        async def handle(given: Record | list[Record]) -> None:
            nonlocal handled
            loop.pass_time(1.5 * SLICE_S)
            await asyncio.sleep(0)
            handled += 1
            if handled == 50:
                gate.hold(Hold.CUT_OFF)

        run = run_of(buffers, handle, batch_size)
        with run.opened():
            task = asyncio.ensure_future(run.run())
            await until(lambda: bool(gate.holds))
            for _ in range(HANDLERS):
                await asyncio.sleep(0)
            count = loop.count
            for _ in range(HANDLERS):
                await asyncio.sleep(0)
            count = loop.count - count
            await run.end(loop.time())
            await asyncio.wait([task])
        return count - HANDLERS  # its own

    try:
        assert loop.run_until_complete(callbacks_while_withheld()) == 0
    finally:
        loop.close()


@pytest.mark.every_loop
async def test_lists_are_due_in_less_than_a_millisecond() -> None:
    """For such a time uvloop returns a handle that does not know it."""
    case = Shaped(batch_size=100, batch_wait_ms=3, batch_by="key", concurrency=50)
    count = 0
    async with case.running():
        for _ in range(100):
            case.put([b"a", b"b", b"c", b"d"])
            count += 4
            await asyncio.sleep(0.001)
        await until(lambda: len(case.done) == count)
