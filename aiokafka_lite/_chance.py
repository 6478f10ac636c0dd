"""The source of random numbers and ids of one client or broker."""

from __future__ import annotations

import asyncio
import os
import random
from asyncio import _get_running_loop
from collections import Counter
from typing import Final
from weakref import WeakKeyDictionary

from aiokafka_lite._compat import override
from aiokafka_lite.simulation import simulation_of


class Chance(random.Random):
    """Random numbers and ids, which `seed` decides. None: the operating system's entropy."""

    def __init__(self, seed: str | None = None) -> None:
        self.is_seeded = seed is not None
        super().__init__(seed)

    @override
    def __reduce__(self) -> str:
        raise TypeError("a copy would repeat the random numbers and ids of a client")

    def unguessable_bytes(self, count: int) -> bytes:
        """Return bytes for ids and nonces. Only a seed makes them predictable."""
        return self.randbytes(count) if self.is_seeded else os.urandom(count)


# Shared by all clients without a seed, because its state takes 2.5 KiB.
UNSEEDED: Final = Chance()
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=UNSEEDED.seed)

# How many clients of each seed and name were created on a loop.
_numbers: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, Counter[str]]] = WeakKeyDictionary()
# The sources of functions on simulated loops.
_sources: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Chance]]] = (
    WeakKeyDictionary()
)


def chance_for(seed: int | None, name: str, loop: asyncio.AbstractEventLoop | None) -> Chance:
    """Return the source of a new client or broker on a loop.

    Clients of one seed and name on one loop are numbered as they are created, so that their ids
    differ. A new loop begins at one again, so that a program repeats its ids. On a simulated loop,
    its seed is the default.
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
