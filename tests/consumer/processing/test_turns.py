"""How many callbacks the loop runs for a record of `run`, while there is time for few in a turn."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextvars import Context
from typing import Any

import pytest

from aiokafka_lite.consumer.processing.handling import Handling
from aiokafka_lite.consumer.processing.run import SLICE_S, Run
from aiokafka_lite.processing import Retry
from tests.consumer.processing.acking import Record
from tests.support.buffers import A, Buffers, batch, no_transactions
from tests.support.virtual_time import VirtualTimeLoop

RECORDS = 300
HANDLERS = 200


class CountingLoop(VirtualTimeLoop):
    """Counts what is to be run soon: each step of a task is one."""

    count = 0

    def call_soon(  # type: ignore[override]  # a TypeVarTuple is of Python 3.11
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        self.count += 1
        return super().call_soon(callback, *args, context=context)


@pytest.mark.parametrize("batch_size", [None, 1])
def test_workers_without_time_in_a_turn_cost_no_callbacks_in_each(batch_size: int | None) -> None:
    loop = CountingLoop()

    async def handle_all() -> None:
        done = asyncio.Event()
        handled = 0

        async def handle(given: Record | list[Record]) -> None:
            nonlocal handled
            loop.pass_time(1.5 * SLICE_S)  # as much as a turn has
            await asyncio.sleep(0)
            handled += 1
            if handled == RECORDS:
                done.set()

        buffers = Buffers(A)
        buffers.put({A: batch(0, RECORDS)})
        handling = Handling(
            concurrency=HANDLERS,
            order=None,
            batch_size=batch_size,
            max_uncommitted=10_000,
            retry=Retry(),
            dead_letter=None,
            breaker=None,
        )
        run = Run(
            buffers.state,
            buffers.buffer,
            handle,
            handling,
            budget=buffers.budget,
            hold_s=5.0,
            rng=random.Random(1),
            deliver=no_transactions,
        )
        with run.opened():
            task = asyncio.ensure_future(run.run())
            await done.wait()
            await run.end(loop.time())
            await asyncio.wait([task])

    try:
        loop.run_until_complete(handle_all())
    finally:
        loop.close()
    assert loop.count < 60 * RECORDS
