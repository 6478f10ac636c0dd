"""What code under test may leave behind, and must not: tasks, sockets, timers, lost errors."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

OPEN_FILES = Path("/proc/self/fd")
# Turns of the loop, with a pause now and then, that closed sockets have to disappear: the other
# end may be in this process, and closes its own when it hears of it.
MOST_TURNS = 300


class Held(NamedTuple):
    """What is there at one moment."""

    tasks: frozenset[asyncio.Task[object]]
    sockets: frozenset[str]
    timers: int


def held() -> Held:
    """Return what is there now."""
    loop = asyncio.get_running_loop()
    # asyncio's loop only: uvloop does not tell.
    scheduled: list[asyncio.TimerHandle] = getattr(loop, "_scheduled", [])
    timers = sum(not timer.cancelled() and not _is_brokers(timer) for timer in scheduled)
    return Held(frozenset(asyncio.all_tasks()), frozenset(_sockets()), timers)


def _is_brokers(timer: asyncio.TimerHandle) -> bool:
    """Whether it is the embedded broker's, which keeps the place of a member that went away."""
    module: str = getattr(timer._callback, "__module__", None) or ""  # type: ignore[attr-defined]
    return module.startswith("aiokafka_lite.broker")


def _sockets() -> list[str]:
    found: list[str] = []
    if OPEN_FILES.is_dir():
        for number in os.listdir(OPEN_FILES):
            try:
                target = os.readlink(OPEN_FILES / number)
            except OSError:  # the directory's own, closed by now
                continue
            if target.startswith("socket:"):
                found.append(target)
    return found


@asynccontextmanager
async def nothing_left(*, is_collected: bool = True) -> AsyncIterator[None]:
    """Assert that the block leaves no task, socket, timer or unheard error behind.

    Errors are heard of when garbage is collected, which `is_collected` does.
    """
    loop = asyncio.get_running_loop()
    told: list[dict[str, object]] = []
    handler = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: told.append(context))
    before = held()
    try:
        yield
        for turn in range(MOST_TURNS):
            left = _more(before)
            if not left:
                break
            await asyncio.sleep(0 if turn < MOST_TURNS // 2 else 0.01)
        if is_collected:
            gc.collect()
            await asyncio.sleep(0)
        assert not left, f"left behind: {left}"
        assert not told, f"the loop was told of {told}"
    finally:
        loop.set_exception_handler(handler)


def _more(before: Held) -> list[object]:
    now = held()
    more: list[object] = [*(now.tasks - before.tasks), *(now.sockets - before.sockets)]
    if now.timers > before.timers:
        more.append(f"{now.timers - before.timers} timers")
    return more
