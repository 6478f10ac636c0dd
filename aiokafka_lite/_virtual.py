"""Which event loops have virtual time, and clocks, random numbers and ids on them.

The public names are those of `aiokafka_lite.simulation`, which describes them.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import _get_running_loop
from collections import Counter
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

from aiokafka_lite._chance import UNSEEDED, Chance

START_MS: Final = 1_704_067_200_000
"""The time of day at loop time 0: 2024 began."""
FIRST_PORT: Final = 9_092


class Simulation:
    """What this package keeps for a simulated loop."""

    def __init__(self, seed: int, start_ms: int) -> None:
        self.seed = seed
        self.start_ns = start_ms * 1_000_000
        self._counts: Counter[str] = Counter()

    def next_number(self, kind: str) -> int:
        """Count from 1. Numbers that a process counts would differ in its second simulation."""
        self._counts[kind] += 1
        return self._counts[kind]

    def free_port(self) -> int:
        return FIRST_PORT - 1 + self.next_number("port")


_simulations: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, Simulation]] = WeakKeyDictionary()


def simulate(loop: asyncio.AbstractEventLoop, seed: int, *, start_ms: int = START_MS) -> None:
    """Declare that a loop has virtual time and a simulated network, before anything runs on it.

    Args:
        loop: The loop. It needs no threads, no file descriptors, and no sockets that are real.
        seed: Decides the random numbers and ids of clients and brokers on the loop.
        start_ms: The time of day at loop time 0, in milliseconds since 1970.

    Raises:
        ValueError: The loop is simulated already.
    """
    if loop in _simulations:
        raise ValueError("the loop is simulated already: declare each loop once")
    _simulations[loop] = Simulation(seed, start_ms)


def simulation_of(loop: asyncio.AbstractEventLoop | None) -> Simulation | None:
    return _simulations.get(loop) if _simulations and loop is not None else None


def wall_clock(loop: asyncio.AbstractEventLoop | None) -> Callable[[], int]:
    """Return a function that returns the time of day on a loop, in nanoseconds."""
    simulation = simulation_of(loop)
    if simulation is None or loop is None:
        return time.time_ns
    return lambda: simulation.start_ns + round(loop.time() * 1e9)


def wall_ns() -> int:
    """Return the time of day where this is called, in nanoseconds."""
    return wall_clock(_get_running_loop())()


def wall_ms() -> int:
    return wall_ns() // 1_000_000


def monotonic() -> float:
    """Return the seconds of a clock that never runs backwards, where this is called."""
    loop = _get_running_loop()
    if simulation_of(loop) is None or loop is None:
        return time.monotonic()
    return loop.time()


# How many clients of each seed and name were created on a loop.
_numbers: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, Counter[str]]] = WeakKeyDictionary()
# The sources of functions on simulated loops.
_sources: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Chance]]] = (
    WeakKeyDictionary()
)


def chance_for(seed: int | None, name: str, loop: asyncio.AbstractEventLoop | None) -> Chance:
    """Return the source of a new client or broker on a loop. A simulated loop has a default seed.

    Clients of one seed and name are numbered on each loop: their ids differ, and a run repeats
    them.
    """
    if seed is None:
        if (simulation := simulation_of(loop)) is None:
            return UNSEEDED
        seed = simulation.seed
    name = f"{seed}/{name}"
    if loop is None:
        return Chance(name)
    numbers = _numbers.setdefault(loop, Counter())
    numbers[name] += 1
    return Chance(f"{name}/{numbers[name]}")


def chance_here(name: str) -> Chance:
    """Return the source of functions that belong to no client, on the running loop if any."""
    loop = _get_running_loop()
    if loop is None or simulation_of(loop) is None:
        return UNSEEDED
    sources = _sources.setdefault(loop, {})
    if name not in sources:
        sources[name] = chance_for(None, name, loop)
    return sources[name]
