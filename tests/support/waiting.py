"""Waits until something is so, of which no event tells."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite._compat import timeout
from aiokafka_lite._tasks import TaskScope
from tests.support.rounds import LONG

PATIENCE_S: Final = 60.0 if LONG else 20.0


class Waited(Protocol):
    """What tells of its changes those who wait."""

    async def wait_for_change(self) -> object: ...


async def is_woken(waited: Waited, change: Callable[[], object]) -> bool:
    """Make a change; return whether it wakes the one who waits for one."""
    waiting = asyncio.create_task(waited.wait_for_change())
    await asyncio.sleep(0)
    change()
    await asyncio.sleep(0)
    is_done = waiting.done()
    waiting.cancel()
    return is_done


class HasScope(Protocol):
    """What runs tasks that may fail."""

    @property
    def scope(self) -> TaskScope: ...


async def until(condition: Callable[[], object], *workers: HasScope) -> None:
    """Wait until a condition holds; raise what a task of one of the workers failed by."""
    async with timeout(PATIENCE_S):
        while not condition():
            for worker in workers:
                worker.scope.raise_if_failed()
            await asyncio.sleep(0.005)


async def eventually(read: Callable[[], Awaitable[object]], expected: object) -> None:
    """Wait until an answer is as expected, for some seconds at most."""
    found: object = None
    for _ in range(100):
        found = await read()
        if found == expected:
            return
        await asyncio.sleep(0.05)
    assert found == expected


async def all_buffered(consumer: AIOKafkaConsumer) -> None:
    """Wait until a get would find records of every partition."""
    await until(lambda: all("are buffered" in consumer.explain(tp) for tp in consumer.assignment()))
